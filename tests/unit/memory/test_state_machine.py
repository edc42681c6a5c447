"""Anything in any order, from threads and tasks, with evictors: the budget does as the model does."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import warnings
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oomproof.errors import BudgetExceeded, OverRelease, ReservationReleased, ReserveTimeout
from oomproof.memory import MemoryBudget, Reservation, eviction
from unit.memory.helpers import assert_at_rest, wait_for
from unit.memory.model import Asked, Cached, Held, Model

OWNERS = st.sampled_from(["srs", "synthesis", "proof"])
SIZES = st.integers(0, 60) | st.integers(0, 120)
ERRORS = {"exceeded": BudgetExceeded, "released": ReservationReleased}


class Cache:
    """Evictable, and asked by whatever thread the budget likes."""

    name = "cache"

    def __init__(self, reservation: Reservation, cached: Cached) -> None:
        self.reservation = reservation
        self.cached = cached
        self.lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self.reservation.bytes

    @property
    def last_use(self) -> float:
        return float(self.cached.last_use)

    @property
    def in_use(self) -> bool:
        return self.cached.in_use

    def evict(self) -> int:
        with self.lock:
            size = self.reservation.bytes
            if self.cached.in_use or not size:
                return 0
            self.reservation.release()
            return size


Answer = concurrent.futures.Future[Reservation | None]


class BudgetMachine(RuleBasedStateMachine):
    held = Bundle("held")
    caches = Bundle("caches")

    @initialize(total=st.integers(20, 100))
    def begin(self, total: int) -> None:
        # Looking again is what the budget does when nobody tells it that something became idle.
        self.patch = mock.patch.object(eviction, "LOOK_AGAIN_SECONDS", 0.002)
        self.patch.start()
        self.budget, self.model = MemoryBudget(total), Model(total)
        self.real: dict[Held, Reservation] = {}
        self.asked: list[tuple[Asked, Answer, bool]] = []
        self.uses = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.pool = concurrent.futures.ThreadPoolExecutor(64)

    def ask(self, asked: Asked, in_task: bool, real: Reservation | None) -> None:
        """From a thread or a task; it stands in line where the model's does."""
        answer: Answer
        if in_task:
            coroutine = (
                self.budget.reserve_async(asked.size, owner=asked.owner)
                if real is None
                else real.grow_async(asked.size)
            )
            answer = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        elif real is None:
            answer = self.pool.submit(self.budget.reserve, asked.size, owner=asked.owner)
        else:
            answer = self.pool.submit(real.grow, asked.size)
        self.model.ask(asked)
        self.asked.append((asked, answer, in_task))

    @rule(size=SIZES, owner=OWNERS, in_task=st.booleans())
    def reserve(self, size: int, owner: str, in_task: bool) -> None:
        self.ask(Asked(owner, size), in_task, None)

    @rule(held=held, size=SIZES, in_task=st.booleans())
    def grow(self, held: Held, size: int, in_task: bool) -> None:
        self.ask(Asked(held.owner, size, held), in_task, self.real[held])

    @rule(target=held, size=SIZES, owner=OWNERS)
    def try_reserve(self, size: int, owner: str) -> object:
        asked = Asked(owner, size)
        granted = self.model.try_to(asked)
        return self.answered(asked, lambda: self.budget.try_reserve(size, owner=owner), granted)

    @rule(target=held, size=SIZES, owner=OWNERS)
    def reserve_without_waiting(self, size: int, owner: str) -> object:
        asked = Asked(owner, size)
        self.model.ask(asked, stays=False)

        def reserve() -> Reservation | None:
            try:
                return self.budget.reserve(size, owner=owner, timeout=0)
            except ReserveTimeout:
                return None

        return self.answered(asked, reserve, asked.ends == "granted")

    def answered(self, asked: Asked, ask: Callable[[], Reservation | None], granted: bool) -> object:
        if asked.ends == "exceeded":
            with pytest.raises(BudgetExceeded):
                ask()
            return multiple()
        reservation = ask()
        assert (reservation is not None) == granted
        if asked.granted is None or reservation is None:
            return multiple()
        self.real[asked.granted] = reservation
        return asked.granted

    @rule(held=held, size=SIZES)
    def try_grow(self, held: Held, size: int) -> None:
        asked = Asked(held.owner, size, held)
        granted = self.model.try_to(asked)
        if asked.ends in ERRORS:
            with pytest.raises(ERRORS[asked.ends]):
                self.real[held].try_grow(size)
        else:
            assert self.real[held].try_grow(size) == granted

    @rule(target=held)
    def take_what_was_granted(self) -> object:
        """What threads and tasks got goes into the hands of the others."""
        got = [asked.granted for asked, _, _ in self.asked if asked.ends == "granted" and asked.granted]
        for asked, answer, _ in list(self.asked):
            if asked.ends == "granted" and asked.granted:
                reservation = answer.result()
                assert reservation is not None
                self.real[asked.granted] = reservation
                self.asked.remove((asked, answer, _))
        return multiple(*got)

    @rule(held=held, size=SIZES)
    def release_a_part(self, held: Held, size: int) -> None:
        if not held.open:
            with pytest.raises(ReservationReleased):
                self.real[held].release(size)
        elif size > held.size:
            with pytest.raises(OverRelease):
                self.real[held].release(size)
        else:
            self.real[held].release(size)
            self.model.give_back(held, size)

    @rule(held=consumes(held))
    def release(self, held: Held) -> None:
        if held.open:
            self.real[held].release()
            self.model.give_back(held, held.size)
        with pytest.raises(ReservationReleased):
            self.real[held].release()
        # Somebody may still wait to grow it: it stays referred to.

    @rule(held=consumes(held))
    def lose(self, held: Held) -> None:
        if any(asked.held is held for asked, _, _ in self.asked):
            return  # its task waits, or its error's traceback refers to it
        del self.real[held]
        gc.collect()
        if held.open:
            self.model.lose(held)

    @rule(target=held, held=held, size=SIZES, owner=OWNERS)
    def split(self, held: Held, size: int, owner: str) -> object:
        if not held.open or size > held.size:
            with pytest.raises((ReservationReleased, OverRelease)):
                self.real[held].split(size, owner=owner)
            return multiple()
        part = self.model.split(held, size, owner)
        self.real[part] = self.real[held].split(size, owner=owner)
        return part

    @rule(held=held, owner=OWNERS)
    def transfer(self, held: Held, owner: str) -> None:
        if not held.open:
            with pytest.raises(ReservationReleased):
                self.real[held].transfer(owner)
            return
        self.real[held].transfer(owner)
        held.owner = owner

    @precondition(lambda self: any(asked.ends == "waits" and in_task for asked, _, in_task in self.asked))
    @rule(choice=st.integers(0, 1000))
    def cancel(self, choice: int) -> None:
        waiting = [one for one in self.asked if one[0].ends == "waits" and one[2]]
        asked, answer, in_task = waiting[choice % len(waiting)]
        self.asked.remove((asked, answer, in_task))
        assert answer.cancel()
        self.model.leave(asked)

    @rule(total=st.integers(0, 120))
    def set_total(self, total: int) -> None:
        self.model.set_total(total)
        self.budget.set_total(total)

    @rule(target=caches, size=st.integers(1, 40))
    def add_cache(self, size: int) -> object:
        asked = Asked("cache", size)
        if self.model.waiting or size > self.model.total - self.model.used:
            return multiple()
        assert self.model.try_to(asked)
        assert asked.granted is not None
        reservation = self.budget.reserve(size, owner="cache")
        self.uses += 1
        cached = Cached(asked.granted, self.uses)
        self.model.caches.append(cached)
        cache = Cache(reservation, cached)
        self.budget.add_evictable(cache)
        return cache

    @rule(cache=caches)
    def use(self, cache: Cache) -> None:
        with cache.lock:
            if cache.cached in self.model.caches:
                self.uses += 1
                cache.cached.last_use = self.uses
                cache.cached.in_use = True

    @rule(cache=caches)
    def let_go(self, cache: Cache) -> None:
        if cache.cached in self.model.caches:
            cache.cached.in_use = False
            self.model.settle()

    @invariant()
    def comes_to_the_state_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            wait_for(self.agrees, 10)
        except AssertionError as error:
            raise AssertionError(f"{self.budget.statistics()} is not {self.model}") from error

    def agrees(self) -> bool:
        statistics = self.budget.statistics()
        owners = {
            name: (one.bytes, one.reservations, one.waiting, one.waiting_bytes)
            for name, one in statistics.owners.items()
        }
        # These hold at every moment, the others once everybody has done what is to be done.
        assert statistics.used_bytes == sum(one.bytes for one in statistics.owners.values())
        assert statistics.waiting == sum(one.waiting for one in statistics.owners.values())
        assert statistics.used_bytes >= 0
        return (
            # Whoever will not wait may find the evictors busy, and goes without them.
            not self.budget._dispatcher.evictors.active
            and statistics.total_bytes == self.model.total
            and statistics.lost == self.model.lost
            and owners == self.model.owners()
            and all(self.ended(asked, answer) for asked, answer, _ in self.asked)
            and all(self.real[held].bytes == held.size for held in self.model.held if held in self.real)
        )

    def ended(self, asked: Asked, answer: Answer) -> bool:
        """As the model says; an error is looked at once."""
        if asked.ends == "waits":
            return not answer.done()
        if answer.done() and asked.ends in ERRORS:
            assert isinstance(answer.exception(), ERRORS[asked.ends])
        return answer.done()

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        for cached in self.model.caches:
            cached.in_use = False
        self.budget.set_total(10**9)
        for asked, answer, _ in self.asked:
            reservation = answer.result(20) if asked.ends not in ERRORS else None
            if reservation is not None:
                reservation.release()
        for reservation in self.real.values():
            if not reservation.released:
                reservation.release()
        self.budget.set_total(0)  # and the caches go
        self.pool.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        self.patch.stop()
        wait_for(lambda: not self.budget.statistics().owners, 5)
        assert_at_rest(self.budget)


def test_the_budget_does_as_the_model() -> None:
    some = settings(
        max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # those of `lose`
        run_state_machine_as_test(BudgetMachine, settings=some)
