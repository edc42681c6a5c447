"""Views of a buffer: no copy, no crash, and nobody else gets memory that something still looks at."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import sys
from collections.abc import Iterator

import pytest

from oomproof.errors import BufferReturned
from oomproof.memory.budget import MemoryBudget
from oomproof.memory.buffer import PinnedBuffer
from oomproof.memory.pool import PinnedPool
from oomproof.units import MIB


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(16 * MIB)


@pytest.fixture
def pool(budget: MemoryBudget) -> Iterator[PinnedPool]:
    with PinnedPool(budget, backend="heap") as pool:
        yield pool


def test_views_share_the_memory(pool: PinnedPool) -> None:
    with pool.take(1000) as buffer:
        one, other = buffer.view(), buffer.view()
        one[10:13] = b"abc"
        assert bytes(other[10:13]) == b"abc"
        assert one.format == "B"
        assert not one.readonly
        assert one.nbytes == 1000
        assert one.cast("I").shape == (250,)


def test_after_the_return_everything_is_an_error(pool: PinnedPool) -> None:
    buffer = pool.take(1000, owner="late")
    view = buffer.view()
    buffer.release()
    with pytest.raises(ValueError, match="released memoryview"):
        view[0]
    with pytest.raises(ValueError, match="released memoryview"):
        view[0] = 1
    for use in (buffer.view, buffer.release, lambda: buffer.address, lambda: buffer.__array_interface__):
        with pytest.raises(BufferReturned, match=r"of 'late' was returned"):
            use()
    assert buffer.returned
    assert "returned" in repr(buffer)


def test_the_with_statement_minds_an_early_return(pool: PinnedPool) -> None:
    with pool.take(1000) as buffer:
        buffer.release()


def test_a_slice_keeps_the_memory_from_everyone_else(budget: MemoryBudget, pool: PinnedPool) -> None:
    buffer = pool.take(MIB, owner="sliced")
    part = buffer.view()[100:200]
    address = buffer.address
    buffer.release()
    part[0] = 77
    statistics = pool.statistics()
    assert (statistics.viewed_bytes, statistics.in_use_bytes, statistics.idle_bytes) == (MIB, MIB, 0)
    assert budget.statistics().owners["sliced"].bytes == MIB
    with pool.take(MIB) as other:
        assert other.address != address
        other.view()[100] = 1
        assert part[0] == 77
    part.release()
    assert pool.statistics().viewed_bytes == 0
    assert pool.statistics().idle_bytes == 2 * MIB


def test_an_object_over_the_view_keeps_the_memory_and_the_pool_may_close(budget: MemoryBudget) -> None:
    pool = PinnedPool(budget, backend="heap")
    buffer = pool.take(MIB)
    whole = memoryview(buffer.view())
    inner = (whole, memoryview(whole)[1:])
    buffer.release()
    pool.close()
    inner[1][5] = 9
    assert inner[0][6] == 9
    assert budget.used_bytes == MIB
    del whole, inner
    pool.statistics()
    assert budget.used_bytes == 0


def test_a_view_that_somebody_exports_survives_the_return(pool: PinnedPool) -> None:
    buffer = pool.take(64)
    view = buffer.view()
    exported = pickle.PickleBuffer(view)  # view.release() raises BufferError while it lives
    buffer.release()
    exported.raw()[0] = 3
    assert view[0] == 3
    assert pool.statistics().viewed_bytes > 0
    del view, exported
    assert pool.statistics().viewed_bytes == 0


def test_views_that_are_gone_leave_nothing_in_the_buffer(pool: PinnedPool) -> None:
    with pool.take(64) as buffer:
        for _ in range(1000):
            buffer.view()[0] = 1
        kept = [buffer.view() for _ in range(10)]
        assert len(buffer._views) == len(kept)


def test_a_lost_buffer_comes_back_with_a_warning_that_names_its_owner(
    budget: MemoryBudget, pool: PinnedPool
) -> None:
    buffer = pool.take(2 * MIB, owner="forgetful")
    with pytest.warns(ResourceWarning, match=r"2\.00 MiB of 'forgetful' was lost"):
        del buffer
        gc.collect()
    statistics = pool.statistics()
    assert (statistics.in_use_count, statistics.idle_bytes) == (0, 2 * MIB)


def test_a_lost_buffer_comes_back_though_nobody_asks_the_pool(budget: MemoryBudget) -> None:
    with PinnedPool(budget, backend="heap", max_idle_seconds=0.01) as pool:
        buffer = pool.take(2 * MIB)
        with pytest.warns(ResourceWarning):
            del buffer
        with budget.reserve(16 * MIB, owner="other", timeout=60):
            assert budget.statistics().waiting == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_buffer_lost_in_a_cycle_is_no_deadlock(budget: MemoryBudget, pool: PinnedPool) -> None:
    """The collector may run in the midst of the pool's own critical sections."""

    class Holder:
        def __init__(self, buffer: PinnedBuffer) -> None:
            self.buffer, self.me = buffer, self

        def __del__(self) -> None:
            with contextlib.suppress(BufferReturned):  # its own finaliser may come first
                self.buffer.release()

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(300):
            Holder(pool.take(4096, timeout=60))
            pool.statistics()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert pool.statistics().in_use_count == 0


def test_a_buffer_cannot_be_copied_or_pickled(pool: PinnedPool) -> None:
    with pool.take(64) as buffer:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="copy the bytes of its view"):
                attempt(buffer)


def test_numpy_looks_at_the_memory_itself(budget: MemoryBudget, pool: PinnedPool) -> None:
    numpy = pytest.importorskip("numpy")
    buffer = pool.take(8 * 1000)
    by_view = numpy.frombuffer(buffer.view(), dtype="f8")
    by_interface = numpy.asarray(buffer)
    by_view[:] = range(1000)
    assert by_interface.view("f8")[999] == 999
    assert by_interface.ctypes.data == buffer.address
    buffer.release()
    by_view[0] = 5
    assert by_interface.view("f8")[0] == 5
    del by_view
    assert pool.statistics().viewed_bytes > 0
    del by_interface
    assert pool.statistics().viewed_bytes == 0
    with pytest.raises(BufferReturned):
        numpy.asarray(buffer)


def test_the_core_does_without_numpy() -> None:
    import subprocess

    code = (
        "import sys; sys.modules['numpy'] = None; from oomproof.memory import MemoryBudget, PinnedPool\n"
        "with PinnedPool(MemoryBudget(1 << 20), backend='heap') as pool, pool.take(4096) as buffer:\n"
        "    buffer.view()[0] = 1; assert buffer.__array_interface__['shape'] == (4096,)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
