"""Where the kernel's accounts and the ledger part: pure arithmetic over two observations.

What was there at the baseline is not drift: the interpreter, its modules, what was allocated before. After
it, the ledger should explain every byte that cannot be reclaimed. What it does not explain has a name:

``pinned_outside_ledger``  page-locked memory that no pool of the budget holds
``shared_memory``          tmpfs, memfd, shared mappings
``trimmable_heap``         freed by the program, kept by malloc's arenas; malloc_trim gives it back
``unaccounted_heap``       the rest of anonymous memory: leaks, caches, stacks
``page_tables``            of this process
``other_kernel_memory``    of the cgroup: slab, sockets, stacks, other processes' page tables
``other_processes``        anonymous and shared memory of the cgroup that is not this process's

A reservation that is not touched yet hides as much of the first four as it is large: `slack_bytes`.
Page cache is not drift, the kernel takes it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomproof.limits.accounts import CgroupAccounts, ProcessAccounts
from oomproof.limits.model import Notice
from oomproof.memory.heap import HeapAccounts

REMEDIES = {
    "pinned_outside_ledger": "take it from a PinnedPool, or reserve it",
    "shared_memory": "reserve it, or unlink what is left in /dev/shm",
    "trimmable_heap": "oomproof.memory.trim_heap() gives it back; MALLOC_ARENA_MAX keeps arenas few",
    "unaccounted_heap": "reserve it, or find who allocates it (tracemalloc, memray)",
    "page_tables": "use huge pages, or leave a margin for them",
    "other_kernel_memory": "leave a margin for it: sockets, files and threads cost kernel memory",
    "other_processes": "give them a cgroup of their own, or a share of the budget",
}
"""What can be done about each kind of drift, for messages."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The kernel's accounts and the ledger at one moment."""

    ledger_bytes: int
    pool_locked_bytes: int
    """Of the budget's pools, as mlock(2) counts it."""
    process: ProcessAccounts
    cgroup: CgroupAccounts | None
    heap: HeapAccounts | None


@dataclass(frozen=True, slots=True)
class Drift:
    """Memory that is charged and that the ledger does not explain."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What the kernel charges beyond the ledger, by name; sizes in bytes."""

    drifts: tuple[Drift, ...]
    """Every kind that is above 0, the largest first."""
    total_bytes: int
    """Their sum."""
    slack_bytes: int
    """Reserved but not charged as yet; as much of the process's own drift may be hidden by it."""
    ledger_bytes: int
    now: Observation
    baseline: Observation
    notices: tuple[Notice, ...]
    """What could not be told here."""

    @property
    def sizes(self) -> dict[str, int]:
        """The drifts by name."""
        return {drift.name: drift.bytes for drift in self.drifts}

    def bytes_of(self, name: str) -> int:
        """Size of one kind of drift; 0 where there is none."""
        return next((drift.bytes for drift in self.drifts if drift.name == name), 0)


def compare(baseline: Observation, now: Observation) -> DriftReport:
    """The drift since `baseline`."""
    before, process = baseline.process, now.process
    own_charge = _sum(process.anonymous, process.shared)
    explained = now.ledger_bytes + max(_sum(before.anonymous, before.shared) - baseline.ledger_bytes, 0)
    excess = own_charge - explained
    found = {"pinned_outside_ledger": _pinned(baseline, now)}
    left = max(excess - found["pinned_outside_ledger"], 0)
    for name, most in (
        ("shared_memory", _growth(before.shared, process.shared)),
        ("trimmable_heap", _trimmable(baseline.heap, now.heap)),
        ("unaccounted_heap", left),
    ):
        found[name] = min(most, left)
        left -= found[name]
    found["page_tables"] = _growth(before.page_tables, process.page_tables)
    found |= _beside(baseline, now, found["page_tables"])
    drifts = [Drift(name, size) for name, size in found.items() if size > 0]
    return DriftReport(
        drifts=tuple(sorted(drifts, key=lambda drift: -drift.bytes)),
        total_bytes=sum(drift.bytes for drift in drifts),
        slack_bytes=max(-excess, 0),
        ledger_bytes=now.ledger_bytes,
        now=now,
        baseline=baseline,
        notices=_notices(now),
    )


def _pinned(baseline: Observation, now: Observation) -> int:
    def outside(seen: Observation) -> int:
        return max(_sum(seen.process.locked, seen.process.pinned) - seen.pool_locked_bytes, 0)

    return max(outside(now) - outside(baseline), 0)


def _trimmable(before: HeapAccounts | None, now: HeapAccounts | None) -> int:
    if before is None or now is None:
        return 0
    return max(now.free - before.free, 0)


def _beside(baseline: Observation, now: Observation, own_page_tables: int) -> dict[str, int]:
    """What the cgroup is charged and this process is not."""
    if baseline.cgroup is None or now.cgroup is None:
        return {}

    def others(seen: Observation) -> int:
        cgroup, process = seen.cgroup, seen.process
        if cgroup is None:
            return 0
        charged = _sum(cgroup.anonymous, cgroup.shared)
        return max(charged - _sum(process.anonymous, process.shared), 0)

    kernel = _growth(baseline.cgroup.kernel, now.cgroup.kernel)
    return {
        "other_kernel_memory": max(kernel - own_page_tables, 0),
        "other_processes": max(others(now) - others(baseline), 0),
    }


def _notices(now: Observation) -> tuple[Notice, ...]:
    notices = []
    if now.process.anonymous is None:
        message = "/proc/self/status does not tell memory by kind here, so drift of the heap cannot be seen."
        notices.append(Notice("process_accounts_absent", message, "/proc/self/status"))
    if now.heap is None:
        message = (
            "This C library has no mallinfo2 (musl, or glibc before 2.33), so what its arenas keep counts"
            " as unaccounted heap."
        )
        notices.append(Notice("allocator_silent", message, "mallinfo2(3)"))
    if now.cgroup is None:
        message = "No memory cgroup can be seen, so other processes and kernel memory are not told."
        notices.append(Notice("cgroup_accounts_absent", message, "/proc/self/cgroup"))
    elif now.cgroup.kernel is None:
        message = "The cgroup does not tell kernel memory (v2 does since Linux 5.18)."
        notices.append(Notice("kernel_memory_untold", message, now.cgroup.directory))
    return tuple(notices)


def _sum(*parts: int | None) -> int:
    return sum(part or 0 for part in parts)


def _growth(before: int | None, now: int | None) -> int:
    return max((now or 0) - (before or 0), 0)
