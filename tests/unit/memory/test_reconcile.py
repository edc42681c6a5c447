"""Reconciler on this very process: leaks that are planted are named, hooks are told, the total follows."""

from __future__ import annotations

import ctypes
import gc
import logging
import mmap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oomproof.errors import PinningUnavailable, UsageError
from oomproof.limits.accounts import read_cgroup_accounts, read_process_accounts
from oomproof.limits.files import Tree
from oomproof.memory import DriftReport, MemoryBudget, PinnedPool, Reconciler, trim_heap
from oomproof.memory.backends.mapped import MlockBackend
from oomproof.memory.heap import read_heap
from oomproof.units import GIB, KIB, MIB

LEAK = 256 * MIB
TOLERANCE = 24 * MIB


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(4 * GIB)


def leak(size: int = LEAK) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, size, mmap.PAGESIZE):
        memory[page] = 1
    return memory


@pytest.fixture
def planted() -> Iterator[list[mmap.mmap]]:
    leaks: list[mmap.mmap] = []
    yield leaks
    for memory in leaks:
        memory.close()
    gc.collect()


@pytest.mark.parametrize(
    "wish",
    [
        *({"interval_seconds": seconds} for seconds in (0, -1, float("nan"), float("inf"), 1e30)),
        *({"threshold_bytes": size} for size in (0, -1)),
        *({"looks": looks} for looks in (0, -1)),
    ],
    ids=str,
)
def test_a_watch_that_would_not_sleep_or_always_tell_is_refused(
    budget: MemoryBudget, wish: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wish))}=.* makes no sense: give "):
        Reconciler(budget, **wish)


def test_a_planted_leak_is_named_within_five_seconds_and_its_end_too(
    budget: MemoryBudget, planted: list[mmap.mmap], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[DriftReport] = []
    news = threading.Event()

    def on_drift(report: DriftReport) -> None:
        told.append(report)
        news.set()

    with Reconciler(budget, on_drift=on_drift, adjust_total=True) as reconciler:
        memory = leak()
        planted.append(memory)
        begun = time.monotonic()
        assert news.wait(60)
        assert time.monotonic() - begun < 5, "the promise"
        assert told[0].bytes_of("unaccounted_heap") == pytest.approx(LEAK, abs=TOLERANCE)
        assert reconciler.named.keys() == {"unaccounted_heap"}
        [record] = [record for record in caplog.records if "unaccounted_heap" in record.getMessage()]
        assert record.levelno == logging.WARNING
        while budget.total_bytes == 4 * GIB:
            time.sleep(0.01)
        assert budget.total_bytes == pytest.approx(4 * GIB - LEAK, abs=TOLERANCE)
        news.clear()
        planted.pop().close()
        assert news.wait(60)
        while budget.total_bytes != 4 * GIB:
            time.sleep(0.01)
        assert reconciler.named == {}
    assert reconciler.failures == 0


def test_what_is_reserved_is_no_drift(budget: MemoryBudget, planted: list[mmap.mmap]) -> None:
    reconciler = Reconciler(budget)
    with budget.reserve(LEAK, owner="srs"):
        assert reconciler.look().slack_bytes == pytest.approx(LEAK, abs=TOLERANCE)
        planted.append(leak())
        report = reconciler.look()
        assert report.bytes_of("unaccounted_heap") < TOLERANCE
        assert report.ledger_bytes == LEAK


def test_the_pool_is_no_drift_and_locked_memory_beside_it_is(budget: MemoryBudget) -> None:
    reconciler = Reconciler(budget)
    with PinnedPool(budget, backend="mlock", max_idle_seconds=None) as pool:
        try:
            held = pool.take(4 * MIB)
        except PinningUnavailable as error:
            pytest.skip(f"memory cannot be locked here: {error}")
        pool.take(2 * MIB).release()
        assert reconciler.look().bytes_of("pinned_outside_ledger") == 0
        outside = MlockBackend().allocate(1 * MIB)
        assert reconciler.look().bytes_of("pinned_outside_ledger") == MIB
        outside.free()
        assert reconciler.look().bytes_of("pinned_outside_ledger") == 0
        held.release()


def test_arenas_that_malloc_keeps_are_trimmable_and_trimming_gives_them_back(budget: MemoryBudget) -> None:
    if read_heap() is None:
        pytest.skip("this C library does not tell")
    reconciler = Reconciler(budget)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    blocks = []
    for _ in range(2048):  # below the size from which each allocation is a mapping of its own
        block = libc.malloc(ctypes.c_size_t(64 * KIB))
        ctypes.memset(block, 1, 64 * KIB)
        blocks.append(block)
    assert reconciler.look().bytes_of("unaccounted_heap") == pytest.approx(128 * MIB, abs=TOLERANCE)
    for block in blocks[:-1]:  # the last one keeps the arena from shrinking by itself
        libc.free(block)
    report = reconciler.look()
    assert report.bytes_of("trimmable_heap") == pytest.approx(128 * MIB, abs=TOLERANCE)
    assert report.bytes_of("unaccounted_heap") < TOLERANCE
    assert trim_heap()
    assert reconciler.look().total_bytes < TOLERANCE
    libc.free(blocks[-1])


def test_every_look_is_measured_and_a_failing_hook_ends_nothing(
    budget: MemoryBudget, planted: list[mmap.mmap], caplog: pytest.LogCaptureFixture
) -> None:
    measured: dict[str, int] = {}
    Reconciler(budget, metric=measured.__setitem__).look()
    assert measured["ledger_bytes"] == 0
    assert {"drift_total_bytes", "drift_page_tables_bytes", "slack_bytes"} <= measured.keys()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    broken = Reconciler(budget, metric=fail, on_drift=fail, looks=1, interval_seconds=0.01)
    planted.append(leak(96 * MIB))
    with broken:
        while broken.failures < 3:
            time.sleep(0.01)
    assert broken.named.keys() == {"unaccounted_heap"}
    assert any("the hook on_drift failed" in record.getMessage() for record in caplog.records)


def test_stopping_gives_the_total_back_and_leaves_no_thread(
    budget: MemoryBudget, planted: list[mmap.mmap]
) -> None:
    reconciler = Reconciler(budget, looks=1, interval_seconds=0.01, adjust_total=True).start()
    planted.append(leak(96 * MIB))
    while budget.total_bytes == 4 * GIB:
        time.sleep(0.01)
    reconciler.stop()
    reconciler.stop()
    assert budget.total_bytes == 4 * GIB
    assert not any(thread.name == "oomproof-reconciler" for thread in threading.enumerate())


def test_a_hook_may_stop_it_and_the_total_is_as_it_was(
    budget: MemoryBudget, planted: list[mmap.mmap]
) -> None:
    stopped = threading.Event()

    def on_drift(_: DriftReport) -> None:
        reconciler.stop()
        stopped.set()

    reconciler = Reconciler(budget, interval_seconds=0.01, looks=1, on_drift=on_drift, adjust_total=True)
    planted.append(leak(96 * MIB))
    reconciler.start()
    assert stopped.wait(60)
    reconciler.stop()  # and its thread has ended
    assert budget.total_bytes == 4 * GIB
    reconciler.look()
    assert budget.total_bytes == 4 * GIB


def test_accounts_of_this_process_and_its_cgroup() -> None:
    quick, exact = read_process_accounts(Tree()), read_process_accounts(Tree(), exact=True)
    assert quick.anonymous == pytest.approx(exact.anonymous, abs=16 * MIB)
    assert quick.page_tables
    assert quick.file
    cgroup = read_cgroup_accounts(Tree())
    if cgroup is None:
        pytest.skip("no memory cgroup can be seen")
    assert cgroup.usage
    assert cgroup.anonymous is not None
