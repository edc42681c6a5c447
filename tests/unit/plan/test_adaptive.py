from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.history.model import Observation
from oomproof.plan.adaptive import (
    Bounds,
    bounds_of,
    brought_to,
    first_budget,
    learned_overhead,
    lessons_of,
    next_budget,
    with_choice,
)
from oomproof.plan.model import Plan, Term
from oomproof.units import GIB, MIB
from unit.plan.test_bracket import OBSERVATIONS

HOUR = 3600.0


def plan(allowed: int, margin: int = 0) -> Plan:
    return Plan((Term("available", allowed, "test"), Term("margin_floor", -margin, "test")), probed=False)


@dataclass
class Program:
    """Lives with a budget up to `threshold`; its page cache fills all that is allowed."""

    threshold: Callable[[int], int]
    plan: Plan
    retries: int = 3
    steps: tuple[int, ...] = ()
    peak: Callable[[int], int | None] = lambda _: None
    runs: list[list[tuple[int, bool]]] = field(default_factory=list)

    def history(self) -> list[Observation]:
        found = []
        for number, run in enumerate(self.runs):
            for position, (budget, lived) in enumerate(run):
                age = (len(self.runs) - number) * HOUR
                found.append(Observation(budget, lived, self.peak(budget), 60.0, age, position > 0))
        return found

    def run(self) -> list[tuple[int, bool]]:
        bounds = bounds_of(self.plan, steps=self.steps)
        lessons = lessons_of(self.plan, self.history())
        budget: int | None = first_budget(self.plan, bounds, lessons, retries=self.retries).budget_bytes
        attempts: list[tuple[int, bool]] = []
        while budget is not None:
            lived = budget <= self.threshold(len(self.runs))
            attempts.append((budget, lived))
            if lived or len(attempts) > self.retries:
                break
            died = [size for size, _ in attempts]
            left = self.retries - len(died) + 1
            budget = next_budget(self.plan, bounds, lessons, died, retries_left=left)
        self.runs.append(attempts)
        return attempts


def test_within_a_run_the_drops_double_down_to_a_quarter() -> None:
    assert Program(lambda _: 0, plan(1000), retries=9).run() == [
        (size, False) for size in (1000, 900, 700, 250)
    ]


def test_a_descent_that_ran_out_of_retries_goes_on_in_the_next_run() -> None:
    program = Program(lambda _: 0, plan(1000), retries=1)
    budgets = [budget for _ in range(4) for budget, _ in program.run()]
    assert budgets == [1000, 900, 700, 250, 250, 250]


@pytest.mark.parametrize("threshold", [260, 333, 500, 871, 899, 950, 999])
def test_the_bracket_is_closed_by_bisection_and_kept(threshold: int) -> None:
    program = Program(lambda _: threshold, plan(1000))
    for _ in range(12):
        assert program.run()[-1][1], "every run does its work"
    [(last, lived)] = program.runs[-1]
    assert lived
    assert last * 1.05 > threshold
    trials = [run for run in program.runs[1:] if not run[0][1]]
    assert all(len(run) == 2 for run in trials), "a trial that dies costs one attempt"
    assert len(trials) <= 5


def test_a_measured_peak_shows_the_way_at_once() -> None:
    program = Program(lambda _: 64 * GIB, plan(100 * GIB), peak=lambda budget: budget + 36 * GIB)
    for _ in range(4):
        program.run()
    assert program.runs[-1] == [(63 * GIB, True)]
    assert sum(not lived for run in program.runs for _, lived in run) == 3, (
        "the first descent, and none after"
    )


def test_without_a_retry_nothing_is_tried() -> None:
    program = Program(lambda _: 800, plan(1000), retries=3)
    program.run()
    program.retries = 0
    for _ in range(5):
        assert program.run() == [(700, True)]


@given(st.integers(251, 1000), st.integers(0, 3))
def test_no_run_has_two_trials(threshold: int, jitter: int) -> None:
    program = Program(lambda number: threshold - number % (jitter + 1), plan(1000))
    for _ in range(15):
        program.run()
    for number, run in enumerate(program.runs[1:], 1):
        lived = [budget for earlier in program.runs[:number] for budget, well in earlier if well]
        good = max(lived, default=0)
        assert sum(budget > good for budget, _ in run) <= 1 or not lived


def test_steps_are_taken_one_at_a_time_and_unchanged_ones_skipped() -> None:
    steps = (256 * MIB, 512 * MIB, GIB, 2 * GIB)
    program = Program(lambda _: 600 * MIB, plan(2 * GIB), steps=steps)
    assert program.run() == [(2 * GIB, False), (GIB, False), (512 * MIB, True)]
    for _ in range(3):
        assert program.run() == [(512 * MIB, True)], "no step lies between good and bad"


def test_a_program_that_takes_more_day_by_day_is_followed() -> None:
    program = Program(lambda number: 9000 - 20 * number, plan(10_000))
    for _ in range(100):
        program.run()
    assert all(run[-1][1] for run in program.runs)
    budgets = [run[-1][0] / (9000 - 20 * number) for number, run in enumerate(program.runs)][20:]
    assert sum(budgets) / len(budgets) > 0.9


def test_peaks_of_our_own_making_teach_no_overhead() -> None:
    bumped = Observation(700, True, 1000, 60.0, 5.0, after_oom=True)
    below = Observation(700, True, 600, 60.0, 4.0)
    at_death = Observation(900, False, 1000, 60.0, 3.0)
    cache = Observation(500, True, 1000, 60.0, 2.0)
    assert learned_overhead(1000, [bumped, below, at_death, cache]) is None
    assert learned_overhead(1000, [Observation(700, True, 750, 60.0, 2.0), bumped]) is not None


def later(allowed: int, seen: Sequence[Observation], *, retries: int = 3) -> int:
    """The first budget of a run after these."""
    overhead = learned_overhead(allowed, seen)
    start = plan(allowed, 30 if overhead is None else overhead.bytes + 10)
    return first_budget(start, bounds_of(start), lessons_of(start, seen), retries=retries).budget_bytes


@pytest.mark.parametrize("peak", [600, 1000])
def test_a_program_that_was_held_small_once_grows_again(peak: int) -> None:
    """``--cap`` or ``--budget`` once, with a program that takes the same in all, or page cache."""
    seen = [Observation(100, True, peak, 60.0, 50 * HOUR)]
    for run in range(25):
        seen.append(Observation(later(1000, seen), True, peak, 60.0, (40 - run) * HOUR))
    assert seen[-1].budget_bytes == 970


def test_a_known_good_budget_above_the_cap_is_not_called_so() -> None:
    start = plan(1000, 700)
    lessons = lessons_of(start, [Observation(600, True, 50, 60.0, HOUR)])
    choice = first_budget(start, bounds_of(start, cap_bytes=300), lessons, retries=3)
    assert choice.budget_bytes == 300
    assert choice.reason.endswith("as far as floor, cap and steps allow")


def test_where_nothing_died_the_plan_stands_even_without_a_retry() -> None:
    assert later(1000, [Observation(100, True, 50, 60.0, HOUR)], retries=0) == 970


def test_a_budget_that_was_far_too_much_moves_the_plan_nowhere() -> None:
    assert later(1000, [Observation(2000, False, None, 60.0, HOUR)]) == 970


def test_with_steps_every_one_above_the_floor_is_tried() -> None:
    start = plan(3000)
    bounds = bounds_of(start, steps=(500, 800, 1900, 2000, 2100, 2700, 3000))
    assert bounds.floor_bytes == 800
    died = [3000]
    for left in (3, 2, 1):
        following = next_budget(start, bounds, lessons_of(start, []), died, retries_left=left)
        assert following is not None
        died.append(following)
    assert died == [3000, 2700, 2100, 800]


def test_a_known_good_budget_does_not_eat_the_margin() -> None:
    """Memory that others take is no longer there for it: of 342 GiB not even 6."""
    seen = [Observation(338, True, 341, 60.0, HOUR, allowed_bytes=342)]
    assert [each.budget_bytes for each in brought_to(336, seen)] == [332]
    seen = [Observation(9000, True, 9900, 60.0, HOUR, allowed_bytes=10_000)]
    assert brought_to(9950, seen) == seen, "a tenth of the margin is not worth another budget"


def test_with_less_memory_around_the_known_good_budget_is_smaller() -> None:
    seen = [
        Observation(900, False, 1000, 60.0, 2.0, allowed_bytes=1000),
        Observation(800, True, 950, 60.0, 1.0, allowed_bytes=1000),
    ]
    assert brought_to(600, seen) == [
        Observation(500, False, 600, 60.0, 2.0, allowed_bytes=1000),
        Observation(400, True, 550, 60.0, 1.0, allowed_bytes=1000),
    ]
    assert brought_to(1010, seen) == seen, "too small a change to speak of"
    assert brought_to(150, seen) == [Observation(50, False, 150, 60.0, 2.0, allowed_bytes=1000)]


def test_the_reason_is_part_of_the_plan() -> None:
    program = Program(lambda _: 800, plan(1000))
    program.run()
    lessons = lessons_of(program.plan, program.history())
    choice = first_budget(program.plan, bounds_of(program.plan), lessons, retries=3)
    assert choice.budget_bytes == 800
    assert "between the known good 700 B and the known bad 900 B" in choice.reason
    planned = with_choice(program.plan, choice)
    assert planned.budget_bytes == 800
    assert planned.terms[-1] == Term("learned", -200, f"history: {choice.reason}")


BOUNDS = st.tuples(st.integers(1, 50), st.lists(st.integers(1, 50), max_size=4))


@given(OBSERVATIONS, st.integers(1, 60), st.integers(0, 20), BOUNDS, st.integers(0, 4))
def test_every_budget_is_within_bounds_and_every_descent_falls(
    found: Sequence[Observation],
    budget: int,
    margin: int,
    wishes: tuple[int, list[int]],
    retries: int,
) -> None:
    start = plan(budget + margin, margin)
    floor, steps = min(wishes[0], budget), tuple(sorted(step for step in wishes[1] if step <= budget))
    if steps:
        steps = (*steps, budget)  # as a plan makes it
    bounds = bounds_of(start, floor_bytes=floor, steps=steps)
    lessons = lessons_of(start, found)
    first = first_budget(start, bounds, lessons, retries=retries).budget_bytes
    assert floor <= first <= bounds.ceiling_bytes <= start.allowed_bytes
    assert not steps or first in steps
    died = [first]
    for left in itertools.count(9, -1):
        following = next_budget(start, bounds, lessons, died, retries_left=max(left, 1))
        if following is None:
            break
        assert max(1, floor) <= following < died[-1]
        assert not steps or following in steps
        died.append(following)


def test_bounds_take_the_callers_wishes() -> None:
    wished = bounds_of(plan(1000, 100), floor_bytes=300, cap_bytes=950, margin_floor_bytes=20)
    assert wished == Bounds(300, 950)
    assert bounds_of(plan(1000, 100)).floor_bytes == 225
