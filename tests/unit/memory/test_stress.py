"""64 threads and 1,000 tasks on one budget: a million operations, some of which raise or are cancelled."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from oomproof.errors import ReserveTimeout
from oomproof.memory import MemoryBudget, Reservation
from unit.memory.helpers import Threads, assert_at_rest, wait_for

THREADS = 64
TASKS = 1_000
OPERATIONS = 1_000_000
TOTAL = 1_000


class Planned(Exception):
    """Raised in a block on purpose."""


class Worker:
    """Does random operations and counts them; what it asks for is small, and now and then very large."""

    def __init__(self, budget: MemoryBudget, number: int, operations: int) -> None:
        self.budget = budget
        self.chance = random.Random(number)  # noqa: S311
        self.owner = f"owner {number % 7}"
        self.left = operations
        self.done = self.cancelled = self.timeouts = 0

    def size(self) -> int:
        return self.chance.randint(1, 10) if self.chance.random() < 0.99 else self.chance.randint(1, TOTAL)

    def use(self, reservation: Reservation) -> None:
        """What can be done with a reservation without waiting; each is an operation."""
        with reservation:
            match self.chance.randrange(8):
                case 0:
                    with reservation.split(reservation.bytes // 2, owner="part"):
                        self.done += 2
                case 1:
                    self.done += 1 + reservation.try_grow(1)
                case 2:
                    reservation.release(reservation.bytes // 2)
                    self.done += 1
                case 3:
                    reservation.transfer("another")
                    self.done += 1
                case 4:
                    self.done += 1
                    raise Planned
        self.done += 1

    def one(self) -> None:
        self.done += 1
        timeout = 0.001 if self.chance.random() < 0.05 else None
        try:
            if self.chance.random() < 0.2:
                if reservation := self.budget.try_reserve(self.size(), owner=self.owner):
                    self.use(reservation)
            else:
                self.use(self.budget.reserve(self.size(), owner=self.owner, timeout=timeout))
        except Planned:
            pass
        except ReserveTimeout:
            self.timeouts += 1

    async def one_async(self) -> None:
        self.done += 1
        timeout = 0.001 if self.chance.random() < 0.02 else None
        try:
            reservation = await self.budget.reserve_async(self.size(), owner=self.owner, timeout=timeout)
            with reservation:
                if self.chance.random() < 0.1:
                    await asyncio.sleep(0)
                if self.chance.random() < 0.01:
                    await reservation.grow_async(1, timeout=0.001)
                self.use(reservation.split(reservation.bytes))
        except Planned:
            pass
        except ReserveTimeout:
            self.timeouts += 1

    def run(self) -> None:
        while self.done < self.left:
            self.one()

    async def run_async(self) -> None:
        while self.done < self.left:
            try:
                await self.one_async()
            except asyncio.CancelledError:
                self.cancelled += 1


async def tasks(workers: list[Worker]) -> None:
    running = {asyncio.create_task(worker.run_async()) for worker in workers}
    everybody = list(running)
    chance = random.Random(0)  # noqa: S311
    while running:
        _, running = await asyncio.wait(running, timeout=0.002)
        for task in chance.sample(everybody, 20):
            task.cancel()  # whoever has ended does not notice; the others go on with their next operation
    assert all(task.exception() is None for task in everybody if not task.cancelled())


@pytest.mark.timeout(300)
def test_a_million_operations(threads: Threads) -> None:
    budget = MemoryBudget(TOTAL, name="stress")
    each = OPERATIONS // 2
    sync = [Worker(budget, number, each // THREADS) for number in range(THREADS)]
    in_tasks = [Worker(budget, number, each // TASKS) for number in range(THREADS, THREADS + TASKS)]
    over = threading.Event()
    looks = 0

    def look() -> None:
        nonlocal looks
        while not over.wait(0.001):
            statistics = budget.statistics()
            assert 0 <= statistics.used_bytes <= TOTAL
            assert statistics.used_bytes == sum(one.bytes for one in statistics.owners.values())
            assert statistics.waiting == sum(one.waiting for one in statistics.owners.values())
            looks += 1

    begun = time.monotonic()
    looked = threads.start(look)
    ends = [threads.start(worker.run) for worker in sync]
    ends.append(threads.start(lambda: asyncio.run(tasks(in_tasks))))
    wait_for(lambda: all(ends), 280)
    over.set()
    threads.join()
    seconds = time.monotonic() - begun
    assert [end for end in ends if end != [None]] == []
    assert looked == [None]
    assert looks > 10
    done = sum(worker.done for worker in sync + in_tasks)
    assert done >= OPERATIONS * 0.99
    assert sum(worker.cancelled for worker in in_tasks) > 50
    assert sum(worker.timeouts for worker in sync + in_tasks) > 50
    assert budget.statistics().waited > 1_000
    assert_at_rest(budget)
    print(f"{done} operations in {seconds:.1f} s, {budget.statistics()}")
