"""The next budget after an OOM kill: smaller by a stated rule, never below a floor.

Not covered: whether a death was an OOM kill (`oomproof.launch.verdict`), and the rule that
learns over several runs (`adaptive`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from oomproof.errors import InvalidPolicy
from oomproof.limits.margin import default_margin_floor
from oomproof.plan.adaptive import FLOOR_DIVISOR
from oomproof.plan.model import Plan

_WHOLE = 1_000_000
_POLICY = re.compile(r"(?P<rule>[a-z]+):(?P<whole>\d{1,6})(?:\.(?P<part>\d{1,4}))?%", re.ASCII)


class Rule(StrEnum):
    """What a policy changes after a kill."""

    SHRINK = "shrink"
    """The budget becomes (100 - P) % of what it was."""
    MARGIN = "margin"
    """The margin becomes (100 + P) % of what it was."""
    ADAPTIVE = "adaptive"
    """`oomproof.plan.adaptive`: the only one that learns from run to run."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``adaptive``, ``shrink:10%`` or ``margin:50%``, parsed."""

    rule: Rule
    millionths: int = 0
    """P as parts of a million: 100000 for 10 %; ``adaptive`` has none."""

    def __str__(self) -> str:
        if self.rule is Rule.ADAPTIVE:
            return self.rule.value
        return f"{self.rule.value}:{self.millionths / 10_000:g}%"


def parse_policy(text: str) -> Policy:
    """Turn ``"adaptive"``, ``"shrink:10%"`` or ``"margin:50%"`` into a Policy; raises InvalidPolicy."""
    if text.strip() == Rule.ADAPTIVE.value:
        return Policy(Rule.ADAPTIVE)
    match = _POLICY.fullmatch(text.strip())
    rules = [Rule.SHRINK.value, Rule.MARGIN.value]
    if match is None or match["rule"] not in rules:
        raise InvalidPolicy(
            f"{text!r} is not a policy: write adaptive, shrink:P% or margin:P%, for example shrink:10%"
        )
    millionths = int(match["whole"] + (match["part"] or "").ljust(4, "0"))
    policy = Policy(Rule(match["rule"]), millionths)
    if not millionths or (policy.rule is Rule.SHRINK and millionths >= _WHOLE):
        raise InvalidPolicy(
            f"{text!r} would change nothing or leave nothing: P is more than 0 and, for shrink, less than 100"
        )
    return policy


def next_budget(policy: Policy, plan: Plan, budget_bytes: int, floor_bytes: int | None = None) -> int | None:
    """The budget to try after `budget_bytes` was too much; None when none is left above the floor.

    Rounded down to the byte, and always smaller than `budget_bytes`. `floor_bytes` replaces
    the default floor, a quarter of the plan's budget. For the rules that forget, not for ``adaptive``.
    """
    if policy.rule is Rule.SHRINK:
        smaller = budget_bytes * (_WHOLE - policy.millionths) // _WHOLE
    else:
        margin = plan.allowed_bytes - budget_bytes
        # A budget that was asked for above what can be had left no margin to grow.
        grown = (
            margin * (_WHOLE + policy.millionths)
            if margin > 0
            else _WHOLE * default_margin_floor(plan.allowed_bytes)
        )
        smaller = (plan.allowed_bytes * _WHOLE - grown) // _WHOLE
    smaller = min(smaller, budget_bytes - 1)
    floor = floor_bytes if floor_bytes is not None else -(-plan.budget_bytes // FLOOR_DIVISOR)
    return smaller if smaller >= max(floor, 1) else None
