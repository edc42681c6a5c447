"""A budget that must be at rest at the end, and threads that must have ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oomproof.memory import MemoryBudget
from unit.memory.helpers import Threads, assert_at_rest


@pytest.fixture
def budget() -> Iterator[MemoryBudget]:
    """Of 100 bytes; at the end, nothing is held and nobody waits."""
    it = MemoryBudget(100, name="test")
    yield it
    assert_at_rest(it)


@pytest.fixture
def threads() -> Iterator[Threads]:
    it = Threads()
    yield it
    it.join()
