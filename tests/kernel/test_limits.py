"""The answer on the running kernel, compared with what the kernel enforces: just under it a child lives,
just over it a child dies. Real leaf cgroups, v1 or v2, whichever this kernel has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oomproof.leaf import Leaf, make_leaf
from oomproof.limits import detect_limits, with_leaf_limit
from oomproof.limits.capture import capture
from oomproof.limits.model import LimitReport, Status
from oomproof.limits.watch import watch_limits
from oomproof.units import KIB, MIB

pytestmark = pytest.mark.kernel

LIMIT = 96 * MIB
SLACK = 4 * MIB
"""What a child costs besides what it touches (page tables, per-CPU charges), at most."""

# Joins the cgroup, answers with the report as the child sees it, then touches that much less or more.
CHILD = """
import json, mmap, os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write("0")
from oomproof.limits import detect_limits
from oomproof.limits.report import report_as_json
report = detect_limits()
print(json.dumps(report_as_json(report)), flush=True)
if len(sys.argv) > 2:
    size = report.available_bytes + int(sys.argv[2])
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, size, 4096):
        memory[offset] = 1
    print("lived", flush=True)
"""


@pytest.fixture
def parent() -> Iterator[Path]:
    """A cgroup below the own one that can itself have limited cgroups below it."""
    with make_leaf("limits") as leaf:
        control = leaf.directory / "cgroup.subtree_control"
        if control.exists():
            control.write_text("+memory")
        yield leaf.directory


@pytest.fixture
def child(parent: Path) -> Iterator[Path]:
    """A cgroup below `parent`."""
    directory = parent / "child"
    directory.mkdir()
    yield directory
    directory.rmdir()


def set_limit(directory: Path, limit: int) -> None:
    v1 = directory / "memory.limit_in_bytes"
    (v1 if v1.exists() else directory / "memory.max").write_text(str(limit))
    if (swap := directory / "memory.swap.max").exists():
        swap.write_text("0")
    memsw = directory / "memory.memsw.limit_in_bytes"
    if v1.exists() and memsw.exists():
        memsw.write_text(str(limit))


def run_child(directory: Path, *more: int) -> tuple[dict[str, Any], str, int]:
    """The child's own report, what it said after touching, and how it ended."""
    command = [sys.executable, "-c", CHILD, str(directory), *map(str, more)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    report, _, rest = ended.stdout.partition("\n")
    assert report, ended.stderr
    return json.loads(report), rest.strip(), ended.returncode


@pytest.mark.parametrize("limited", ["own", "parent", "both"])
def test_the_limit_of_the_tightest_level_is_found(parent: Path, child: Path, limited: str) -> None:
    if limited != "own":
        set_limit(parent, LIMIT)
    if limited != "parent":
        set_limit(child, LIMIT if limited == "own" else LIMIT // 2)
    report, _, _ = run_child(child)
    binding = child if limited != "parent" else parent
    assert report["status"] == "limited"
    assert report["limit_bytes"] == (LIMIT // 2 if limited == "both" else LIMIT)
    assert str(report["limit_bound_by"]).endswith(f"/{binding.name}")
    assert report["cgroup"]["directory"] == str(child)


@pytest.mark.parametrize("limited", ["own", "parent"])
def test_touching_just_under_the_answer_lives_and_just_over_dies(
    parent: Path, child: Path, limited: str
) -> None:
    set_limit(child if limited == "own" else parent, LIMIT)
    report, said, code = run_child(child, -SLACK)
    assert LIMIT // 2 < report["available_bytes"] <= LIMIT
    assert (said, code) == ("lived", 0)
    _, said, code = run_child(child, SLACK)
    assert (said, code) == ("", -signal.SIGKILL)


def test_page_cache_that_is_clean_and_inactive_is_given_back(
    parent: Path, child: Path, tmp_path: Path
) -> None:
    """Half the limit is filled with clean cache by reading a file inside; the promised headroom holds."""
    set_limit(child, LIMIT)
    file = tmp_path / "cache"
    file.write_bytes(os.urandom(MIB) * (LIMIT // 2 // MIB))
    reading = (
        "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write('0');"
        "fd = os.open(sys.argv[2], os.O_RDONLY); os.fsync(fd);"
        "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED);"
        "print(sum(len(chunk) for chunk in iter(lambda: os.read(fd, 1 << 20), b'')))"
    )
    subprocess.run([sys.executable, "-c", reading, str(child), str(file)], check=True, capture_output=True)
    report, said, code = run_child(child, -SLACK)
    row = next(row for row in report["candidates"] if row["verdict"] == "binds")
    if row["usage_bytes"] < LIMIT // 4:
        pytest.skip(f"reading {file} charges no page cache: it lies in memory (tmpfs)")
    assert row["available_bytes"] > row["limit_bytes"] - row["usage_bytes"] + LIMIT // 4
    assert (said, code) == ("lived", 0)


def test_shared_memory_is_in_use_and_not_page_cache_that_could_be_dropped(child: Path) -> None:
    set_limit(child, LIMIT)
    program = (
        "import json, mmap, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write('0');"
        "from oomproof.limits import detect_limits; from oomproof.limits.report import report_as_json;"
        f"shared = mmap.mmap(-1, {LIMIT // 2});"
        f"[shared.write(b'x' * {MIB}) for _ in range({LIMIT // 2 // MIB})];"
        "print(json.dumps(report_as_json(detect_limits())))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(child)], check=True, capture_output=True, text=True
    )
    row = next(row for row in json.loads(ended.stdout)["candidates"] if row["verdict"] == "binds")
    assert row["usage_bytes"] >= LIMIT // 2
    assert row["available_bytes"] <= LIMIT // 2 + SLACK
    assert row["available_optimistic_bytes"] <= LIMIT // 2 + SLACK


def test_a_sibling_that_fills_the_parent_takes_the_headroom(parent: Path, child: Path) -> None:
    set_limit(parent, LIMIT)
    set_limit(child, LIMIT // 2)
    sibling = parent / "sibling"
    sibling.mkdir()
    hog = (
        "import sys; open(sys.argv[1] + '/cgroup.procs', 'w').write('0');"
        f"filled = bytearray(b'x') * {LIMIT * 3 // 4}; print('full', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hog, str(sibling)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as filling:
        assert filling.stdout is not None
        assert filling.stdout.readline() == "full\n"
        report, _, _ = run_child(child)
        filling.communicate("", timeout=60)
    sibling.rmdir()
    assert str(report["limit_bound_by"]).endswith("/child")
    assert str(report["available_bound_by"]).endswith(f"/{parent.name}")
    assert report["available_bytes"] < LIMIT // 4


def test_the_history_names_a_kill_in_this_cgroup(parent: Path, child: Path) -> None:
    set_limit(child, LIMIT)
    run_child(child, SLACK)
    report, _, _ = run_child(child)
    assert report["facts"]["oom_kill"] >= 1
    assert "oom_killed_before" in {notice["code"] for notice in report["notices"]}


def in_fork(directory: Path) -> LimitReport:
    """The report of a forked child after it moved: nothing found before the fork may be kept."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            (directory / "cgroup.procs").write_text("0")
            limit = detect_limits().limit_bytes
            os.write(write_end, str(limit).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return with_leaf_limit(detect_limits(), int(told))


def test_a_fork_that_migrates_sees_its_new_limit(child: Path) -> None:
    before = detect_limits()
    set_limit(child, LIMIT)
    moved = in_fork(child)
    assert moved.limit_bytes == LIMIT
    assert detect_limits().limit_bytes == before.limit_bytes


def test_a_limit_lowered_while_running_is_seen_on_the_next_call(child: Path) -> None:
    set_limit(child, LIMIT)
    program = (
        "import sys; open(sys.argv[1] + '/cgroup.procs', 'w').write('0');"
        "from oomproof.limits import detect_limits\n"
        "for line in sys.stdin: print(detect_limits().limit_bytes, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(child)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        for limit in (LIMIT, LIMIT // 2, LIMIT):
            lower_first = (child / "memory.memsw.limit_in_bytes").exists() and limit < LIMIT
            (set_lower if lower_first else raise_limit)(child, limit)
            asked.stdin.write("\n")
            asked.stdin.flush()
            assert int(asked.stdout.readline()) == limit
        asked.stdin.close()


def set_lower(directory: Path, limit: int) -> None:
    """v1 keeps memsw at or above the limit, so the limit goes down first."""
    (directory / "memory.limit_in_bytes").write_text(str(limit))
    (directory / "memory.memsw.limit_in_bytes").write_text(str(limit))


def raise_limit(directory: Path, limit: int) -> None:
    """v1 keeps memsw at or above the limit, so memsw goes up first."""
    if (memsw := directory / "memory.memsw.limit_in_bytes").exists():
        memsw.write_text(str(limit))
    set_limit(directory, limit)


def test_a_write_to_the_kernels_file_wakes_a_watch(child: Path, tmp_path: Path) -> None:
    """Watched from a root whose only cgroup mount is the child's, by the process that stays outside."""
    set_limit(child, LIMIT)
    root = fake_root(tmp_path, child)
    changed = threading.Event()
    with watch_limits(lambda *_: changed.set(), root=root, interval_seconds=3600) as watch:
        assert watch.report.limit_bytes == LIMIT
        raise_limit(child, 2 * LIMIT)
        assert changed.wait(20)
        assert watch.report.limit_bytes == 2 * LIMIT


def fake_root(root: Path, directory: Path) -> Path:
    """A root with the real cgroup directory in it by a symbolic link, and the process placed there."""
    version = 2 if (directory / "memory.max").exists() else 1
    (root / "proc/self").mkdir(parents=True)
    (root / "cg").symlink_to(directory)
    (root / "proc/meminfo").write_bytes(Path("/proc/meminfo").read_bytes())
    kind = "cgroup2 c rw" if version == 2 else "cgroup c rw,memory"
    (root / "proc/self/mountinfo").write_text(f"30 23 0:26 / /cg rw - {kind}\n")
    (root / "proc/self/cgroup").write_text("0::/\n" if version == 2 else "4:memory:/\n")
    return root


def test_the_running_machine_has_a_known_answer_that_replays(tmp_path: Path) -> None:
    report = detect_limits()
    assert report.status is not Status.UNKNOWN
    assert report.limit_bytes is not None
    assert report.host_total_bytes is not None
    assert report.limit_bytes <= report.host_total_bytes
    assert report.host_total_bytes % KIB == 0
    assert capture(tmp_path / "machine.tar.gz").limit_bytes == report.limit_bytes


def test_a_leaf_limit_said_beforehand_is_what_the_leaf_then_has() -> None:
    promised = with_leaf_limit(detect_limits(), LIMIT)
    with make_leaf("limits") as leaf:
        leaf.set_limit(LIMIT)
        report, _, _ = run_child(leaf.directory)
        assert isinstance(leaf, Leaf)
    assert report["limit_bytes"] == promised.limit_bytes == LIMIT
