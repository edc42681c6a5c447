"""Which size a new buffer gets, which idle one fits, which go first: pure arithmetic, sizes in bytes.

A size class is a multiple of an eighth of the power of two below it, at least a page and at most 2 MiB apart:
nearly equal requests meet in one buffer, and nothing is wasted on large ones.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Sequence

from oomproof.units import MIB

LARGEST_STEP = 2 * MIB
"""A huge page: larger steps would only waste."""

_STEPS_LOG2 = 3


def size_class(size: int) -> int:
    """`size` (above 0) rounded up to its class: less than an eighth more, apart from a page's rounding."""
    power = size.bit_length() - 1
    step = min(max(1 << max(power - _STEPS_LOG2, 0), mmap.PAGESIZE), LARGEST_STEP)
    return -(-size // step) * step


def whole_pages(size: int) -> int:
    """`size` rounded up to pages, the least that can be had."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def largest_fit(size: int, max_waste: float) -> int:
    """The largest buffer that may serve a request of `size`: `max_waste` more, or its size class."""
    return max(size + int(size * max_waste), size_class(size))


def best_fit(sizes: Sequence[int], size: int, max_waste: float) -> int | None:
    """Index in the ascending `sizes` of the smallest that holds `size` within the bound; None: none does."""
    index = bisect_left(sizes, size)
    if index < len(sizes) and sizes[index] <= largest_fit(size, max_waste):
        return index
    return None


def largest_first(sizes: Sequence[int], wanted: int) -> int:
    """How many of the ascending `sizes`, from the large end, make up `wanted` bytes; all if they do not."""
    count = total = 0
    while total < wanted and count < len(sizes):
        count += 1
        total += sizes[-count]
    return count
