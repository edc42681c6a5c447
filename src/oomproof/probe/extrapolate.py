"""From a part to the whole: a line fitted to the overhead of what was touched.

Page tables and their like grow in proportion to the allocation, so a small part tells the
rate. Pure arithmetic. Not covered: memory that others take later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

CONFIDENCE = 2.0
"""Standard errors on either side: 95 % of cases."""


@dataclass(frozen=True, slots=True)
class Line:
    """``overhead = intercept + slope * allocated``, in bytes."""

    slope: float
    slope_error: float
    """Standard error of the slope."""


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """What the whole would be, in bytes."""

    allocated_bytes: int
    kernel_bytes: int
    error_bytes: int


def fit(points: Sequence[tuple[int, int]]) -> Line:
    """Least squares through (allocated, overhead); below three points the error is the whole slope."""
    count = len(points)
    if count == 0:
        return Line(0.0, 0.0)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        slope = mean_y / mean_x if mean_x else 0.0
        return Line(slope, abs(slope))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    if count < 3:
        return Line(slope, abs(slope))
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return Line(slope, sqrt(residual / (count - 2) / spread))


def extrapolate(points: Sequence[tuple[int, int]], room_bytes: int, unexplained_bytes: int) -> Extrapolation:
    """What could be allocated in all, when `room_bytes` are left after the last of `points`.

    `unexplained_bytes` is growth so far that no cause accounts for: it bounds what the
    line cannot know.
    """
    allocated, kernel = points[-1]
    line = fit(points)
    slope = max(line.slope, 0.0)
    more = int(max(room_bytes, 0) / (1 + slope))
    error = CONFIDENCE * line.slope_error * more + abs(unexplained_bytes)
    return Extrapolation(allocated + more, kernel + round(slope * more), ceil(error))
