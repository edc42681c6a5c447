"""Evidence that is hard to come by: no leaf, a leaf that vanishes, kills that are refused, others' marks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel.launching import HOG_IN_SHELL, PATIENCE_S, UNDER_EMULATION, Launcher, Scenario, wait_until
from oomproof.launch import process_control
from oomproof.launch.counters import LeafCounters
from oomproof.launch.kill_watch import KillWatch
from oomproof.leaf import Leaf, make_leaf
from oomproof.limits.discovery import find_memory_cgroup
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LauncherOf = Callable[[Scenario], Launcher]
LIMIT = 64 * MIB
DYING_HOG = f"{HOG_IN_SHELL} {96 * MIB}"
NOBODY = 65534


@pytest.fixture
def own() -> Iterator[Leaf]:
    """A cgroup that a launcher shares with whom it likes, limited."""
    with make_leaf("test") as leaf:
        leaf.set_limit(LIMIT)
        yield leaf


def without_leaf(script: str, own: Leaf) -> Scenario:
    return Scenario(["sh", "-c", script], policy={"use_leaf": False}, join=own.join_path)


# -- no leaf --------------------------------------------------------------------------------


def test_without_a_leaf_a_kill_under_a_program_that_hangs_is_said_within_a_second(
    launcher_of: LauncherOf, own: Leaf
) -> None:
    hang = "date +%s.%N > SCRATCH/killed; while ! [ -e SCRATCH/enough ]; do sleep 0.1; done"
    launcher = launcher_of(without_leaf(f"{DYING_HOG}; {hang}", own))
    launcher.start()
    said = launcher.process.stderr
    assert said is not None
    line = said.readline().decode()
    while "the OOM killer struck" not in line:
        assert line, "the launcher ended"
        line = said.readline().decode()
    late = time.time() - float((launcher.scenario.scratch / "killed").read_text())
    assert late < (20 if UNDER_EMULATION else 1)
    assert str(own.directory) in line
    assert launcher.process.poll() is None, "a stranger's kill would have looked the same"
    (launcher.scenario.scratch / "enough").touch()
    launcher.finish()
    assert launcher.scenario.only_end()["verdict"] == "oom_suspected"


def test_as_pid_1_without_a_leaf_a_program_that_hangs_after_a_kill_is_ended(
    launcher_of: LauncherOf, own: Leaf
) -> None:
    launcher = launcher_of(without_leaf(f"{DYING_HOG}; sleep 600", own))
    launcher.start(prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    launcher.finish()
    end = launcher.scenario.only_end()
    assert (end["verdict"], end["confidence"], end["signal"]) == ("oom_suspected", "medium", signal.SIGTERM)


# -- a leaf that vanishes, kills that are refused --------------------------------------------


@pytest.mark.parametrize("seen", [False, True])
def test_a_leaf_that_somebody_removed_tells_what_was_seen_before(seen: bool) -> None:
    leaf = make_leaf("test")
    leaf.set_limit(LIMIT)
    counters = LeafCounters(leaf)
    subprocess.run(["sh", "-c", f"echo 0 > {leaf.join_path}; exec {DYING_HOG}"], check=False)
    if seen:
        assert counters.kills_so_far() == 1
    leaf.remove()
    kills = counters.finish()
    assert (kills.delta if kills else None) == (1 if seen else None)
    assert counters.kills_so_far() == seen
    assert counters.watch() is None


def test_a_kill_in_a_leaf_is_noticed_also_where_the_kernel_has_no_notification_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with make_leaf("test") as leaf:
        leaf.set_limit(LIMIT)
        counters = LeafCounters(leaf)
        monkeypatch.setattr(counters, "watch", lambda: None)
        kills = KillWatch(counters)
        kills.begin()
        assert not list(kills.wants())
        subprocess.run(["sh", "-c", f"echo 0 > {leaf.join_path}; exec {DYING_HOG}"], check=False)
        wait_until(lambda: kills.turn(set()), "the kill to be noticed")
        assert kills.due() is None


def as_nobody(task: Callable[[], bool]) -> bool:
    """What `task` returns in a process that may not signal root's."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            status = 0 if task() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@needs_root
def test_a_process_that_may_not_be_killed_is_a_survivor_with_a_name() -> None:
    with make_leaf("test") as leaf:
        script = f"echo 0 > {leaf.join_path}; exec sleep 600"
        with subprocess.Popen(["sh", "-c", script]) as roots:
            try:
                wait_until(lambda: leaf.processes() == [roots.pid], "the process")
                assert as_nobody(lambda: process_control.send(roots.pid, signal.SIGKILL))
                assert as_nobody(lambda: leaf.kill_all(0.2) == [roots.pid])
                assert roots.poll() is None
            finally:
                roots.kill()


@needs_root
def test_a_descendant_that_may_not_be_killed_is_given_up_in_time() -> None:
    def task() -> bool:
        process_control.become_subreaper()
        return process_control.kill_descendants(frozenset(), 0.2) == [sleeper]

    pid = os.fork()
    if pid == 0:
        # Root's child of a nobody: forked before its parent changed.
        sleeper = os.fork()
        if sleeper == 0:
            time.sleep(600)
        os.setuid(NOBODY)
        status = 1
        try:
            status = 0 if task() else 1
        finally:
            os._exit(status)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: children.read_text().split(), "the sleeper")
    sleeper = int(children.read_text())
    try:
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.kill(sleeper, signal.SIGKILL)


CANNOT_CLEAN_UP = """
import os, signal, sys, time
from pathlib import Path
from oomproof.launch.guardian import Guardian
from oomproof.leaf import known_leaf, model
leaf = known_leaf(int(sys.argv[1]), Path(sys.argv[2]))
model.REMOVE_TIMEOUT_S = 0.2
os.setuid(65534)
print(Guardian.start(leaf, "").pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_root
def test_a_guardian_that_cannot_clean_up_says_so(tmp_path: Path) -> None:
    said = tmp_path / "err"
    with make_leaf("test") as leaf, said.open("wb") as err:
        script = f"echo 0 > {leaf.join_path}; exec sleep 600"
        with subprocess.Popen(["sh", "-c", script]) as roots:
            wait_until(lambda: leaf.processes() == [roots.pid], "the process")
            command = [sys.executable, "-c", CANNOT_CLEAN_UP, str(leaf.version), str(leaf.directory)]
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=err, text=True)
            try:
                wait_until(lambda: "its guardian could not clean up" in said.read_text(), "the complaint")
                assert str(leaf.directory) in said.read_text()
            finally:
                os.kill(int(done.stdout), signal.SIGKILL)
                roots.kill()


DIES_AT_MKDIR = """
import os, pathlib, signal, sys
from oomproof.launch.attempt_leaf import AttemptLeaves
make, left = pathlib.Path.mkdir, int(sys.argv[2])
def die(path, *rest):
    global left
    left -= 1
    if left:
        return make(path, *rest)
    if sys.argv[1] == "after":
        make(path, *rest)
    os.write(1, str(path).encode())
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.mkdir = die
with AttemptLeaves(None, print) as leaves:
    while True:
        with leaves.fresh():
            pass
"""


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_sigkill_around_the_making_of_a_leaf_leaves_none(moment: str, which: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES_AT_MKDIR, moment, str(which)],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == -signal.SIGKILL
    assert "oomproof-run-" in done.stdout
    wait_until(lambda: not Path(done.stdout).exists(), "the guardian's work")


# -- others' marks --------------------------------------------------------------------------


def test_a_mark_of_systemd_oomd_on_the_leaf_makes_a_sigkill_an_oom_kill(launcher_of: LauncherOf) -> None:
    """The attribute is written as systemd-oomd does it, by the program about itself."""
    own = find_memory_cgroup()
    assert own is not None
    if own.version == 1:
        pytest.skip("systemd-oomd works on cgroup v2, and v1 has no user attributes")
    write = "import os, sys; os.setxattr(sys.argv[1], 'user.oomd_ooms', b'1'); os.kill(os.getpid(), 9)"
    find = "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"
    script = f'exec {sys.executable} -S -E -c "{write}" {find}'
    launcher = launcher_of(Scenario(["sh", "-c", script]))
    launcher.start()
    launcher.finish()
    end = launcher.scenario.only_end()
    assert (end["verdict"], end["confidence"]) == ("oom_kill", "high"), end
    assert any("user.oomd_ooms" in sentence for sentence in end["evidence"])
