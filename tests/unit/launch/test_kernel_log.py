"""The kernel's own lines about kills, as Linux 5.10 to 6.18 write them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from oomproof.launch.kernel_log import parse_kills
from oomproof.launch.leftovers import SharedMemory
from oomproof.launch.model import KernelKill

MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/a,task_memcg=/a/leaf,task=hog,pid=17,uid=0"
)
KILLED = "Memory cgroup out of memory: Killed process 17 (hog) total-vm:9140kB, anon-rss:896kB, UID:0"


def test_a_kill_against_a_cgroups_limit_is_one_victim_from_two_lines() -> None:
    assert list(parse_kills([MEMCG, KILLED])) == [KernelKill(17, "hog", "CONSTRAINT_MEMCG", "/a", "/a/leaf")]


def test_a_kill_because_the_host_is_short_names_no_limiting_cgroup() -> None:
    line = (
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,"
        "global_oom,task_memcg=/b,task=a,pid=b,c,pid=18,uid=1000"
    )
    assert list(parse_kills([line])) == [KernelKill(18, "a,pid=b,c", "CONSTRAINT_NONE", None, "/b")]


def test_a_group_kill_has_one_chosen_victim_and_others_along_with_it() -> None:
    along = "Memory cgroup out of memory: Killed process 19 (child (x)) total-vm:1kB, anon-rss:1kB"
    first, second = parse_kills([MEMCG, KILLED, along])
    assert (first.pid, second.pid, second.comm) == (17, 19, "child (x)")
    assert second.oom_memcg == "/a"


def test_a_rate_limited_log_still_names_the_victim() -> None:
    assert list(parse_kills([KILLED])) == [KernelKill(17, "hog", "CONSTRAINT_UNKNOWN", None, None)]


def test_other_lines_are_no_kills() -> None:
    assert list(parse_kills(["", "hog invoked oom-killer: gfp_mask=0xcc0", "memory: usage 65536kB"])) == []


def test_new_files_in_shared_memory_are_named_with_their_size() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        (directory / "earlier").write_bytes(b"x")
        shared_memory = SharedMemory(directory)
        assert shared_memory.new_files() == ()
        (directory / "arena").write_bytes(b"x" * 8192)
        (sentence,) = shared_memory.new_files()
    assert "8.00 KiB" in sentence
    assert "arena" in sentence
    assert "earlier" not in sentence


def test_a_missing_shared_memory_is_no_trouble(tmp_path: Path) -> None:
    assert SharedMemory(tmp_path / "none").new_files() == ()
