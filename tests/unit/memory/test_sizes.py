"""Size classes, best fit and largest first, for any sizes."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.memory.sizes import LARGEST_STEP, best_fit, largest_first, largest_fit, size_class
from oomproof.units import GIB, KIB, MIB

ANY_SIZE = st.one_of(st.integers(1, 1 << 16), st.integers(1, 1 << 42))
SIZES = st.lists(ANY_SIZE, max_size=30).map(sorted)


@pytest.mark.parametrize(
    ("size", "of_class"),
    [
        (1, 4 * KIB),
        (4096, 4 * KIB),
        (4097, 8 * KIB),
        (33 * KIB, 36 * KIB),
        (MIB, MIB),
        (MIB + 1, MIB + 128 * KIB),
        (15 * MIB + 1, 16 * MIB),
        (16 * MIB + 1, 18 * MIB),
        (4 * GIB, 4 * GIB),
        (4 * GIB + 1, 4 * GIB + 2 * MIB),
    ],
)
def test_size_classes(size: int, of_class: int) -> None:
    assert size_class(size) == of_class


@given(ANY_SIZE)
def test_a_class_holds_its_size_and_wastes_little(size: int) -> None:
    rounded = size_class(size)
    assert size <= rounded
    assert rounded % mmap.PAGESIZE == 0
    assert rounded - size < max(size / 8, mmap.PAGESIZE)
    assert rounded - size < LARGEST_STEP
    assert size_class(rounded) == rounded


@given(ANY_SIZE, ANY_SIZE)
def test_classes_keep_the_order(one: int, other: int) -> None:
    assert (one <= other) <= (size_class(one) <= size_class(other))


@given(SIZES, ANY_SIZE, st.sampled_from([0.0, 0.125, 0.25, 1.0]))
def test_best_fit_is_what_looking_at_all_of_them_finds(sizes: list[int], size: int, waste: float) -> None:
    allowed = [held for held in sizes if size <= held <= largest_fit(size, waste)]
    index = best_fit(sizes, size, waste)
    assert (sizes[index] if index is not None else None) == min(allowed, default=None)


@given(ANY_SIZE)
def test_a_new_buffer_always_fits_the_request_it_was_made_for(size: int) -> None:
    assert best_fit([size_class(size)], size, 0.0) == 0


@given(SIZES, ANY_SIZE)
def test_the_largest_go_first_and_no_more_than_needed(sizes: list[int], wanted: int) -> None:
    count = largest_first(sizes, wanted)
    freed = sizes[len(sizes) - count :]
    assert sum(freed) >= wanted or count == len(sizes)
    assert sum(freed[1:]) < wanted, "without the smallest of them it would not have been enough"
    assert all(left <= min(freed) for left in sizes[: len(sizes) - count]) or not freed
