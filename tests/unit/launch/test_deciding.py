"""What follows an end: simulated programs that keep to their budget, ignore it, or refuse it."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.launch.deciding import Next, decide, still_needed
from oomproof.launch.model import Attempt, Confidence, Evidence, Exit, Judgement, Verdict
from oomproof.launch.restart import RestartMode, RestartPolicy

LIMIT = 1000
NEVER = RestartPolicy()


def died(number: int, budget: int, peak: int | None = LIMIT, seconds: float = 60.0) -> Attempt:
    evidence = Evidence(exit=Exit(signal=signal.SIGKILL), peak_bytes=peak, duration_s=seconds)
    return Attempt(number, budget, evidence, Judgement(Verdict.OOM_KILL, Confidence.CERTAIN, ()))


def ended(number: int, budget: int, exit_: Exit, seconds: float = 1.0) -> Attempt:
    verdict = Verdict.EXITED if exit_.signal is None else Verdict.SIGNALLED
    evidence = Evidence(exit=exit_, peak_bytes=budget // 2, duration_s=seconds)
    return Attempt(number, budget, evidence, Judgement(verdict, Confidence.CERTAIN, ()))


def follow(*attempts: Attempt, retries: int = 3, percent: int = 10, restart: RestartPolicy = NEVER) -> Next:
    return decide(
        attempts,
        next_budget=lambda _number, budget: budget * (100 - percent) // 100 if budget > 100 else None,
        retries=retries,
        ok_with_kills=False,
        restart=restart,
    )


def run(program: dict[str, int], *, retries: int, percent: int) -> tuple[list[Attempt], Next]:
    """A whole run of a program that takes ``beside`` and ``of_100`` per cent of its budget, or ``always``,
    and refuses less than ``least``."""
    attempts: list[Attempt] = []
    budget = LIMIT
    while True:
        number = len(attempts) + 1
        used = program.get("always", program.get("beside", 0) + budget * program.get("of_100", 100) // 100)
        if budget < program.get("least", 0):
            attempt = ended(number, budget, Exit(1))
        elif used > LIMIT:
            attempt = died(number, budget)
        else:
            attempt = ended(number, budget, Exit(0))
        following = follow(*attempts, attempt, retries=retries, percent=percent)
        attempts.append(Attempt(number, budget, attempt.evidence, attempt.judgement, following.budget_bytes))
        if following.budget_bytes is None:
            return attempts, following
        budget = following.budget_bytes


@given(st.integers(10, 60), st.integers(1000, 2000))
def test_a_program_that_ignores_its_budget_is_stopped_as_soon_as_the_budget_was_halved(
    percent: int, always: int
) -> None:
    attempts, last = run({"always": always + 1}, retries=50, percent=percent)
    assert last.gave_up is not None
    assert last.gave_up.startswith("the budget has no effect: with 1000 B and with ")
    budgets = [attempt.budget_bytes for attempt in attempts]
    assert budgets[-1] <= LIMIT // 2 < budgets[-2]


@given(st.integers(5, 60), st.integers(0, 499), st.integers(60, 100))
def test_a_program_that_takes_less_than_half_of_the_limit_beside_its_budget_is_never_stopped_early(
    percent: int, beside: int, of_100: int
) -> None:
    attempts, last = run({"beside": beside, "of_100": of_100}, retries=50, percent=percent)
    assert last == Next()
    assert attempts[-1].evidence.exit == Exit(0)


@given(st.integers(5, 40), st.integers(0, 300), st.integers(1, 1000))
def test_between_a_refused_budget_and_one_that_is_too_much_the_gap_is_halved(
    percent: int, beside: int, least: int
) -> None:
    attempts, last = run({"beside": beside, "least": least}, retries=50, percent=percent)
    works = range(least, LIMIT - beside + 1)
    if attempts[-1].evidence.exit == Exit(0):
        assert attempts[-1].budget_bytes in works
    else:
        assert len(works) <= LIMIT // 32, "only a gap that is not worth an attempt is left alone"
        assert last.gave_up is not None
        assert (
            len(attempts) == 1 or "the program needs more than" in last.gave_up or "no budget" in last.gave_up
        )


def test_what_is_known_of_the_budget_is_said() -> None:
    following = follow(died(1, 1000), ended(2, 900, Exit(3)))
    assert following.budget_bytes == 950
    assert following.notice == (
        "the program needs more than 900 B, with which it fails otherwise, and runs out of memory with 1000 B"
    )


def test_a_refusal_counts_as_a_retry() -> None:
    following = follow(died(1, 1000), ended(2, 900, Exit(3)), retries=1)
    assert following.gave_up is not None
    assert following.gave_up.endswith("and no retry is left")


def test_a_budget_that_runs_out_of_memory_above_a_refused_one_is_followed_by_one_in_between() -> None:
    refused = Attempt(2, 900, *_parts(ended(2, 900, Exit(3))), next_budget_bytes=950)
    following = follow(died(1, 1000), refused, died(3, 950))
    assert following.budget_bytes == 925


def _parts(attempt: Attempt) -> tuple[Evidence, Judgement]:
    return attempt.evidence, attempt.judgement


NO_BOUND = {
    "it fails like this with more as well": (ended(1, 1000, Exit(1)), died(2, 1000), ended(3, 900, Exit(1))),
    "it did well with this budget": (died(1, 1000), ended(2, 900, Exit(0)), ended(3, 900, Exit(1))),
    "it had worked for long": (died(1, 1000, seconds=60), ended(2, 900, Exit(1), seconds=500)),
    "it succeeded": (died(1, 1000), ended(2, 900, Exit(0))),
    "nothing died with more": (ended(1, 900, Exit(1)),),
}


@pytest.mark.parametrize("attempts", NO_BOUND.values(), ids=NO_BOUND.keys())
def test_no_lower_bound(attempts: tuple[Attempt, ...]) -> None:
    assert follow(*attempts) == Next()


def test_a_failure_that_is_no_lower_bound_is_restarted_where_asked_for() -> None:
    again = RestartPolicy(RestartMode.ON_FAILURE)
    attempts = NO_BOUND["it fails like this with more as well"]
    assert follow(*attempts, restart=again).budget_bytes == 900


NOT_ALIKE = {
    "peaks differ": (died(1, 1000, peak=1000), died(2, 500, peak=900)),
    "peaks are unknown": (died(1, 1000, peak=None), died(2, 500, peak=None)),
    "it lived longer": (died(1, 1000, seconds=60), died(2, 500, seconds=90)),
    "the budget fell too little": (died(1, 1000), died(2, 501)),
}


@pytest.mark.parametrize("attempts", NOT_ALIKE.values(), ids=NOT_ALIKE.keys())
def test_a_budget_that_may_have_an_effect(attempts: tuple[Attempt, ...]) -> None:
    assert follow(*attempts).budget_bytes == attempts[-1].budget_bytes * 9 // 10


def test_when_the_retries_are_used_up_by_deaths_that_are_alike_the_suspicion_is_said() -> None:
    following = follow(died(1, 1000), died(2, 900), died(3, 810), retries=2)
    assert following.gave_up is not None
    assert following.gave_up.startswith(
        "3 attempts ran out of memory, the last with 810 B; all died at a peak"
    )
    assert "perhaps the budget has no effect" in following.gave_up


# -- programs that say themselves that memory ran out ---------------------------------------


def gave_in(number: int, budget: int, peak: int | None, seconds: float = 60.0) -> Attempt:
    evidence = Evidence(exit=Exit(code=3), peak_bytes=peak, duration_s=seconds)
    return Attempt(number, budget, evidence, Judgement(Verdict.IN_PROCESS_OOM, Confidence.MEDIUM, ()))


def test_a_program_that_runs_out_of_its_own_budget_twice_needs_more_than_the_larger_one() -> None:
    following = follow(gave_in(1, 900, peak=950), gave_in(2, 810, peak=860, seconds=55.0))
    assert following.budget_bytes is None
    assert following.gave_up == (
        "the program needs more than 900 B: it keeps to its budget and ran out of it at a peak of 950 B,"
        " and with 810 B of 860 B; give it a larger one"
    )


AGAINST_SOMETHING_ELSE = {
    "the first such death": (gave_in(1, 1000, peak=1000),),
    "the peak stays where it was": (gave_in(1, 1000, peak=990), gave_in(2, 900, peak=985)),
    "the peak hardly follows": (gave_in(1, 1000, peak=990), gave_in(2, 900, peak=950)),
    "it lived longer": (gave_in(1, 1000, peak=1000, seconds=60), gave_in(2, 900, peak=900, seconds=90)),
    "peaks are unknown": (gave_in(1, 1000, peak=None), gave_in(2, 900, peak=None)),
    "the kernel killed it": (gave_in(1, 1000, peak=1000), died(2, 900, peak=900)),
}


@pytest.mark.parametrize("attempts", AGAINST_SOMETHING_ELSE.values(), ids=AGAINST_SOMETHING_ELSE.keys())
def test_a_program_that_may_have_run_against_something_else_gets_less(attempts: tuple[Attempt, ...]) -> None:
    assert follow(*attempts).budget_bytes == attempts[-1].budget_bytes * 9 // 10


def test_killed_with_more_and_out_of_its_own_budget_with_less_leaves_the_gap_in_between() -> None:
    """A heap that leaves no room for what is beside it, and one that is too small for its objects."""
    killed, out = died(1, 1000, peak=1000), gave_in(2, 800, peak=890)
    following = follow(killed, out)
    assert following == Next(900, notice=following.notice)
    assert following.notice is not None
    assert following.notice.startswith("the program needs more than 800 B")
    raised = Attempt(2, 800, *_parts(out), next_budget_bytes=900)
    assert follow(killed, raised, gave_in(3, 900, peak=940), retries=3).budget_bytes == 950
    assert follow(killed, raised, died(3, 900), retries=3).budget_bytes == 810
    last = follow(killed, raised, gave_in(3, 900, peak=940), retries=2)
    assert last.gave_up is not None
    assert last.gave_up.endswith("and no retry is left")


def test_kills_that_were_accepted_are_early_deaths_as_others() -> None:
    accepted = [
        Attempt(
            number,
            1000,
            Evidence(exit=Exit(0), duration_s=0.1),
            Judgement(Verdict.OOM_KILL, Confidence.CERTAIN, ()),
        )
        for number in range(1, 6)
    ]
    following = decide(
        accepted,
        next_budget=lambda _number, _budget: None,
        retries=3,
        ok_with_kills=True,
        restart=RestartPolicy(RestartMode.ALWAYS),
    )
    assert following == Next(gave_up="5 early deaths in a row are a crash loop")


ENDS = st.sampled_from(["lack", "early", "late", "well", "refusal"])


@given(st.lists(ENDS, max_size=40))
def test_what_is_forgotten_of_a_long_run_changes_no_decision(ends: list[str]) -> None:
    restart = RestartPolicy(RestartMode.ALWAYS)
    everything: list[Attempt] = []
    kept: list[Attempt] = []
    budget = LIMIT
    for number, end in enumerate(ends, start=1):
        attempt = {
            "lack": died(number, budget),
            "early": ended(number, budget, Exit(1)),
            "late": ended(number, budget, Exit(1), seconds=99.0),
            "well": ended(number, budget, Exit(0), seconds=99.0),
            "refusal": ended(number, budget, Exit(3)),
        }[end]
        following = follow(*everything, attempt, restart=restart)
        assert follow(*kept, attempt, restart=restart) == following
        if following.budget_bytes is None:
            break
        attempt = Attempt(number, budget, *_parts(attempt), next_budget_bytes=following.budget_bytes)
        everything.append(attempt)
        kept = still_needed([*kept, attempt], restart)
        assert kept[-1] == attempt
        budget = following.budget_bytes
