"""The budget in the arguments: never more than it is, and nothing else touched."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.template import child_environment, expand, format_gib
from oomproof.units import GIB, MIB

sizes = st.integers(min_value=0, max_value=(1 << 63) - 1)


@given(sizes)
def test_every_form_is_rounded_down(size: int) -> None:
    assert int(expand("{budget}", size)) == size
    assert 0 <= size - int(expand("{budget_mib}", size)) * MIB < MIB
    gib = Decimal(expand("{budget_gib}", size))
    assert 0 <= size - gib * GIB < Decimal(GIB) / 1000


@pytest.mark.parametrize(
    ("size", "gib"),
    [
        (0, "0"),
        (GIB, "1"),
        (3 * GIB // 2, "1.5"),
        (10 * GIB, "10"),
        (GIB - 1, "0.999"),
        (1, "0"),
        (GIB // 10 + 1, "0.1"),
    ],
)
def test_gib_has_no_needless_digits(size: int, gib: str) -> None:
    assert format_gib(size) == gib


@pytest.mark.parametrize(
    ("argument", "expanded"),
    [
        ("--mem={budget}", "--mem=2147483648"),
        ("{budget}{budget_mib}", "21474836482048"),
        ("{{budget}}", "{budget}"),
        ("{{budget_gib}}", "{budget_gib}"),
        ('{"limit":{budget}}', '{"limit":2147483648}'),
        ('{"a":{"limit":{budget_gib}}}', '{"a":{"limit":2}}'),
        ("${budget}", "${budget}"),
        ("${HOME} {} {0} {budgets} {Budget} { budget }", "${HOME} {} {0} {budgets} {Budget} { budget }"),
        ("{{x}}", "{{x}}"),
        ("%s {budget", "%s {budget"),
    ],
)
def test_only_the_three_fields_are_filled_in(argument: str, expanded: str) -> None:
    assert expand(argument, 2 * GIB) == expanded


@given(st.text().filter(lambda text: "{budget" not in text), sizes)
def test_text_without_a_field_passes_through(text: str, size: int) -> None:
    assert expand(text, size) == text


def test_the_environment_gains_two_variables_and_keeps_the_rest() -> None:
    environment = child_environment({"A": "b", "OOMPROOF_ATTEMPT": "9"}, 5, 2)
    assert environment == {"A": "b", "OOMPROOF_BUDGET_BYTES": "5", "OOMPROOF_ATTEMPT": "2"}
