"""PinnedPool for tasks of an event loop, cancelled at any moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from oomproof.memory.backends import Region
from oomproof.memory.backends.mapped import HeapBackend
from oomproof.memory.budget import MemoryBudget
from oomproof.memory.pool import PinnedPool
from oomproof.units import MIB


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(64 * MIB)


@pytest.fixture
def pool(budget: MemoryBudget) -> Iterator[PinnedPool]:
    with PinnedPool(budget, backend="heap") as pool:
        yield pool


class Slow(HeapBackend):
    """Takes its time, as locking many pages does."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def allocate(self, size_bytes: int) -> Region:
        self.begun.set()
        assert self.go_on.wait(60)
        return super().allocate(size_bytes)


def test_take_async(budget: MemoryBudget, pool: PinnedPool) -> None:
    async def scenario() -> None:
        first = await pool.take_async(40 * MIB, owner="first")
        second = asyncio.create_task(pool.take_async(40 * MIB, owner="second"))
        await asyncio.sleep(0)
        assert not second.done()
        first.release()
        with await second as buffer:
            assert budget.statistics().owners["second"].bytes == 40 * MIB
            buffer.view()[-1] = 1
        with await pool.take_async(40 * MIB) as again:
            assert again.owner == "pinned"
        assert pool.statistics().reused == 1

    asyncio.run(scenario())


def test_a_cancelled_take_gives_back_even_what_is_being_allocated(budget: MemoryBudget) -> None:
    slow = Slow()

    async def scenario() -> None:
        with PinnedPool(budget, backend=slow) as pool:
            taking = asyncio.create_task(pool.take_async(MIB))
            await asyncio.to_thread(slow.begun.wait, 60)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            slow.go_on.set()
            while budget.used_bytes:
                await asyncio.sleep(0.002)
            assert pool.statistics().in_use_count == 0

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_takes_that_are_cancelled_at_any_moment_leave_nothing(budget: MemoryBudget, pool: PinnedPool) -> None:
    async def scenario() -> None:
        for turn in range(300):
            taking = asyncio.create_task(pool.take_async(4096 + turn))
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                taking.result().release()

    asyncio.run(scenario())  # its end waits for the threads
    assert pool.statistics().in_use_count == 0
    pool.trim()
    assert budget.used_bytes == 0
