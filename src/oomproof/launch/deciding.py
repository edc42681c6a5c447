"""What follows the end of an attempt: a smaller budget, a larger one, the same again, or nothing. Pure.

After a lack of memory the budget shrinks by the caller's rule. Three findings stand above that rule:

- *A lower bound.* A program that ran out of memory with more, and with less fails in another way
  that it did not fail in before, most likely says "needs at least ...". The next budget lies between
  the two, as long as a gap is left that is worth an attempt.
- *No effect.* Half the budget or less, and it died at the same peak no later: it does not keep to
  its budget, and no smaller one will help. See docs/decisions/0009-a-budget-without-effect.md.
- *The budget itself ran out.* A program that says itself that memory ran out (a Java heap, say), no later
  and at a peak that fell along with its budget, keeps to its budget and needs a larger one.

Not covered: how much smaller (`oomproof.plan`), pauses and crash loops (`restart`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oomproof.launch.model import Attempt, Verdict
from oomproof.launch.restart import RestartPolicy, pause_before_restart, wants_restart
from oomproof.units import count, format_size

NARROWEST_GAP = 32
"""A gap below this part of the budget is not worth an attempt: 3 %, as the smallest margin."""

SAME_PEAK_PERCENT = 2
_LATER_FACTOR, _LATER_S = 1.25, 1.0
"""Beyond the noise of two equal runs: one that lived longer than this felt its budget."""
_OUTLIVED_FACTOR, _OUTLIVED_S = 2.0, 10.0
"""A failure after more than this is no refusal of the budget: the program had worked with it."""


@dataclass(frozen=True, slots=True)
class Next:
    """What comes after an attempt; without a budget, nothing does."""

    budget_bytes: int | None = None
    pause_s: float = 0.0
    notice: str | None = None
    """Why that budget, where it is not simply the rule's."""
    gave_up: str | None = None
    """Why nothing comes although something was wanted."""


def is_lack(attempt: Attempt, *, ok_with_kills: bool) -> bool:
    """Whether a smaller budget would be the answer to this end."""
    if not attempt.judgement.calls_for_less:
        return False
    return not (ok_with_kills and attempt.evidence.ended_well)


def decide(
    attempts: Sequence[Attempt],
    *,
    next_budget: Callable[[int, int], int | None],
    retries: int,
    ok_with_kills: bool,
    restart: RestartPolicy,
) -> Next:
    """What follows the last of `attempts`, all of one run and in their order.

    `next_budget(attempt, budget_bytes)` is the caller's rule. `retries` bounds the attempts with
    another budget than the one before.
    """
    last = attempts[-1]
    lacks = [attempt for attempt in attempts if is_lack(attempt, ok_with_kills=ok_with_kills)]
    used = len(lacks) + sum(1 for attempt in attempts[:-1] if _was_raised(attempt) and attempt not in lacks)
    if lacks and lacks[-1] is last:
        return _after_lack(attempts, lacks, used, retries, next_budget)
    if _is_lower_bound(last, attempts[:-1], lacks):
        return _after_refusal(last, lacks, used, retries)
    if wants_restart(restart, last):
        others = [attempt for attempt in attempts if attempt not in lacks]
        pause_s = pause_before_restart(restart, others)
        if pause_s is None:
            return Next(gave_up=f"{restart.early_deaths} early deaths in a row are a crash loop")
        return Next(last.budget_bytes, pause_s)
    return Next()


def still_needed(attempts: Sequence[Attempt], restart: RestartPolicy) -> list[Attempt]:
    """Without those that no decision can need any more: a service may be started again for years.

    Of the ends that were followed by the same budget the latest may be early deaths in a row, and one of
    each kind tells what is no lower bound.
    """
    latest = [attempt.number for attempt in attempts if _was_repeated(attempt)][-restart.early_deaths :]
    kept, kinds = [], set()
    for attempt in reversed(attempts):
        kind = attempt.budget_bytes, attempt.evidence.exit
        if _was_repeated(attempt) and kind in kinds and attempt.number not in latest:
            continue
        kinds.add(kind)
        kept.append(attempt)
    return kept[::-1]


def _after_lack(
    attempts: Sequence[Attempt],
    lacks: Sequence[Attempt],
    used: int,
    retries: int,
    next_budget: Callable[[int, int], int | None],
) -> Next:
    last = lacks[-1]
    budget = format_size(last.budget_bytes)
    if (reason := _without_effect(lacks)) is not None:
        return Next(gave_up=reason)
    if (earlier := _ran_out_of_budget(lacks)) is not None:
        return _after_own_end(earlier, lacks, used, retries)
    if used > retries:
        return Next(
            gave_up=f"{count(len(lacks), 'attempt')} ran out of memory, the last with {budget}"
            f"{_suspicion(lacks)}"
        )
    smaller = next_budget(last.number, last.budget_bytes)
    refused = max((attempt.budget_bytes for attempt in attempts if _was_raised(attempt)), default=None)
    if refused is not None and (smaller is None or smaller <= refused):
        return _between(refused, last.budget_bytes)
    if smaller is None:
        return Next(gave_up=f"no budget below {budget} is worth trying{_suspicion(lacks)}")
    return Next(smaller)


def _after_own_end(earlier: Attempt, lacks: Sequence[Attempt], used: int, retries: int) -> Next:
    """The last of `lacks` used its budget up, as the comparison with `earlier` shows."""
    last = lacks[-1]
    killed = [attempt for attempt in lacks if attempt.judgement.verdict is not Verdict.IN_PROCESS_OOM]
    if killed:
        return _after_refusal(last, killed, used - 1, retries)
    return Next(
        gave_up=f"the program needs more than {format_size(earlier.budget_bytes)}: it keeps to its budget and"
        f" ran out of it at a peak of {format_size(earlier.evidence.peak_bytes)}, and with"
        f" {format_size(last.budget_bytes)} of {format_size(last.evidence.peak_bytes)}; give it a larger one"
    )


def _after_refusal(last: Attempt, lacks: Sequence[Attempt], used: int, retries: int) -> Next:
    dies_at = min(attempt.budget_bytes for attempt in lacks)
    if used >= retries:
        return Next(gave_up=f"{_bounds(last.budget_bytes, dies_at)}, and no retry is left")
    return _between(last.budget_bytes, dies_at)


def _between(refused: int, dies_at: int) -> Next:
    bounds = _bounds(refused, dies_at)
    if dies_at - refused <= max(1, dies_at // NARROWEST_GAP):
        return Next(gave_up=f"{bounds}: give it more memory")
    return Next(refused + (dies_at - refused) // 2, notice=bounds)


def _bounds(refused: int, dies_at: int) -> str:
    return (
        f"the program needs more than {format_size(refused)}, with which it fails otherwise,"
        f" and runs out of memory with {format_size(dies_at)}"
    )


def _was_raised(attempt: Attempt) -> bool:
    return attempt.next_budget_bytes is not None and attempt.next_budget_bytes > attempt.budget_bytes


def _was_repeated(attempt: Attempt) -> bool:
    return attempt.next_budget_bytes == attempt.budget_bytes


def _is_lower_bound(last: Attempt, before: Sequence[Attempt], lacks: Sequence[Attempt]) -> bool:
    """Whether `last` failed for want of budget, as far as can be told from outside."""
    exit_ = last.evidence.exit
    if last.judgement.verdict not in (Verdict.EXITED, Verdict.SIGNALLED) or exit_ is None or not exit_.status:
        return False
    with_more = [attempt for attempt in lacks if attempt.budget_bytes > last.budget_bytes]
    if not with_more:
        return False
    longest = max(attempt.evidence.duration_s for attempt in with_more)
    if last.evidence.duration_s > longest * _OUTLIVED_FACTOR + _OUTLIVED_S:
        return False
    for attempt in before:
        ended = attempt.evidence.exit
        if attempt.budget_bytes >= last.budget_bytes and ended == exit_:
            return False  # it fails like this with more as well
        if attempt.budget_bytes <= last.budget_bytes and ended is not None and not ended.status:
            return False  # it can do with this, or with less
    return True


def _without_effect(lacks: Sequence[Attempt]) -> str | None:
    """Why the budget can be said to have no effect; None when that would be too much said."""
    last = lacks[-1]
    for earlier in lacks[:-1]:
        if earlier.budget_bytes >= 2 * last.budget_bytes and _died_alike(earlier, last):
            return (
                f"the budget has no effect: with {format_size(earlier.budget_bytes)} and with"
                f" {format_size(last.budget_bytes)} alike it died at a peak of"
                f" {format_size(last.evidence.peak_bytes)}; see that the program is told its budget"
            )
    return None


def _ran_out_of_budget(lacks: Sequence[Attempt]) -> Attempt | None:
    """The attempt beside which it shows that the budget itself ran out in the last one; None: none does.

    Whoever runs against something else (a kernel's limit, a full tmpfs, RLIMIT_AS) does so at the same peak.
    """
    last = lacks[-1]
    if last.judgement.verdict is not Verdict.IN_PROCESS_OOM:
        return None
    with_more = (attempt for attempt in lacks if attempt.budget_bytes > last.budget_bytes)
    return next((attempt for attempt in with_more if _peak_fell_along(attempt, last)), None)


def _peak_fell_along(earlier: Attempt, later: Attempt) -> bool:
    """By half of what the budget fell by, or more, and the later one did not live longer."""
    one, other = earlier.evidence.peak_bytes, later.evidence.peak_bytes
    if one is None or other is None:
        return False
    fell = one - other
    followed = 2 * fell >= earlier.budget_bytes - later.budget_bytes and fell * 100 > one * SAME_PEAK_PERCENT
    return followed and _lived_no_longer(earlier, later)


def _suspicion(lacks: Sequence[Attempt]) -> str:
    """What is worth a look when several attempts died alike, yet with budgets too near for a proof."""
    first, last = lacks[0], lacks[-1]
    if first.budget_bytes <= last.budget_bytes or not all(_died_alike(first, lack) for lack in lacks[1:]):
        return ""
    return (
        f"; all died at a peak of {format_size(last.evidence.peak_bytes)}: perhaps the budget has no effect,"
        " see that the program is told it"
    )


def _died_alike(earlier: Attempt, later: Attempt) -> bool:
    """At the same peak, and the later one did not live longer."""
    one, other = earlier.evidence.peak_bytes, later.evidence.peak_bytes
    if one is None or other is None:
        return False
    alike = abs(one - other) * 100 <= max(one, other) * SAME_PEAK_PERCENT
    return alike and _lived_no_longer(earlier, later)


def _lived_no_longer(earlier: Attempt, later: Attempt) -> bool:
    return later.evidence.duration_s <= earlier.evidence.duration_s * _LATER_FACTOR + _LATER_S
