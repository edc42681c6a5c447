"""Callbacks on change: prompt, few, and without asking all the time."""

from __future__ import annotations

import queue
import time

import pytest

import oomproof
from oomproof.limits.model import LimitReport
from oomproof.limits.watch import LimitWatch, watch_limits
from oomproof.units import GIB, MIB
from unit.limits.machines import Machine

CG = "/sys/fs/cgroup"
Changes = queue.Queue[tuple[int | None, int | None]]


@pytest.fixture
def changes() -> Changes:
    return queue.Queue()


def teller(changes: Changes) -> object:
    def tell(before: LimitReport, after: LimitReport) -> None:
        changes.put((before.limit_bytes, after.limit_bytes))

    return tell


def test_a_written_limit_is_told_at_once(machine: Machine, changes: Changes) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    with watch_limits(teller(changes), root=machine.root, interval_seconds=3600):  # type: ignore[arg-type]
        machine.file(f"{CG}/memory.max", MIB)
        assert changes.get(timeout=10) == (GIB, MIB)
        machine.file(f"{CG}/memory.max", GIB)
        assert changes.get(timeout=10) == (MIB, GIB)


def test_a_migration_is_told_by_the_next_look(machine: Machine, changes: Changes) -> None:
    machine.v2("/a").root_v2().level_v2(f"{CG}/a", limit=GIB).level_v2(f"{CG}/b", limit=MIB)
    with watch_limits(teller(changes), root=machine.root, interval_seconds=0.05):  # type: ignore[arg-type]
        machine.member("0::/b")
        assert changes.get(timeout=10) == (GIB, MIB)
        machine.file(f"{CG}/b/memory.max", 2 * MIB)
        assert changes.get(timeout=10) == (MIB, 2 * MIB)


def test_usage_alone_is_no_change(machine: Machine, changes: Changes) -> None:
    machine.v2("/").level_v2(CG, limit=GIB, usage=0)
    with LimitWatch(teller(changes), root=machine.root) as watch:  # type: ignore[arg-type]
        machine.file(f"{CG}/memory.current", MIB)
        assert watch.look() is False
        assert watch.report.available_bytes == GIB - MIB
    assert changes.empty()


def test_waiting_costs_no_processor_time(machine: Machine, changes: Changes) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    with watch_limits(teller(changes), root=machine.root, interval_seconds=3600):  # type: ignore[arg-type]
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.1


def test_the_callback_may_stop_the_watch(machine: Machine, changes: Changes) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)

    def stop(before: LimitReport, after: LimitReport) -> None:
        changes.put((before.limit_bytes, after.limit_bytes))
        watch.stop()

    watch = watch_limits(stop, root=machine.root, interval_seconds=0.05)
    machine.file(f"{CG}/memory.max", MIB)
    assert changes.get(timeout=10) == (GIB, MIB)
    watch.stop()
    watch.stop()


def test_the_package_offers_detection_without_importing_it_first(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    assert oomproof.watch_limits is watch_limits
    assert oomproof.detect_limits(root=machine.root).limit_bytes == GIB
    with pytest.raises(AttributeError, match="no attribute 'detect_limit'"):
        getattr(oomproof, "detect_limit")  # noqa: B009
