from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from oomproof.history.model import Observation
from oomproof.plan.bracket import Bracket, bracket_of, weights

HOUR = 3600.0


def seen(*outcomes: tuple[int, bool]) -> list[Observation]:
    """One attempt an hour, the last just now."""
    return [
        Observation(budget, lived, None, 60.0, (len(outcomes) - 1 - number) * HOUR)
        for number, (budget, lived) in enumerate(outcomes)
    ]


OBSERVATIONS = st.lists(
    st.builds(
        Observation,
        budget_bytes=st.integers(1, 40),
        lived=st.booleans(),
        peak_bytes=st.none() | st.integers(0, 80),
        duration_s=st.floats(0, 1e6),
        age_s=st.floats(0, 1e8),
        after_oom=st.booleans(),
    ),
    max_size=30,
).map(lambda found: sorted(found, key=lambda one: -one.age_s))


def test_nothing_seen_says_nothing() -> None:
    assert bracket_of([]) == Bracket(None, None, 1.0)


def test_the_largest_that_lived_and_the_smallest_that_died() -> None:
    bracket = bracket_of(seen((100, False), (90, False), (70, True), (80, True)))
    assert bracket == Bracket(80, 90, 1.0)
    assert not bracket.is_closed


def test_closed_below_a_ratio_of_one_and_a_twentieth() -> None:
    assert not bracket_of(seen((100, True), (105, False))).is_closed
    assert bracket_of(seen((1000, True), (1049, False))).is_closed


def test_a_budget_that_lived_and_then_died_costs_confidence_and_inverts_nothing() -> None:
    bracket = bracket_of(seen((70, True), (80, True), (80, False)))
    assert 0.5 < bracket.confidence < 1
    assert (bracket.good_bytes, bracket.bad_bytes) == (70, 80)


def test_one_death_among_many_lives_moves_nothing() -> None:
    outcomes = [(80, True)] * 9 + [(80, False)] + [(80, True)] * 3 + [(100, False)]
    bracket = bracket_of(seen(*outcomes))
    assert (bracket.good_bytes, bracket.bad_bytes) == (80, 100)
    assert 0.9 < bracket.confidence < 1


def test_a_larger_budget_that_lives_refutes_one_early_death() -> None:
    bracket = bracket_of(seen((80, False), (90, True), (90, True)))
    assert (bracket.good_bytes, bracket.bad_bytes) == (90, None)


@given(OBSERVATIONS)
def test_good_is_always_below_bad(found: Sequence[Observation]) -> None:
    bracket = bracket_of(found)
    lived = {one.budget_bytes for one in found if one.lived}
    died = {one.budget_bytes for one in found if not one.lived}
    assert bracket.good_bytes is None or bracket.good_bytes in lived
    assert bracket.bad_bytes is None or bracket.bad_bytes in died
    if bracket.good_bytes is not None and bracket.bad_bytes is not None:
        assert bracket.good_bytes < bracket.bad_bytes
    assert 0.5 <= bracket.confidence <= 1


@given(OBSERVATIONS.filter(bool))
def test_confidence_is_whole_exactly_when_nothing_contradicts(found: Sequence[Observation]) -> None:
    kept = [one for one, weight in zip(found, weights(found), strict=True) if weight > 1e-6]
    highest = max((one.budget_bytes for one in kept if one.lived), default=0)
    lowest = min((one.budget_bytes for one in kept if not one.lived), default=99)
    if highest >= lowest:
        assert bracket_of(found).confidence < 1
    elif len(kept) == len(found):
        assert bracket_of(found).confidence == 1


@given(OBSERVATIONS)
def test_the_newest_ten_count_for_at_least_half(found: Sequence[Observation]) -> None:
    counted = weights(found)
    assert counted == sorted(counted)
    assert all(weight >= 0.5 for weight in counted[-10:])


def test_a_clock_that_was_set_back_is_no_reason_to_fail() -> None:
    seen = [Observation(100, True, None, 1.0, 0.0), Observation(200, True, None, 1.0, 50 * 365 * 24 * 3600.0)]
    newer, older = weights(seen)
    assert newer == 1
    assert 0 <= older < 0.51
    assert bracket_of(seen).good_bytes == 200
