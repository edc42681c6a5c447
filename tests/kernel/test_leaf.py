"""Leaf cgroups on the real kernel: limits that hold, counters that move, nothing left behind."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.launching import HOG, wait_until
from oomproof.errors import LeafUnavailable
from oomproof.leaf import Leaf, make_leaf
from oomproof.leaf.v2 import SUPERVISOR_NAME
from oomproof.limits.discovery import find_memory_cgroup
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LIMIT = 64 * MIB


@pytest.fixture
def leaf() -> Iterator[Leaf]:
    with make_leaf("test") as leaf:
        yield leaf


def start_in(cgroup: Path, *command: str) -> subprocess.Popen[str]:
    entering = ["sh", "-c", f'echo 0 > "{cgroup}/cgroup.procs" && exec "$@"', "sh", *command]
    return subprocess.Popen(entering, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_leaf_lies_below_the_own_cgroup(leaf: Leaf) -> None:
    own = find_memory_cgroup()
    assert own is not None
    assert leaf.directory.parent in (own.directory, own.directory.parent)
    assert leaf.directory.is_dir()
    assert leaf.limit_bytes() is None


def test_its_limit_kills_and_its_counter_tells(leaf: Leaf) -> None:
    leaf.set_limit(LIMIT)
    assert leaf.limit_bytes() == LIMIT
    assert leaf.events().oom_kill == 0
    hog = start_in(leaf.directory, *HOG, str(2 * LIMIT))
    hog.communicate(timeout=60)
    assert hog.returncode == -9
    assert leaf.events().oom_kill == 1
    peak = leaf.peak_bytes()
    assert peak is not None
    assert LIMIT - 2 * MIB < peak <= LIMIT


def test_a_limit_can_be_raised_and_lowered(leaf: Leaf) -> None:
    for limit in (LIMIT, 2 * LIMIT, LIMIT // 2):
        leaf.set_limit(limit)
        assert leaf.limit_bytes() == limit


def test_below_the_limit_a_process_lives_and_its_usage_is_counted(leaf: Leaf) -> None:
    leaf.set_limit(LIMIT)
    hog = start_in(leaf.directory, *HOG, str(LIMIT // 2), "60")
    wait_until(lambda: leaf.usage_bytes() >= LIMIT // 2, "the memory to be touched")
    assert leaf.processes() == [hog.pid]
    assert leaf.stat()
    assert leaf.kill_all() == []
    hog.communicate(timeout=60)
    assert hog.returncode == -9
    assert leaf.events().oom_kill == 0


def test_a_kill_makes_the_watched_descriptor_ready(leaf: Leaf) -> None:
    leaf.set_limit(LIMIT)
    fd, mask = leaf.watch()
    try:
        poller = select.poll()
        poller.register(fd, mask)
        assert not poller.poll(0)
        start_in(leaf.directory, *HOG, str(2 * LIMIT)).communicate(timeout=60)
        wait_until(lambda: leaf.events().oom_kill == 1, "the counter")
        assert poller.poll(10_000)
        leaf.acknowledge(fd)
        wait_until(lambda: leaf.acknowledge(fd) or not poller.poll(0), "quiet after the acknowledgement")
    finally:
        os.close(fd)


def test_remove_ends_everything_inside_however_deep() -> None:
    leaf = make_leaf("test")
    nested = leaf.directory / "a" / "b"
    nested.mkdir(parents=True)
    sleepers = [start_in(nested, "sleep", "600"), start_in(leaf.directory / "a", "sleep", "600")]
    wait_until(lambda: len(leaf.processes()) == len(sleepers), "both to be inside")
    leaf.remove()
    assert not leaf.directory.exists()
    for sleeper in sleepers:
        sleeper.communicate(timeout=60)
        assert sleeper.returncode == -9
    leaf.remove()  # a second time changes nothing


def test_kills_in_a_nested_cgroup_are_counted(leaf: Leaf) -> None:
    leaf.set_limit(LIMIT)
    nested = leaf.directory / "nested"
    nested.mkdir()
    start_in(nested, *HOG, str(2 * LIMIT)).communicate(timeout=60)
    assert leaf.events().oom_kill == 1


def test_nested_cgroups_that_come_and_go_disturb_no_reading(leaf: Leaf) -> None:
    churn = f'cd "{leaf.directory}"; while :; do mkdir a b 2>/dev/null; rmdir b a 2>/dev/null; done'
    churner = subprocess.Popen(["sh", "-c", churn])
    try:
        for _ in range(300):
            assert leaf.events().oom_kill == 0
            assert leaf.processes() == []
    finally:
        churner.kill()
        churner.wait()


def test_sweeping_never_keeps_a_leaf_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomproof.leaf.place._STALE_AFTER_S", 0.0)
    monkeypatch.setattr("os.listdir", lambda _directory: ["oomproof-gone-999999999-0"])
    make_leaf("test").remove()


def test_a_process_that_forks_all_the_time_is_ended(leaf: Leaf) -> None:
    forker = start_in(leaf.directory, "sh", "-c", "while :; do sleep 0.001 & done 2>/dev/null")
    wait_until(lambda: len(leaf.processes()) > 5, "some forks")
    assert leaf.kill_all(timeout_s=30) == []
    forker.communicate(timeout=60)
    assert leaf.processes() == []


def test_the_empty_leaf_of_a_dead_process_is_swept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "from oomproof.leaf import make_leaf; print(make_leaf('stale').directory)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    stale = Path(done.stdout.strip())
    with make_leaf("test"):
        assert stale.exists(), "too young to be sure"
    monkeypatch.setattr("oomproof.leaf.place._STALE_AFTER_S", 0.0)
    time.sleep(0.05)
    with make_leaf("test"):
        assert not stale.exists()


_LEAF_IN_A_FULL_CGROUP = """
import json, sys
from pathlib import Path
from oomproof.errors import LeafUnavailable
from oomproof.leaf import make_leaf
def own():
    return Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].rpartition(":")[2]
before = own()
try:
    with make_leaf("inner") as leaf:
        leaf.set_limit(64 << 20)
        during = own()
        answer = {"during": during.removeprefix(before), "limit": leaf.limit_bytes()}
    answer["after"] = own().removeprefix(before)
    answer["left"] = [d.name for d in leaf.directory.parent.iterdir() if d.is_dir()]
except LeafUnavailable as error:
    answer = {"unavailable": str(error)}
print(json.dumps(answer))
"""


def _leaf_made_inside(outer: Leaf) -> dict[str, object]:
    process = start_in(outer.directory, sys.executable, "-c", _LEAF_IN_A_FULL_CGROUP)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    answer: dict[str, object] = json.loads(out)
    return answer


def test_alone_in_a_v2_cgroup_it_steps_down_and_up_again(leaf: Leaf) -> None:
    if leaf.version == 1:
        assert _leaf_made_inside(leaf) == {"during": "", "limit": LIMIT, "after": "", "left": []}
    else:
        during = f"/{SUPERVISOR_NAME}"
        assert _leaf_made_inside(leaf) == {"during": during, "limit": LIMIT, "after": "", "left": []}


def test_beside_strangers_in_a_v2_cgroup_nobody_is_moved(leaf: Leaf) -> None:
    stranger = start_in(leaf.directory, "sleep", "600")
    wait_until(lambda: leaf.processes() == [stranger.pid], "the stranger to be inside")
    answer = _leaf_made_inside(leaf)
    if leaf.version == 1:
        assert "unavailable" not in answer
    else:
        assert f"pid {stranger.pid}" in str(answer["unavailable"])
        assert "systemd-run" in str(answer["unavailable"])
    assert stranger.pid in leaf.processes()
    leaf.kill_all()
    stranger.communicate(timeout=60)


def test_without_a_cgroup_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oomproof.leaf.place.find_memory_cgroup", lambda: None)
    with pytest.raises(LeafUnavailable, match="mount cgroupfs"):
        make_leaf("test")
