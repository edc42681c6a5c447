"""What is read anew before each step, from `limits` and the leaf, as one frozen reading."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from oomproof.leaf import Leaf
from oomproof.limits import detect_limits, v1, v2
from oomproof.limits.files import Tree
from oomproof.limits.model import Candidate, Kind, LimitReport, Status

_LEVELS = (Kind.CGROUP, Kind.NUMA)
LEAF_NAME = "the probe's own leaf cgroup"


STAT_FIELDS = frozenset(
    {"kernel_stack", "slab", "percpu", "sock", "file", "shmem", "total_cache", "total_shmem"}
)
"""What is kept of the leaf's memory.stat."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """What the kernel counts against the toucher's own process, in bytes."""

    page_tables: int = 0
    anonymous: int = 0
    shared: int = 0
    """Resident pages of shared memory."""
    swapped: int = 0
    file: int = 0
    """Resident pages of mapped files, those of the interpreter included."""

    @property
    def resident(self) -> int:
        """All pages that it has mapped."""
        return self.anonymous + self.shared + self.file


NO_ACCOUNTS = Accounts()


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the place at one moment; sizes in bytes, None: not told or no such limit."""

    status: Status
    level: str
    """Name of the level whose usage this is: the one with the least headroom."""
    limit_bytes: int | None
    usage_bytes: int
    headroom_bytes: int | None
    """Smallest over the leaf and all levels, clean inactive page cache counted as free."""
    host_total_bytes: int | None
    host_available_bytes: int | None
    high_headroom_bytes: int | None = None
    """Up to the nearest memory.high."""
    high_events: int = 0
    stalled_us: int = 0
    """Time for which all of the cgroup stood still, waiting for memory."""
    swap_bytes: int = 0
    oom_group: bool = False
    """A kill in the own cgroup would take every process in it."""
    leaf_usage_bytes: int | None = None
    leaf_stat: tuple[tuple[str, int], ...] = ()
    toucher: Accounts = NO_ACCOUNTS
    at_s: float = 0.0
    """Time of `time.monotonic`."""

    @property
    def others_bytes(self) -> int:
        """The part of the level's usage that is not the toucher's."""
        mine = self.toucher.resident + self.toucher.page_tables
        return self.usage_bytes - (mine if self.leaf_usage_bytes is None else self.leaf_usage_bytes)


def take_reading(
    leaf: Leaf | None, level: str | None = None, toucher: Accounts = NO_ACCOUNTS, mapped_bytes: int = 0
) -> Reading:
    """Read everything now. `level` keeps to the level of an earlier reading; None finds it.

    `mapped_bytes` is how much of a file the toucher has mapped and holds resident.
    """
    report = detect_limits()
    if leaf is not None:
        # On v2 oomproof may have stepped down from the cgroup whose history matters.
        history = {1: v1.read_history, 2: v2.read_history}[report.cgroup.version if report.cgroup else 2]
        report = replace(report, facts=history(Tree(), str(leaf.directory.parent)))
    stat = leaf.stat() if leaf else {}
    return replace(
        summarise(report, leaf_row(leaf), level, mapped_bytes, _inactive(stat, mapped_bytes)),
        at_s=time.monotonic(),
        leaf_stat=tuple((k, v) for k, v in stat.items() if k in STAT_FIELDS),
        toucher=toucher,
    )


def own_memory() -> int:
    """Bytes that this process holds alone: its heap and its page tables."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmPTE") if name in fields)


def leaf_row(leaf: Leaf | None) -> Candidate | None:
    """The leaf as a row of the table, with the headroom below its own limit."""
    if leaf is None:
        return None
    limit, usage = leaf.limit_bytes(), leaf.usage_bytes()
    available = None if limit is None else max(limit - usage, 0)
    return Candidate(
        Kind.LEAF, LEAF_NAME, limit, usage, available, available, str(leaf.directory), "no limit"
    )


def summarise(
    report: LimitReport,
    leaf: Candidate | None,
    level: str | None = None,
    mapped_bytes: int = 0,
    inactive_bytes: int = 0,
) -> Reading:
    """One reading from what `limits` and the leaf say, of `level` or, with None, of the one that binds.

    To the kernel the toucher's own file pages are clean page cache, to be dropped for whoever wants
    memory; here they are what is being measured, so they do not count as free: neither `mapped_bytes`
    of the host's available memory, nor the `inactive_bytes` among them of a cgroup's.
    """
    rows = [*([leaf] if leaf else []), *report.candidates]
    measured = next((row for row in rows if row.name == level), None) or _binding(rows)
    headrooms = [
        size
        for size in (
            report.available_bytes if report.status is Status.LIMITED else None,
            leaf.available_bytes if leaf else None,
            *(_without_own(row, inactive_bytes) for row in rows if inactive_bytes and row.kind in _LEVELS),
        )
        if size is not None
    ]
    # v1's soft limit throttles nobody, and its swap counter counts memory too.
    is_v2 = report.cgroup is not None and report.cgroup.version == 2
    of_v2 = report.candidates if is_v2 else ()
    highs = [
        row.available_bytes for row in of_v2 if row.kind is Kind.SOFT and row.available_bytes is not None
    ]
    return Reading(
        status=Status.LIMITED if leaf and leaf.limit_bytes is not None else report.status,
        level=measured.name if measured else "",
        limit_bytes=measured.limit_bytes if measured and measured.kind is not Kind.HOST else None,
        usage_bytes=(measured.usage_bytes or 0) if measured else 0,
        headroom_bytes=min(headrooms, default=None),
        host_total_bytes=report.host_total_bytes,
        host_available_bytes=_less(report.host_available_bytes, mapped_bytes),
        high_headroom_bytes=min(highs, default=None),
        high_events=report.facts.get("high", 0),
        stalled_us=report.facts.get("pressure_full_total_us", 0),
        swap_bytes=sum(row.usage_bytes or 0 for row in of_v2 if row.kind is Kind.SWAP),
        oom_group=bool(report.facts.get("oom_group")),
        leaf_usage_bytes=leaf.usage_bytes if leaf else None,
    )


def _inactive(stat: Mapping[str, int], mapped_bytes: int) -> int:
    """How much of `mapped_bytes` is on the kernel's list to be dropped first; without a leaf, maybe all."""
    inactive = stat.get("total_inactive_file", stat.get("inactive_file", mapped_bytes))
    return min(inactive, mapped_bytes)


def _without_own(row: Candidate, inactive_bytes: int) -> int | None:
    """Headroom of `row` when `inactive_bytes` of the page cache that it counts as free are the toucher's."""
    if row.available_bytes is None or row.limit_bytes is None:
        return row.available_bytes
    counted_as_free = row.available_bytes - max(row.limit_bytes - (row.usage_bytes or 0), 0)
    return row.available_bytes - min(inactive_bytes, max(counted_as_free, 0))


def _less(size: int | None, taken: int) -> int | None:
    return None if size is None else max(size - taken, 0)


def _binding(rows: list[Candidate]) -> Candidate | None:
    """The row with the least headroom; where nothing limits, the own cgroup, else the host."""
    limited = [row for row in rows if row.kind in (Kind.LEAF, *_LEVELS) and row.available_bytes is not None]
    if limited:
        return min(limited, key=lambda row: row.available_bytes or 0)
    told = [row for row in rows if row.kind in (Kind.CGROUP, Kind.HOST) and row.usage_bytes is not None]
    return told[0] if told else None
