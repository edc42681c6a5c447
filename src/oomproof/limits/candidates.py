"""The table: every reading as one row, with its headroom, before anything is compared.

Pure functions. What binds is decided in `judgement`; the words of the verdicts are explained
in docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.limits.files import NO_LIMIT_FROM, Fact, State, printable
from oomproof.limits.model import Candidate, Kind
from oomproof.limits.raw import Host, Level, Nodes, PageCache, Process

NO_LIMIT_32BIT = frozenset(((1 << 31) - 1) * page for page in (4096, 16384, 65536))
"""PAGE_COUNTER_MAX on 32-bit kernels: LONG_MAX pages. A real size on a large host, so only there."""

UNREADABLE = "unreadable"
NOT_VISIBLE = "not visible"
NO_LIMIT = "no limit"
NOT_CHARGED = "does not apply: use_hierarchy=0"

BLIND = frozenset({UNREADABLE, NOT_VISIBLE})
"""Verdicts of a level that may well limit, by how much cannot be told."""


def effective_limit(level: Level, host_total: int | None) -> int | None:
    """The level's hard limit in bytes; None: none, or unreadable."""
    value = finite(level.limit)
    if value in NO_LIMIT_32BIT and level.version == 1 and (host_total is None or value > host_total):
        return None
    return value


def finite(fact: Fact) -> int | None:
    """The fact's value unless it is one of the kernel's ways to say that there is no limit."""
    return fact.value if fact.value is not None and fact.value < NO_LIMIT_FROM else None


def headroom(limit: int, usage: int | None, reclaimable: int) -> int | None:
    """``limit - (usage - reclaimable)``, within 0 and the limit; None when usage is not known."""
    if usage is None:
        return None
    return min(max(limit - (usage - max(reclaimable, 0)), 0), limit)


def clean_inactive(cache: PageCache | None) -> int:
    """Bytes the kernel can drop at once without hurting: inactive file pages that need no writing."""
    return max(cache.inactive_file - cache.dirty - cache.writeback, 0) if cache else 0


def clean(cache: PageCache | None) -> int:
    """Bytes of all file pages that need no writing, those in active use too; never shmem or tmpfs."""
    if cache is None:
        return 0
    return max(cache.inactive_file + cache.active_file - cache.dirty - cache.writeback, 0)


def host_rows(host: Host) -> list[Candidate]:
    """The host's memory, and what huge pages leave of it."""
    name = "host MemTotal (lxcfs)" if host.virtualised else "host MemTotal"
    total = host.total.value
    if total is None:
        return [_row(Kind.HOST, name, None, host.total.source, verdict=UNREADABLE)]
    rows = [_host_row(name, total, host)]
    if host.huge_pages:
        rows.insert(0, _host_row("host less huge pages", max(total - host.huge_pages, 0), host))
    return rows


def _host_row(name: str, limit: int, host: Host) -> Candidate:
    available = None if host.available is None else min(host.available, limit)
    usage = None if available is None else limit - available
    return Candidate(Kind.HOST, name, limit, usage, available, available, host.total.source, "")


def node_row(nodes: Nodes) -> Candidate:
    """The NUMA nodes that this process is held to."""
    limit = max(nodes.total - nodes.huge_pages, 0)
    used = None if nodes.used is None else max(nodes.used - nodes.huge_pages, 0)
    return _row(Kind.NUMA, f"NUMA nodes {nodes.allowed}", limit, nodes.source, used, nodes.page_cache)


def level_rows(levels: Sequence[Level], host_total: int | None) -> list[Candidate]:
    """Hard limits of the cgroup levels, own cgroup first, and the one that only v1's summary shows."""
    rows = []
    applied = charged_levels(levels)
    for level in levels:
        name = f"cgroup v{level.version} {printable(level.path)}"
        limit = effective_limit(level, host_total)
        verdict = ""
        if level not in applied:
            limit, verdict = None, NOT_CHARGED
        elif level.limit.state is State.UNREADABLE:
            verdict = UNREADABLE
        elif limit is None:
            verdict = NO_LIMIT
        rows.append(
            _row(Kind.CGROUP, name, limit, level.limit.source, level.usage.value, level.page_cache, verdict)
        )
    if applied and (summary := _summary_row(applied, rows, host_total)):
        rows.append(summary)
    return rows


def charged_levels(levels: Sequence[Level]) -> list[Level]:
    """The levels that this process's memory is charged to: v1 without use_hierarchy stops early."""
    charged: list[Level] = []
    for level in levels:
        if charged and (charged[-1].separate or level.separate):
            break
        charged.append(level)
    return charged


def _summary_row(applied: list[Level], rows: list[Candidate], host_total: int | None) -> Candidate | None:
    """v1's hierarchical_memory_limit, where it is tighter than every level that can be seen."""
    own = applied[0]
    summary = own.hierarchical_limit
    if summary is None or summary >= NO_LIMIT_FROM:
        return None
    if summary in NO_LIMIT_32BIT and (host_total is None or summary > host_total):
        return None
    if any(row.limit_bytes is not None and row.limit_bytes <= summary for row in rows):
        return None
    name = f"cgroup v1 above {printable(applied[-1].path)} (hierarchical_memory_limit)"
    # The hidden level's own usage is not told; it is at least that of the topmost level seen.
    return _row(Kind.CGROUP, name, summary, own.stat.source, applied[-1].usage.value, applied[-1].page_cache)


def soft_rows(levels: Sequence[Level]) -> list[Candidate]:
    """memory.high (v2) and the soft limit (v1): neither ever kills."""
    rows = []
    for level in charged_levels(levels):
        if (limit := finite(level.soft)) is not None:
            file, verdict = (
                ("memory.high", "throttles, never kills")
                if level.version == 2
                else ("soft limit", "reclaimed first when the host is short, never kills")
            )
            name = f"{file} {printable(level.path)}"
            rows.append(
                _row(Kind.SOFT, name, limit, level.soft.source, level.usage.value, level.page_cache, verdict)
            )
    return rows


def swap_rows(levels: Sequence[Level]) -> list[Candidate]:
    """Swap limits: v2 counts swap alone, v1 memory and swap together."""
    rows = []
    for level in charged_levels(levels):
        if (limit := finite(level.swap)) is not None:
            what = "swap" if level.version == 2 else "memory plus swap"
            name = f"{what} {printable(level.path)}"
            rows.append(
                _row(
                    Kind.SWAP, name, limit, level.swap.source, level.swap_usage.value, None, f"{what}, beside"
                )
            )
    return rows


def process_rows(process: Process) -> list[Candidate]:
    """RLIMIT_AS and RLIMIT_DATA limit addresses, RLIMIT_MEMLOCK what may be locked."""
    rows = []
    for name, kind, usage, verdict in (
        ("AS", Kind.ADDRESS_SPACE, process.address_space, "address space, not memory"),
        ("DATA", Kind.ADDRESS_SPACE, process.data, "private writable mappings, not memory"),
        ("MEMLOCK", Kind.LOCKED, process.locked, "page-locked memory only"),
    ):
        limit = process.rlimits.get(name)
        if limit is None:
            continue
        if kind is Kind.LOCKED and process.may_lock_all:
            verdict = "does not apply: CAP_IPC_LOCK"  # noqa: PLW2901
        rows.append(_row(kind, f"RLIMIT_{name}", limit, process.source, usage, None, verdict))
    return rows


def _row(  # noqa: PLR0917 - the columns of the table, in their order
    kind: Kind,
    name: str,
    limit: int | None,
    source: str,
    usage: int | None = None,
    cache: PageCache | None = None,
    verdict: str = "",
) -> Candidate:
    return Candidate(
        kind=kind,
        name=name,
        limit_bytes=limit,
        usage_bytes=usage,
        available_bytes=None if limit is None else headroom(limit, usage, clean_inactive(cache)),
        available_optimistic_bytes=None if limit is None else headroom(limit, usage, clean(cache)),
        source=printable(source),
        verdict=verdict,
    )
