"""An interrupt, a signal handler or a finaliser may strike anywhere: nothing leaks, nobody sleeps on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from oomproof.errors import BudgetError
from oomproof.memory import MemoryBudget, Reservation
from oomproof.memory.dispatch import Dispatcher
from oomproof.memory.waiting import ThreadRequest
from unit.memory.helpers import Threads, assert_at_rest, wait_for

# pytest-timeout's other method uses the same timer.
pytestmark = pytest.mark.timeout(120, method="thread")


class Struck(BaseException):
    """Raised by the signal handler, as KeyboardInterrupt is."""


@contextlib.contextmanager
def alarms(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def busy_neighbours(budget: MemoryBudget, threads: Threads, count: int) -> Iterator[list[int]]:
    """Threads that reserve and release all the time; each counts its rounds."""
    done = threading.Event()
    rounds = [0] * count

    def work(number: int) -> None:
        chance = random.Random(number)  # noqa: S311
        while not done.is_set():
            with budget.reserve(chance.randint(1, 70), owner=f"neighbour {number % 3}"):
                rounds[number] += 1

    for number in range(count):
        threads.start(functools.partial(work, number))
    try:
        yield rounds
    finally:
        done.set()
        threads.join()


def one_operation(budget: MemoryBudget, chance: random.Random) -> None:
    size = chance.randint(1, 60)
    match chance.randrange(6):
        case 0:
            with budget.reserve(size, owner="main"):
                pass
        case 1:
            if reservation := budget.try_reserve(size, owner="main"):
                reservation.release()
        case 2:
            with budget.reserve(size, owner="main") as whole, whole.split(size // 2, owner="part") as part:
                part.transfer("other")
        case 3:
            with budget.reserve(size, owner="main") as reservation:
                reservation.try_grow(5)
                reservation.release(size // 2)
        case 4:
            with contextlib.suppress(TimeoutError), budget.reserve(size, owner="main", timeout=1e-5) as held:
                held.grow(3, timeout=1e-5)
        case 5:
            budget.set_total(90)
            budget.set_total(100)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_leaks_nothing_and_loses_no_wake_up(
    budget: MemoryBudget, threads: Threads
) -> None:
    """One alarm an operation, at a random moment of it, against threads that wait for what it gives back."""
    chance = random.Random(7)  # noqa: S311
    struck = 0

    def strike(*_: object) -> None:
        raise Struck

    with alarms(strike), warnings.catch_warnings(), busy_neighbours(budget, threads, 3) as rounds:
        # An interrupt between `reserve` and the block leaves it to the finaliser, which says so.
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(6_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 60e-6))
                one_operation(budget, chance)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Struck:
                struck += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        budget.set_total(100)
        before = list(rounds)
        wait_for(lambda: all(now > then for now, then in zip(rounds, before, strict=True)))
        gc.collect()
    assert struck > 500
    assert_at_rest(budget)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_of_one_thread_alone_leaks_nothing(budget: MemoryBudget) -> None:
    """Without neighbours every alarm falls into the budget's own code, or beside it."""
    chance = random.Random(8)  # noqa: S311
    struck = 0

    def strike(*_: object) -> None:
        raise Struck

    with alarms(strike), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(20_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 20e-6))
                one_operation(budget, chance)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Struck:
                struck += 1
                gc.collect(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    budget.set_total(100)
    assert struck > 2_000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_release_wakes_the_only_one_who_waits(budget: MemoryBudget, threads: Threads) -> None:
    """Nobody else does anything that could make up for a lost wake-up."""
    chance = random.Random(11)  # noqa: S311
    rounds, struck = 3_000, 0
    turn = threading.Semaphore(0)

    def strike(*_: object) -> None:
        raise Struck

    def wait_in_line() -> None:
        for _ in range(rounds):
            turn.acquire()
            budget.reserve(100, owner="waits").release()

    waiter = threads.start(wait_in_line)
    with alarms(strike):
        for done in range(rounds):
            holder = budget.reserve(100, owner="holder")
            turn.release()
            while not budget._ledger.waiting:
                time.sleep(0)
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 15e-6))
                holder.release()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Struck:
                struck += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if not holder.released:
                holder.release()
            ends = time.monotonic() + 30
            while budget._ledger.granted < 2 * (done + 1):
                assert time.monotonic() < ends, "asleep"
                time.sleep(0)
    threads.join()
    assert waiter == [None]
    assert struck > 100


def test_a_signal_handler_may_use_the_budget(budget: MemoryBudget, threads: Threads) -> None:
    mine: list[Reservation] = []
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1
        while mine:
            mine.pop().release()
        if reservation := budget.try_reserve(10, owner="handler"):
            mine.append(reservation)
        budget.statistics()

    chance = random.Random(9)  # noqa: S311
    with alarms(handle), busy_neighbours(budget, threads, 2) as rounds:
        signal.setitimer(signal.ITIMER_REAL, 50e-6, 50e-6)
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            one_operation(budget, chance)
        signal.setitimer(signal.ITIMER_REAL, 0)
        while mine:
            mine.pop().release()
    assert handled > 1_000
    assert min(rounds) > 0


def test_finalisers_may_run_anywhere(budget: MemoryBudget, threads: Threads) -> None:
    """The cycle collector runs as often as it can, and finds reservations to give back each time."""

    class Careless:
        def __init__(self) -> None:
            self.cycle = self
            self.reservation = budget.try_reserve(2, owner="careless")

        def __del__(self) -> None:
            if self.reservation is not None:
                self.reservation.release()

    done = threading.Event()

    def collect() -> None:
        while not done.wait(0.005):  # also what was left while everybody waits
            gc.collect()

    threads.start(collect)
    chance = random.Random(10)  # noqa: S311
    thresholds = gc.get_threshold()
    gc.freeze()  # else each collection would go through everything that the other tests left
    with warnings.catch_warnings(), busy_neighbours(budget, threads, 2) as rounds:
        warnings.simplefilter("ignore", ResourceWarning)
        gc.set_threshold(1, 1, 1)
        try:
            for turn in range(2_000):
                Careless()
                if turn % 7 == 0:
                    cycle: list[object] = [budget.try_reserve(1, owner="lost")]
                    cycle.append(cycle)
                    del cycle
                one_operation(budget, chance)
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
        before = list(rounds)
        wait_for(lambda: all(now > then for now, then in zip(rounds, before, strict=True)))
        done.set()
    gc.collect()
    assert budget.statistics().lost > 100


def test_who_is_inside_an_evictor_may_not_wait(budget: MemoryBudget) -> None:
    class Foolish:
        name, size_bytes, last_use, in_use = "foolish", 10, 0.0, False

        def evict(self) -> int:
            with pytest.raises(BudgetError, match="use try_reserve there"):
                budget.reserve(50, owner="evictor")
            with pytest.raises(BudgetError, match="use try_reserve there"):
                asyncio.run(budget.reserve_async(50, owner="evictor"))
            return 0

    budget.add_evictable(Foolish())
    with budget.reserve(60, owner="holder"), pytest.raises(TimeoutError):
        budget.reserve(50, owner="asks", timeout=0.05)


def test_one_who_is_struck_again_while_it_leaves_holds_nobody_up(
    budget: MemoryBudget, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first interrupt falls into its sleep, the second into the clean-up: it stays in line."""

    def strike(*_: object) -> None:
        raise Struck

    holder = budget.reserve(100, owner="holder")
    with monkeypatch.context() as patched:
        patched.setattr(ThreadRequest, "park", strike)
        patched.setattr(Dispatcher, "abandon", strike)
        with contextlib.suppress(Struck):
            budget.reserve(60, owner="struck twice")
    assert budget.statistics().waiting == 1
    behind = threads.start(lambda: budget.reserve(70, owner="behind", timeout=30).release())
    wait_for(lambda: "behind" in budget.statistics().owners)
    holder.release()
    threads.join()
    assert behind == [None]
    assert_at_rest(budget)
