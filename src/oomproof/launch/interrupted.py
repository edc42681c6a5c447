"""Attempts that nobody saw end: oomproof died with them. What that means for the next start. Pure.

With ``memory.oom.group=1`` the kernel kills a whole container, PID 1 included, and so does its
engine when it loses patience: what is left is a history with an attempt that was started.
Not covered: finding them (`oomproof.history`).
"""

from __future__ import annotations

import signal

from oomproof.history.model import OpenAttempt, Outcome
from oomproof.launch.model import Confidence, Judgement, Verdict, signal_name


def judge_open(attempt: OpenAttempt) -> Judgement:
    """The verdict on an attempt whose oomproof is gone and has not written down its end."""
    sentences = [f"the attempt started at {attempt.started_at} has no end, and its oomproof is gone"]
    if attempt.told_to_end is not None:
        sentences.append(f"before, oomproof was asked to end it by {signal_name(attempt.told_to_end)}")
        if attempt.told_to_end == signal.SIGTERM:
            return Judgement(Verdict.STOPPED, Confidence.HIGH, tuple(sentences))
        confidence = Confidence.LOW
    elif attempt.same_boot is False:
        sentences.append("the machine was started anew since, which explains it as well")
        confidence = Confidence.LOW
    else:
        if attempt.same_boot is None:
            sentences.append("whether the machine was started anew since cannot be told")
        sentences.append("the kernel may have killed all of its container at once, or somebody did")
        confidence = Confidence.MEDIUM
    return Judgement(Verdict.OOM_SUSPECTED, confidence, tuple(sentences))


def end_of(judgement: Judgement, next_budget_bytes: int | None) -> Outcome:
    """For the history: the verdict, and nothing that nobody saw."""
    return Outcome(
        verdict=judgement.verdict.value,
        confidence=judgement.confidence.value,
        exit_code=None,
        signal=None,
        oom_kills=None,
        peak_bytes=None,
        duration_s=None,
        next_budget_bytes=next_budget_bytes,
        evidence=judgement.evidence,
    )
