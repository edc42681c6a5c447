"""Where the memory went that was used besides the allocation: pure arithmetic.

The leaf's memory.stat tells what the kernel took for the probe alone; where there is no
leaf, or v1 does not tell, the toucher's own page tables are what is left to tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomproof.probe.readings import LEAF_NAME, Reading

_STAT_CAUSES = {
    "kernel_stack": "kernel_stacks",
    "slab": "slab",
    "percpu": "percpu",
    "sock": "sockets",
}
"""Fields of memory.stat (v2 alone) by the cause that they are reported as."""

_FILE_CACHE = (("file", "shmem"), ("total_cache", "total_shmem"))
"""On v2 and v1: the page cache, and the part of it that is shared memory, no file's."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """The split; all sizes in bytes, see `ProbeResult`."""

    kernel_bytes: int
    by_cause: dict[str, int]
    others_bytes: int


def kernel_causes(ready: Reading, last: Reading, mapped_bytes: int = 0) -> dict[str, int]:
    """What the kernel took for the probe from `ready` to `last`, by cause.

    `mapped_bytes` of file are allocation, and no cache beside it.
    """
    # Not more than is resident: on tmpfs they are shared memory, which is left out here anyway.
    mapped_bytes = min(mapped_bytes, max(last.toucher.file - ready.toucher.file, 0))
    causes = {"page_tables": max(last.toucher.page_tables - ready.toucher.page_tables, 0)}
    at_start, at_end = dict(ready.leaf_stat), dict(last.leaf_stat)
    for field, cause in _STAT_CAUSES.items():
        if field in at_end:
            causes[cause] = at_end[field] - at_start.get(field, 0)
    for cache, shared in _FILE_CACHE:
        if cache in at_end:
            growth = at_end[cache] - at_start.get(cache, 0)
            causes["file_cache"] = growth - (at_end.get(shared, 0) - at_start.get(shared, 0)) - mapped_bytes
    return causes


def split_overhead(
    before: Reading,
    ready: Reading,
    last: Reading,
    *,
    peak_bytes: int,
    allocated_bytes: int,
    mapped_bytes: int = 0,
) -> Overhead:
    """Split ``peak - before - allocated``.

    `before` is the reading before the toucher was started, `ready` the one when it had
    started, `last` the one after the last step; `mapped_bytes` of the allocation are a file's.
    """
    causes = kernel_causes(ready, last, mapped_bytes)
    kernel = sum(causes.values())
    if last.level == LEAF_NAME:
        # Its start was charged to the own cgroup, before it joined the leaf.
        causes["toucher"] = max((ready.leaf_usage_bytes or 0) - before.usage_bytes, 0)
    else:
        causes["toucher"] = ready.toucher.anonymous + ready.toucher.page_tables
    # What has grown beside the allocation is the interpreter's heap.
    heap_growth = max(last.toucher.resident - ready.toucher.resident - allocated_bytes, 0)
    causes["toucher"] += heap_growth
    if last.leaf_usage_bytes is not None and ready.leaf_usage_bytes is not None:
        growth = last.leaf_usage_bytes - ready.leaf_usage_bytes
        causes["charged_ahead"] = growth - allocated_bytes - kernel - heap_growth
    overhead = peak_bytes - before.usage_bytes - allocated_bytes
    return Overhead(kernel, causes, overhead - sum(causes.values()))
