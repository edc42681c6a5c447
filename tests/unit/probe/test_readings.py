"""From what `limits` and the leaf say to one reading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from oomproof.limits.model import Candidate, Kind, LimitReport, MemoryCgroup, Status
from oomproof.probe.readings import LEAF_NAME, summarise
from oomproof.units import GIB, MIB


def row(kind: Kind, name: str, limit: int | None, usage: int) -> Candidate:
    available = None if limit is None else limit - usage
    return Candidate(kind, name, limit, usage, available, available, f"/sys/{name}", "")


HOST = row(Kind.HOST, "host MemTotal", 64 * GIB, 32 * GIB)
OWN = row(Kind.CGROUP, "cgroup v2 /a/b", None, MIB)
PARENT = row(Kind.CGROUP, "cgroup v2 /a", GIB, 100 * MIB)


def report(*rows: Candidate, version: int = 2, **changes: object) -> LimitReport:
    limited = [r.available_bytes for r in rows if r.kind is Kind.CGROUP and r.available_bytes is not None]
    values: dict[str, object] = {
        "status": Status.LIMITED if limited else Status.UNLIMITED,
        "limit_bytes": None,
        "available_bytes": min(limited, default=32 * GIB),
        "limit_bound_by": None,
        "available_bound_by": None,
        "candidates": rows,
        "host_total_bytes": 64 * GIB,
        "host_available_bytes": 32 * GIB,
        "cgroup": MemoryCgroup(1 if version == 1 else 2, "/a/b", Path("/sys/a/b"), Path("/sys")),
    }
    return LimitReport(**{**values, **changes})  # type: ignore[arg-type]


def test_the_level_with_the_least_headroom_is_the_one_that_is_measured() -> None:
    reading = summarise(report(OWN, PARENT, HOST), None)
    assert (reading.level, reading.limit_bytes) == ("cgroup v2 /a", GIB)
    assert (reading.usage_bytes, reading.headroom_bytes) == (100 * MIB, GIB - 100 * MIB)


def test_the_probes_own_leaf_binds_where_it_is_the_tightest() -> None:
    reading = summarise(report(OWN, PARENT, HOST), row(Kind.LEAF, LEAF_NAME, 64 * MIB, 0))
    assert (reading.level, reading.headroom_bytes) == (LEAF_NAME, 64 * MIB)


def test_a_later_reading_keeps_to_the_level_though_another_is_tighter_now() -> None:
    fuller = row(Kind.CGROUP, "cgroup v2 /a/b", 200 * MIB, 199 * MIB)
    reading = summarise(report(fuller, PARENT, HOST), None, level="cgroup v2 /a")
    assert reading.level == "cgroup v2 /a"
    assert reading.headroom_bytes == MIB


def test_without_any_limit_the_own_cgroup_is_measured_and_only_the_host_bounds() -> None:
    reading = summarise(report(OWN, HOST), None)
    assert (reading.level, reading.limit_bytes, reading.headroom_bytes) == ("cgroup v2 /a/b", None, None)
    assert reading.host_available_bytes == 32 * GIB


def test_without_cgroups_the_usage_is_the_hosts_and_its_memory_is_no_cgroup_limit() -> None:
    reading = summarise(report(HOST, cgroup=None), None)
    assert (reading.limit_bytes, reading.usage_bytes) == (None, 32 * GIB)


def test_memory_high_counts_on_v2_and_the_soft_limit_of_v1_does_not() -> None:
    soft = row(Kind.SOFT, "memory.high /a", 300 * MIB, 100 * MIB)
    assert summarise(report(PARENT, HOST, soft), None).high_headroom_bytes == 200 * MIB
    assert summarise(report(PARENT, HOST, soft, version=1), None).high_headroom_bytes is None


def test_swap_of_v1_which_counts_memory_too_is_left_out() -> None:
    swap = row(Kind.SWAP, "swap /a", GIB, 5 * MIB)
    assert summarise(report(PARENT, HOST, swap), None).swap_bytes == 5 * MIB
    assert summarise(report(PARENT, HOST, swap, version=1), None).swap_bytes == 0


def test_an_unreadable_limit_gives_no_headroom() -> None:
    reading = summarise(report(OWN, HOST, status=Status.UNKNOWN, available_bytes=None), None)
    assert (reading.status, reading.headroom_bytes) == (Status.UNKNOWN, None)


def test_pages_of_the_own_file_are_not_free_where_they_would_count_as_free() -> None:
    """Of 300 MiB of cache that this level counts as free, 200 MiB are being measured."""
    level = replace(PARENT, usage_bytes=600 * MIB, available_bytes=GIB - 300 * MIB)
    told = report(level, HOST, available_bytes=GIB - 300 * MIB)
    assert summarise(told, None).headroom_bytes == GIB - 300 * MIB
    mapped = summarise(told, None, mapped_bytes=250 * MIB, inactive_bytes=200 * MIB)
    assert mapped.headroom_bytes == GIB - 500 * MIB
    assert mapped.host_available_bytes == 32 * GIB - 250 * MIB


@given(mapped=st.integers(0, 2 * GIB), cache=st.integers(0, 100 * MIB))
def test_the_own_file_takes_no_more_headroom_than_cache_gave(mapped: int, cache: int) -> None:
    level = replace(PARENT, available_bytes=GIB - 100 * MIB + cache)
    told = report(level, HOST, available_bytes=level.available_bytes)
    headroom = summarise(told, None, inactive_bytes=mapped).headroom_bytes
    assert headroom == GIB - 100 * MIB + cache - min(mapped, cache)
