"""A program shaped like a model server or a prover: jobs of mixed size in flood, on one budget.

    python engine.py LIMIT_BYTES SECONDS [--idle-outside-ledger]

Every job writes to every page it was granted. The ledger has 95 % of LIMIT_BYTES. With
``--idle-outside-ledger`` idle buffers of the pool are not in it: the fault that the pool exists to avoid.
Prints one JSON object and exits with 0, unless the kernel kills it.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
import threading
import time
from collections.abc import Callable

from oomproof.memory import MemoryBudget, PinnedPool, Reconciler, Reservation
from oomproof.memory.buffer import Block
from oomproof.units import KIB, MIB

WORKERS = 6
CACHE_BYTES = 24 * MIB


class NotInTheLedger:
    """In place of a reservation."""

    def release(self) -> None:
        pass

    def transfer(self, owner: str) -> None:
        pass


class LeakyPool(PinnedPool):
    """Takes idle buffers out of the ledger."""

    def _put_by(self, block: Block) -> None:
        block.reservation.release()
        block.reservation = NotInTheLedger()  # type: ignore[assignment]

    def _bring_back(self, block: Block, owner: str) -> None:
        block.reservation = self._budget.reserve(block.size_bytes, owner=owner)


class Memory:
    """Ordinary memory with every page written to."""

    def __init__(self, size: int) -> None:
        self.mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        touch(memoryview(self.mapping))

    def close(self) -> None:
        self.mapping.close()


def touch(view: memoryview) -> None:
    # In C and without the interpreter lock held for long: many pages, one slice.
    view[:: mmap.PAGESIZE] = bytes(len(view[:: mmap.PAGESIZE]))
    view.release()


class Cache:
    """A parameter set that stays loaded until somebody needs the room."""

    name = "parameters"

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._held: tuple[Reservation, Memory] | None = None
        self._users = 0
        self.last_use = time.monotonic()
        self.loads = 0

    @property
    def size_bytes(self) -> int:
        return CACHE_BYTES if self._held else 0

    @property
    def in_use(self) -> bool:
        return self._users > 0

    def use(self) -> None:
        """Work with it, and load it first when it is not there."""
        with self._lock:
            if self._held is None:
                reservation = self._budget.try_reserve(CACHE_BYTES, owner=self.name)
                if reservation is None:
                    return
                self._held = reservation, Memory(CACHE_BYTES)
                self.loads += 1
            self._users += 1
        time.sleep(0.001)
        with self._lock:
            self._users -= 1
            self.last_use = time.monotonic()

    def evict(self) -> int:
        with self._lock:
            if self._users or self._held is None:
                return 0
            reservation, memory = self._held
            self._held = None
            memory.close()
            reservation.release()
            return CACHE_BYTES


class Engine:
    """Workers that take jobs until the time is over."""

    def __init__(self, limit_bytes: int, seconds: float, leaky: bool) -> None:
        self.budget = MemoryBudget(limit_bytes * 95 // 100)
        kind = LeakyPool if leaky else PinnedPool
        self.pool = kind(self.budget, backend=("mlock", "heap"), max_idle_seconds=None)
        self.cache = Cache(self.budget)
        self.budget.add_evictable(self.cache)
        self.ends = time.monotonic() + seconds
        self.jobs = [0] * WORKERS
        self.failures: list[str] = []

    def run(self) -> dict[str, object]:
        with Reconciler(self.budget, interval_seconds=0.2) as reconciler:
            workers = [threading.Thread(target=self.work, args=(number,)) for number in range(WORKERS)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            named = reconciler.named
        statistics, pool = self.budget.statistics(), self.pool.statistics()
        self.pool.close()
        self.cache.evict()
        return {
            "jobs": self.jobs,
            "failures": self.failures,
            "total_bytes": statistics.total_bytes,
            "peak_bytes": statistics.peak_bytes,
            "waited": statistics.waited,
            "evictions": statistics.evictions,
            "cache_loads": self.cache.loads,
            "reused": pool.reused,
            "allocated": pool.allocated,
            "idle_bytes": pool.idle_bytes,
            "left_bytes": self.budget.used_bytes,
            "drift": named,
        }

    def work(self, number: int) -> None:
        rng = random.Random(number)  # noqa: S311 - jobs, not secrets
        kinds: list[Callable[[random.Random, str], None]] = [
            self.transfer,
            self.transfer,
            self.prove,
            self.serve,
        ]
        try:
            while time.monotonic() < self.ends:
                rng.choice(kinds)(rng, f"worker {number}")
                self.jobs[number] += 1
        except Exception as error:  # noqa: BLE001 - printed
            self.failures.append(repr(error))

    def size(self, rng: random.Random) -> int:
        """Many small, some large: up to a quarter of everything."""
        largest = self.budget.total_bytes // 4
        return min(int(rng.paretovariate(0.8) * 256 * KIB), largest)

    def transfer(self, rng: random.Random, owner: str) -> None:
        """A pinned buffer, filled once."""
        with self.pool.take(self.size(rng), owner=owner) as buffer:
            touch(buffer.view())

    def prove(self, rng: random.Random, owner: str) -> None:
        """Three vectors, of which two are released early."""
        part = -(-self.size(rng) // 3 // mmap.PAGESIZE) * mmap.PAGESIZE
        with self.budget.reserve(3 * part, owner=owner) as reservation:
            vectors = [Memory(part) for _ in range(3)]
            for vector in vectors[:2]:
                vector.close()
            reservation.release(2 * part)
            vectors[2].close()

    def serve(self, _rng: random.Random, _owner: str) -> None:
        """Something that stays loaded while there is room."""
        self.cache.use()


if __name__ == "__main__":
    engine = Engine(int(sys.argv[1]), float(sys.argv[2]), "--idle-outside-ledger" in sys.argv)
    print(json.dumps(engine.run()))
