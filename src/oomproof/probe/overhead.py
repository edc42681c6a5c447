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
    "file": "file_cache",
    "total_cache": "file_cache",
}
"""Fields of memory.stat (v2; ``total_cache`` on v1) by the cause that they are reported as."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """The split; all sizes in bytes, see `ProbeResult`."""

    kernel_bytes: int
    by_cause: dict[str, int]
    others_bytes: int


def split_overhead(
    before: Reading, ready: Reading, last: Reading, peak_bytes: int, allocated_bytes: int
) -> Overhead:
    """Split ``peak - before - allocated``.

    `before` is the reading before the toucher was started, `ready` the one when it had
    started, `last` the one after the last step.
    """
    causes = {"page_tables": max(last.toucher.page_tables - ready.toucher.page_tables, 0)}
    at_start, at_end = dict(ready.leaf_stat), dict(last.leaf_stat)
    for field, cause in _STAT_CAUSES.items():
        if field in at_end:
            causes[cause] = at_end[field] - at_start.get(field, 0)
    kernel = sum(causes.values())
    if last.level == LEAF_NAME:
        # Its start was charged to the own cgroup, before it joined the leaf.
        causes["toucher"] = max((ready.leaf_usage_bytes or 0) - before.usage_bytes, 0)
    else:
        causes["toucher"] = ready.toucher.anonymous + ready.toucher.page_tables
    heap_growth = max(last.toucher.anonymous - ready.toucher.anonymous - allocated_bytes, 0)
    causes["toucher"] += heap_growth
    if last.leaf_usage_bytes is not None and ready.leaf_usage_bytes is not None:
        growth = last.leaf_usage_bytes - ready.leaf_usage_bytes
        causes["charged_ahead"] = growth - allocated_bytes - kernel - heap_growth
    overhead = peak_bytes - before.usage_bytes - allocated_bytes
    return Overhead(kernel, causes, overhead - sum(causes.values()))
