"""What the files mean: every kind of limit, sentinel, breakage and headroom, on machines made by hand."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

from oomproof.limits import with_leaf_limit
from oomproof.limits.model import Kind, Status
from oomproof.units import GIB, MIB
from unit.limits.machines import HOST_TOTAL, NO_LIMIT_V1, Content, Machine, codes, verdict_of

CG = "/sys/fs/cgroup"
MEM = f"{CG}/memory"

NO_LIMITS = {
    "4K pages": 0x7FFFFFFFFFFFF000,
    "16K pages": 0x7FFFFFFFFFFFC000,
    "64K pages": 0x7FFFFFFFFFFF0000,
    "LLONG_MAX": (1 << 63) - 1,
    "ULONG_MAX": (1 << 64) - 1,
    "32-bit, 4K pages": 0x7FFFFFFF * 4096,
    "32-bit, 64K pages": 0x7FFFFFFF * 65536,
    "written -1": -1,
}


@pytest.mark.parametrize("value", NO_LIMITS.values(), ids=NO_LIMITS)
@pytest.mark.parametrize("host_told", [True, False])
def test_every_way_of_v1_to_say_no_limit_is_none(machine: Machine, value: int, host_told: bool) -> None:
    machine.v1("/a").level_v1(MEM, limit=GIB).level_v1(f"{MEM}/a", limit=value)
    if not host_told:
        machine.file("/proc/meminfo", "MemTotal: 0 kB")
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.limit_bound_by) == (Status.LIMITED, GIB, "cgroup v1 /")
    assert verdict_of(report, "cgroup v1 /a") == "no limit"
    assert "limit_above_host" not in codes(report)


def test_the_32_bit_sentinel_is_a_limit_on_a_host_larger_than_it(machine: Machine) -> None:
    sentinel = NO_LIMITS["32-bit, 4K pages"]
    machine.v1("/").host(total=1 << 44).level_v1(MEM, limit=sentinel)
    assert machine.detect().limit_bytes == sentinel


def test_max_is_no_limit_on_v2(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG).detect()
    assert (report.status, report.limit_bytes) == (Status.UNLIMITED, HOST_TOTAL)
    assert report.limit_bound_by == "host MemTotal"


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_of_zero_is_a_limit(machine: Machine, version: int) -> None:
    if version == 1:
        machine.v1("/").level_v1(MEM, limit=0, usage=MIB)
    else:
        machine.v2("/").level_v2(CG, limit=0, usage=MIB)
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.available_bytes) == (Status.LIMITED, 0, 0)


def test_low_and_min_are_protections_and_not_limits(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG, low=MIB, min=MIB).detect()
    assert report.limit_bytes == HOST_TOTAL


@pytest.mark.parametrize(
    "junk", ["", "\n", "banana", "-5", "1e9", "12 GiB", "0x1000", "1_000", "9" * 30, b"\xff\xfe", "max max"]
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_broken_limit_never_gives_way_to_a_looser_one_above(
    machine: Machine, junk: Content, version: int
) -> None:
    if version == 1:
        machine.v1("/a").level_v1(MEM, limit=GIB).level_v1(f"{MEM}/a", limit=junk)
    else:
        machine.v2("/a").level_v2(CG, limit=GIB).level_v2(f"{CG}/a", limit=junk)
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.available_bytes) == (Status.UNKNOWN, None, None)
    assert "limit_unreadable" in codes(report)
    assert verdict_of(report, f"cgroup v{version} /a") == "unreadable"


def test_a_broken_limit_never_gives_way_to_the_host(machine: Machine) -> None:
    assert machine.v2("/").level_v2(CG, limit="junk").detect().status is Status.UNKNOWN


def test_a_valid_nearer_limit_bounds_what_a_broken_one_above_may_be(machine: Machine) -> None:
    machine.v2("/a").level_v2(CG, limit="junk").level_v2(f"{CG}/a", limit=GIB, usage=MIB)
    report = machine.detect()
    assert (report.status, report.limit_bytes) == (Status.LIMITED, GIB)
    assert "limit_unreadable" in codes(report)


def test_a_tighter_limit_beyond_a_broken_one_is_not_taken_for_the_answer(machine: Machine) -> None:
    machine.v2("/a/b").level_v2(CG, limit=MIB).level_v2(f"{CG}/a", limit="junk")
    machine.level_v2(f"{CG}/a/b", limit=GIB)
    assert machine.detect().status is Status.UNKNOWN


def test_a_directory_in_the_place_of_the_limit_is_unreadable(machine: Machine) -> None:
    machine.v2("/").level_v2(CG)
    (machine.root / "sys/fs/cgroup/memory.max").unlink()
    (machine.root / "sys/fs/cgroup/memory.max").mkdir()
    report = machine.detect()
    assert report.status is Status.UNKNOWN
    assert "limit_unreadable" in codes(report)


def test_a_pipe_in_the_place_of_the_limit_does_not_hang(machine: Machine) -> None:
    machine.v2("/").level_v2(CG)
    (machine.root / "sys/fs/cgroup/memory.max").unlink()
    os.mkfifo(machine.root / "sys/fs/cgroup/memory.max")
    assert machine.detect().status is Status.UNKNOWN


def test_the_nearest_of_equal_limits_binds(machine: Machine) -> None:
    machine.v2("/a/b").level_v2(CG).level_v2(f"{CG}/a", limit=GIB).level_v2(f"{CG}/a/b", limit=GIB)
    report = machine.detect()
    assert report.limit_bound_by == "cgroup v2 /a/b"
    assert verdict_of(report, "cgroup v2 /a") == "looser"


def test_what_binds_the_limit_and_the_headroom_are_told_apart(machine: Machine) -> None:
    machine.v2("/a/b").level_v2(CG).level_v2(f"{CG}/a", limit=4 * GIB, usage=4 * GIB - MIB)
    machine.level_v2(f"{CG}/a/b", limit=GIB, usage=MIB)
    report = machine.detect()
    assert (report.limit_bytes, report.available_bytes) == (GIB, MIB)
    assert verdict_of(report, "cgroup v2 /a/b") == "binds limit"
    assert verdict_of(report, "cgroup v2 /a") == "binds headroom"


def test_one_row_that_binds_both_says_so(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG, limit=GIB).detect()
    assert verdict_of(report, "cgroup v2 /") == "binds"


def test_a_limit_above_the_host_does_not_bind_and_is_said(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG, limit=2 * HOST_TOTAL).detect()
    assert (report.status, report.limit_bytes) == (Status.UNLIMITED, HOST_TOTAL)
    assert verdict_of(report, "cgroup v2 /") == "above the host's memory"
    assert codes(report) == {"limit_above_host"}


class Charge(NamedTuple):
    """MiB charged to a cgroup with a limit of 1000 MiB, and what is left of it."""

    usage: int
    inactive: int
    active: int
    dirty: int
    back: int
    available: int
    optimistic: int

    def stat(self, version: int) -> str:
        prefix, file = ("total_", "") if version == 1 else ("", "file_")
        sizes = {
            "inactive_file": self.inactive,
            "active_file": self.active,
            f"{file}dirty": self.dirty,
            f"{file}writeback": self.back,
            "shmem": 900,
        }
        # v1's lines without total_ count the cgroup alone, without those below it.
        own_alone = "".join(f"{name} 0\n" for name in sizes) if version == 1 else ""
        return own_alone + "\n".join(f"{prefix}{name} {size * MIB}" for name, size in sizes.items())


@pytest.mark.parametrize(
    "charge",
    [
        Charge(600, 0, 0, 0, 0, 400, 400),
        Charge(600, 100, 0, 0, 0, 500, 500),
        Charge(600, 100, 50, 0, 0, 500, 550),
        Charge(600, 100, 0, 30, 20, 450, 450),
        Charge(600, 100, 0, 90, 20, 400, 400),
        Charge(600, 100, 50, 90, 20, 400, 440),
        Charge(600, 700, 0, 0, 0, 1000, 1000),
        Charge(1600, 100, 0, 0, 0, 0, 0),
        Charge(1000, 0, 0, 0, 0, 0, 0),
        Charge(0, 0, 0, 0, 0, 1000, 1000),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_headroom_counts_clean_inactive_cache_only(machine: Machine, version: int, charge: Charge) -> None:
    level = machine.v1("/").level_v1 if version == 1 else machine.v2("/").level_v2
    level(MEM if version == 1 else CG, limit=1000 * MIB, usage=charge.usage * MIB, stat=charge.stat(version))
    report = machine.detect()
    row = next(row for row in report.candidates if row.kind is Kind.CGROUP)
    assert report.available_bytes == charge.available * MIB
    assert row.available_optimistic_bytes == charge.optimistic * MIB
    assert ("usage_above_limit" in codes(report)) == (charge.usage > 1000)


def test_old_v1_kernels_without_totals_are_read_from_the_plain_lines(machine: Machine) -> None:
    machine.v1("/").level_v1(MEM, limit=GIB, usage=3 * MIB, stat=f"inactive_file {2 * MIB}")
    assert machine.detect().available_bytes == GIB - MIB


@pytest.mark.parametrize("usage", [None, "junk", "-1"])
def test_without_usage_the_limit_stands_and_headroom_is_unknown(
    machine: Machine, usage: Content | None
) -> None:
    machine.v2("/a").level_v2(CG, limit=GIB, usage=usage).level_v2(f"{CG}/a", limit=2 * GIB, usage=0)
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.available_bytes) == (Status.LIMITED, GIB, None)
    assert report.available_bound_by is None
    assert "usage_unreadable" in codes(report)


@pytest.mark.parametrize("stat", [None, "", "anon 5", "inactive_file junk"])
def test_without_page_cache_all_usage_counts(machine: Machine, stat: str | None) -> None:
    report = machine.v2("/").level_v2(CG, limit=GIB, usage=MIB, stat=stat).detect()
    assert report.available_bytes == GIB - MIB
    assert codes(report) == {"page_cache_unreadable"}


def test_one_bad_line_in_memory_stat_does_not_cost_the_others(machine: Machine) -> None:
    stat = f"\njunk\ninactive_file\n{'x' * 100_000} 1\ninactive_file {MIB}\ninactive_file 99"
    report = machine.v2("/").level_v2(CG, limit=GIB, usage=2 * MIB, stat=stat).detect()
    assert report.available_bytes == GIB - MIB


@pytest.mark.parametrize("flagged", ["parent", "own"])
def test_use_hierarchy_0_keeps_the_levels_above_out(machine: Machine, flagged: str) -> None:
    machine.v1("/a/b").level_v1(MEM, use_hierarchy=0)
    machine.level_v1(f"{MEM}/a", limit=GIB, use_hierarchy=0 if flagged == "parent" else 1)
    machine.level_v1(f"{MEM}/a/b", limit=2 * GIB, use_hierarchy=0)
    report = machine.detect()
    assert (report.limit_bytes, report.limit_bound_by) == (2 * GIB, "cgroup v1 /a/b")
    assert verdict_of(report, "cgroup v1 /a").startswith("does not apply")
    assert "hierarchy_separate" in codes(report)


def test_use_hierarchy_1_or_absent_lets_the_levels_above_bind(machine: Machine) -> None:
    machine.v1("/a/b").level_v1(MEM).level_v1(f"{MEM}/a", limit=GIB, use_hierarchy=1)
    machine.level_v1(f"{MEM}/a/b", limit=2 * GIB, use_hierarchy=1)
    assert machine.detect().limit_bytes == GIB


def test_a_limit_only_in_v1s_summary_is_found(machine: Machine) -> None:
    machine.host().member("7:memory:/slurm/job/step").mounts(
        "35 31 0:31 /slurm/job/step /sys/fs/cgroup/memory rw - cgroup c rw,memory"
    )
    machine.level_v1(MEM, usage=MIB, stat=f"hierarchical_memory_limit {GIB}\ntotal_inactive_file 0")
    report = machine.detect()
    assert (report.status, report.limit_bytes) == (Status.LIMITED, GIB)
    assert report.limit_bound_by == "cgroup v1 above /slurm/job/step (hierarchical_memory_limit)"
    assert report.available_bytes == GIB - MIB


@pytest.mark.parametrize("summary", [NO_LIMIT_V1, 2 * GIB, GIB])
def test_v1s_summary_adds_nothing_where_a_level_is_as_tight(machine: Machine, summary: int) -> None:
    machine.v1("/").level_v1(MEM, limit=GIB, stat=f"hierarchical_memory_limit {summary}")
    assert machine.detect().limit_bound_by == "cgroup v1 /"


def test_memory_high_stands_beside_the_limit(machine: Machine) -> None:
    machine.v2("/a").level_v2(CG, high=3 * GIB).level_v2(f"{CG}/a", high=2 * GIB, usage=3 * GIB)
    report = machine.detect()
    assert (report.limit_bytes, report.soft_limit_bytes) == (HOST_TOTAL, 2 * GIB)
    assert "above_memory_high" in codes(report)
    assert verdict_of(report, "memory.high /a") == "throttles, never kills"


def test_a_broken_memory_high_is_said_and_costs_nothing_else(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG, limit=GIB, high="junk").detect()
    assert (report.limit_bytes, report.soft_limit_bytes) == (GIB, None)
    assert codes(report) == {"soft_limit_unreadable"}


def test_the_soft_limit_of_v1_is_a_row_and_no_soft_limit_that_throttles(machine: Machine) -> None:
    report = machine.v1("/").level_v1(MEM, soft_limit_in_bytes=MIB).detect()
    assert report.soft_limit_bytes is None
    assert "reclaimed first" in verdict_of(report, "soft limit /")


def test_swap_of_v2_is_swap_alone(machine: Machine) -> None:
    machine.v2("/a").level_v2(CG, limit=GIB, swap_max=3 * MIB).level_v2(f"{CG}/a", swap_max=2 * MIB)
    assert machine.detect().swap_limit_bytes == 2 * MIB


def test_swap_of_v1_comes_after_memory_is_taken_off_the_sum(machine: Machine) -> None:
    machine.v1("/").level_v1(MEM, limit=GIB)
    machine.file(f"{MEM}/memory.memsw.limit_in_bytes", 3 * GIB)
    machine.file(f"{MEM}/memory.memsw.usage_in_bytes", MIB)
    report = machine.detect()
    assert (report.limit_bytes, report.swap_limit_bytes) == (GIB, 2 * GIB)
    row = next(row for row in report.candidates if row.kind is Kind.SWAP)
    assert (row.limit_bytes, row.usage_bytes, row.available_bytes) == (3 * GIB, MIB, 3 * GIB - MIB)


def test_no_swap_limit_is_none(machine: Machine) -> None:
    assert machine.v2("/").level_v2(CG, swap_max="max").detect().swap_limit_bytes is None


def test_a_leaf_limit_binds_where_it_is_the_tightest(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG, limit=2 * GIB, usage=MIB).detect()
    inside = with_leaf_limit(report, GIB)
    assert (inside.limit_bytes, inside.limit_bound_by) == (GIB, "--limit")
    assert (inside.available_bytes, inside.available_bound_by) == (GIB, "--limit")
    assert verdict_of(inside, "cgroup v2 /") == "looser"
    assert inside.candidates[0].kind is Kind.LEAF


def test_a_looser_leaf_limit_changes_nothing_but_the_table(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG, limit=GIB, usage=MIB).detect()
    inside = with_leaf_limit(report, 4 * GIB)
    assert (inside.limit_bytes, inside.available_bytes) == (GIB, GIB - MIB)
    assert inside.candidates[1:] == report.candidates


def test_a_leaf_limit_bounds_an_unknown_machine(machine: Machine) -> None:
    inside = with_leaf_limit(machine.v2("/../x").level_v2(CG).detect(), GIB)
    assert (inside.status, inside.limit_bytes) == (Status.LIMITED, GIB)


def test_a_fork_or_migration_is_noticed_on_the_next_call(machine: Machine) -> None:
    machine.v2("/a").root_v2().level_v2(f"{CG}/a", limit=GIB).level_v2(f"{CG}/b", limit=MIB)
    assert machine.detect().limit_bytes == GIB
    machine.member("0::/b")
    assert machine.detect().limit_bytes == MIB
