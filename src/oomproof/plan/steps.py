"""Budgets of which a program can use only some: ``--steps 512M,1G,2G``."""

from __future__ import annotations

from collections.abc import Sequence


def round_down(size: int, steps: Sequence[int]) -> int | None:
    """The largest step that is not above `size`; None when all are. Without steps: `size`."""
    if not steps:
        return size
    return max((step for step in steps if step <= size), default=None)
