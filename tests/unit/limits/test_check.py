"""``oomproof check``: what is printed, in which form, with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oomproof.cli import main
from oomproof.limits.capture import capture
from oomproof.limits.explain import KINDS, NOTICES
from oomproof.units import GIB, MIB
from unit.limits.machines import HOST_TOTAL, V2_MOUNT, Machine
from unit.limits.test_recorded_machines import MACHINES, NAMES

CG = "/sys/fs/cgroup"
CONTRACT = {
    *("schema_version", "status", "limit_bytes", "available_bytes", "limit_bound_by", "available_bound_by"),
    *("candidates", "notices", "soft_limit_bytes", "swap_limit_bytes", "pinned_limit_bytes", "hints"),
}


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(check(capsys, "--json", *arguments)[1])
    return document


def test_this_machine_has_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    document = as_json(capsys)
    assert document.keys() >= CONTRACT
    assert document["schema_version"] == 1
    assert document["status"] in ("limited", "unlimited")
    assert 0 < document["limit_bytes"] <= document["host_total_bytes"]


@pytest.mark.parametrize("name", NAMES)
def test_every_form_works_on_every_recorded_machine(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(MACHINES / name)
    pinned = json.loads((MACHINES / name / "expected.json").read_text())
    document = as_json(capsys, "--root", root, "--explain")
    assert document["limit_bytes"] == pinned["limit"]
    assert document["explanation"]
    code, out, err = check(capsys, "--root", root, "--explain")
    assert (code, err) == (0, "")
    assert document["limit_bound_by"] in out
    assert all(f"{notice['code']}: " in out for notice in document["notices"])


def test_the_table_names_value_usage_headroom_file_and_verdict(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.v2("/").level_v2(CG, limit=GIB, usage=GIB // 2)
    out = check(capsys, "--root", str(machine.root))[1]
    row = next(line for line in out.splitlines() if line.startswith("cgroup v2 /"))
    assert " ".join(row.split()) == (
        "cgroup v2 / 1.00 GiB 512.00 MiB 512.00 MiB 512.00 MiB binds /sys/fs/cgroup/memory.max"
    )
    assert "available  512.00 MiB (cgroup v2 /)" in out


def test_unknown_is_null_and_an_error_that_names_cause_and_way_out(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.v2("/").level_v2(CG, limit="junk")
    code, out, err = check(capsys, "--json", "--root", str(machine.root))
    document = json.loads(out)
    assert (code, document["status"], document["limit_bytes"]) == (125, "unknown", None)
    assert err.count("\n") == 1
    assert "/sys/fs/cgroup/memory.max holds 'junk'" in err
    assert "--limit" in err


def test_an_empty_machine_is_one_line_of_error(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = check(capsys, "--root", str(machine.root))
    assert (code, err.count("\n")) == (125, 1)
    assert "Traceback" not in err


def test_bytes_that_are_not_utf8_are_printed_escaped(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.host().mounts(V2_MOUNT).member(b"0::/\xff\x1b[31m").root_v2()
    machine.level_v2(CG.encode() + b"/\xff\x1b[31m", limit=GIB)
    document = as_json(capsys, "--root", str(machine.root))
    assert document["limit_bound_by"] == "cgroup v2 /\\xff\\x1b[31m"
    assert "\x1b" not in check(capsys, "--root", str(machine.root))[1]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--root", "/nowhere"), "/nowhere does not exist"),
        (("--root", __file__), "is no bundle"),
        (("capture",), "capture needs a file"),
        (("capture", "/nowhere/x.tar"), "cannot write the bundle"),
        (("capture", "x.tar", "--watch"), "one picture"),
    ],
)
def test_wrong_usage_is_one_line_and_no_traceback(
    arguments: tuple[str, ...], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = check(capsys, *arguments)
    assert code in (2, 125)
    assert err.count("\n") == 1
    assert cause in err


def test_a_start_is_quick_and_loads_nothing_heavy() -> None:
    heavy = "tarfile ctypes threading subprocess tempfile socket asyncio multiprocessing sqlite3 logging"
    program = (
        "import sys; from oomproof.cli import main; main(['check']);"
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_watch_prints_when_the_limit_changes(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    command = [sys.executable, "-m", "oomproof", "check", "--watch", "--json", "--root", str(machine.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            assert json.loads(watching.stdout.readline())["limit_bytes"] == GIB
            machine.file(f"{CG}/memory.max", 512 * MIB)
            assert json.loads(watching.stdout.readline())["limit_bytes"] == 512 * MIB
        finally:
            watching.terminate()


def test_a_watch_that_is_interrupted_exits_as_a_signalled_program_does(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    command = [sys.executable, "-m", "oomproof", "check", "--watch", "--root", str(machine.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "limited: limit 1.00 GiB (cgroup v2 /), available 1.00 GiB\n"
        time.sleep(0.1)
        watching.send_signal(2)
        _, err = watching.communicate(timeout=20)
    assert (watching.returncode, err) == (130, "")


def test_a_watch_under_nohup_outlives_the_terminal(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    watch = [sys.executable, "-m", "oomproof", "check", "--watch", "--json", "--root", str(machine.root)]
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *watch]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            watching.stdout.readline()
            watching.send_signal(signal.SIGHUP)
            machine.file(f"{CG}/memory.max", 512 * MIB)
            assert json.loads(watching.stdout.readline())["limit_bytes"] == 512 * MIB
        finally:
            watching.terminate()


def test_a_watched_bundle_is_taken_away_when_the_watch_is_ended(machine: Machine, tmp_path: Path) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    bundle = tmp_path / "m.tar"
    capture(bundle, machine.root)
    (tmp_path / "unpacked").mkdir()
    command = [sys.executable, "-m", "oomproof", "check", "--watch", "--root", str(bundle)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "unpacked")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        assert list((tmp_path / "unpacked").iterdir())
        watching.terminate()
        _, err = watching.communicate(timeout=20)
    assert (watching.returncode, err) == (143, b"")
    assert not list((tmp_path / "unpacked").iterdir())


@pytest.mark.parametrize("page", ["docs/limits.md"])
def test_the_docs_explain_every_notice_and_kind(page: str) -> None:
    project = Path(__file__).parents[3]
    text = (project / page).read_text()
    assert not [code for code in NOTICES if f"`{code}`" not in text]
    assert not [kind.value for kind in KINDS if f"`{kind.value}`" not in text]


def test_every_notice_that_the_code_can_give_is_explained() -> None:
    source = Path(__file__).parents[3] / "src/oomproof/limits"
    given = set()
    for name in ("discovery.py", "notices.py", "detect.py"):
        text = (source / name).read_text().replace("\n", " ")
        for start in text.split("Notice(")[1:]:
            first = start.strip().split(",")[0]
            if first.startswith('"'):
                given.add(first.strip('"'))
    assert len(given) > 15
    assert given | {"limit_unreadable", "soft_limit_unreadable", "swap_limit_unreadable"} == set(NOTICES)


def test_hints_are_printed_as_not_enforced(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.v2("/").level_v2(CG).file("/proc/self/environ", b"MEMORY_LIMIT=1GiB\0HOME=/root")
    document = as_json(capsys, "--root", str(machine.root))
    assert document["hints"][0] | {"message": ""} == {
        "code": "memory_limit",
        "message": "",
        "source": "MEMORY_LIMIT",
        "value_bytes": GIB,
    }
    assert document["limit_bytes"] == HOST_TOTAL
    assert "Not enforced here." in check(capsys, "--root", str(machine.root))[1]
