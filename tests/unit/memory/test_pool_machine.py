"""Any sequence of what can be done with a pool, its views, another consumer and an evictable, on one budget.

The model knows every buffer and where it is; after each step the ledger must be exactly what it adds up.
Waiting is part of it: tasks of an event loop that take and reserve, served first come, first served.

What Hypothesis draws must not depend on time, and which buffers there are does, since other threads evict.
So a rule draws a position, and does nothing where there is nothing.
"""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from oomproof.errors import BudgetExceeded
from oomproof.memory import MemoryBudget, PinnedBuffer, PinnedPool, Reservation
from oomproof.memory.sizes import size_class
from oomproof.units import KIB

T = TypeVar("T")

TOTAL = 1024 * KIB
SIZES = st.one_of(st.integers(1, 64 * KIB), st.integers(1, TOTAL + KIB))
OWNERS = st.sampled_from(["srs", "ntt", "msm"])
POSITIONS = st.integers(0, 11)


@dataclass(eq=False)
class Task:
    """A request that stood in line."""

    task: asyncio.Task[PinnedBuffer] | asyncio.Task[Reservation]
    size: int
    number: int


class Cache:
    """An evictable beside the pool."""

    name = "cache"

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.held: Reservation | None = None
        self.pinned = False
        self.last_use = time.monotonic()

    @property
    def size_bytes(self) -> int:
        return self.held.bytes if self.held else 0

    @property
    def in_use(self) -> bool:
        return self.pinned

    def evict(self) -> int:
        held = self.held
        if held is None or self.pinned:
            return 0
        size, self.held = held.bytes, None
        held.release()
        return size


def at(position: int, things: Collection[T]) -> list[T]:
    """The one at `position`, counted round and round; none of nothing."""
    return [list(things)[position % len(things)]] if things else []


class PoolMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.budget = MemoryBudget(TOTAL)
        self.total = TOTAL
        self.pool = PinnedPool(self.budget, backend="heap", max_idle_seconds=None)
        self.cache = Cache(self.budget)
        self.budget.add_evictable(self.cache)
        self.in_use: dict[PinnedBuffer, bytes] = {}
        self.capacity: dict[PinnedBuffer, int] = {}
        self.lingering: dict[int, tuple[memoryview, int, bytes]] = {}
        self.reserved: dict[Reservation, int] = {}
        self.line: list[Task] = []
        self.numbers = iter(range(1, 1 << 30))
        self.last_served = 0

    # -- what consumers do

    @rule(size=SIZES, owner=OWNERS)
    def take(self, size: int, owner: str) -> None:
        try:
            buffer = self.pool.try_take(size, owner=owner)
        except BudgetExceeded:
            assert -(-size // 4096) * 4096 > self.total
            return
        if buffer is not None:
            self.adopt(buffer, size)
            assert not self.budget.waiting, "nobody passes those who wait"

    def adopt(self, buffer: PinnedBuffer, size: int) -> None:
        assert buffer.size_bytes == size
        assert size <= buffer.capacity_bytes <= max(size_class(size), size + size // 4)
        mark = next(self.numbers).to_bytes(4, "little")
        length = min(size, 4)
        view = buffer.view()
        view[:length] = mark[:length]
        view[size - 1] = mark[0]
        self.in_use[buffer] = mark[:length] if size > 4 else bytes(view[:length])
        self.capacity[buffer] = buffer.capacity_bytes

    @rule(position=POSITIONS)
    def release(self, position: int) -> None:
        for buffer in at(position, self.in_use):
            del self.in_use[buffer], self.capacity[buffer]
            buffer.release()

    @rule(position=POSITIONS)
    def release_but_keep_a_slice(self, position: int) -> None:
        for buffer in at(position, self.in_use):
            self.release_all_but_a_slice(buffer)

    def release_all_but_a_slice(self, buffer: PinnedBuffer) -> None:
        part = buffer.view()[: min(buffer.size_bytes, 4)]
        number = next(self.numbers)
        self.lingering[number] = part, self.capacity.pop(buffer), self.in_use.pop(buffer)
        buffer.release()

    @rule(position=POSITIONS)
    def drop_the_slice(self, position: int) -> None:
        for number in at(position, self.lingering):
            self.lingering.pop(number)[0].release()

    @rule(position=POSITIONS)
    def lose(self, position: int) -> None:
        for buffer in at(position, self.in_use):
            del self.in_use[buffer], self.capacity[buffer]
            # The rule itself still refers to it: what the finaliser would do is done here.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                buffer.__del__()

    @rule(size=SIZES, owner=OWNERS)
    def reserve(self, size: int, owner: str) -> None:
        try:
            reservation = self.budget.try_reserve(size, owner=owner)
        except BudgetExceeded:
            return
        if reservation is not None:
            self.reserved[reservation] = size
            assert not self.budget.waiting, "nobody passes those who wait"

    @rule(position=POSITIONS)
    def end_reservation(self, position: int) -> None:
        for reservation in at(position, self.reserved):
            del self.reserved[reservation]
            reservation.release()

    @rule(size=st.integers(1, TOTAL))
    def trim(self, size: int) -> None:
        assert self.pool.trim(size) >= size or self.pool.statistics().idle_bytes == 0

    @rule(size=st.integers(4 * KIB, 256 * KIB), pinned=st.booleans())
    def fill_the_cache(self, size: int, pinned: bool) -> None:
        self.cache.pinned = pinned
        if self.cache.held is None:
            self.cache.held = self.budget.try_reserve(size, owner="cache")
            self.cache.last_use = time.monotonic()

    @rule(total=st.integers(TOTAL // 2, 2 * TOTAL))
    def resize(self, total: int) -> None:
        self.total = total
        self.budget.set_total(total)

    # -- those who wait

    @rule(size=st.integers(1, TOTAL // 2), owner=OWNERS, pinned=st.booleans())
    def wait_in_line(self, size: int, owner: str, pinned: bool) -> None:
        if len(self.line) >= 4:
            return

        async def start() -> None:
            ask = self.pool.take_async if pinned else self.budget.reserve_async
            task = asyncio.ensure_future(ask(size, owner=owner))
            self.line.append(Task(task, size, next(self.numbers)))  # type: ignore[arg-type]
            await asyncio.sleep(0)

        self.loop.run_until_complete(start())

    @rule(position=POSITIONS)
    def give_up(self, position: int) -> None:
        for waiter in at(position, self.line):
            self.line.remove(waiter)
            self.cancel(waiter)

    def cancel(self, waiter: Task) -> None:
        waiter.task.cancel()
        self.loop.run_until_complete(asyncio.wait([waiter.task]))
        if not waiter.task.cancelled():  # it was served meanwhile
            self.served(waiter)
        # What was being allocated for it goes back as soon as it is there.
        self.loop.run_until_complete(self.until(lambda: self.line or self.unexplained() == 0))

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            told = (self.budget.statistics(), self.pool.statistics(), self.line)
            assert time.monotonic() < deadline, f"somebody was forgotten: {told}"
            await asyncio.sleep(0.001)

    def unexplained(self) -> int:
        """Bytes of the ledger that the model does not know of."""
        known = sum(self.reserved.values()) + self.cache.size_bytes
        pool = self.pool.statistics()
        return self.budget.used_bytes - pool.in_use_bytes - pool.idle_bytes - known

    @rule()
    def serve(self) -> None:
        """Whoever can be served is: the first in line and those after it, in this order."""

        def all_who_were_granted_know_it() -> bool:
            granted = len(self.line) - self.budget.waiting
            return all(waiter.task.done() for waiter in self.line[:granted])

        self.loop.run_until_complete(self.until(all_who_were_granted_know_it))
        while self.line and self.line[0].task.done():
            self.served(self.line.pop(0))
        assert not any(waiter.task.done() for waiter in self.line), "somebody passed the first"

    def served(self, waiter: Task) -> None:
        try:
            got = waiter.task.result()
        except BudgetExceeded:
            return
        if isinstance(got, PinnedBuffer):
            assert got.size_bytes == waiter.size
            got.release()
        else:
            got.release()

    # -- what always holds

    @invariant()
    def the_ledger_is_what_the_model_adds_up(self) -> None:
        if self.line:
            return  # evictions and allocations may be under way in other threads
        pool = self.pool.statistics()
        lingering = sum(capacity for _, capacity, _ in self.lingering.values())
        assert pool.in_use_bytes == sum(self.capacity.values()) + lingering
        assert pool.viewed_bytes == lingering
        # An eviction that served the last in line may still be on its way through another thread.
        self.loop.run_until_complete(self.until(lambda: self.unexplained() == 0))
        statistics = self.budget.statistics()
        assert sum(owner.bytes for owner in statistics.owners.values()) == statistics.used_bytes

    @invariant()
    def the_ledger_stays_within_the_total_unless_it_was_lowered(self) -> None:
        statistics = self.budget.statistics()
        assert statistics.used_bytes >= 0
        assert statistics.peak_bytes <= 2 * TOTAL
        assert statistics.eviction_failures == 0

    @invariant()
    def nobody_writes_into_memory_of_others(self) -> None:
        for buffer, mark in self.in_use.items():
            assert bytes(buffer.view()[: len(mark)]) == mark
        for part, _, mark in self.lingering.values():
            assert bytes(part[: len(mark)]) == mark

    def teardown(self) -> None:
        for buffer in self.in_use:
            buffer.release()
        for part, _, _ in self.lingering.values():
            part.release()
        for reservation in self.reserved:
            reservation.release()
        self.reserved.clear()
        self.cache.pinned = False
        self.cache.evict()
        self.budget.set_total(2 * TOTAL)
        for waiter in self.line:
            self.loop.run_until_complete(self.until(waiter.task.done))
            self.served(waiter)
        self.loop.run_until_complete(self.until(lambda: self.unexplained() == 0))
        self.pool.close()
        self.in_use.clear()
        self.lingering.clear()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        gc.collect(0)
        assert self.budget.used_bytes == 0
        assert self.budget.waiting == 0


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
