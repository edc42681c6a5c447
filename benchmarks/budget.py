"""How fast a MemoryBudget is, and how fair to a large request among small ones, beside semaphores.

    python benchmarks/budget.py [--rounds N] [--json]

Operations: one operation takes and gives back, alone and by many at once; one permit or one byte. Each round
runs every way once, in random order; medians, with the least and the most of all rounds.

Fairness: small requests come without a pause and hold what they got for a moment; among them one asks again
and again for half of everything at once, and its longest wait counts. Where there are only single permits, it
collects them one by one, as one has to there; two such collectors would wait for each other for ever.

Compared with threading.Semaphore, asyncio.Semaphore and anyio.CapacityLimiter. rmm's limiting adaptor counts
the memory of a GPU and needs one, so it is not here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from oomproof.memory import MemoryBudget

TOTAL = 64
HALF = TOTAL // 2
HOLD_SECONDS = 0.0002
OPERATIONS = 20_000
SECONDS = 2.0


class Budget:
    """The budget by itself; the others have the same methods."""

    name = "MemoryBudget"

    def __init__(self) -> None:
        self.budget = MemoryBudget(TOTAL)

    def with_sync(self, size: int, hold: Callable[[], object]) -> None:
        with self.budget.reserve(size, owner="benchmark"):
            hold()

    async def with_async(self, size: int, hold: Callable[[], Awaitable[object]]) -> None:
        with await self.budget.reserve_async(size, owner="benchmark"):
            await hold()


class ThreadingSemaphore:
    name = "threading.Semaphore"

    def __init__(self) -> None:
        self.semaphore = threading.Semaphore(TOTAL)

    def with_sync(self, size: int, hold: Callable[[], object]) -> None:
        for _ in range(size):
            self.semaphore.acquire()
        hold()
        self.semaphore.release(size)


class AsyncioSemaphore:
    name = "asyncio.Semaphore"

    def __init__(self) -> None:
        self.semaphore = asyncio.Semaphore(TOTAL)

    async def with_async(self, size: int, hold: Callable[[], Awaitable[object]]) -> None:
        for _ in range(size):
            await self.semaphore.acquire()
        await hold()
        for _ in range(size):
            self.semaphore.release()


class AnyioLimiter:
    name = "anyio.CapacityLimiter"

    def __init__(self) -> None:
        self.limiter = anyio.CapacityLimiter(TOTAL)

    async def with_async(self, size: int, hold: Callable[[], Awaitable[object]]) -> None:
        tokens = [object() for _ in range(size)]
        for token in tokens:
            await self.limiter.acquire_on_behalf_of(token)
        await hold()
        for token in tokens:
            self.limiter.release_on_behalf_of(token)


Sync = type[Budget | ThreadingSemaphore]
Async = type[Budget | AsyncioSemaphore | AnyioLimiter]


def nothing() -> None:
    pass


async def nothing_async() -> None:
    pass


def in_threads(work: Callable[[], object], count: int) -> float:
    """Seconds until all have ended."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def sync_rate(make: Sync, threads: int, size: int) -> float:
    """Operations a second; with a `size` of more than 1 only some of the threads are in at once."""
    it, each = make(), OPERATIONS // threads

    def work() -> None:
        for _ in range(each):
            it.with_sync(size, nothing)

    return each * threads / in_threads(work, threads)


def async_rate(make: Async, tasks: int, *, full: bool) -> float:
    """Operations a second; `full`: each keeps its permit for a turn of the loop, and most tasks wait."""

    async def main() -> float:
        it, each = make(), OPERATIONS // tasks
        hold = (lambda: asyncio.sleep(0)) if full else nothing_async

        async def work() -> None:
            for _ in range(each):
                await it.with_async(1, hold)

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(tasks)))
        return each * tasks / (time.perf_counter() - begun)

    return asyncio.run(main())


def sync_worst_wait(make: Sync) -> float:
    """Milliseconds that a request for half of everything waited at most, in threads."""
    it, ends, waits = make(), time.monotonic() + SECONDS, [0.0]

    def small() -> None:
        while time.monotonic() < ends:
            it.with_sync(1, lambda: time.sleep(HOLD_SECONDS))

    def large() -> None:
        while (asked := time.monotonic()) < ends:
            it.with_sync(HALF, lambda: waits.append(time.monotonic() - asked))

    collector = threading.Thread(target=large)
    collector.start()
    in_threads(small, 2 * TOTAL)
    collector.join()
    return max(waits) * 1000


def async_worst_wait(make: Async) -> float:
    """The same, in tasks."""

    async def main() -> float:
        it, ends, waits = make(), time.monotonic() + SECONDS, [0.0]

        async def small() -> None:
            while time.monotonic() < ends:
                await it.with_async(1, lambda: asyncio.sleep(HOLD_SECONDS))

        async def large() -> None:
            while (asked := time.monotonic()) < ends:

                async def hold(asked: float = asked) -> None:
                    waits.append(time.monotonic() - asked)

                await it.with_async(HALF, hold)
                await asyncio.sleep(0)

        await asyncio.gather(large(), *(small() for _ in range(2 * TOTAL)))
        return max(waits) * 1000

    return asyncio.run(main())


def measures() -> list[tuple[str, str, str, Callable[[], float]]]:
    """What is measured, of whom, in which unit, and how."""
    sync: tuple[Sync, ...] = (Budget, ThreadingSemaphore)
    tasks: tuple[Async, ...] = (Budget, AsyncioSemaphore, AnyioLimiter)
    found: list[tuple[str, str, str, Callable[[], float]]] = []
    for make in sync:
        found += [
            ("one thread", make.name, "op/s", partial(sync_rate, make, 1, 1)),
            ("64 threads, all fit", make.name, "op/s", partial(sync_rate, make, 64, 1)),
            ("a large one among small, threads", make.name, "ms", partial(sync_worst_wait, make)),
        ]
    found.append(("64 threads, two fit", Budget.name, "op/s", partial(sync_rate, Budget, 64, HALF)))
    for one in tasks:
        found += [
            ("one task", one.name, "op/s", partial(async_rate, one, 1, full=False)),
            ("1,000 tasks, 64 fit", one.name, "op/s", partial(async_rate, one, 1000, full=True)),
            ("a large one among small, tasks", one.name, "ms", partial(async_worst_wait, one)),
        ]
    return found


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="every round, for programs")
    arguments = parser.parse_args()
    results: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for what, who, unit, measure in random.sample(measures(), len(measures())):
            results.setdefault((what, who, unit), []).append(measure())
    if arguments.json:
        print(json.dumps([{"what": w, "who": o, "unit": u, "rounds": r} for (w, o, u), r in results.items()]))
        return
    print(f"{'':34}{'':24}{'median':>12}{'least':>12}{'most':>12}")
    for (what, who, unit), rounds in sorted(results.items()):
        middle, least, most = statistics.median(rounds), min(rounds), max(rounds)
        print(f"{what:34}{who:24}{middle:12,.0f}{least:12,.0f}{most:12,.0f} {unit}")


if __name__ == "__main__":
    main()
