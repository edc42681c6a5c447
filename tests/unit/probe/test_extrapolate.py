"""The line from a part to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.probe.extrapolate import extrapolate, fit
from oomproof.units import GIB, MIB

PART = [number * 25 * MIB for number in range(1, 9)]


@given(slope=st.floats(0, 0.1), intercept=st.integers(0, 64 * MIB), room=st.integers(0, 512 * GIB))
def test_what_lies_on_a_line_is_found_again(slope: float, intercept: int, room: int) -> None:
    points = [(size, intercept + round(slope * size)) for size in PART]
    whole = extrapolate(points, room, unexplained_bytes=0)
    more = whole.allocated_bytes - PART[-1]
    assert more * (1 + slope) == pytest.approx(room, rel=1e-6, abs=2)
    assert whole.kernel_bytes - points[-1][1] == pytest.approx(slope * more, rel=1e-3, abs=more * 1e-7 + 1)


@given(st.lists(st.integers(-256 * 1024, 256 * 1024), min_size=8, max_size=8))
def test_the_error_bar_covers_what_noise_does_to_the_slope(noise: list[int]) -> None:
    points = [(size, size // 512 + error) for size, error in zip(PART, noise, strict=True)]
    line = fit(points)
    # The residuals are all that the data tell: the true slope may lie further off only where they hide it.
    spread = sum((size - sum(PART) / 8) ** 2 for size in PART)
    most = sum(abs(size - sum(PART) / 8) * 256 * 1024 for size in PART) / spread
    assert abs(line.slope - 1 / 512) <= most + 1e-9


def test_noise_widens_the_error_bar() -> None:
    quiet = extrapolate([(size, size // 512) for size in PART], 100 * GIB, 0)
    noisy = extrapolate([(size, size // 512 + size % 7 * MIB) for size in PART], 100 * GIB, 0)
    assert quiet.error_bytes < 64 * 1024 < noisy.error_bytes


def test_growth_without_a_cause_widens_the_error_bar_by_itself() -> None:
    points = [(size, size // 512) for size in PART]
    assert extrapolate(points, GIB, -3 * MIB).error_bytes - extrapolate(points, GIB, 0).error_bytes == 3 * MIB


def test_two_points_tell_nothing_about_their_own_error() -> None:
    assert fit([(MIB, 2048), (2 * MIB, 4096)]).slope_error == pytest.approx(2048 / MIB)


def test_overhead_that_falls_is_not_believed() -> None:
    points = [(size, -size // 100) for size in PART]
    assert extrapolate(points, GIB, 0).allocated_bytes == PART[-1] + GIB
