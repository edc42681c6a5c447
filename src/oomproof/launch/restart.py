"""Whether a program that ended for another reason than memory is started again, and when.

Pure. Counted apart from the retries with a smaller budget, see `oomproof.launch.attempts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from oomproof.launch.model import Attempt, Verdict


class RestartMode(StrEnum):
    """Which ends are followed by another start."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    """All but exit status 0."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Times in seconds."""

    mode: RestartMode = RestartMode.NEVER
    first_pause_s: float = 1.0
    """Doubled after each further early death."""
    longest_pause_s: float = 30.0
    healthy_s: float = 10.0
    """An attempt that lived this long is no early death, and forgives those before it."""
    early_deaths: int = 5
    """So many in a row are a crash loop: no further start."""


_FINAL = frozenset({Verdict.STOPPED, Verdict.NOT_STARTED})


def wants_restart(policy: RestartPolicy, last: Attempt) -> bool:
    """Whether the mode asks for another start after `last`; a crash loop may still forbid it."""
    if policy.mode is RestartMode.NEVER or last.judgement.verdict in _FINAL:
        return False
    succeeded = last.evidence.ended_well and last.judgement.verdict is not Verdict.NOT_READY
    return policy.mode is RestartMode.ALWAYS or not succeeded


def pause_before_restart(policy: RestartPolicy, attempts: Sequence[Attempt]) -> float | None:
    """Seconds to wait after the last of `attempts`; None: a crash loop, no further start.

    Attempts that ran out of memory, which are neither early deaths nor forgive any, are left out of them.
    """
    early = 0
    for attempt in reversed(attempts):
        if attempt.evidence.duration_s >= policy.healthy_s:
            break
        early += 1
    if early >= policy.early_deaths:
        return None
    return min(policy.longest_pause_s, policy.first_pause_s * 2.0 ** max(0, early - 1))
