import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import InvalidPolicy
from oomproof.plan.descent import next_budget, parse_policy
from oomproof.plan.model import Plan, Term
from oomproof.units import GIB, MIB


def plan(allowed: int, margin: int) -> Plan:
    return Plan((Term("available", allowed, "test"), Term("margin_floor", -margin, "test")), probed=False)


def descend(policy: str, start: Plan, attempts: int) -> list[int | None]:
    budgets: list[int | None] = [start.budget_bytes]
    while budgets[-1] is not None and len(budgets) < attempts:
        budgets.append(next_budget(parse_policy(policy), start, budgets[-1]))
    return budgets


def test_shrink_takes_its_percentage_off_the_budget_each_time() -> None:
    assert descend("shrink:10%", plan(1000 * MIB, 0), 4) == [
        1000 * MIB,
        900 * MIB,
        810 * MIB,
        729 * MIB,
    ]


def test_margin_grows_by_its_percentage_each_time() -> None:
    assert descend("margin:50%", plan(1000 * MIB, 16 * MIB), 4) == [
        984 * MIB,
        976 * MIB,
        964 * MIB,
        946 * MIB,
    ]


def test_margin_starts_from_the_default_where_there_is_none() -> None:
    assert descend("margin:50%", plan(1000 * MIB, 0), 2) == [1000 * MIB, 968 * MIB]


def test_descent_ends_at_a_quarter_of_the_start() -> None:
    assert descend("shrink:60%", plan(1000, 0), 9) == [1000, 400, None]


def test_a_stated_floor_replaces_the_quarter() -> None:
    policy = parse_policy("shrink:50%")
    assert next_budget(policy, plan(1000, 0), 1000, floor_bytes=500) == 500
    assert next_budget(policy, plan(1000, 0), 1000, floor_bytes=501) is None


@given(
    st.sampled_from(
        ["shrink:0.001%", "shrink:10%", "shrink:99%", "margin:0.1%", "margin:50%", "margin:900%"]
    ),
    st.integers(1, 64 * GIB),
    st.integers(0, 64 * GIB),
)
def test_every_next_budget_is_smaller_and_above_the_floor(policy: str, budget: int, margin: int) -> None:
    start = plan(budget + margin, margin)
    smaller = next_budget(parse_policy(policy), start, budget)
    assert smaller is None or max(1, budget / 4) <= smaller < budget


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shrink",
        "shrink:10",
        "grow:10%",
        "shrink:-5%",
        "shrink:0%",
        "shrink:100%",
        "margin:0%",
        "margin:x%",
    ],
)
def test_policies_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["adaptive", "shrink:10%", "margin:50%", "shrink:2.5%"])
def test_a_policy_prints_as_it_was_written(text: str) -> None:
    assert str(parse_policy(text)) == text
