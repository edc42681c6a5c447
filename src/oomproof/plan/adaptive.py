"""The default policy: down in growing steps within a run, and closer to the right budget from run to run.

    nothing known                   the plan's budget
    after a death                   down by 10 %, 20 %, then to the floor of 25 % of the start
    known good below known bad      the middle, or what a measured peak shows, until bad / good < 1.05
    closed                          known good
    10 runs, and no bracket to close
                                    the margin that wastes least (`first_allocation`); after a death of
                                    it, the same among the runs that needed more

No run is spent only on finding out. A budget above the known good one (a *trial*) is only ever the
first attempt of a run that does the user's work with it, and only where a retry is left, which then
takes the known good one: a run has at most one trial, and is not lost by it.
Not covered: policies that forget (`descent`), and reading what happened (`oomproof.history`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oomproof.history.model import Observation
from oomproof.plan.bracket import Bracket, bracket_of, weights
from oomproof.plan.budget import learned_margin_floor
from oomproof.plan.first_allocation import Need, Sample, first_allocation, samples_of
from oomproof.plan.model import LearnedOverhead, Plan
from oomproof.plan.steps import round_down
from oomproof.units import format_size

FIRST_DROP_PERCENT = 10
FLOOR_DIVISOR = 4
"""No budget below this part of the first one: a program that dies there has another problem."""
TO_THE_FLOOR = 3
"""After so many deaths in a run the last retry takes the floor."""
KEPT = 64
"""So many of the newest attempts are looked at: a known bad budget is tried again after as many."""
ENOUGH_SAMPLES = 10
CACHE_PERCENT = 98
STEADY_PERCENT = 2
STEADY_MARGIN_DIVISOR = 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a budget may be. Sizes in bytes."""

    floor_bytes: int
    ceiling_bytes: int
    steps: tuple[int, ...] = ()

    def fit(self, size: int) -> int | None:
        """`size` within the bounds, rounded down to a step; None when none is in them."""
        step = round_down(min(max(size, self.floor_bytes), self.ceiling_bytes), self.steps)
        return None if step is None or step < self.floor_bytes else step


@dataclass(frozen=True, slots=True)
class Lessons:
    """What the attempts of earlier runs teach about the present plan. Sizes in bytes."""

    bracket: Bracket
    attempts: int
    runs: int
    """Of them: runs that lived."""
    margins: tuple[Sample, ...]
    """What a run may need beside its budget."""
    reachable_bytes: int | None
    """The budget that the largest measured peak leaves room for; None: no peak was telling."""

    @property
    def weighs_waste(self) -> bool:
        """Enough runs were seen, and no bracket is left to close."""
        settled = self.bracket.bad_bytes is None or self.bracket.is_closed or self.bracket.confidence < 1
        return self.runs >= ENOUGH_SAMPLES and settled


@dataclass(frozen=True, slots=True)
class Choice:
    """A budget, and why it was chosen, in a few words; no words: nothing was learned."""

    budget_bytes: int
    reason: str = ""


def bounds_of(
    plan: Plan,
    *,
    floor_bytes: int | None = None,
    cap_bytes: int | None = None,
    margin_floor_bytes: int | None = None,
    steps: tuple[int, ...] = (),
) -> Bounds:
    """The bounds that the caller's wishes set; the floor is a quarter of the plan's budget by default."""
    start = plan.unlearned_bytes
    floor = -(-start // FLOOR_DIVISOR) if floor_bytes is None else floor_bytes
    floor = min((step for step in steps if step >= floor), default=floor)
    ceiling = plan.allowed_bytes - (margin_floor_bytes or 0)
    if cap_bytes is not None:
        ceiling = min(ceiling, cap_bytes)
    return Bounds(max(1, min(floor, start)), max(ceiling, start), steps)


def brought_to(allowed_bytes: int, observations: Sequence[Observation]) -> list[Observation]:
    """What was seen, as it would be where `allowed_bytes` can be had.

    What a program takes beside its budget stays; with less memory around it, its budget is smaller by as
    much. Small changes are left alone, so that the same budget stays the same: 2 %, but no more than a
    tenth of the margin that there was.
    """
    found = []
    for seen in observations:
        before = allowed_bytes if seen.allowed_bytes is None else seen.allowed_bytes
        change = allowed_bytes - before
        is_small = abs(change) * 100 < allowed_bytes * STEADY_PERCENT
        if change == 0 or (is_small and -change * STEADY_MARGIN_DIVISOR <= before - seen.budget_bytes):
            found.append(seen)
        elif seen.budget_bytes + change > 0:
            peak = None if seen.peak_bytes is None else seen.peak_bytes + change
            found.append(replace(seen, budget_bytes=seen.budget_bytes + change, peak_bytes=peak))
    return found


def learned_overhead(allowed_bytes: int, observations: Sequence[Observation]) -> LearnedOverhead | None:
    """The most that the newest attempts that lived took beside their budget; None: nothing telling.

    A peak below the budget shows a program that did not use it, one of an attempt whose budget we had
    lowered shows our own doing, and one of all that is allowed the page cache, which fills what there is.
    """
    newest = [seen for seen in observations if seen.lived and not seen.after_oom][-ENOUGH_SAMPLES:]
    telling = [seen.overhead_bytes for seen in newest if _shows_overhead(allowed_bytes, seen)]
    return LearnedOverhead(max(telling), len(telling)) if telling else None


def lessons_of(plan: Plan, observations: Sequence[Observation]) -> Lessons:
    """`observations` (oldest first) as lessons for `plan`."""
    newest = observations[-KEPT:]
    allowed = plan.allowed_bytes
    telling = [seen.overhead_bytes for seen in newest if _shows_overhead(allowed, seen)][-ENOUGH_SAMPLES:]
    reachable = allowed - max(telling) - learned_margin_floor(allowed) if telling else None
    bracket = bracket_of(newest)
    needs = _needs(plan, bracket.good_bytes or 0, newest)
    margins = samples_of(needs, learned_margin_floor(allowed))
    return Lessons(bracket, len(newest), len(needs), margins, reachable)


def _shows_overhead(allowed_bytes: int, seen: Observation) -> bool:
    """A peak above the budget that is neither of our making nor page cache, which takes what there is."""
    without_cache = allowed_bytes * CACHE_PERCENT // 100
    peak = seen.budget_bytes + seen.overhead_bytes
    return seen.lived and not seen.after_oom and seen.budget_bytes < peak < without_cache


def _needs(plan: Plan, good: int, observations: Sequence[Observation]) -> list[Need]:
    """What each run that lived needed beside its budget, oldest first."""
    allowed, start = plan.allowed_bytes, plan.unlearned_bytes
    varies = learned_margin_floor(allowed)
    needs = []
    died = None  # the smallest budget of the same run that died
    for seen, weight in zip(observations, weights(observations), strict=True):
        if not seen.after_oom:
            died = None
        if not seen.lived:
            died = seen.budget_bytes
            continue
        sufficed = max(0, allowed - seen.budget_bytes)
        # As far as nothing speaks against it, it would have lived with all that others lived with.
        most = sufficed if died is not None and died <= good else min(sufficed, max(0, allowed - good))
        if died is not None:  # its peak is of our own making
            needs.append(Need(min(most, max(0, allowed - died)), most, seen.duration_s, weight))
            continue
        if _shows_overhead(allowed, seen):
            most = min(sufficed, seen.overhead_bytes + varies)
        elif seen.peak_bytes is not None and not seen.overhead_bytes:
            most = min(sufficed, max(0, allowed - start))  # it did not use its budget, so the guess stands
        needs.append(Need(most, most, seen.duration_s, weight))
    return needs


def first_budget(plan: Plan, bounds: Bounds, lessons: Lessons, *, retries: int) -> Choice:
    """The budget of a run's first attempt. `retries`: how many smaller ones may follow."""
    start, good, bad = plan.unlearned_bytes, lessons.bracket.good_bytes, lessons.bracket.bad_bytes
    if not lessons.attempts:
        return Choice(start)
    if good is None:
        return _below_all_that_died(bounds, start, lessons)
    if lessons.weighs_waste:
        budget = plan.allowed_bytes - first_allocation(lessons.margins, plan.allowed_bytes)
        words = f"the margin that wastes least after {lessons.runs} runs"
        return _fitted(bounds, budget if retries else min(budget, good), words, good)
    number = f"{lessons.attempts} attempt{'s' if lessons.attempts > 1 else ''}"
    known = f"known good, {100 * lessons.bracket.confidence:.0f} % sure after {number}"
    trial = _trial(start, lessons)
    if bad is None and trial > good and not retries:
        return Choice(start)  # nothing speaks against it
    if trial <= good or not retries:
        return _fitted(bounds, good, known, good)
    between = f"above the known good {format_size(good)}"
    if bad is not None:
        between = f"between the known good {format_size(good)} and the known bad {format_size(bad)}"
    choice = _fitted(bounds, trial, f"{between}, to which it returns should this be too much", good)
    return choice if choice.budget_bytes > good else _fitted(bounds, good, known, good)


def _trial(start: int, lessons: Lessons) -> int:
    """A budget above the known good one that is worth trying; not above it: none is."""
    good, bad = lessons.bracket.good_bytes or 0, lessons.bracket.bad_bytes
    if bad is None:
        return start
    if lessons.bracket.is_closed or lessons.bracket.confidence < 1:
        return good
    if lessons.reachable_bytes is not None:
        # Measured is better than guessed, as long as nothing died there.
        return lessons.reachable_bytes if lessons.reachable_bytes < bad else good
    return (good + bad) // 2


def _below_all_that_died(bounds: Bounds, start: int, lessons: Lessons) -> Choice:
    """Nothing lived yet: the descent goes on where the last run left it."""
    bad = lessons.bracket.bad_bytes or start
    smaller = _descended(bounds, start, bad, start - bad)
    if smaller is None:
        return _fitted(bounds, bounds.floor_bytes, "the floor, where attempts died too", bad)
    # What died may have been asked for: far above anything that would be planned.
    return Choice(min(smaller, start), f"below {format_size(bad)}, the smallest budget of those that died")


def next_budget(
    plan: Plan, bounds: Bounds, lessons: Lessons, died: Sequence[int], *, retries_left: int
) -> int | None:
    """The budget after the attempts with `died` (oldest first) ran out of memory; None: no smaller one.

    `retries_left` counts the attempt that is asked for: the last one does not gamble.
    """
    budget, good = died[-1], lessons.bracket.good_bytes
    if retries_left <= 1 and len(died) >= TO_THE_FLOOR:
        return _below(budget, bounds.fit(bounds.floor_bytes))
    if lessons.weighs_waste:
        smaller = _next_by_waste(plan, bounds, lessons, budget)
        if smaller is not None:
            return smaller
    if good is not None and good < budget:
        return _below(budget, bounds.fit(good))
    start = plan.unlearned_bytes
    # From a budget that used to live the steps begin anew; else they go on where earlier runs ended.
    gone = start - budget if good is None else max(size for size in died if size <= good) - budget
    return _descended(bounds, start, budget, gone)


def _next_by_waste(plan: Plan, bounds: Bounds, lessons: Lessons, budget: int) -> int | None:
    """By the runs that needed more than `budget` left them; None where no run is known to have."""
    more = [sample for sample in lessons.margins if plan.allowed_bytes - sample.bytes < budget]
    if not more:
        return None
    return _below(budget, bounds.fit(plan.allowed_bytes - first_allocation(more, plan.allowed_bytes)))


def _descended(bounds: Bounds, start: int, budget: int, gone: int) -> int | None:
    """`budget` less 10 % of `start`, or 20, 40, ... % after `gone` bytes; None when it is at the floor."""
    if budget <= bounds.floor_bytes:
        return None
    first = max(1, start * FIRST_DROP_PERCENT // 100)
    drop = first
    while drop - first < gone:  # 10 % + 20 % + ... are gone
        drop *= 2
    smaller = budget - drop
    if smaller - bounds.floor_bytes < first:  # so that three retries reach the floor
        smaller = bounds.floor_bytes
    return _below(budget, bounds.fit(smaller))


def _below(budget: int, smaller: int | None) -> int | None:
    return smaller if smaller is not None and smaller < budget else None


def _fitted(bounds: Bounds, size: int, reason: str, otherwise: int) -> Choice:
    fitting = bounds.fit(size)
    chosen = otherwise if fitting is None else fitting
    return Choice(chosen, reason if chosen == size else f"{reason}, as far as floor, cap and steps allow")


def with_choice(plan: Plan, choice: Choice) -> Plan:
    """`plan` with the chosen budget, its reason the source of the difference."""
    return plan.with_budget(choice.budget_bytes, f"history: {choice.reason}")
