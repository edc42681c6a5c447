"""Waiting in line: threads and tasks on one ledger, first come, first served; cancelled, timed out."""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
import threading
import time
import warnings

import pytest

from oomproof.errors import BudgetExceeded, ReservationReleased, ReserveTimeout
from oomproof.memory import MemoryBudget, Reservation
from unit.memory.helpers import Threads, wait_for, wait_for_line


def test_a_small_request_never_passes_a_large_one(budget: MemoryBudget, threads: Threads) -> None:
    served: list[str] = []

    def ask(size: int, owner: str) -> None:
        with budget.reserve(size, owner=owner):
            served.append(owner)

    holder = budget.reserve(60, owner="holder")
    threads.start(lambda: ask(100, "large"))
    wait_for_line(budget, 1)
    threads.start(lambda: ask(1, "small"))
    wait_for_line(budget, 2)
    assert budget.try_reserve(1, owner="eager") is None, "40 bytes are free, and they are the large one's"
    assert served == []
    holder.release()
    threads.join()
    assert served == ["large", "small"]


def test_threads_and_tasks_of_two_loops_stand_in_one_line(budget: MemoryBudget, threads: Threads) -> None:
    served: list[int] = []
    holder = budget.reserve(100, owner="holder")

    def from_a_thread(place: int) -> None:
        with budget.reserve(100, owner=f"thread {place}"):
            served.append(place)

    async def from_a_task(place: int) -> None:
        with await budget.reserve_async(100, owner=f"task {place}"):
            served.append(place)

    loops: list[asyncio.AbstractEventLoop] = []
    for _ in range(2):
        loop = asyncio.new_event_loop()
        threads.start(loop.run_forever)
        loops.append(loop)
    try:
        futures = []
        for place in range(12):
            if place % 3:
                futures.append(asyncio.run_coroutine_threadsafe(from_a_task(place), loops[place % 2]))
            else:
                threads.start(functools.partial(from_a_thread, place))
            wait_for_line(budget, place + 1)
        holder.release()
        for future in futures:
            future.result(60)
        wait_for(lambda: len(served) == 12)
    finally:
        for loop in loops:
            loop.call_soon_threadsafe(loop.stop)
        threads.join()
        for loop in loops:
            loop.close()
    assert served == list(range(12))


def test_a_deadline_in_line_lets_the_next_one_go(budget: MemoryBudget, threads: Threads) -> None:
    with budget.reserve(60, owner="holder"):
        large = threads.start(lambda: budget.reserve(80, owner="large", timeout=0.2))
        wait_for_line(budget, 1)
        small = threads.start(lambda: budget.reserve(40, owner="small"))
        threads.join()
    assert isinstance(large.pop(), ReserveTimeout)
    granted = small.pop()
    assert isinstance(granted, Reservation)
    granted.release()


def test_growth_goes_before_new_reservations(budget: MemoryBudget, threads: Threads) -> None:
    """Else the one who waits for the bytes of this holder would keep it from ever finishing."""
    holder = budget.reserve(50, owner="holder")
    threads.start(lambda: budget.reserve(70, owner="new").release())
    wait_for_line(budget, 1)
    holder.grow(30)
    assert holder.try_grow(20)
    assert (holder.bytes, budget.statistics().waiting) == (100, 1)
    holder.release()
    threads.join()


def test_growth_waits_for_bytes_and_for_those_who_grow_before(budget: MemoryBudget, threads: Threads) -> None:
    one, two = budget.reserve(50, owner="one"), budget.reserve(50, owner="two")
    first = threads.start(lambda: one.grow(30))
    wait_for_line(budget, 1)
    second = threads.start(lambda: one.grow(1))
    wait_for_line(budget, 2)
    two.release(10)
    assert not one.try_grow(1), "ten are free, and somebody grows before"
    assert (first, second) == ([], [])
    two.release()
    threads.join()
    assert one.bytes == 81
    one.release()


def test_two_who_grow_in_each_others_way_get_out_by_their_deadline(
    budget: MemoryBudget, threads: Threads
) -> None:
    def work(held: Reservation) -> bool:
        with held:
            try:
                held.grow(50, timeout=0.2)
            except ReserveTimeout:
                return False
            return True

    halves = [budget.reserve(50, owner=name) for name in ("a", "b")]
    ends = [threads.start(functools.partial(work, half)) for half in halves]
    threads.join()
    assert any(end == [False] for end in ends)


def test_growth_of_what_is_released_meanwhile_is_an_error(budget: MemoryBudget, threads: Threads) -> None:
    one, two = budget.reserve(50, owner="one"), budget.reserve(50, owner="two")
    growth = threads.start(lambda: one.grow(30))
    wait_for_line(budget, 1)
    one.release()
    threads.join()
    assert isinstance(growth.pop(), ReservationReleased)
    two.release()


def test_a_lower_total_blocks_new_work_and_breaks_no_holder(budget: MemoryBudget, threads: Threads) -> None:
    with budget.reserve(80, owner="holder") as holder:
        hopeless = [
            threads.start(functools.partial(budget.reserve, size, owner="hopeless")) for size in (60, 51, 100)
        ]
        wait_for_line(budget, 3)
        patient = threads.start(lambda: budget.reserve(50, owner="patient"))
        wait_for_line(budget, 4)
        growth = threads.start(lambda: holder.grow(10))
        wait_for(lambda: growth == [None])
        budget.set_total(50)
        wait_for(lambda: all(hopeless))
        assert all(isinstance(end.pop(), BudgetExceeded) for end in hopeless)
        assert (holder.bytes, budget.used_bytes, budget.available_bytes) == (90, 90, 0)
        assert budget.try_reserve(1, owner="new") is None
        with pytest.raises(BudgetExceeded):
            holder.try_grow(1)
        holder.release(60)
        assert patient == [], "30 are held of 50, and 50 are asked for"
        holder.release()
    threads.join()
    granted = patient.pop()
    assert isinstance(granted, Reservation)
    granted.release()


def test_a_higher_total_lets_the_line_go_on(budget: MemoryBudget, threads: Threads) -> None:
    with budget.reserve(80, owner="holder"):
        waits = threads.start(lambda: budget.reserve(50, owner="waits").release())
        wait_for_line(budget, 1)
        budget.set_total(130)
        threads.join()
    assert waits == [None]


def test_a_waiting_growth_larger_than_a_lowered_total_fails(budget: MemoryBudget, threads: Threads) -> None:
    one, two = budget.reserve(50, owner="one"), budget.reserve(50, owner="two")
    growth = threads.start(lambda: one.grow(30))
    wait_for_line(budget, 1)
    budget.set_total(79)
    threads.join()
    assert isinstance(growth.pop(), BudgetExceeded)
    one.release()
    two.release()


class TestTasks:
    def test_cancelled_in_line_leaves_the_line(self, budget: MemoryBudget) -> None:
        async def main() -> None:
            with budget.reserve(60, owner="holder"):
                large = asyncio.create_task(budget.reserve_async(80, owner="large"))
                small = asyncio.create_task(budget.reserve_async(40, owner="small"))
                await asyncio.sleep(0)
                assert budget.statistics().waiting == 2
                large.cancel()
                (await small).release()
                with pytest.raises(asyncio.CancelledError):
                    await large

        asyncio.run(main())

    def test_cancelled_after_the_grant_and_before_it_was_looked_at_wakes_the_next(
        self, budget: MemoryBudget
    ) -> None:
        """The lost wake-up that asyncio.Semaphore had for years."""

        async def main() -> None:
            holder = budget.reserve(100, owner="holder")
            first = asyncio.create_task(budget.reserve_async(100, owner="first"))
            second = asyncio.create_task(budget.reserve_async(100, owner="second"))
            await asyncio.sleep(0)
            holder.release()
            assert budget.statistics().owners["first"].bytes == 100, "granted"
            first.cancel()
            async with asyncio.timeout(60):
                (await second).release()
            assert first.cancelled()

        asyncio.run(main())

    @pytest.mark.parametrize("turns", range(6))
    def test_cancelled_at_any_turn_of_the_loop(self, budget: MemoryBudget, turns: int) -> None:
        async def main() -> None:
            holder = budget.reserve(100, owner="holder")
            tasks = [asyncio.create_task(budget.reserve_async(100, owner=str(n))) for n in range(5)]
            await asyncio.sleep(0)
            holder.release()
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks[:4]:
                task.cancel()
            for task in tasks:
                try:
                    (await task).release()
                except asyncio.CancelledError:
                    assert task is not tasks[-1]

        asyncio.run(asyncio.wait_for(main(), 60))

    def test_timeouts_of_the_caller_and_of_the_request(self, budget: MemoryBudget) -> None:
        async def main() -> None:
            with budget.reserve(100, owner="holder"):
                with pytest.raises(ReserveTimeout, match=r"within 0\.01 s"):
                    await budget.reserve_async(1, owner="own", timeout=0.01)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(budget.reserve_async(1, owner="outer"), 0.01)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await budget.reserve_async(1, owner="outer")
                with pytest.raises(ReserveTimeout):
                    await budget.reserve_async(1, owner="at once", timeout=0)
                with pytest.raises(BudgetExceeded):
                    await budget.reserve_async(101, owner="too much")

        asyncio.run(main())

    def test_what_wait_for_loses_comes_back(self, budget: MemoryBudget) -> None:
        """A deadline around it may pass in the very turn in which it is granted; nothing may stay behind."""

        async def main() -> None:
            for delay in range(40):
                holder = budget.reserve(100, owner="holder")
                task = asyncio.create_task(
                    asyncio.wait_for(budget.reserve_async(100, owner="w"), 0.0005 * delay)
                )
                await asyncio.sleep(0.0005 * delay)
                holder.release()
                try:
                    (await task).release()
                except TimeoutError:
                    pass

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # that is how a lost one comes back
            asyncio.run(main())
            gc.collect()

    def test_grow_async(self, budget: MemoryBudget) -> None:
        async def main() -> None:
            with budget.reserve(50, owner="a") as a, budget.reserve(50, owner="b") as b:
                with pytest.raises(ReserveTimeout):
                    await a.grow_async(10, timeout=0.01)
                growth = asyncio.create_task(a.grow_async(10))
                await asyncio.sleep(0)
                b.release(10)
                await growth
                assert a.bytes == 60
                growth = asyncio.create_task(a.grow_async(10))
                await asyncio.sleep(0)
                b.release(10)
                growth.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await growth
                assert (a.bytes, budget.used_bytes) == (60, 90), "granted, cancelled, taken back"

        asyncio.run(main())

    def test_a_loop_closed_under_a_request_in_line_holds_nobody_up(self, budget: MemoryBudget) -> None:
        loop = asyncio.new_event_loop()

        async def stand_in_line() -> None:
            loop.create_task(budget.reserve_async(80, owner="gone")).set_name("gone")
            await asyncio.sleep(0)

        holder = budget.reserve(60, owner="holder")
        loop.run_until_complete(stand_in_line())
        tasks = asyncio.all_tasks(loop)
        loop.close()
        assert budget.statistics().waiting == 1
        with pytest.raises(ReserveTimeout):
            budget.reserve(60, owner="too large now", timeout=0)
        budget.reserve(40, owner="next", timeout=60).release()
        holder.release()
        assert budget.statistics().waiting == 0
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        del tasks, task
        gc.collect()

    def test_a_release_on_another_thread_wakes_a_sleeping_loop(self, budget: MemoryBudget) -> None:
        async def main() -> None:
            holder = budget.reserve(100, owner="holder")
            timer = threading.Timer(0.05, holder.release)
            timer.start()
            begun = time.monotonic()
            (await budget.reserve_async(1, owner="task", timeout=60)).release()
            assert time.monotonic() - begun < 30, "it was woken, not timed out"
            timer.join()

        asyncio.run(main())


def test_an_interrupt_in_a_waiting_thread_leaves_nothing_behind(
    budget: MemoryBudget, threads: Threads
) -> None:
    with budget.reserve(60, owner="holder"):
        granted: list[object] = []

        def interrupt() -> None:
            wait_for_line(budget, 1)
            granted.append(threads.start(lambda: budget.reserve(40, owner="next").release()))
            wait_for_line(budget, 2)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        threads.start(interrupt)
        with pytest.raises(KeyboardInterrupt):
            budget.reserve(80, owner="interrupted")
        threads.join()
        assert granted == [[None]]
