"""What the end of a client means for the daemon and for the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomproof.launch.benchmark import end_of
from oomproof.launch.deciding import is_lack
from oomproof.launch.model import (
    Attempt,
    ClientEnd,
    Evidence,
    Exit,
    Kills,
    Readiness,
    Scope,
    SidecarPolicy,
    SpawnFailure,
    SpawnStep,
    StopMark,
    StopReason,
    Verdict,
)
from oomproof.launch.rate import parse_expression
from oomproof.launch.restart import RestartMode, RestartPolicy, wants_restart
from oomproof.launch.verdict import judge

DONE = StopMark(15, StopReason.CLIENT_DONE, 0.1)
OK, FAILED = ClientEnd(Exit(0), 2.0), ClientEnd(Exit(9), 2.0)
CANCELLED = ClientEnd(None, 2.0, cancelled=True)
MISSING = ClientEnd(None, 0.0, spawn_failure=SpawnFailure(SpawnStep.EXEC, 2))
KILLED = ClientEnd(Exit(signal=9), 2.0, oom_kills=1)
KILLED_INSIDE = ClientEnd(Exit(0), 2.0, oom_kills=1)
CLIENT = SidecarPolicy(client=("client",), ready_timeout_s=5.0)


def seen(
    exit_: Exit = Exit(signal=15),  # noqa: B008  frozen
    *,
    client: ClientEnd | None = OK,
    stop: StopMark | None = DONE,
    kills: int = 0,
    scope: Scope = Scope.LEAF,
    ready_s: float | None = 1.0,
) -> Evidence:
    return Evidence(
        exit=exit_,
        main_pid=1,
        stop=stop,
        kills=Kills(scope, "/counter", 0, kills, alone=True),
        client=client,
        ready=Readiness("tcp://x:1", ready_s, "Connection refused"),
    )


# name: evidence, verdict, exit status
ENDS = {
    "done": (seen(), Verdict.CLIENT_DONE, 0),
    "done, the daemon exits by itself on SIGTERM": (seen(Exit(3)), Verdict.CLIENT_DONE, 0),
    "done, the daemon had to be killed": (seen(Exit(signal=9)), Verdict.CLIENT_DONE, 0),
    "done together with the daemon": (seen(Exit(0), stop=None), Verdict.CLIENT_DONE, 0),
    "failed": (seen(client=FAILED), Verdict.CLIENT_FAILED, 9),
    "not there": (seen(client=MISSING), Verdict.CLIENT_FAILED, 127),
    "oom-killed": (seen(client=KILLED), Verdict.CLIENT_FAILED, 137),
    "oom-killed inside": (seen(client=KILLED_INSIDE), Verdict.CLIENT_FAILED, 1),
    "failed because of a kill in the daemon": (seen(client=FAILED, kills=1), Verdict.OOM_KILL, None),
    "done in spite of a kill in the daemon": (seen(kills=1), Verdict.OOM_KILL, None),
    "failed because the daemon crashed": (seen(Exit(signal=11), client=FAILED), Verdict.SIGNALLED, 139),
    "daemon ended first": (seen(Exit(0), client=CANCELLED, stop=None), Verdict.EXITED, 1),
    "daemon failed first": (seen(Exit(4), client=CANCELLED, stop=None), Verdict.EXITED, 4),
    "daemon ended unready": (seen(Exit(0), client=None, stop=None, ready_s=None), Verdict.EXITED, 1),
    "stopped": (
        seen(Exit(0), client=CANCELLED, stop=StopMark(15, StopReason.STOP, 0.1)),
        Verdict.STOPPED,
        143,
    ),
    "stopped by Ctrl-C": (
        seen(client=CANCELLED, stop=StopMark(2, StopReason.CANCELLED, 0.1, 15)),
        Verdict.STOPPED,
        130,
    ),
    "time-out": (
        seen(Exit(0), client=CANCELLED, stop=StopMark(15, StopReason.TIMEOUT, 0.1)),
        Verdict.STOPPED,
        124,
    ),
    "not ready": (
        seen(Exit(0), client=None, stop=StopMark(15, StopReason.NOT_READY, 0.1), ready_s=None),
        Verdict.NOT_READY,
        124,
    ),
    "shared counter, the client was the victim": (
        seen(client=KILLED._replace(oom_kills=None), kills=1, scope=Scope.OWN),
        Verdict.CLIENT_FAILED,
        137,
    ),
    "shared counter, somebody else was killed": (
        seen(client=FAILED, kills=1, scope=Scope.OWN),
        Verdict.OOM_SUSPECTED,
        None,
    ),
}


@pytest.mark.parametrize(("evidence", "verdict", "status"), ENDS.values(), ids=ENDS)
def test_ends(evidence: Evidence, verdict: Verdict, status: int | None) -> None:
    judgement = judge(evidence)
    assert judgement.verdict is verdict, judgement
    assert judgement.calls_for_less is (status is None)
    if status is not None:
        end = end_of(Attempt(1, 100, evidence, judgement), CLIENT, ok_with_kills=False, min_rate=None)
        assert end.status == status
        assert bool(end.failure) is bool(status)


def test_a_client_that_is_fine_in_spite_of_kills_inside_it() -> None:
    evidence = seen(client=KILLED_INSIDE)
    attempt = Attempt(1, 100, evidence, judge(evidence))
    assert end_of(attempt, CLIENT, ok_with_kills=True, min_rate=None).status == 0


@pytest.mark.parametrize(
    ("rate", "min_rate", "status", "words"),
    [
        (5.0, None, 0, None),
        (5.0, 5.0, 0, None),
        (4.5, 5.0, 1, "the rate of 4.5 is below --min-rate 5"),
        (None, None, 1, "no rate by 'x'.*: nothing in it matches"),
    ],
)
def test_rates(rate: float | None, min_rate: float | None, status: int, words: str | None) -> None:
    evidence = replace(seen(), rate=rate, rate_trouble=None if rate else "nothing in it matches")
    policy = CLIENT._replace(rate=parse_expression("x"))
    end = end_of(Attempt(1, 100, evidence, judge(evidence)), policy, ok_with_kills=False, min_rate=min_rate)
    assert end.status == status
    if words is None:
        assert end.failure is None
    else:
        assert end.failure is not None
        import re

        assert re.search(words, end.failure)


def test_a_failed_benchmark_is_not_failed_for_its_rate() -> None:
    evidence = seen(client=FAILED)
    policy = CLIENT._replace(rate=parse_expression("x"))
    end = end_of(Attempt(1, 100, evidence, judge(evidence)), policy, ok_with_kills=False, min_rate=1.0)
    assert (end.status, end.failure) == (9, "the client failed: it exited with 9")


def test_kills_inside_a_daemon_that_served_its_client_can_be_accepted() -> None:
    evidence = seen(kills=1)
    attempt = Attempt(1, 100, evidence, judge(evidence))
    assert is_lack(attempt, ok_with_kills=False)
    assert not is_lack(attempt, ok_with_kills=True)
    assert end_of(attempt, CLIENT, ok_with_kills=True, min_rate=None).status == 0


def test_who_was_not_ready_in_time_has_failed_even_if_it_exits_with_0() -> None:
    evidence, _, _ = ENDS["not ready"]
    attempt = Attempt(1, 100, evidence, judge(evidence))
    assert wants_restart(RestartPolicy(RestartMode.ON_FAILURE), attempt)
    assert not wants_restart(RestartPolicy(RestartMode.NEVER), attempt)
