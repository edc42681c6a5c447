"""Splitting the growth by cause."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomproof.limits.model import Status
from oomproof.probe import overhead
from oomproof.probe.overhead import split_overhead
from oomproof.probe.readings import LEAF_NAME, STAT_FIELDS, Accounts, Reading
from oomproof.units import MIB

BEFORE = Reading(
    status=Status.LIMITED,
    level="cgroup v2 /a",
    limit_bytes=1024 * MIB,
    usage_bytes=50 * MIB,
    headroom_bytes=974 * MIB,
    host_total_bytes=None,
    host_available_bytes=None,
)
READY = replace(
    BEFORE,
    usage_bytes=54 * MIB,
    leaf_usage_bytes=0,
    toucher=Accounts(page_tables=MIB // 16, anonymous=3 * MIB),
)
sizes = st.integers(0, 1 << 40)


def test_growth_of_a_neighbour_is_that_of_others_alone() -> None:
    last = replace(
        READY,
        usage_bytes=54 * MIB + 512 * MIB + MIB + 100 * MIB,
        leaf_usage_bytes=512 * MIB + MIB,
        toucher=Accounts(page_tables=MIB // 16 + MIB, anonymous=3 * MIB + 512 * MIB),
    )
    split = split_overhead(BEFORE, READY, last, peak_bytes=last.usage_bytes, allocated_bytes=512 * MIB)
    assert split.kernel_bytes == MIB
    assert split.by_cause["charged_ahead"] == 0
    assert 100 * MIB <= split.others_bytes < 102 * MIB


def test_without_a_leaf_the_own_page_tables_are_still_told_apart() -> None:
    last = replace(
        READY,
        usage_bytes=667 * MIB,
        leaf_usage_bytes=None,
        toucher=Accounts(page_tables=2 * MIB, anonymous=515 * MIB),
    )
    split = split_overhead(
        BEFORE, replace(READY, leaf_usage_bytes=None), last, peak_bytes=667 * MIB, allocated_bytes=512 * MIB
    )
    assert split.kernel_bytes == 2 * MIB - MIB // 16
    assert "charged_ahead" not in split.by_cause
    assert split.others_bytes == 667 * MIB - 50 * MIB - 512 * MIB - sum(split.by_cause.values())


def test_memory_stat_tells_causes_that_only_the_kernel_knows() -> None:
    ready = replace(READY, leaf_stat=(("kernel_stack", 100), ("slab", 1000), ("file", 5), ("shmem", 0)))
    stat = (("kernel_stack", 300), ("slab", 5000), ("file", 5 + MIB), ("shmem", MIB), ("sock", 7))
    split = split_overhead(
        BEFORE, ready, replace(ready, leaf_stat=stat), peak_bytes=60 * MIB, allocated_bytes=0
    )
    told = {name: split.by_cause[name] for name in ("kernel_stacks", "slab", "sockets", "file_cache")}
    assert told == {"kernel_stacks": 200, "slab": 4000, "sockets": 7, "file_cache": 0}
    assert split.kernel_bytes == 4207


def test_a_mapped_file_is_allocation_and_no_cache_beside_it() -> None:
    ready = replace(READY, leaf_stat=(("file", MIB), ("shmem", 0)))
    last = replace(
        ready,
        leaf_usage_bytes=66 * MIB,
        leaf_stat=(("file", 66 * MIB), ("shmem", 0)),
        toucher=replace(ready.toucher, file=64 * MIB),
    )
    split = split_overhead(
        BEFORE, ready, last, peak_bytes=120 * MIB, allocated_bytes=64 * MIB, mapped_bytes=64 * MIB
    )
    assert split.by_cause["file_cache"] == MIB
    assert split.kernel_bytes == MIB
    assert split.by_cause["charged_ahead"] == MIB


def test_in_the_leaf_of_a_limit_the_start_of_the_toucher_is_not_counted_twice() -> None:
    before = replace(BEFORE, level=LEAF_NAME, usage_bytes=0)
    ready = replace(READY, level=LEAF_NAME, usage_bytes=MIB, leaf_usage_bytes=MIB)
    last = replace(ready, usage_bytes=66 * MIB, leaf_usage_bytes=66 * MIB)
    split = split_overhead(before, ready, last, peak_bytes=66 * MIB, allocated_bytes=64 * MIB)
    assert split.by_cause["toucher"] == MIB
    assert split.others_bytes == 0


@given(peak=sizes, before=sizes, allocated=sizes, leaf=sizes, tables=sizes, anonymous=sizes)
def test_the_parts_always_add_up_to_the_overhead(
    *, peak: int, before: int, allocated: int, leaf: int, tables: int, anonymous: int
) -> None:
    first = replace(BEFORE, usage_bytes=before)
    last = replace(READY, leaf_usage_bytes=leaf, toucher=Accounts(page_tables=tables, anonymous=anonymous))
    split = split_overhead(first, READY, last, peak_bytes=peak, allocated_bytes=allocated)
    assert sum(split.by_cause.values()) + split.others_bytes == peak - before - allocated


def test_every_field_that_is_looked_at_is_kept() -> None:
    looked_at = {*overhead._STAT_CAUSES, *(name for pair in overhead._FILE_CACHE for name in pair)}
    assert looked_at == STAT_FIELDS
