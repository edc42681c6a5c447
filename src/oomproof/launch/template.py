"""The budget as the program wants to read it: in its arguments and in its environment.

``{budget}`` is bytes, ``{budget_mib}`` whole MiB, ``{budget_gib}`` GiB with at most three
digits after the point; all are rounded down, so that no program is promised more than the
budget. ``{{budget}}`` stands for a literal ``{budget}``. All other braces (JSON, ``${x}`` and
even ``${budget}`` of a shell) pass through untouched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from oomproof.units import GIB, MIB

_FIELD = re.compile(r"\{\{(?P<literal>budget(?:_mib|_gib)?)\}\}|(?<!\$)\{(?P<name>budget(?:_mib|_gib)?)\}")


def expand(argument: str, budget_bytes: int) -> str:
    """`argument` with the budget filled in."""
    values = {
        "budget": str(budget_bytes),
        "budget_mib": str(budget_bytes // MIB),
        "budget_gib": format_gib(budget_bytes),
    }

    def value(match: re.Match[str]) -> str:
        literal = match["literal"]
        return f"{{{literal}}}" if literal else values[match["name"]]

    return _FIELD.sub(value, argument)


def expand_command(command: Sequence[str], budget_bytes: int) -> list[str]:
    """Every argument of `command` with the budget filled in."""
    return [expand(argument, budget_bytes) for argument in command]


def format_gib(size: int) -> str:
    """``1610612736`` -> ``"1.5"``: GiB, never more than `size`, no trailing zeros."""
    whole, thousandths = divmod(size * 1000 // GIB, 1000)
    return f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".")


def child_environment(environment: Mapping[str, str], budget_bytes: int, attempt: int) -> dict[str, str]:
    """`environment` plus what the program may want to know."""
    return {
        **environment,
        "OOMPROOF_BUDGET_BYTES": str(budget_bytes),
        "OOMPROOF_ATTEMPT": str(attempt),
    }
