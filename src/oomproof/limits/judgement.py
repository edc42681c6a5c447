"""What the readings mean on this host: what binds, how much is left, what to look out for.

Pure functions over frozen data. The rules:

* The limit is the smallest of the host, the NUMA nodes and all cgroup levels; the nearest of equals binds.
* A level that is there but cannot be read never gives way to a looser one above it: the answer is then
  unknown. Below it, a level that can be read answers: no level above can raise it.
* Soft limits, swap and resource limits stand beside the limit and are never compared with it.
* Headroom is the smallest over the limited levels: a sibling can fill a parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from oomproof.limits.candidates import (
    BLIND,
    NOT_VISIBLE,
    charged_levels,
    effective_limit,
    finite,
    host_rows,
    level_rows,
    node_row,
    process_rows,
    soft_rows,
    swap_rows,
)
from oomproof.limits.discovery import Place
from oomproof.limits.files import State
from oomproof.limits.fit import lockable
from oomproof.limits.model import Candidate, Kind, LimitReport, Notice, Status
from oomproof.limits.notices import notices_of
from oomproof.limits.raw import Level, Readings

_LEVELS = (Kind.LEAF, Kind.CGROUP)
_BELOW_HOST = (*_LEVELS, Kind.NUMA)
_COMPARED = (*_BELOW_HOST, Kind.HOST)


class Judged(NamedTuple):
    """What binds among the rows."""

    status: Status
    limit: Candidate | None
    headroom: Candidate | None
    available_bytes: int | None


def judge(place: Place, readings: Readings, hints: tuple[Notice, ...] = ()) -> LimitReport:
    """The whole answer from everything that was read."""
    total = readings.host.total.value
    rows = level_rows(readings.levels, total)
    if place.hidden:
        rows.insert(0, _hidden_row(place))
    if readings.nodes:
        rows.append(node_row(readings.nodes))
    rows += host_rows(readings.host)
    rows += soft_rows(readings.levels) + swap_rows(readings.levels) + process_rows(readings.process)
    soft = [limit for level in charged_levels(readings.levels) if (limit := _soft_limit(level)) is not None]
    report = LimitReport(
        status=Status.UNKNOWN,
        limit_bytes=None,
        available_bytes=None,
        limit_bound_by=None,
        available_bound_by=None,
        candidates=tuple(rows),
        notices=(*place.notices, *notices_of(readings)),
        host_total_bytes=total,
        host_available_bytes=readings.host.available,
        soft_limit_bytes=min(soft, default=None),
        swap_limit_bytes=_swap_limit(readings.levels, total),
        hints=hints,
        cgroup=place.cgroup,
        facts=dict(readings.history),
    )
    return _with_judgement(report)


def with_leaf_limit(report: LimitReport, limit_bytes: int, name: str = "--limit") -> LimitReport:
    """`report` as it would be in a new, empty leaf cgroup below the own one, limited to `limit_bytes`."""
    leaf = Candidate(Kind.LEAF, name, limit_bytes, 0, limit_bytes, limit_bytes, name, "")
    return _with_judgement(replace(report, candidates=(leaf, *report.candidates)))


def _with_judgement(report: LimitReport) -> LimitReport:
    judged = compare(report.candidates)
    rows = tuple(_with_verdict(row, judged, report.host_total_bytes) for row in report.candidates)
    bounds = [left for row in rows if (left := lockable(row)) is not None]
    if judged.available_bytes is not None:
        bounds.append(judged.available_bytes)
    return replace(
        report,
        status=judged.status,
        limit_bytes=judged.limit.limit_bytes if judged.limit else None,
        limit_bound_by=judged.limit.name if judged.limit else None,
        available_bytes=judged.available_bytes,
        available_bound_by=judged.headroom.name if judged.headroom else None,
        candidates=rows,
        pinned_limit_bytes=min(bounds, default=None),
    )


def compare(rows: Sequence[Candidate]) -> Judged:
    """Which row sets the limit and which the headroom."""
    compared = [row for kind in _COMPARED for row in rows if row.kind is kind]
    limits = [row for row in compared if row.limit_bytes is not None]
    binding = min(limits, key=_limit, default=None)
    blind = next((row for row in compared if row.kind in _LEVELS and row.verdict in BLIND), None)
    if binding is None or (blind is not None and compared.index(blind) < compared.index(binding)):
        return Judged(Status.UNKNOWN, None, None, None)
    host_total = min((_limit(row) for row in limits if row.kind is Kind.HOST), default=None)
    status = Status.LIMITED if binding.kind in _BELOW_HOST else Status.UNLIMITED
    kinds = _BELOW_HOST if status is Status.LIMITED else _COMPARED
    asked = [row for row in limits if row.kind in kinds]
    if any(
        row.available_bytes is None and (host_total is None or _limit(row) <= host_total) for row in asked
    ):
        return Judged(status, binding, None, None)
    told = [row for row in asked if row.available_bytes is not None]
    tightest = min(told, key=_available, default=None)
    return Judged(status, binding, tightest, tightest.available_bytes if tightest else None)


def _limit(row: Candidate) -> int:
    return row.limit_bytes if row.limit_bytes is not None else 0


def _available(row: Candidate) -> int:
    return row.available_bytes if row.available_bytes is not None else 0


def _with_verdict(row: Candidate, judged: Judged, host_total: int | None) -> Candidate:
    if row.kind not in _COMPARED or row.limit_bytes is None:
        return row
    binds_limit, binds_headroom = row is judged.limit, row is judged.headroom
    if binds_limit and binds_headroom:
        verdict = "binds"
    elif binds_limit:
        verdict = "binds limit"
    elif binds_headroom:
        verdict = "binds headroom"
    elif judged.limit is None:
        verdict = "may bind, but a nearer level cannot be read"
    elif row.kind is not Kind.HOST and host_total is not None and row.limit_bytes > host_total:
        verdict = "above the host's memory"
    else:
        verdict = "looser"
    return replace(row, verdict=verdict)


def _hidden_row(place: Place) -> Candidate:
    name = f"cgroup v{place.version} (own)"
    return Candidate(Kind.CGROUP, name, None, None, None, None, "/proc/self/cgroup", NOT_VISIBLE)


def _soft_limit(level: Level) -> int | None:
    """memory.high only: v1's soft limit does not hold anything back."""
    return finite(level.soft) if level.version == 2 else None


def _swap_limit(levels: Sequence[Level], host_total: int | None) -> int | None:
    """Bytes of swap beside the memory limit; v1 limits the sum, so memory comes off it."""
    charged = charged_levels(levels)
    swap = min((limit for level in charged if (limit := finite(level.swap)) is not None), default=None)
    if swap is None or not charged or charged[0].version == 2:
        return swap
    if any(level.limit.state is State.UNREADABLE for level in charged):
        return None
    memory = [limit for level in charged if (limit := effective_limit(level, host_total)) is not None]
    return max(swap - min(memory), 0) if memory else swap
