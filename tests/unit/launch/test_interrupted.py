"""What an attempt without an end is taken for."""

from __future__ import annotations

import signal

import pytest

from oomproof.history.model import OpenAttempt
from oomproof.launch.interrupted import end_of, judge_open
from oomproof.launch.model import Confidence, Verdict


def open_attempt(same_boot: bool | None, told_to_end: int | None = None) -> OpenAttempt:
    return OpenAttempt(1, 2, "2026-01-01T00:00:00.000+00:00", 1000, same_boot, told_to_end)


TABLE = {
    "everything died at once": (open_attempt(True), Verdict.OOM_SUSPECTED, Confidence.MEDIUM),
    "no boot id": (open_attempt(None), Verdict.OOM_SUSPECTED, Confidence.MEDIUM),
    "reboot": (open_attempt(False), Verdict.OOM_SUSPECTED, Confidence.LOW),
    "stop by the container's engine": (
        open_attempt(True, signal.SIGTERM),
        Verdict.STOPPED,
        Confidence.HIGH,
    ),
    "stop, then reboot": (open_attempt(False, signal.SIGTERM), Verdict.STOPPED, Confidence.HIGH),
    "a reload, or a stop by SIGHUP": (
        open_attempt(True, signal.SIGHUP),
        Verdict.OOM_SUSPECTED,
        Confidence.LOW,
    ),
}


@pytest.mark.parametrize(("attempt", "verdict", "confidence"), TABLE.values(), ids=TABLE.keys())
def test_table(attempt: OpenAttempt, verdict: Verdict, confidence: Confidence) -> None:
    judgement = judge_open(attempt)
    assert (judgement.verdict, judgement.confidence) == (verdict, confidence)
    assert judgement.calls_for_less is (confidence is Confidence.MEDIUM)
    assert len(judgement.evidence) > 1


def test_its_end_in_the_history_holds_nothing_that_nobody_saw() -> None:
    end = end_of(judge_open(open_attempt(True)), 900)
    assert (end.verdict, end.next_budget_bytes) == ("oom_suspected", 900)
    assert {end.exit_code, end.signal, end.oom_kills, end.peak_bytes, end.duration_s} == {None}
