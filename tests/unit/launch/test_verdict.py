"""The verdict over a table of evidence: each row is a death that others mislabel."""

from __future__ import annotations

import dataclasses
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.launch.model import (
    Confidence,
    Evidence,
    Exit,
    KernelKill,
    Kills,
    Scope,
    SpawnFailure,
    SpawnStep,
    StopMark,
    StopReason,
    Verdict,
)
from oomproof.launch.verdict import judge

MAIN_PID = 100
SIGKILLED = Exit(signal=signal.SIGKILL)


def kills(scope: Scope, delta: int, *, alone: bool | None = None) -> Kills:
    return Kills(scope, "/cgroup/memory.events", 7, 7 + delta, alone=alone)


def leaf(delta: int) -> Kills:
    return kills(Scope.LEAF, delta, alone=True)


def own(delta: int, *, alone: bool = False) -> Kills:
    return kills(Scope.OWN, delta, alone=alone)


def host(delta: int) -> Kills:
    return kills(Scope.HOST, delta)


def stop(number: int, reason: StopReason = StopReason.STOP, ago: float = 0.1) -> StopMark:
    return StopMark(number, reason, ago)


def logged(pid: int) -> KernelKill:
    return KernelKill(pid, "hog", "CONSTRAINT_MEMCG", "/a", "/a/leaf")


def seen(exit_: Exit, **facts: object) -> Evidence:
    return dataclasses.replace(Evidence(exit=exit_, main_pid=MAIN_PID), **facts)  # type: ignore[arg-type]


TABLE = {
    "exit 0": (seen(Exit(0), kills=leaf(0)), Verdict.EXITED, Confidence.CERTAIN),
    "exit 3": (seen(Exit(3), kills=leaf(0)), Verdict.EXITED, Confidence.CERTAIN),
    "exit 137 by its own choice": (seen(Exit(137), kills=leaf(0)), Verdict.EXITED, Confidence.CERTAIN),
    "exit 0, nothing counts": (seen(Exit(0)), Verdict.EXITED, Confidence.HIGH),
    "segmentation fault": (seen(Exit(signal=11), kills=leaf(0)), Verdict.SIGNALLED, Confidence.CERTAIN),
    "SIGTERM by a stranger": (seen(Exit(signal=15), kills=leaf(0)), Verdict.SIGNALLED, Confidence.CERTAIN),
    # the leaf's counter decides, whatever became of the main process
    "killed": (seen(SIGKILLED, kills=leaf(1)), Verdict.OOM_KILL, Confidence.CERTAIN),
    "child killed, exit 0": (seen(Exit(0), kills=leaf(1)), Verdict.OOM_KILL, Confidence.CERTAIN),
    "child killed, exit 247": (seen(Exit(247), kills=leaf(1)), Verdict.OOM_KILL, Confidence.CERTAIN),
    "child killed, self-SIGTERM": (
        seen(Exit(signal=15), kills=leaf(2)),
        Verdict.OOM_KILL,
        Confidence.CERTAIN,
    ),
    "kill -9": (seen(SIGKILLED, kills=leaf(0)), Verdict.KILLED_UNKNOWN, Confidence.CERTAIN),
    "SIGKILL, nothing counts": (seen(SIGKILLED), Verdict.KILLED_UNKNOWN, Confidence.LOW),
    # our own mark wins
    "stopped": (seen(Exit(signal=15), kills=leaf(0), stop=stop(15)), Verdict.STOPPED, Confidence.CERTAIN),
    "stopped, exit 0": (seen(Exit(0), kills=leaf(0), stop=stop(15)), Verdict.STOPPED, Confidence.CERTAIN),
    "stopped while dying": (
        seen(SIGKILLED, kills=leaf(1), stop=stop(15)),
        Verdict.STOPPED,
        Confidence.CERTAIN,
    ),
    "SIGTERM ignored for long": (
        seen(SIGKILLED, kills=leaf(1), stop=stop(15, ago=999)),
        Verdict.STOPPED,
        Confidence.CERTAIN,
    ),
    "SIGINT used otherwise": (
        seen(SIGKILLED, kills=leaf(1), stop=stop(2, ago=999)),
        Verdict.OOM_KILL,
        Confidence.CERTAIN,
    ),
    "SIGHUP for a reload": (
        seen(Exit(1), kills=leaf(0), stop=stop(1, ago=999)),
        Verdict.EXITED,
        Confidence.CERTAIN,
    ),
    "time-out": (
        seen(SIGKILLED, kills=leaf(1), stop=stop(15, StopReason.TIMEOUT, 10)),
        Verdict.STOPPED,
        Confidence.CERTAIN,
    ),
    "ended because of a kill inside": (
        seen(Exit(signal=15), kills=leaf(1), stop=stop(15, StopReason.KILL_INSIDE), kill_noticed_s=1.0),
        Verdict.OOM_KILL,
        Confidence.CERTAIN,
    ),
    "Ctrl-C at the terminal": (
        seen(Exit(signal=2), kills=leaf(0), foreground=True),
        Verdict.STOPPED,
        Confidence.HIGH,
    ),
    # a counter that others share
    "killed, nobody else there": (
        seen(SIGKILLED, kills=own(1, alone=True)),
        Verdict.OOM_KILL,
        Confidence.HIGH,
    ),
    "exit 0, nobody else seen": (
        seen(Exit(0), kills=own(1, alone=True)),
        Verdict.OOM_SUSPECTED,
        Confidence.MEDIUM,
    ),
    "killed, nobody else seen, log names others": (
        seen(SIGKILLED, kills=own(1, alone=True), kernel_log=(logged(5),), pids_comparable=True),
        Verdict.KILLED_UNKNOWN,
        Confidence.CERTAIN,
    ),
    "reloaded, then killed in its leaf": (
        seen(SIGKILLED, kills=leaf(1), stop=stop(1)),
        Verdict.OOM_KILL,
        Confidence.CERTAIN,
    ),
    "threads printed, then killed in its leaf": (
        seen(SIGKILLED, kills=leaf(1), stop=stop(3)),
        Verdict.OOM_KILL,
        Confidence.CERTAIN,
    ),
    "reloaded, then failed": (seen(Exit(1), kills=leaf(0), stop=stop(1)), Verdict.EXITED, Confidence.CERTAIN),
    "told by SIGHUP, ended well": (
        seen(Exit(0), kills=leaf(0), stop=stop(1)),
        Verdict.STOPPED,
        Confidence.CERTAIN,
    ),
    "Ctrl-C at the terminal, answered with 130": (
        seen(Exit(130), kills=leaf(0), foreground=True),
        Verdict.STOPPED,
        Confidence.HIGH,
    ),
    "killed, shared": (seen(SIGKILLED, kills=own(1)), Verdict.OOM_KILL, Confidence.HIGH),
    "137, shared": (seen(Exit(137), kills=own(1)), Verdict.OOM_KILL, Confidence.HIGH),
    "exit 247, shared": (seen(Exit(247), kills=own(1)), Verdict.OOM_SUSPECTED, Confidence.MEDIUM),
    "exit 0, shared": (seen(Exit(0), kills=own(1)), Verdict.OOM_SUSPECTED, Confidence.LOW),
    "kill -9, shared, none counted": (
        seen(SIGKILLED, kills=own(0)),
        Verdict.KILLED_UNKNOWN,
        Confidence.CERTAIN,
    ),
    "shared, log names the main process": (
        seen(SIGKILLED, kills=own(1), kernel_log=(logged(MAIN_PID),), pids_comparable=True),
        Verdict.OOM_KILL,
        Confidence.CERTAIN,
    ),
    "shared, log names others": (
        seen(SIGKILLED, kills=own(1), kernel_log=(logged(5),), pids_comparable=True),
        Verdict.KILLED_UNKNOWN,
        Confidence.CERTAIN,
    ),
    "shared, log of another pid namespace": (
        seen(SIGKILLED, kills=own(1), kernel_log=(logged(MAIN_PID),)),
        Verdict.OOM_KILL,
        Confidence.HIGH,
    ),
    # the whole host
    "killed while somebody on the host was": (
        seen(SIGKILLED, kills=host(1)),
        Verdict.OOM_SUSPECTED,
        Confidence.MEDIUM,
    ),
    "exit 1 while somebody on the host was": (seen(Exit(1), kills=host(1)), Verdict.EXITED, Confidence.HIGH),
    "a userspace killer's mark": (
        seen(SIGKILLED, kills=leaf(0), userspace_killer="user.oomd_kill of /a rose from 0 to 1"),
        Verdict.OOM_KILL,
        Confidence.HIGH,
    ),
    "a userspace killer's mark, and a main process that lives on": (
        seen(Exit(1), kills=leaf(0), userspace_killer="user.oomd_ooms of /a/b is 1"),
        Verdict.OOM_KILL,
        Confidence.HIGH,
    ),
    "SIGTERM while the host is short of memory": (
        seen(Exit(signal=15), kills=leaf(0), host_pressure_percent=55.0),
        Verdict.OOM_SUSPECTED,
        Confidence.LOW,
    ),
    "a shell's child got SIGTERM while the host is short of memory": (
        seen(Exit(143), kills=leaf(0), host_pressure_percent=55.0),
        Verdict.OOM_SUSPECTED,
        Confidence.LOW,
    ),
    "SIGTERM on a host with memory to spare": (
        seen(Exit(signal=15), kills=leaf(0), host_pressure_percent=0.5),
        Verdict.SIGNALLED,
        Confidence.CERTAIN,
    ),
    "a stop that was passed on while the host is short of memory": (
        seen(Exit(signal=15), kills=leaf(0), stop=stop(15), host_pressure_percent=55.0),
        Verdict.STOPPED,
        Confidence.CERTAIN,
    ),
    "SIGTERM under pressure, and it says so itself": (
        seen(
            Exit(signal=15),
            kills=leaf(0),
            host_pressure_percent=55.0,
            in_process=(("stderr says MemoryError", Confidence.HIGH),),
        ),
        Verdict.IN_PROCESS_OOM,
        Confidence.HIGH,
    ),
    # the program's own words
    "says so itself": (
        seen(Exit(1), kills=leaf(0), in_process=(("stderr says MemoryError", Confidence.HIGH),)),
        Verdict.IN_PROCESS_OOM,
        Confidence.HIGH,
    ),
    "killed, whatever it says": (
        seen(SIGKILLED, kills=leaf(1), in_process=(("stderr says MemoryError", Confidence.HIGH),)),
        Verdict.OOM_KILL,
        Confidence.CERTAIN,
    ),
    "no such command": (
        seen(Exit(127), spawn_failure=SpawnFailure(SpawnStep.EXEC, 2)),
        Verdict.NOT_STARTED,
        Confidence.CERTAIN,
    ),
    "fork failed": (
        Evidence(spawn_failure=SpawnFailure(SpawnStep.FORK, 11)),
        Verdict.NOT_STARTED,
        Confidence.CERTAIN,
    ),
}


@pytest.mark.parametrize(("evidence", "verdict", "confidence"), TABLE.values(), ids=TABLE.keys())
def test_table(evidence: Evidence, verdict: Verdict, confidence: Confidence) -> None:
    judgement = judge(evidence)
    assert (judgement.verdict, judgement.confidence) == (verdict, confidence), judgement.evidence
    assert judgement.evidence, "every verdict says what it rests on"
    assert all("\n" not in sentence for sentence in judgement.evidence)


exits = st.one_of(
    st.builds(Exit, code=st.integers(0, 255)),
    st.builds(lambda number: Exit(signal=number), st.integers(1, 64)),
)
counters = st.one_of(
    st.none(), st.builds(kills, st.sampled_from(Scope), st.integers(0, 3), alone=st.booleans() | st.none())
)
marks = st.one_of(
    st.none(), st.builds(stop, st.integers(1, 64), st.sampled_from(StopReason), st.floats(0, 1e6))
)


@given(exits, counters, marks)
def test_without_a_counted_kill_nothing_is_ever_called_an_oom_kill(
    exit_: Exit, counted: Kills | None, mark: StopMark | None
) -> None:
    judgement = judge(seen(exit_, kills=counted, stop=mark))
    if counted is None or counted.delta == 0:
        assert not judgement.calls_for_less


@given(exits, counters, st.floats(0, 1e6))
def test_what_was_told_to_end_is_never_tried_again(exit_: Exit, counted: Kills | None, ago: float) -> None:
    for reason in (StopReason.STOP, StopReason.TIMEOUT, StopReason.CANCELLED):
        judgement = judge(seen(exit_, kills=counted, stop=stop(signal.SIGTERM, reason, ago)))
        assert judgement.verdict is Verdict.STOPPED


@given(exits, st.integers(1, 5))
def test_a_kill_in_the_leaf_is_certain_whatever_the_exit(exit_: Exit, delta: int) -> None:
    judgement = judge(seen(exit_, kills=leaf(delta)))
    assert (judgement.verdict, judgement.oom_kills) == (Verdict.OOM_KILL, delta)
    assert judgement.calls_for_less


def test_a_suspicion_of_low_confidence_changes_nothing() -> None:
    assert not judge(seen(Exit(0), kills=own(1))).calls_for_less


@pytest.mark.parametrize(("exit_", "status"), [(Exit(3), 3), (SIGKILLED, 137), (Exit(signal=34), 162)])
def test_exit_status_is_that_of_a_shell(exit_: Exit, status: int) -> None:
    assert exit_.status == status


def test_a_wait_status_becomes_code_or_signal() -> None:
    assert Exit.from_wait_status(3 << 8) == Exit(code=3)
    assert Exit.from_wait_status(9) == SIGKILLED
