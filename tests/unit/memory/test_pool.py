"""PinnedPool: reuse, its place in the ledger, trimming; with ordinary memory, which nothing limits."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from oomproof.errors import BudgetExceeded, PinningUnavailable, PoolError, ReserveTimeout
from oomproof.memory.backends import Region
from oomproof.memory.backends.mapped import HeapBackend
from oomproof.memory.budget import MemoryBudget
from oomproof.memory.pool import PinnedPool
from oomproof.units import KIB, MIB

TOTAL = 64 * MIB


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(TOTAL)


@pytest.fixture
def pool(budget: MemoryBudget) -> Iterator[PinnedPool]:
    with PinnedPool(budget, backend="heap") as pool:
        yield pool


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)


def owners(budget: MemoryBudget) -> dict[str, int]:
    return {owner: account.bytes for owner, account in budget.statistics().owners.items()}


def test_a_buffer_is_in_the_ledger_from_its_allocation_until_it_is_freed(
    budget: MemoryBudget, pool: PinnedPool
) -> None:
    with pool.take(4 * MIB, owner="ntt") as buffer:
        assert owners(budget) == {"ntt": 4 * MIB}
        assert buffer.size_bytes == len(buffer) == 4 * MIB
    assert owners(budget) == {"pinned": 4 * MIB}, "idle, and charged all the same"
    assert pool.statistics().idle_bytes == 4 * MIB
    assert pool.trim() == 4 * MIB
    assert budget.used_bytes == 0


def test_an_idle_buffer_is_used_again_for_another_owner(budget: MemoryBudget, pool: PinnedPool) -> None:
    with pool.take(MIB, owner="first") as first:
        first.view()[:5] = b"hello"
        address = first.address
    with pool.take(MIB - 100, owner="second") as second:
        assert second.address == address
        assert bytes(second.view()[:5]) == b"hello"
        assert len(second.view()) == MIB - 100
        assert owners(budget) == {"second": MIB}
    statistics = pool.statistics()
    assert (statistics.reused, statistics.allocated) == (1, 1)


def test_what_is_used_again_is_within_the_bound_of_waste(budget: MemoryBudget) -> None:
    with PinnedPool(budget, backend="heap", max_waste=0.25) as pool:
        pool.take(8 * MIB).release()
        with pool.take(6 * MIB) as too_wasteful:
            assert too_wasteful.capacity_bytes == 6 * MIB
        with pool.take(7 * MIB) as reused:
            assert reused.capacity_bytes == 8 * MIB


def test_of_those_that_fit_the_smallest_is_used(pool: PinnedPool) -> None:
    buffers = [pool.take(size * MIB) for size in (10, 8, 9)]
    for buffer in buffers:
        buffer.release()
    with pool.take(8 * MIB - 1) as chosen:
        assert chosen.capacity_bytes == 8 * MIB


def test_trimming_begins_with_the_largest_and_ends_when_it_is_enough(pool: PinnedPool) -> None:
    buffers = [pool.take(size * MIB) for size in (2, 16, 1, 4, 8)]
    for buffer in buffers:
        buffer.release()
    assert pool.trim(17 * MIB) == 24 * MIB
    assert pool.statistics().idle_bytes == 7 * MIB
    assert pool.trim(1) == 4 * MIB
    assert pool.trim(100 * MIB) == 3 * MIB
    assert pool.trim() == 0


def test_a_reservation_of_somebody_else_evicts_the_largest_idle_buffers_and_no_more(
    budget: MemoryBudget, pool: PinnedPool
) -> None:
    buffers = [pool.take(size * MIB) for size in (4, 16, 8, 32)]
    for buffer in buffers:
        buffer.release()
    with budget.reserve(40 * MIB, owner="srs", timeout=0):
        statistics = pool.statistics()
        assert statistics.freed_bytes == {"evicted": 48 * MIB}
        assert statistics.idle_bytes == 12 * MIB
    assert budget.statistics().eviction_failures == 0


def test_buffers_in_use_are_never_evicted(budget: MemoryBudget, pool: PinnedPool) -> None:
    with pool.take(32 * MIB) as buffer:
        with pytest.raises(ReserveTimeout):
            budget.reserve(40 * MIB, owner="srs", timeout=0)
        buffer.view()[0] = 1
    with budget.reserve(TOTAL, owner="srs", timeout=0):
        assert pool.statistics().idle_bytes == 0


def test_a_take_makes_room_from_idle_buffers_that_do_not_fit(budget: MemoryBudget, pool: PinnedPool) -> None:
    for buffer in [pool.take(8 * MIB) for _ in range(8)]:
        buffer.release()
    with pool.take(32 * MIB, timeout=0):
        assert budget.used_bytes == TOTAL
        assert pool.statistics().idle_bytes == 32 * MIB


def test_a_waiter_gets_what_is_returned(budget: MemoryBudget, pool: PinnedPool) -> None:
    held = pool.take(40 * MIB)
    taken: list[int] = []

    def want() -> None:
        with pool.take(33 * MIB, owner="waiter", timeout=60) as buffer:
            taken.append(buffer.capacity_bytes)

    waiter = threading.Thread(target=want)
    waiter.start()
    wait_until(lambda: budget.statistics().waiting, "the waiter to stand in line")
    held.release()
    waiter.join()
    assert taken == [34 * MIB]
    assert pool.statistics().freed_bytes["wanted"] == 40 * MIB


def test_try_take_never_waits(budget: MemoryBudget, pool: PinnedPool) -> None:
    with pool.take(40 * MIB):
        assert pool.try_take(40 * MIB) is None
        other = pool.try_take(8 * MIB)
        assert other is not None
        other.release()


def test_more_than_the_budget_is_an_error_at_once(budget: MemoryBudget, pool: PinnedPool) -> None:
    with pytest.raises(BudgetExceeded):
        pool.take(TOTAL + 1)
    assert budget.used_bytes == 0


def test_rounding_up_never_asks_for_more_than_the_budget() -> None:
    odd = MemoryBudget(33 * MIB + 4 * KIB)
    with PinnedPool(odd, backend="heap") as pool, pool.take(33 * MIB + 1) as buffer:
        assert buffer.capacity_bytes == 33 * MIB + 4 * KIB


@pytest.mark.parametrize("size", [0, -1])
def test_no_buffer_of_nothing(pool: PinnedPool, size: int) -> None:
    with pytest.raises(PoolError, match="ask for 1 or more"):
        pool.take(size)


def test_what_makes_no_sense_is_told(budget: MemoryBudget, pool: PinnedPool) -> None:
    with pytest.raises(TypeError):
        pool.take(1.5)  # type: ignore[arg-type]
    with pytest.raises(PoolError, match="max_waste is -1"):
        PinnedPool(budget, max_waste=-1)
    with pytest.raises(PoolError, match="pool 'pinned' has no backend"):
        PinnedPool(budget, backend=())


def test_what_is_idle_for_long_is_freed_by_itself(budget: MemoryBudget) -> None:
    with PinnedPool(budget, backend="heap", max_idle_seconds=0.05) as pool:
        kept = pool.take(MIB)
        pool.take(2 * MIB).release()
        wait_until(lambda: budget.used_bytes == MIB, "the idle buffer to be freed")
        assert pool.statistics().freed_bytes == {"idle": 2 * MIB}
        kept.release()
        wait_until(lambda: budget.used_bytes == 0, "the other one to be freed")


def test_only_what_is_idle_for_long_is_freed(budget: MemoryBudget) -> None:
    now = [100.0]
    with PinnedPool(budget, backend="heap", max_idle_seconds=60.0, clock=lambda: now[0]) as pool:
        early, late = pool.take(8 * MIB), pool.take(MIB)
        early.release()
        now[0] += 40
        late.release()
        now[0] += 30
        assert pool.keep_house() == pytest.approx(30)
        assert pool.statistics().idle_bytes == MIB
        now[0] += 30
        assert pool.keep_house() is None
        assert pool.statistics().idle_bytes == 0


def test_idle_buffers_go_when_the_kernel_would_give_little(budget: MemoryBudget) -> None:
    headroom = [100 * MIB]
    with PinnedPool(
        budget,
        backend="heap",
        max_idle_seconds=None,
        min_headroom_bytes=50 * MIB,
        headroom=lambda: headroom[0],
    ) as pool:
        for buffer in [pool.take(size * MIB) for size in (1, 16, 4)]:
            buffer.release()
        pool.keep_house()
        assert pool.statistics().idle_bytes == 21 * MIB
        headroom[0] = 33 * MIB
        wait_until(lambda: budget.used_bytes == MIB, "the pool to give way")
        assert pool.statistics().freed_bytes == {"pressure": 20 * MIB}


def test_a_smaller_total_evicts_what_is_idle(budget: MemoryBudget, pool: PinnedPool) -> None:
    kept = pool.take(8 * MIB)
    pool.take(32 * MIB).release()
    budget.set_total(16 * MIB)
    assert budget.used_bytes == 8 * MIB
    kept.release()


FORKED = """
import os, sys
from oomproof.errors import PoolError
from oomproof.memory import MemoryBudget, PinnedPool
budget = MemoryBudget(1 << 24)
pool = PinnedPool(budget, backend="heap")
buffer = pool.take(1 << 20)
buffer.view()[0] = 1
pid = os.fork()
if pid == 0:
    buffer.view()[0] = 2
    try:
        pool.take(1 << 20)
    except PoolError as error:
        assert "forked this one" in str(error)
        buffer.release()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert buffer.view()[0] == 1, "its own copy"
buffer.release()
assert pool.take(1 << 20).release() is None and pool.statistics().reused == 1
pool.close()
"""


def test_a_forked_child_has_its_own_copy_and_no_pool() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_close_frees_what_is_idle_and_the_rest_when_it_comes_back(budget: MemoryBudget) -> None:
    pool = PinnedPool(budget, backend="heap")
    used = pool.take(MIB)
    pool.take(4 * MIB).release()
    pool.close()
    assert budget.used_bytes == MIB
    used.view()[0] = 1
    used.release()
    assert budget.used_bytes == 0
    pool.close()
    with pytest.raises(PoolError, match="closed"):
        pool.take(MIB)


def test_no_thread_is_left(budget: MemoryBudget) -> None:
    with PinnedPool(budget, backend="heap", name="short-lived") as pool:
        pool.take(MIB).release()
    wait_until(
        lambda: not any("short-lived" in thread.name for thread in threading.enumerate()), "the thread's end"
    )


def test_a_pool_that_is_lost_gives_its_memory_back_with_a_warning(budget: MemoryBudget) -> None:
    pool = PinnedPool(budget, backend="heap", name="lost")
    pool.take(4 * MIB).release()
    with pytest.warns(ResourceWarning, match=r"pool 'lost' with 4\.00 MiB was never closed"):
        del pool
        wait_until(lambda: gc.collect() or budget.used_bytes == 0, "the bytes to come back")


def test_statistics(pool: PinnedPool) -> None:
    first, second = pool.take(3 * MIB - 5), pool.take(8 * MIB)
    second.release()
    statistics = pool.statistics()
    assert statistics.in_use_bytes == 3 * MIB
    assert statistics.in_use_count == statistics.idle_count == 1
    assert statistics.requested_bytes == 3 * MIB - 5
    assert statistics.idle_bytes == 8 * MIB
    assert statistics.peak_bytes == 11 * MIB
    assert statistics.bytes_by_backend == {"heap": 11 * MIB}
    assert statistics.viewed_bytes == 0
    first.release()


class Refusing:
    """A backend that pins at most `most` bytes at a time."""

    name = "refusing"

    def __init__(self, most: int, error: Exception | None = None) -> None:
        self.most = most
        self.error = error or PinningUnavailable("RLIMIT_MEMLOCK is too low: raise it")

    def allocate(self, size_bytes: int) -> Region:
        if size_bytes > self.most:
            raise self.error
        return HeapBackend().allocate(size_bytes)


def test_where_nothing_can_be_locked_the_next_backend_serves_with_a_notice(
    budget: MemoryBudget, caplog: pytest.LogCaptureFixture
) -> None:
    with PinnedPool(budget, backend=(Refusing(0), "heap")) as pool:
        with pool.take(MIB) as buffer, pool.take(MIB):
            assert buffer.backend == "heap"
            assert not buffer.locked
        [notice] = pool.notices
        assert notice.code == "pinning_unavailable"
        assert "RLIMIT_MEMLOCK" in notice.message
        assert len(caplog.records) == 1, "said once"


@pytest.mark.parametrize("error", [PinningUnavailable("no"), MemoryError("no")])
def test_an_allocation_that_fails_gives_the_reservation_back(budget: MemoryBudget, error: Exception) -> None:
    with PinnedPool(budget, backend=Refusing(0, error)) as pool:
        with pytest.raises(type(error)):
            pool.take(MIB)
        assert budget.used_bytes == 0
        assert pool.statistics().in_use_count == 0


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(PoolError, match="'rdma' is no backend"):
        PinnedPool(MemoryBudget(MIB), backend="rdma")


def test_many_threads_at_once_leave_an_exact_ledger(budget: MemoryBudget, pool: PinnedPool) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(150):
                size = (seed * 37 + turn * 101) % (12 * MIB) + 1
                with pool.take(size, owner=f"worker {seed}", timeout=60) as buffer:
                    mark = bytes([seed])
                    view = buffer.view()
                    view[0:1] = view[size - 1 : size] = mark
                    assert view[0] == view[size - 1] == seed
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    statistics = pool.statistics()
    assert statistics.in_use_bytes == 0
    assert statistics.idle_bytes == budget.used_bytes
    assert statistics.peak_bytes <= TOTAL
    pool.trim()
    assert budget.used_bytes == 0
