"""The verbs of the command line, whole, in real leaf cgroups: what they print and how they exit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.launching import HOG, PATIENCE_S, wait_until
from oomproof.leaf import Leaf, make_leaf
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LIMIT = 96 * MIB
OOMPROOF = [sys.executable, "-m", "oomproof"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "OOMPROOF_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture
def container() -> Iterator[Leaf]:
    """A cgroup with a limit, as a container has one."""
    with make_leaf("test") as leaf:
        leaf.set_limit(LIMIT)
        yield leaf


def oomproof(
    *arguments: str, environ: dict[str, str], inside: Leaf | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*OOMPROOF, *arguments]
    if inside is not None:
        command = ["sh", "-c", f'echo 0 > "{inside.join_path}" && exec "$@"', "sh", *command]
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, timeout=PATIENCE_S, check=False
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_plan_is_made_of_the_limit_and_the_probe_and_adds_up(
    environ: dict[str, str], container: Leaf
) -> None:
    plan = document(oomproof("plan", "--json", environ=environ, inside=container))
    terms = {term["name"]: term["bytes"] for term in plan["terms"]}
    assert plan["probed"] is True
    assert sum(terms.values()) == plan["budget_bytes"]
    assert LIMIT // 2 < plan["budget_bytes"] < LIMIT - 24 * MIB
    assert terms["available"] <= LIMIT
    assert terms["probe_shortfall"] < 0


def test_plan_lives_up_to_its_word(environ: dict[str, str]) -> None:
    planned = document(oomproof("plan", "--json", "--limit", str(LIMIT), environ=environ))["budget_bytes"]
    settings = ["--limit", str(LIMIT), "--budget", str(planned), "--retries", "0"]
    done = oomproof("run", *settings, "--", *HOG, "{budget}", environ=environ)
    assert done.returncode == 0, done.stderr


def test_bench_reports_the_budget_that_worked(environ: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    settings = [
        "--limit",
        str(LIMIT),
        "--budget",
        str(LIMIT),
        "--on-oom",
        "margin:50%",
        "--report",
        str(report),
    ]
    done = oomproof("bench", *settings, "--", *HOG, "{budget}", environ=environ)
    assert done.returncode == 0, done.stderr
    told = json.loads(report.read_text())
    assert [attempt["verdict"] for attempt in told["attempts"]] == ["oom_kill", "exited"]
    assert told["budget_bytes"] == told["attempts"][-1]["budget_bytes"] == LIMIT - LIMIT // 4
    assert "works with a budget of" in done.stderr


def test_entrypoint_gives_the_program_what_the_benchmark_needed(
    environ: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "oomproof.toml"
    benchmark = json.dumps([*HOG, "{budget}"])
    config.write_text(
        f'limit = {LIMIT}\nbudget = {LIMIT}\nprobe = false\non-oom = "shrink:50%"\nbench = {benchmark}\n'
        'command = ["sh", "-c", "echo engine: $OOMPROOF_BUDGET_BYTES {budget_mib}; exit 7"]\n'
    )
    done = oomproof("entrypoint", "--config", str(config), environ=environ)
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"engine: {LIMIT // 2} {LIMIT // 2 // MIB}\n"


def test_entrypoint_does_not_start_the_program_after_a_failing_benchmark(environ: dict[str, str]) -> None:
    settings = ["--limit", str(LIMIT), "--no-probe", "--bench", "sh -c 'exit 5'"]
    done = oomproof("entrypoint", *settings, "--", "echo", "started", environ=environ)
    assert (done.returncode, done.stdout) == (5, "")
    assert "the program is not started" in done.stderr


def test_entrypoint_takes_flags_before_environment(environ: dict[str, str]) -> None:
    environ |= {"OOMPROOF_LIMIT": "1TiB", "OOMPROOF_PROBE": "no", "OOMPROOF_HISTORY": "none"}
    done = oomproof("entrypoint", "--limit", "64MiB", "--", "echo", "{budget_mib}", environ=environ)
    assert (done.returncode, done.stdout) == (0, "48\n")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed")
def test_entrypoint_as_pid_1_reaps_orphans_and_passes_sigterm_on(environ: dict[str, str]) -> None:
    script = (
        "trap 'echo got TERM; exit 0' TERM\n"
        "for i in 1 2 3 4 5; do (true & exec true) & done\n"
        "sleep 1; echo zombies: $(grep -l '^State:.Z' /proc/[0-9]*/status | wc -l)\n"
        "echo parent: $PPID; while :; do sleep 0.1; done"
    )
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    settings = ["entrypoint", "--no-probe", "--limit", "64MiB", "--history", "none"]
    process = subprocess.Popen(
        [*namespace, *OOMPROOF, *settings, "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert lines == ["zombies: 0\n", "parent: 1\n"]
    [pid_1] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(pid_1), signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "got TERM\n"), err


def test_an_attempt_is_in_the_history_before_and_after(environ: dict[str, str]) -> None:
    from oomproof.history.model import default_path
    from oomproof.history.store import History

    settings = ["run", "--limit", str(LIMIT), "--budget", str(LIMIT), "--on-oom", "shrink:50%"]
    done = oomproof(*settings, "--", *HOG, "{budget}", environ=environ)
    assert done.returncode == 0, done.stderr
    with History.open(default_path(environ)) as history:
        attempts = history.attempts()
    assert [attempt["verdict"] for attempt in attempts] == ["oom_kill", "exited"]
    assert [attempt["budget_bytes"] for attempt in attempts] == [LIMIT, LIMIT // 2]
    assert attempts[0]["next_budget_bytes"] == LIMIT // 2
    assert attempts[0]["peak_bytes"] == pytest.approx(LIMIT, rel=0.05)


def test_sigterm_during_a_probe_starts_nothing(environ: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*OOMPROOF, "entrypoint", "--limit", "512MiB", "--history", "none", "--", "echo", "started"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )

    def probing() -> bool:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return bool(children.strip()) or process.poll() is not None

    wait_until(probing, "the probe's child")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), err


def test_a_program_that_says_so_itself_gets_less_and_the_hook_is_told(environ: dict[str, str]) -> None:
    rules = ["--oom-pattern", "bad_alloc", "--on-oom-exec", "sh -c 'echo hook: $OOMPROOF_VERDICT'"]
    program = 'test $OOMPROOF_ATTEMPT -gt 1 && exec echo {budget_mib}; echo "std::bad_alloc" >&2; exit 1'
    settings = ["--limit", "100MiB", "--budget", "80MiB", "--history", "none"]
    done = oomproof("run", *settings, *rules, "--", "sh", "-c", program, environ=environ)
    assert (done.returncode, done.stdout) == (0, "hook: in_process_oom\n72\n"), done.stderr


def test_a_failure_is_tried_again_when_asked_for_with_the_same_budget(environ: dict[str, str]) -> None:
    program = "echo {budget_mib}; exit $((OOMPROOF_ATTEMPT == 1))"
    settings = ["--limit", "100MiB", "--budget", "80MiB", "--history", "none", "--restart", "on-failure"]
    done = oomproof("run", *settings, "--", "sh", "-c", program, environ=environ)
    assert (done.returncode, done.stdout) == (0, "80\n80\n"), done.stderr


def test_a_benchmark_that_was_told_to_stop_is_followed_by_no_program(environ: dict[str, str]) -> None:
    bench = "sh -c 'trap \"exit 0\" TERM; echo benchmark; while :; do sleep 0.05; done'"
    settings = ["entrypoint", "--no-probe", "--limit", "64MiB", "--history", "none", "--bench", bench]
    process = subprocess.Popen(
        [*OOMPROOF, *settings, "--", "echo", "program"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "benchmark\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, ""), err
    assert "the program is not started" in err


@pytest.mark.parametrize(("received", "sent"), [("TERM", "USR1"), ("HUP", "TERM"), ("TERM", "INT")])
def test_a_stop_that_is_passed_on_as_another_signal_is_a_stop(
    environ: dict[str, str], received: str, sent: str
) -> None:
    program = f"trap 'exit 1' {sent}; echo program; while :; do sleep 0.05; done"
    mapping = f"{received}:{sent}"
    settings = ["--signal-map", mapping, "--restart", "always", "--no-leaf", "--history", "none"]
    process = subprocess.Popen(
        [*OOMPROOF, "run", *settings, "--", "sh", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "program\n"
    process.send_signal(signal.Signals[f"SIG{received}"])
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, ""), err
    assert "stopped" in err


def test_a_limit_that_cannot_be_set_closes_the_stream_of_events(
    environ: dict[str, str], tmp_path: Path
) -> None:
    events = tmp_path / "events.jsonl"
    settings = ["--limit", "64MiB", "--budget", "32MiB", "--history", "none", "--events", str(events)]
    hide = 'umount -l /sys/fs/cgroup/memory 2>/dev/null; mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to hide the cgroup filesystem")
    command = ["unshare", "--mount", "sh", "-c", hide, "sh", *OOMPROOF, "run", *settings, "--", "true"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 125, done.stderr
    planned, finished = (json.loads(line) for line in events.read_text().splitlines())
    assert (planned["event"], finished["event"]) == ("planned", "finished")
    assert (finished["exit_status"], finished["verdict"]) == (125, "not_started")
    assert "leave --limit out" in done.stderr
