"""What the end of an attempt means where there was more to it than the program: readiness, a client, a rate.

Pure: the verdicts that only a benchmark has, and the exit status that follows.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from oomproof.launch.model import (
    Attempt,
    ClientEnd,
    Confidence,
    Evidence,
    Exit,
    Scope,
    SidecarPolicy,
    StopReason,
    Verdict,
)
from oomproof.launch.spawn import failure_to_error

NOT_IN_TIME = 124
"""Exit status of what took too long, as that of ``timeout``."""
FAILED = 1
"""Exit status of a benchmark that failed although no program of it says so."""

_OUR_SIGNALS = frozenset({None, signal.SIGTERM, signal.SIGKILL})

Finding = tuple[Verdict, Confidence, list[str]] | None


def client_ended(evidence: Evidence, exit_: Exit) -> Finding:
    """The verdict where a client came to its end, and the daemon's end is only what follows from that."""
    client = evidence.client
    if client is None or client.cancelled or not _daemon_was_well(evidence, exit_):
        return None
    if _kills_beside_the_client(evidence, client):
        return None  # the rules about kills nearby know more
    done = client.succeeded and not client.oom_kills
    return Verdict.CLIENT_DONE if done else Verdict.CLIENT_FAILED, Confidence.CERTAIN, _sentences(client)


def beside_sentences(evidence: Evidence) -> list[str]:
    """What else to tell of an attempt, whatever the verdict."""
    sentences = []
    ready, client = evidence.ready, evidence.client
    if ready is not None and ready.seconds is None:
        sentences.append(f"it had not become ready ({ready.target}: {ready.trouble})")
    if client is not None and client.cancelled:
        sentences.append("its client was cancelled")
    return sentences


def _daemon_was_well(evidence: Evidence, exit_: Exit) -> bool:
    """It ended because the client had, or together with it, and not by a crash of its own."""
    if evidence.stop is None:
        return exit_.code == 0
    return evidence.stop.reason is StopReason.CLIENT_DONE and exit_.signal in _OUR_SIGNALS


def _kills_beside_the_client(evidence: Evidence, client: ClientEnd) -> bool:
    """Whether a counter that the client shares counted more victims than the client itself."""
    kills = evidence.kills
    if kills is None or kills.scope is not Scope.OWN:
        return False
    victim = client.exit is not None and client.exit.status == 128 + signal.SIGKILL
    return kills.delta > (1 if victim else 0)


def _sentences(client: ClientEnd) -> list[str]:
    if client.spawn_failure is not None:
        reason = f"the client could not be started: {os.strerror(client.spawn_failure.errno)}"
        return [reason, "oomproof then ended the daemon"]
    sentences = [f"the client {client.exit} after {client.duration_s:.1f} s; oomproof then ended the daemon"]
    if client.oom_kills:
        sentences.append(
            f"the OOM killer killed {client.oom_kills} process(es) in the client's own cgroup,"
            " which is not the daemon's doing"
        )
    elif client.exit is not None and client.exit.signal == signal.SIGKILL:
        sentences.append("somebody killed the client, which is not held against the daemon")
    return sentences


class End(NamedTuple):
    """Of a run, as its caller shall see it."""

    status: int
    failure: str | None = None
    """Why it failed although no lack of memory did it, where the program's status does not tell."""


def end_of(last: Attempt, policy: SidecarPolicy, *, ok_with_kills: bool, min_rate: float | None) -> End:
    """The exit status after the last attempt of a run that did not run out of memory."""
    end = _end_without_rate(last, policy, ok_with_kills)
    if end.status != 0 or policy.rate is None:
        return end
    rate, trouble = last.evidence.rate, last.evidence.rate_trouble
    if rate is None:
        return End(FAILED, f"there is no rate by {policy.rate.text!r} in the output: {trouble}")
    if min_rate is not None and rate < min_rate:
        return End(FAILED, f"the rate of {rate:g} is below --min-rate {min_rate:g}")
    return end


def _end_without_rate(last: Attempt, policy: SidecarPolicy, ok_with_kills: bool) -> End:
    verdict, evidence = last.judgement.verdict, last.evidence
    status = evidence.exit.status if evidence.exit else 0
    if verdict is Verdict.NOT_READY:
        return End(NOT_IN_TIME, f"it was not ready within {policy.ready_timeout_s:g} s")
    if not policy.client:
        return End(status)
    if verdict is Verdict.CLIENT_DONE or (ok_with_kills and evidence.ended_well):
        return End(0)
    if verdict is Verdict.CLIENT_FAILED and evidence.client is not None:
        return _end_of_client(evidence.client, policy, ok_with_kills)
    if verdict is Verdict.STOPPED:
        return _end_of_stop(evidence, status)
    before = "it was ready" if evidence.client is None else "its client was done"
    return End(status or FAILED, f"the daemon ended before {before}")


def _end_of_client(client: ClientEnd, policy: SidecarPolicy, ok_with_kills: bool) -> End:
    if client.spawn_failure is not None:
        error = failure_to_error(client.spawn_failure, policy.client, os.environ.get("PATH"))
        return End(error.exit_code, f"the client: {error}")
    if client.succeeded and ok_with_kills:
        return End(0)
    status = client.exit.status if client.exit else 0
    why = "the OOM killer killed processes of it" if client.oom_kills else f"it {client.exit}"
    return End(status or FAILED, f"the client failed: {why}")


def _end_of_stop(evidence: Evidence, status: int) -> End:
    stop = evidence.stop
    if stop is not None and stop.reason is StopReason.TIMEOUT:
        return End(NOT_IN_TIME, "its time was up (--timeout)")
    # Without a mark it was a key at the terminal, which reached the daemon directly.
    return End(status if stop is None else 128 + stop.signal, "it was told to stop")
