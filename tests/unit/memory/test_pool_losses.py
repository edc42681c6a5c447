"""A pool whose buffers, threads or owners are lost: the memory goes back, and under nobody's hands."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

import pytest

from oomproof.errors import UsageError
from oomproof.memory import MemoryBudget, PinnedBuffer, PinnedPool
from oomproof.memory.backends import Region
from oomproof.memory.backends.mapped import HeapBackend
from oomproof.units import MIB
from unit.memory.helpers import wait_for
from unit.memory.test_fork import in_a_child

TOTAL = 64 * MIB


class Counting(HeapBackend):
    """Knows what it has mapped; `stuck` regions cannot be unmapped."""

    def __init__(self) -> None:
        self.mapped: set[int] = set()
        self.stuck: set[int] = set()

    def allocate(self, size_bytes: int) -> Region:
        region = super().allocate(size_bytes)
        self.mapped.add(region.address)

        def free() -> None:
            if region.address in self.stuck:
                raise OSError("the driver is gone")
            self.mapped.remove(region.address)
            region.free()

        return Region(region.address, size_bytes, False, self.name, free)


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(TOTAL)


@pytest.fixture
def backend() -> Counting:
    return Counting()


def nothing_is_left(budget: MemoryBudget, backend: Counting) -> Callable[[], bool]:
    return lambda: not backend.mapped and budget.used_bytes == 0


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_last_view_may_outlive_every_other_reference_to_the_pool(
    budget: MemoryBudget, backend: Counting, closed: bool
) -> None:
    pool = PinnedPool(budget, backend=backend)
    with pool.take(MIB) as buffer:
        part = buffer.view()[:10]
    if closed:
        pool.close()
    del pool, buffer
    gc.collect()
    part[0] = 1
    assert budget.used_bytes == MIB
    del part
    wait_for(nothing_is_left(budget, backend))
    assert budget.statistics().lost == 0, "its own pool gave it back"


class Engine:
    """A pool and a buffer of it that refer to each other, as objects do."""

    def __init__(self, pool: PinnedPool) -> None:
        self.pool = pool
        self.buffer = pool.take(MIB, owner="engine")
        self.view = self.buffer.view()
        self.me = self


def test_an_engine_that_is_garbage_leaves_no_memory_behind(budget: MemoryBudget, backend: Counting) -> None:
    engine = Engine(PinnedPool(budget, backend=backend, name="garbage"))
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # Recorded as usual, a warning would keep what it is about.
        warnings.showwarning = lambda message, *_, **__: told.append(str(message))
        del engine
        gc.collect()
        wait_for(nothing_is_left(budget, backend))
        # In the pool's own thread, a moment after its memory is back.
        wait_for(lambda: len(told) == 2)
    assert "1.00 MiB of 'engine' was lost without being returned" in told[0]
    assert "pool 'garbage' with 1.00 MiB was never closed" in told[1]


LAST_WORDS = """
import gc, time
from oomproof.memory import MemoryBudget, PinnedPool
class Careful:
    def __init__(self, buffer):
        self.buffer, self.view, self.me = buffer, buffer.view(), self
    def __del__(self):
        time.sleep(0.2)  # the pool's thread has its turn
        self.view[0] = 1
        print("said")
pool = PinnedPool(MemoryBudget(1 << 24), backend="heap")
careful = Careful(pool.take(1 << 20))
pool.close()
del careful
gc.collect()
"""


def test_a_finaliser_in_a_cycle_may_still_write_to_a_view() -> None:
    """In a process of its own: the memory may not be unmapped yet."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LAST_WORDS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "said\n"), done.stderr


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_view_that_comes_back_to_life_is_nobody_elses(budget: MemoryBudget) -> None:
    saved: list[memoryview] = []

    class Lazarus:
        def __init__(self, buffer: PinnedBuffer) -> None:
            self.buffer, self.view, self.me = buffer, buffer.view(), self

        def __del__(self) -> None:
            saved.append(self.view)

    with PinnedPool(budget, backend="heap") as pool:
        Lazarus(pool.take(MIB))
        gc.collect()
        with pool.take(MIB) as other:
            other.view()[0] = 7
            saved[0][0] = 99
            assert other.view()[0] == 7
        assert pool.statistics().viewed_bytes == MIB
        saved.clear()
        gc.collect()
        assert pool.statistics().viewed_bytes == 0


def test_an_owner_without_a_name_costs_no_buffer(budget: MemoryBudget, backend: Counting) -> None:
    with PinnedPool(budget, backend=backend) as pool:
        pool.take(MIB).release()
        for nobody in (123, "", b"srs"):
            with pytest.raises(UsageError, match="names nobody"):
                pool.take(MIB, owner=nobody)  # type: ignore[arg-type]
        assert (len(backend.mapped), budget.used_bytes, pool.statistics().idle_bytes) == (1, MIB, MIB)
    with pytest.raises(UsageError, match="names nobody"):
        PinnedPool(budget, name="")
    assert nothing_is_left(budget, backend)()


def test_where_no_thread_can_be_started_nothing_is_kept(
    budget: MemoryBudget, backend: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with PinnedPool(budget, backend=backend) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="new thread"):
                pool.take(MIB)
        assert nothing_is_left(budget, backend)()
        pool.take(MIB).release()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_memory_that_cannot_be_freed_stays_in_the_ledger_and_the_rest_is_freed(
    budget: MemoryBudget, backend: Counting
) -> None:
    pool = PinnedPool(budget, backend=backend)
    buffers = [pool.take(MIB) for _ in range(4)]
    backend.stuck.add(buffers[1].address)
    for buffer in buffers:
        buffer.release()
    with pytest.raises(OSError, match="the driver is gone"):
        pool.trim()
    gc.collect()
    assert (len(backend.mapped), budget.used_bytes) == (1, MIB)
    pool.close()


def test_the_pools_thread_survives_a_failure(
    budget: MemoryBudget, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def headroom() -> int:
        raise OSError("no such file")

    monkeypatch.setattr("oomproof.memory.housekeeping._PAUSE_SECONDS", 0.01)
    with (
        caplog.at_level(logging.ERROR, "oomproof.memory"),
        PinnedPool(
            budget, backend="heap", max_idle_seconds=0.1, min_headroom_bytes=1, headroom=headroom
        ) as pool,
    ):
        pool.take(MIB).release()
        wait_for(lambda: budget.used_bytes == 0)
        assert "oomproof-pool-pinned failed, and goes on" in caplog.text
        assert "no such file" in caplog.text


def test_a_signal_handler_may_ask_a_budget_whose_pool_it_interrupts(budget: MemoryBudget) -> None:
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1
        if reservation := budget.try_reserve(TOTAL, owner="handler"):
            reservation.release()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with PinnedPool(budget, backend="heap") as pool:
            signal.setitimer(signal.ITIMER_REAL, 200e-6, 200e-6)
            ends = time.monotonic() + 1
            while time.monotonic() < ends:
                pool.take(4096).release()
                pool.statistics()
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handled > 100


def test_a_child_may_leave_the_pools_block(budget: MemoryBudget) -> None:
    with PinnedPool(budget, backend="heap") as pool:
        pool.take(MIB).release()
        assert in_a_child(pool.close) == 0
        assert pool.statistics().idle_bytes == MIB


def test_a_child_does_not_inherit_a_lock_that_nobody_would_release(budget: MemoryBudget) -> None:
    pool = PinnedPool(budget, backend="heap")
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            inside.set()
            go_on.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(60)

    def child() -> None:
        signal.alarm(30)
        assert pool.statistics().in_use_count == 0
        pool.close()

    try:
        assert in_a_child(child) == 0
    finally:
        go_on.set()
        holder.join()
    pool.close()


def test_a_take_needs_none_of_the_threads_that_wait_for_its_bytes(budget: MemoryBudget) -> None:
    """Those of the event loop's executor, all of which stand in line behind it."""

    async def scenario() -> None:
        with PinnedPool(budget, backend="heap") as pool:
            holder = budget.reserve(TOTAL, owner="holder")
            taking = asyncio.create_task(pool.take_async(48 * MIB))
            while budget.waiting < 1:
                await asyncio.sleep(0.001)
            threads = min(32, (os.cpu_count() or 1) + 4)
            others = [
                asyncio.create_task(
                    asyncio.to_thread(lambda: budget.reserve(32 * MIB, owner="other").release())
                )
                for _ in range(threads)
            ]
            while budget.waiting < 1 + threads:
                await asyncio.sleep(0.001)
            holder.release()
            (await asyncio.wait_for(taking, 30)).release()
            await asyncio.wait(others, timeout=30)

    asyncio.run(scenario())
