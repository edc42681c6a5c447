"""Eviction: who goes, who stays, who is believed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import ReserveTimeout, UsageError
from oomproof.memory import MemoryBudget, Reservation, eviction
from oomproof.memory.eviction import Candidate, Entry, choose
from unit.memory.helpers import Threads, wait_for, wait_for_line


class Cache:
    """Holds bytes of a budget until it is evicted."""

    def __init__(
        self, budget: MemoryBudget, size: int, name: str = "cache", *, idle_seconds: float = 1000
    ) -> None:
        self.name = name
        self.reservation = budget.reserve(size, owner=name)
        self.last_use = time.monotonic() - idle_seconds
        self.in_use = False
        self.threads: list[str] = []

    @property
    def size_bytes(self) -> int:
        return self.reservation.bytes

    def evict(self) -> int:
        self.threads.append(threading.current_thread().name)
        size = self.reservation.bytes
        self.reservation.release()
        return size


class Liar(Cache):
    def evict(self) -> int:
        self.threads.append("lied")
        return self.size_bytes


class Failing(Cache):
    def evict(self) -> int:
        self.threads.append("failed")
        raise RuntimeError("the disk is full")


def registered(budget: MemoryBudget, cache: Cache, min_idle: float = 0.0) -> Cache:
    budget.add_evictable(cache, min_idle=min_idle)
    return cache


def test_the_least_recently_used_goes_first_and_no_more_than_needed(budget: MemoryBudget) -> None:
    old, older, new = (
        registered(budget, Cache(budget, 30, name, idle_seconds=idle))
        for name, idle in (("old", 20), ("older", 30), ("new", 10))
    )
    with budget.reserve(40, owner="asks", timeout=60):
        assert (older.reservation.released, old.reservation.released) == (True, False)
    with budget.reserve(70, owner="asks", timeout=60):
        assert (old.reservation.released, new.reservation.released) == (True, False)
    assert budget.statistics().evictions == 2
    assert budget.statistics().evicted_bytes == 60
    new.reservation.release()


def test_try_reserve_evicts_too_but_not_in_vain(budget: MemoryBudget) -> None:
    cache = registered(budget, Cache(budget, 30))
    with budget.reserve(40, owner="holder"):
        assert budget.try_reserve(61, owner="asks") is None
        assert not cache.reservation.released, "with its 30 bytes, 60 would be free: not enough"
        got = budget.try_reserve(60, owner="asks")
        assert got is not None
        got.release()


def test_growth_evicts_too(budget: MemoryBudget) -> None:
    first, second = (registered(budget, Cache(budget, 30, name)) for name in "ab")
    with budget.reserve(40, owner="asks") as reservation:
        assert reservation.try_grow(30)
        reservation.grow(30, timeout=60)
    assert first.reservation.released
    assert second.reservation.released


def test_nothing_in_use_is_evicted_until_it_is_let_go(budget: MemoryBudget, threads: Threads) -> None:
    cache = registered(budget, Cache(budget, 60))
    cache.in_use = True
    assert budget.try_reserve(50, owner="asks") is None
    with pytest.raises(ReserveTimeout):
        budget.reserve(50, owner="asks", timeout=0.01)
    assert cache.threads == []
    asks = threads.start(lambda: budget.reserve(50, owner="asks", timeout=60).release())
    wait_for_line(budget, 1)
    cache.in_use = False
    threads.join()
    assert asks == [None]
    assert cache.reservation.released


def test_what_was_used_a_moment_ago_is_left_alone_for_min_idle(budget: MemoryBudget) -> None:
    cache = registered(budget, Cache(budget, 60, idle_seconds=0), min_idle=0.3)
    used = cache.last_use
    assert budget.try_reserve(50, owner="asks") is None
    with budget.reserve(50, owner="asks", timeout=60):
        assert time.monotonic() - used >= 0.3


def test_an_evictable_added_while_somebody_waits_is_asked(budget: MemoryBudget, threads: Threads) -> None:
    cache = Cache(budget, 60)
    threads.start(lambda: budget.reserve(50, owner="asks").release())
    wait_for_line(budget, 1)
    budget.add_evictable(cache)
    threads.join()
    budget.remove_evictable(cache)
    with pytest.raises(UsageError, match="is no evictable of budget 'test'"):
        budget.remove_evictable(cache)


def test_what_was_removed_is_left_alone(budget: MemoryBudget) -> None:
    cache = registered(budget, Cache(budget, 60))
    budget.remove_evictable(cache)
    assert budget.try_reserve(50, owner="asks") is None
    cache.reservation.release()


def test_the_ledger_is_believed_and_not_the_evictor(
    budget: MemoryBudget, caplog: pytest.LogCaptureFixture
) -> None:
    liar = registered(budget, Liar(budget, 60, "liar", idle_seconds=2000))
    honest = registered(budget, Cache(budget, 30, "honest"))
    with caplog.at_level(logging.WARNING, "oomproof.memory"), budget.reserve(40, owner="asks", timeout=60):
        assert honest.reservation.released, "the liar's 60 bytes were not there, so it went too"
        assert budget.used_bytes == 100
    assert "the evictor of liar says that it freed 60 bytes; 0 came back to the ledger" in caplog.text
    statistics = budget.statistics()
    assert (statistics.evictions, statistics.evicted_bytes, statistics.eviction_failures) == (1, 30, 1)
    liar.reservation.release()


def test_what_others_release_meanwhile_is_not_the_evictors(budget: MemoryBudget, threads: Threads) -> None:
    other = budget.reserve(30, owner="other")

    class Slow(Liar):
        def evict(self) -> int:
            threads.start(other.release)
            wait_for(lambda: other.released)
            return 30

    liar = registered(budget, Slow(budget, 60))
    budget.reserve(40, owner="asks", timeout=60).release()
    assert budget.statistics().eviction_failures == 1
    assert budget.statistics().evicted_bytes == 0
    liar.reservation.release()


def test_a_failing_evictor_is_reported_and_the_request_goes_on(
    budget: MemoryBudget, caplog: pytest.LogCaptureFixture
) -> None:
    failing = registered(budget, Failing(budget, 60, "failing", idle_seconds=2000))
    registered(budget, Cache(budget, 30))

    class Unreadable:
        name = "unreadable"
        last_use = 0.0
        in_use = False

        @property
        def size_bytes(self) -> int:
            raise ZeroDivisionError

        def evict(self) -> int:
            raise NotImplementedError

    unreadable = Unreadable()
    budget.add_evictable(unreadable)
    budget.reserve(40, owner="asks", timeout=60).release()
    assert "the evictor of failing failed" in caplog.text
    assert "the disk is full" in caplog.text
    assert caplog.text.count("unreadable cannot be asked") == 1, "and not with every look"
    failing.reservation.release()


def test_an_evictor_that_gives_nothing_is_asked_less_and_less(budget: MemoryBudget) -> None:
    liar = registered(budget, Liar(budget, 60))
    with pytest.raises(ReserveTimeout):
        budget.reserve(50, owner="asks", timeout=1.2)
    for _ in range(100):
        assert budget.try_reserve(50, owner="asks") is None
    assert len(liar.threads) <= 2, "at once, and once more a second later"
    liar.reservation.release()


def test_an_evictor_that_takes_again_what_it_gives_is_no_livelock(budget: MemoryBudget) -> None:
    class Greedy(Cache):
        def evict(self) -> int:
            freed = super().evict()
            again = budget.try_reserve(freed, owner="greedy")
            assert again is not None
            self.reservation = again
            return freed

    greedy = registered(budget, Greedy(budget, 60))
    with budget.reserve(30, owner="holder"):
        assert budget.try_reserve(50, owner="asks") is None
    assert len(greedy.threads) == 1
    greedy.reservation.release()


def test_an_evictor_may_give_a_part_and_is_asked_again(budget: MemoryBudget) -> None:
    class Buffers(Cache):
        def evict(self) -> int:
            self.reservation.release(10)
            return 10

    buffers = registered(budget, Buffers(budget, 60))
    with budget.reserve(65, owner="asks", timeout=60):
        assert buffers.size_bytes == 30, "no more than is missing"
    buffers.reservation.release()


def test_a_lower_total_asks_the_evictors(budget: MemoryBudget) -> None:
    cache = registered(budget, Cache(budget, 60))
    with budget.reserve(40, owner="holder") as holder:
        budget.set_total(70)
        assert cache.reservation.released
        assert holder.bytes == 40


def test_a_task_waits_for_an_eviction_in_another_thread(budget: MemoryBudget) -> None:
    """The loop goes on meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Cache):
        def evict(self) -> int:
            begun.set()
            assert go_on.wait(60)
            return super().evict()

    cache = registered(budget, Slow(budget, 60))

    async def main() -> None:
        asks = asyncio.create_task(budget.reserve_async(50, owner="asks", timeout=60))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        with pytest.raises(ReserveTimeout):
            await budget.reserve_async(50, owner="in a hurry", timeout=0.01)
        go_on.set()
        (await asks).release()

    asyncio.run(main())
    assert cache.threads == ["oomproof-evict"]
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "oomproof-evict"])


def test_a_task_finds_what_becomes_idle_later(budget: MemoryBudget) -> None:
    cache = registered(budget, Cache(budget, 60))
    cache.in_use = True

    async def main() -> None:
        asks = asyncio.create_task(budget.reserve_async(50, owner="asks", timeout=60))
        await asyncio.sleep(0.01)
        cache.in_use = False
        (await asks).release()

    asyncio.run(main())


def test_who_becomes_first_in_line_asks_the_evictors(budget: MemoryBudget, threads: Threads) -> None:
    cache = registered(budget, Cache(budget, 30))
    cache.in_use = True
    holder = budget.reserve(60, owner="holder")
    first = threads.start(lambda: budget.reserve(40, owner="first"))
    wait_for_line(budget, 1)
    threads.start(lambda: budget.reserve(80, owner="second").release())
    wait_for_line(budget, 2)
    holder.release()
    wait_for(lambda: bool(first))
    granted = first.pop()
    assert isinstance(granted, Reservation)
    granted.release()
    assert budget.statistics().waiting == 1
    cache.in_use = False
    threads.join()
    assert cache.reservation.released


def test_who_is_first_again_after_a_growth_asks_again(budget: MemoryBudget, threads: Threads) -> None:
    cache = registered(budget, Cache(budget, 60))
    cache.in_use = True
    with budget.reserve(20, owner="holder") as holder:
        asks = threads.start(lambda: budget.reserve(50, owner="asks", timeout=60).release())
        wait_for_line(budget, 1)
        with pytest.raises(ReserveTimeout):
            # Long enough for the other one to see that it is not the first any more.
            holder.grow(30, timeout=3 * eviction.LOOK_AGAIN_SECONDS)
        cache.in_use = False
        wait_for(lambda: asks == [None])


@pytest.mark.parametrize("in_task", [True, False])
def test_one_that_refuses_again_and_again_is_not_forgotten(
    budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch, in_task: bool
) -> None:
    monkeypatch.setattr(eviction, "FIRST_PAUSE_SECONDS", 0.01)

    class Coy(Cache):
        def evict(self) -> int:
            if len(self.threads) < 4:
                self.threads.append("refused")
                return 0
            return super().evict()

    registered(budget, Coy(budget, 60))
    if in_task:
        asyncio.run(budget.reserve_async(50, owner="asks", timeout=60)).release()
    else:
        budget.reserve(50, owner="asks", timeout=60).release()


def test_many_who_wait_evict_no_more_than_they_need_in_turn(budget: MemoryBudget, threads: Threads) -> None:
    caches = [registered(budget, Cache(budget, 10, f"cache {n}", idle_seconds=n)) for n in range(8)]
    ready = threading.Barrier(20)

    def ask() -> None:
        ready.wait(60)
        with budget.reserve(50, owner="asks", timeout=60):
            assert budget.used_bytes <= 100

    for _ in range(20):
        threads.start(ask)
    threads.join()
    left = [cache for cache in caches if not cache.reservation.released]
    assert [cache.name for cache in left] == [f"cache {n}" for n in range(5)], "two at a time need no more"
    for cache in left:
        cache.reservation.release()


@dataclass
class Thing:
    name: str
    size_bytes: int
    last_use: float
    in_use: bool

    def evict(self) -> int:
        raise NotImplementedError


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.booleans(), st.floats(0, 50)), max_size=6),
    st.floats(0, 200),
)
def test_choose(things: list[tuple[int, float, bool, float]], now: float) -> None:
    candidates = [
        Candidate(Entry(Thing("", size, last_use, in_use), min_idle), size, last_use, in_use)
        for size, last_use, in_use, min_idle in things
    ]
    victim, look_again = choose(candidates, now)
    may_go = [
        one
        for one in candidates
        if one.size_bytes and not one.in_use and one.last_use + one.entry.min_idle <= now
    ]
    if victim is not None:
        assert victim in may_go
        assert victim.last_use == min(one.last_use for one in may_go)
    elif candidates:
        assert look_again is not None
        assert look_again > 0


def test_pauses_double_up_to_a_minute_and_end_with_success() -> None:
    entry = Entry(Thing("", 1, 0, False), 0)
    pauses = []
    for _ in range(9):
        entry.disappointed(0.0)
        pauses.append(entry.not_before)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    entry.gave()
    entry.disappointed(0.0)
    assert entry.not_before == eviction.FIRST_PAUSE_SECONDS


def test_what_came_into_use_as_it_was_asked_is_no_disappointment(budget: MemoryBudget) -> None:
    class Racing(Cache):
        def evict(self) -> int:
            if not self.threads:
                self.threads.append("came into use")
                self.in_use = True
                return 0
            return super().evict()

    racing = registered(budget, Racing(budget, 60))
    assert budget.try_reserve(50, owner="asks") is None
    racing.in_use = False
    got = budget.try_reserve(50, owner="asks")
    assert got is not None
    got.release()
