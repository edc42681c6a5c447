"""One attempt in the words of each listener: a line, an event, a row of the history.

Not covered: writing them, see `events` and `oomproof.history`.
"""

from __future__ import annotations

from typing import Protocol

from oomproof.history.model import Outcome
from oomproof.launch.model import Attempt, Evidence, Verdict
from oomproof.units import format_size


class Recorder(Protocol):
    """Where attempts are written down durably; `oomproof.history.record.Record` is one."""

    def attempt_started(self, attempt: int, budget_bytes: int) -> int | None:
        """Durable when it returns; the id is given back to `attempt_ended`."""
        ...

    def told_to_end(self, attempt_id: int | None, signal: int) -> None:
        """The attempt was asked to end; never blocks."""
        ...

    def attempt_ended(self, attempt_id: int | None, outcome: Outcome, *, goes_on: bool = False) -> None:
        """How the attempt ended. `goes_on`: the next one starts at once, and both may be written together."""
        ...

    def flush(self) -> None:
        """No attempt follows after all: write down what waits for it."""
        ...


def outcome(attempt: Attempt) -> Outcome:
    """For the history."""
    evidence, judgement = attempt.evidence, attempt.judgement
    # The exit of a child that never became the program says nothing about the program.
    exit_ = evidence.exit if evidence.spawn_failure is None else None
    return Outcome(
        verdict=judgement.verdict.value,
        confidence=judgement.confidence.value,
        exit_code=exit_.code if exit_ else None,
        signal=exit_.signal if exit_ else None,
        oom_kills=judgement.oom_kills,
        peak_bytes=evidence.peak_bytes,
        duration_s=evidence.duration_s,
        next_budget_bytes=attempt.next_budget_bytes,
        evidence=judgement.evidence,
        rate=evidence.rate,
        peak_of_cgroup=evidence.peak_of_cgroup,
    )


def event_fields(attempt: Attempt) -> dict[str, object]:
    """For ``attempt_ended``."""
    ended = outcome(attempt)
    return {
        "attempt": attempt.number,
        "verdict": ended.verdict,
        "confidence": ended.confidence,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "oom_kills": ended.oom_kills,
        "budget_bytes": attempt.budget_bytes,
        "next_budget_bytes": ended.next_budget_bytes,
        "pause_s": attempt.pause_s,
        "peak_bytes": ended.peak_bytes,
        "duration_s": round(attempt.evidence.duration_s, 3),
        "evidence": ended.evidence,
        "survivors": attempt.evidence.survivors,
        "leftovers": attempt.evidence.leftovers,
        **_beside_fields(attempt.evidence),
    }


def _beside_fields(evidence: Evidence) -> dict[str, object]:
    """Of readiness and client; none where nobody asked."""
    fields: dict[str, object] = {}
    if evidence.ready is not None:
        fields["ready_s"] = None if evidence.ready.seconds is None else round(evidence.ready.seconds, 3)
    if (client := evidence.client) is not None:
        fields["client"] = {
            "exit_code": client.exit.code if client.exit else None,
            "signal": client.exit.signal if client.exit else None,
            "cancelled": client.cancelled,
            "oom_kills": client.oom_kills,
            "duration_s": round(client.duration_s, 3),
        }
    if evidence.rate is not None or evidence.rate_trouble is not None:
        fields["rate"] = evidence.rate
    return fields


def hook_environment(attempt: Attempt) -> dict[str, str]:
    """For a command that is run after a lack of memory; what is unknown is empty."""
    ended = outcome(attempt)
    facts = {
        "VERDICT": ended.verdict,
        "CONFIDENCE": ended.confidence,
        "ATTEMPT": attempt.number,
        "BUDGET_BYTES": attempt.budget_bytes,
        "NEXT_BUDGET_BYTES": ended.next_budget_bytes,
        "OOM_KILLS": ended.oom_kills,
        "PEAK_BYTES": ended.peak_bytes,
        "EVIDENCE": "; ".join(ended.evidence),
    }
    return {f"OOMPROOF_{name}": "" if value is None else str(value) for name, value in facts.items()}


def describe(attempt: Attempt, *, ok_with_kills: bool = False) -> str:
    """One line for people: verdict, evidence in short, and what happens to the budget."""
    judgement = attempt.judgement
    words = f"attempt {attempt.number}: {judgement.verdict.value} ({judgement.confidence.value})"
    words += f" after {attempt.evidence.duration_s:.1f} s"
    budget = format_size(attempt.budget_bytes)
    if attempt.next_budget_bytes is None:
        budget = f"budget {budget}"
    elif attempt.next_budget_bytes == attempt.budget_bytes:
        budget = f"budget {budget} again in {attempt.pause_s:.1f} s"
    else:
        budget = f"budget {budget} -> {format_size(attempt.next_budget_bytes)}"
    if attempt.evidence.survivors:
        pids = ", ".join(str(pid) for pid in attempt.evidence.survivors)
        budget += f"; could not be killed: {pids}"
    for leftover in attempt.evidence.leftovers:
        budget += f"; left behind: {leftover}"
    return f"{words}: {'; '.join([*_in_short(attempt), *_about_kills(attempt, ok_with_kills)])}; {budget}"


def _in_short(attempt: Attempt) -> list[str]:
    """The evidence with the folders of cgroups left out; a clean end needs no proof that nothing happened."""
    kills = attempt.evidence.kills
    paths = {kill.oom_memcg for kill in attempt.evidence.kernel_log or ()} | {kills.source if kills else None}
    sentences = []
    for sentence in attempt.judgement.evidence:
        if attempt.judgement.verdict is Verdict.EXITED and "oom_kill stayed at" in sentence:
            continue
        short = sentence
        for path in sorted(filter(None, paths), key=len, reverse=True):
            short = short.replace(path, f".../{path.rpartition('/')[2]}")
        sentences.append(short)
    return sentences


def _about_kills(attempt: Attempt, ok_with_kills: bool) -> list[str]:
    """What becomes of an end that is a failure for its kills alone."""
    if not attempt.judgement.oom_kills or not attempt.judgement.calls_for_less:
        return []
    if not attempt.evidence.ended_well:
        return []
    if ok_with_kills:
        return ["accepted, as --ok-with-kills asks for"]
    return ["it ended well and fails for the kill inside alone, which --ok-with-kills would accept"]
