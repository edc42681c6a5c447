"""Whether a size fits into what is left here; pure.

Headroom under the limit counts, and what the host can still give; for page-locked memory
RLIMIT_MEMLOCK too, which holds for each process alone.
"""

from __future__ import annotations

from typing import NamedTuple

from oomproof.limits.model import Candidate, Kind, LimitReport
from oomproof.units import format_size


class Fit(NamedTuple):
    """Yes, no, or None for "cannot be told"."""

    fits: bool | None
    have_bytes: int | None
    """What one worker can have; None when that cannot be told."""
    reason: str


def fits(report: LimitReport, size_bytes: int, *, pinned: bool = False, workers: int = 1) -> Fit:
    """Whether each of `workers` processes can have `size_bytes` more at the same time."""
    bounds = _bounds(report, workers)
    if pinned:
        bounds += _locked_bounds(report)
    have, by = min(bounds, default=(None, ""))
    each = "" if workers == 1 else f" for each of {workers} workers"
    wanted = f"{format_size(size_bytes)}{' page-locked' if pinned else ''}{each}"
    if have is not None and size_bytes > have:
        return Fit(False, have, f"does not fit: {wanted} needed, {format_size(have)} left ({by})")
    if have is None or report.available_bytes is None:
        return Fit(None, None, f"cannot be told: {wanted} needed, and what is left here is unknown")
    return Fit(True, have, f"fits: {wanted} needed, {format_size(have)} left ({by})")


def pinned_share(report: LimitReport, workers: int = 1) -> int | None:
    """Bytes that each of `workers` processes can page-lock at the same time; None: cannot be told.

    RLIMIT_MEMLOCK holds for each process, headroom is shared. Driver memory may escape the
    cgroup's charge, see `explain.PINNED_BLIND_SPOTS`.
    """
    if report.available_bytes is None:
        return None
    return min(have for have, _ in _bounds(report, workers) + _locked_bounds(report))


def _bounds(report: LimitReport, workers: int) -> list[tuple[int, str]]:
    """What each worker can have at most. An unknown headroom is still no more than the limit."""
    bounds = []
    if report.available_bytes is not None:
        bounds.append((report.available_bytes // workers, str(report.available_bound_by)))
    elif report.limit_bytes is not None:
        bounds.append((report.limit_bytes // workers, str(report.limit_bound_by)))
    if report.host_available_bytes is not None:
        bounds.append((report.host_available_bytes // workers, "host MemAvailable"))
    return bounds


def _locked_bounds(report: LimitReport) -> list[tuple[int, str]]:
    return [(left, row.name) for row in report.candidates if (left := lockable(row)) is not None]


def lockable(row: Candidate) -> int | None:
    """What RLIMIT_MEMLOCK still lets this process lock; None where the row is another or does not apply."""
    if row.kind is not Kind.LOCKED or row.limit_bytes is None or "CAP_IPC_LOCK" in row.verdict:
        return None
    return row.limit_bytes if row.available_bytes is None else row.available_bytes
