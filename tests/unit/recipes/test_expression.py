"""Sizes as arithmetic: right, exact, and nothing but arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import ConfigError, UsageError
from oomproof.recipes.expression import MAX_DEPTH, MAX_LENGTH, Expression, is_name
from oomproof.units import GIB, KIB, MAX_SIZE, MIB

VALUES = {"budget": 1000 * MIB, "threads": 7}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("budget", 1000 * MIB),
        ("256MiB", 256 * MIB),
        ("1.5G", 3 * GIB // 2),
        ("75%", 0),
        ("budget * 75%", 750 * MIB),
        ("75% * budget", 750 * MIB),
        ("budget * 0.75", 750 * MIB),
        ("budget - 256MiB - threads * 1MiB", 737 * MIB),
        ("(budget - 100MiB) / 3", 300 * MIB),
        ("budget / 3 * 3", 1000 * MIB),
        ("1 / 3 * 3", 1),
        ("2 - 3 - 4", -5),
        ("2 * (3 - 4)", -2),
        ("12 / 2 / 3", 2),
        ("min(budget, 240MiB)", 240 * MIB),
        ("max(32MiB, min(240MiB, budget * 6%), 1)", 60 * MIB),
        ("min(threads)", 7),
        ("  budget\t*\n50% ", 500 * MIB),
    ],
)
def test_arithmetic(text: str, result: int) -> None:
    assert Expression.parse(text).evaluate(VALUES) == result


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at its end"),
        ("budget -", "at its end"),
        ("budget -* 3", "expected at '* 3'"),
        ("budget 3", "expected at '3'"),
        ("(budget", "closing )"),
        ("budget)", "expected at ')'"),
        ("min", "( after min"),
        ("min()", "expected at ')'"),
        ("min(1, )", "expected at ')'"),
        ("256 MiB", "expected at 'MiB'"),
        ("256Monkeys", "not a size"),
        ("1.2.3", "no number"),
        ("-5", "expected at '-5'"),
        ("2 ** 3", "expected at '* 3'"),
        ("budget % 3", "expected at '% 3'"),
        ("budget.real", "expected at '.real'"),
        ("__import__('os')", "expected at"),
        ("Budget", "expected at 'Budget'"),
        ("budget; 1", "expected at '; 1'"),
        ("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), "nested"),
        ("1" * (MAX_LENGTH + 1), "longer"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Expression.parse(text)
    assert words in str(caught.value)


def test_what_only_the_values_make_impossible() -> None:
    division = Expression.parse("budget / (threads - 7)")
    with pytest.raises(ConfigError, match="zero"):
        division.evaluate(VALUES)
    with pytest.raises(ConfigError, match="more than any memory"):
        Expression.parse("budget * budget").evaluate({"budget": MAX_SIZE})


def test_the_names_that_it_needs() -> None:
    assert Expression.parse("min(budget, a_1) - 3 * a_1 + 1k").names == {"budget", "a_1"}


@pytest.mark.parametrize("name", ["min", "max", "A", "1a", "", "a b", "_a"])
def test_no_name_for_a_value(name: str) -> None:
    assert not is_name(name)


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    try:
        Expression.parse(text).evaluate(dict.fromkeys(Expression.parse(text).names, 5))
    except UsageError:
        pass


class _Tree:
    """The same arithmetic, written by Hypothesis and computed by Python."""

    def __init__(self, text: str, value: Fraction) -> None:
        self.text = text
        self.value = value


def _leaves() -> st.SearchStrategy[_Tree]:
    return st.one_of(
        st.integers(0, 10**6).map(lambda n: _Tree(str(n), Fraction(n))),
        st.integers(0, 400).map(lambda n: _Tree(f"{n}%", Fraction(n, 100))),
        st.integers(0, 10**6).map(lambda n: _Tree(f"{n}KiB", Fraction(n * KIB))),
        st.just(_Tree("budget", Fraction(VALUES["budget"]))),
    )


def _branches(inner: st.SearchStrategy[_Tree]) -> st.SearchStrategy[_Tree]:
    def combine(parts: tuple[_Tree, str, _Tree]) -> _Tree:
        left, sign, right = parts
        if sign == "/":
            right = right if right.value else _Tree("3", Fraction(3))
            return _Tree(f"({left.text}) / ({right.text})", left.value / right.value)
        if sign in ("min", "max"):
            value = min(left.value, right.value) if sign == "min" else max(left.value, right.value)
            return _Tree(f"{sign}({left.text}, {right.text})", value)
        value = {"+": left.value + right.value, "-": left.value - right.value, "*": left.value * right.value}[
            sign
        ]
        return _Tree(f"({left.text}) {sign} ({right.text})", value)

    return st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "min", "max"]), inner).map(combine)


@given(st.recursive(_leaves(), _branches, max_leaves=12))
def test_it_computes_what_python_computes(tree: _Tree) -> None:
    if len(tree.text) > MAX_LENGTH or abs(tree.value) > MAX_SIZE:
        return
    assert Expression.parse(tree.text).evaluate(VALUES) == tree.value.numerator // tree.value.denominator
