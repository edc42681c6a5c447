"""Drift: what is named, when it is told, and how the total follows; pure decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.limits.accounts import CgroupAccounts, ProcessAccounts
from oomproof.memory.alarm import Alarm, TotalFollower
from oomproof.memory.drift import REMEDIES, Observation, compare
from oomproof.memory.heap import HeapAccounts
from oomproof.units import GIB, MIB

PROCESS = ProcessAccounts(
    anonymous=20 * MIB, file=10 * MIB, shared=0, swapped=0, page_tables=MIB, locked=0, pinned=0
)
CGROUP = CgroupAccounts(
    2, "/sys/fs/cgroup/engine", 50 * MIB, anonymous=30 * MIB, cache=12 * MIB, shared=0, kernel=4 * MIB
)
START = Observation(0, 0, PROCESS, CGROUP, HeapAccounts(arenas=4 * MIB, mapped=0, in_use=3 * MIB, free=MIB))


def after(ledger: int = 0, locked_in_pool: int = 0, free_heap: int = MIB, **process: int) -> Observation:
    """`START` with the process's accounts changed, and the cgroup's along with them."""
    now = PROCESS._replace(**process)
    grown = (now.anonymous or 0) + (now.shared or 0) - 20 * MIB
    tables = (now.page_tables or 0) - MIB
    cgroup = CGROUP._replace(anonymous=30 * MIB + grown, kernel=4 * MIB + tables)
    heap = HeapAccounts(arenas=GIB, mapped=0, in_use=MIB, free=free_heap)
    return Observation(ledger, locked_in_pool, now, cgroup, heap)


def sizes(now: Observation) -> dict[str, int]:
    report = compare(START, now)
    assert sum(drift.bytes for drift in report.drifts) == report.total_bytes
    assert [drift.bytes for drift in report.drifts] == sorted((d.bytes for d in report.drifts), reverse=True)
    return report.sizes


def test_nothing_has_drifted_at_the_baseline() -> None:
    report = compare(START, START)
    assert (report.drifts, report.total_bytes, report.slack_bytes) == ((), 0, 0)


def test_what_is_reserved_is_explained() -> None:
    assert sizes(after(ledger=GIB, anonymous=20 * MIB + GIB)) == {}


def test_what_is_reserved_and_not_touched_is_slack() -> None:
    report = compare(START, after(ledger=GIB, anonymous=120 * MIB))
    assert report.drifts == ()
    assert report.slack_bytes == GIB - 100 * MIB


def test_a_leak_is_unaccounted_heap() -> None:
    assert sizes(after(ledger=GIB, anonymous=276 * MIB + GIB)) == {"unaccounted_heap": 256 * MIB}


def test_freed_memory_in_arenas_is_trimmable_and_the_rest_a_leak() -> None:
    found = sizes(after(anonymous=320 * MIB, free_heap=101 * MIB))
    assert found == {"unaccounted_heap": 200 * MIB, "trimmable_heap": 100 * MIB}


def test_arenas_that_were_trimmed_already_are_no_drift() -> None:
    assert sizes(after(anonymous=20 * MIB, free_heap=101 * MIB)) == {}


def test_locked_memory_of_pools_is_explained_other_is_not() -> None:
    assert sizes(after(GIB, GIB, anonymous=20 * MIB + GIB, locked=GIB)) == {}
    found = sizes(after(GIB, GIB, anonymous=84 * MIB + GIB, locked=GIB + 64 * MIB))
    assert found == {"pinned_outside_ledger": 64 * MIB}


def test_locked_memory_shows_though_slack_would_hide_it() -> None:
    assert sizes(after(GIB, 0, anonymous=84 * MIB, locked=64 * MIB)) == {"pinned_outside_ledger": 64 * MIB}


def test_shared_memory_page_tables_and_what_is_beside_the_process() -> None:
    assert sizes(after(shared=64 * MIB)) == {"shared_memory": 64 * MIB}
    assert sizes(after(page_tables=65 * MIB)) == {"page_tables": 64 * MIB}
    crowded = CGROUP._replace(anonymous=130 * MIB, kernel=54 * MIB)
    found = sizes(replace(START, cgroup=crowded))
    assert found == {"other_processes": 100 * MIB, "other_kernel_memory": 50 * MIB}


def test_what_was_there_before_stays_out_of_it() -> None:
    loaded = replace(START, ledger_bytes=GIB, process=PROCESS._replace(anonymous=GIB + 100 * MIB))
    assert compare(loaded, loaded).drifts == ()
    released = replace(START, process=PROCESS._replace(anonymous=100 * MIB))
    assert compare(loaded, released).drifts == ()


def test_where_the_kernel_does_not_tell_notices_do() -> None:
    blind = Observation(0, 0, ProcessAccounts(), None, None)
    report = compare(blind, blind)
    assert report.drifts == ()
    assert {notice.code for notice in report.notices} == {
        "process_accounts_absent",
        "allocator_silent",
        "cgroup_accounts_absent",
    }
    old_kernel = replace(START, cgroup=CGROUP._replace(kernel=None))
    assert [notice.code for notice in compare(START, old_kernel).notices] == ["kernel_memory_untold"]


ANY = st.one_of(st.none(), st.integers(0, 1 << 40))
OBSERVATIONS = st.builds(
    Observation,
    ledger_bytes=st.integers(0, 1 << 40),
    pool_locked_bytes=st.integers(0, 1 << 40),
    process=st.builds(ProcessAccounts, ANY, ANY, ANY, ANY, ANY, ANY, ANY),
    cgroup=st.one_of(st.none(), st.builds(CgroupAccounts, st.just(2), st.just("/"), ANY, ANY, ANY, ANY, ANY)),
    heap=st.one_of(st.none(), st.builds(HeapAccounts, *[st.integers(0, 1 << 40)] * 4)),
)


@given(OBSERVATIONS, OBSERVATIONS)
def test_drift_is_never_negative_and_always_has_a_name_and_a_remedy(
    before: Observation, now: Observation
) -> None:
    report = compare(before, now)
    assert all(drift.bytes > 0 and drift.name in REMEDIES for drift in report.drifts)
    own = ("shared_memory", "trimmable_heap", "unaccounted_heap", "pinned_outside_ledger")
    charged = (now.process.anonymous or 0) + (now.process.shared or 0)
    pinned = (now.process.locked or 0) + (now.process.pinned or 0)
    assert sum(report.bytes_of(name) for name in own) <= max(charged, pinned)
    assert not (report.slack_bytes and report.bytes_of("unaccounted_heap"))


def test_a_kind_is_named_when_it_stays_and_until_it_is_well_below() -> None:
    alarm = Alarm(64, looks=2)
    told = [alarm.update({"heap": size}) for size in (70, 10, 64, 64, 40, 31, 40, 31, 31)]
    assert told == [False, False, False, True, False, False, False, False, True]
    assert alarm.named == {}


def test_a_named_kind_is_told_again_when_its_size_moves() -> None:
    alarm = Alarm(64, looks=1)
    told = [alarm.update({"heap": size}) for size in (100, 120, 132, 140, 100)]
    assert told == [True, False, True, False, True]
    assert alarm.named == {"heap": 100}
    assert alarm.would_tell({"heap": 200})
    assert alarm.named == {"heap": 100}, "only a trial"
    assert alarm.update({})
    assert alarm.named == {}


def test_the_total_follows_the_drift_down_and_up() -> None:
    follower = TotalFollower(min_total_bytes=0)
    assert follower.next_total(GIB, 0) is None
    assert follower.next_total(GIB, 100 * MIB + 1) == GIB - 101 * MIB
    assert follower.next_total(GIB - 101 * MIB, 100 * MIB + 1) is None
    assert follower.next_total(GIB - 101 * MIB, 0) == GIB
    assert follower.restored(GIB) is None


def test_a_total_that_somebody_else_sets_is_the_new_base() -> None:
    follower = TotalFollower(min_total_bytes=0)
    assert follower.next_total(GIB, 256 * MIB) == 768 * MIB
    assert follower.next_total(2 * GIB, 256 * MIB) == 2 * GIB - 256 * MIB
    assert follower.restored(2 * GIB - 256 * MIB) == 2 * GIB
    assert follower.restored(5 * GIB) is None, "theirs, not ours to change"


def test_the_total_never_goes_below_its_floor() -> None:
    follower = TotalFollower(min_total_bytes=512 * MIB)
    assert follower.next_total(GIB, 900 * MIB) == 512 * MIB


@pytest.mark.parametrize("looks", [1, 2, 3])
@given(history=st.lists(st.integers(0, 200), max_size=40))
def test_alarm_names_exactly_what_stayed(looks: int, history: list[int]) -> None:
    alarm = Alarm(64, looks=looks)
    for position, size in enumerate(history):
        was_named = "heap" in alarm.named
        alarm.update({"heap": size})
        recent = history[max(position - looks + 1, 0) : position + 1]
        if not was_named and "heap" in alarm.named:
            assert len(recent) == looks
            assert min(recent) >= 64
        if was_named and "heap" not in alarm.named:
            assert max(recent) < 32
