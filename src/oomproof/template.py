"""Sizes in a program's own words: in its arguments, its environment and its configuration files.

``{budget}`` is bytes, ``{budget_kib}`` and ``{budget_mib}`` are whole KiB and MiB,
``{budget_gib}`` is GiB with at most three digits after the point; all are rounded down, so
that no program is promised more than the budget. ``{{budget}}`` stands for a literal
``{budget}``. All other braces (JSON, ``${x}`` and even ``${budget}`` of a shell) pass through
untouched. Other values that are given by name (those of a recipe) have the same four forms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from oomproof.units import GIB, KIB, MIB

_FIELD = re.compile(r"\{\{(?P<literal>[a-z][a-z0-9_]*)\}\}|(?<!\$)\{(?P<field>[a-z][a-z0-9_]*)\}")
SUFFIXES = ("_kib", "_mib", "_gib")


def fill(text: str, values: Mapping[str, int]) -> str:
    """`text` with every field that `values` (name to bytes) has; nothing else is changed."""

    def replacement(match: re.Match[str]) -> str:
        filled = _format(match["literal"] or match["field"], values)
        if filled is None:
            return match[0]
        return f"{{{match['literal']}}}" if match["literal"] else filled

    return _FIELD.sub(replacement, text)


def fields(text: str) -> list[str]:
    """The names of all that looks like a field of `text`, in order, whether anybody has a value for it."""
    return [match["field"] for match in _FIELD.finditer(text) if match["field"]]


def is_field(field: str, values: Mapping[str, int]) -> bool:
    """Whether `fill` would fill in ``{field}``."""
    return _format(field, values) is not None


def expand(argument: str, budget_bytes: int) -> str:
    """`argument` with the budget filled in."""
    return fill(argument, {"budget": budget_bytes})


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


def _format(field: str, values: Mapping[str, int]) -> str | None:
    """None: nobody has a value for it."""
    if field in values:
        return str(values[field])
    size = values.get(field[:-4])
    if size is None or not field.endswith(SUFFIXES):
        return None
    if field.endswith("_gib"):
        return format_gib(size)
    return str(size // (KIB if field.endswith("_kib") else MIB))
