"""Loading: every byte in its place, checksums, and what is said and given back when something goes wrong."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomproof.errors import BudgetExceeded, BufferReturned, LoadCancelled, LoadError, ReserveTimeout
from oomproof.memory import MemoryBudget, PinnedPool, load, load_async
from oomproof.memory.streaming import BLOCK_BYTES, SourceFile, chunk_size
from oomproof.units import KIB, MIB

SIZE = 9 * MIB + 12345


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(64 * MIB)


@pytest.fixture
def pool(budget: MemoryBudget) -> Iterator[PinnedPool]:
    with PinnedPool(budget, backend="heap") as pool:
        yield pool


@pytest.fixture(scope="module")
def content() -> bytes:
    return hashlib.shake_128(b"parameters").digest(SIZE)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "parameters.bin"
    path.write_bytes(content)
    return path


def make_cold(path: Path) -> None:
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("oomproof-load")]


def test_a_file_that_is_replaced_while_it_is_opened_is_not_mixed_with_the_new_one(
    file: Path, content: bytes, pool: PinnedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(bytes(SIZE))
    make_cold(file)
    open_ = os.open

    def replaced_before_it_is_opened_again(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            new.replace(file)
        return open_(path, flags)

    monkeypatch.setattr(os, "open", replaced_before_it_is_opened_again)
    with load(file, pool) as loaded:
        assert loaded.memory == content
        assert loaded.direct_bytes == 0


@pytest.mark.parametrize("cold", [True, False])
def test_a_file_comes_whole_cold_or_cached(file: Path, content: bytes, pool: PinnedPool, cold: bool) -> None:
    if cold:
        make_cold(file)
    with load(file, pool, window_bytes=4 * MIB) as loaded:
        assert loaded.memory == content
        assert loaded.size_bytes == SIZE
        assert loaded.direct_bytes + loaded.cached_bytes == SIZE
        assert loaded.buffer is not None
        assert loaded.buffer.owner == "parameters.bin"
    assert pool.statistics().in_use_count == 0
    assert threads() == []


def test_cold_blocks_are_read_past_the_page_cache_and_cached_ones_from_it(
    file: Path, pool: PinnedPool
) -> None:
    with SourceFile(file) as source:
        if source.direct < 0:
            pytest.skip("this filesystem has no direct reads")
        make_cold(file)
        if source.is_cached(0):
            pytest.skip("this filesystem keeps its cache")
    with load(file, pool) as cold:
        assert cold.direct_bytes == SIZE // BLOCK_BYTES * BLOCK_BYTES
    file.read_bytes()
    with load(file, pool, keep_cache=True) as warm:
        assert warm.cached_bytes == SIZE
    with load(file, pool) as warm:
        assert warm.cached_bytes == SIZE
    with SourceFile(file) as source:
        assert not source.is_cached(0), "dropped behind the reading"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.one_of(st.integers(1, 3 * BLOCK_BYTES), st.integers(1, 5 * MIB)),
    thread_count=st.integers(1, 5),
    offset=st.sampled_from([0, 1, 4096]),
    cold=st.booleans(),
)
def test_any_size_into_memory_of_any_alignment(
    tmp_path: Path, size: int, thread_count: int, offset: int, cold: bool
) -> None:
    path = tmp_path / "file"
    data = hashlib.shake_128(size.to_bytes(8)).digest(size)
    path.write_bytes(data)
    if cold:
        make_cold(path)
    memory = bytearray(size + offset + 10)
    memory[-10:] = b"0123456789"
    with load(
        path, memoryview(memory)[offset:], threads=thread_count, window_bytes=MIB, checksum="blake2b"
    ) as loaded:
        assert loaded.buffer is None
        assert loaded.memory.nbytes == size
        assert loaded.checksum == hashlib.blake2b(data).hexdigest()
    assert memory[offset : offset + size] == data
    assert memory[-10:] == b"0123456789", "nothing is written beyond the file's end"


@pytest.mark.parametrize(
    ("window", "count", "chunk"),
    [(32 * MIB, 4, 8 * MIB), (32 * MIB, 8, 4 * MIB), (32 * MIB, 1, 8 * MIB), (4 * MIB, 8, MIB)],
)
def test_all_chunks_under_way_fit_into_the_window(window: int, count: int, chunk: int) -> None:
    assert chunk_size(window, count) == chunk


@pytest.mark.parametrize("name", ["blake2b", "sha256"])
def test_checksums_are_those_of_the_usual_tools(
    file: Path, content: bytes, pool: PinnedPool, name: str
) -> None:
    right = hashlib.new(name, content).hexdigest()
    with load(file, pool, checksum=name, expected=right.upper(), window_bytes=MIB) as loaded:
        assert loaded.checksum == right


def test_xxhash_where_it_is_installed(file: Path, content: bytes, pool: PinnedPool) -> None:
    xxhash = pytest.importorskip("xxhash")
    with load(file, pool, checksum="xxh3_128") as loaded:
        assert loaded.checksum == xxhash.xxh3_128(content).hexdigest()


def test_a_wrong_checksum_is_told_and_nothing_is_kept(
    file: Path, budget: MemoryBudget, pool: PinnedPool
) -> None:
    with pytest.raises(LoadError, match=r"parameters\.bin has the blake2b checksum .* and not abc"):
        load(file, pool, checksum="blake2b", expected="abc")
    assert pool.statistics().in_use_count == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checksum": "md6"}, "'md6' is no checksum"),
        ({"checksum": "shake_128"}, "'shake_128' is no checksum"),
        ({"expected": "abc"}, "no algorithm is named"),
        ({"threads": 0}, "ask for 1 or more"),
    ],
)
def test_wishes_that_make_no_sense(
    file: Path, budget: MemoryBudget, pool: PinnedPool, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(file, pool, **arguments)  # type: ignore[arg-type]
    assert pool.statistics().allocated == 0, "told before anything is reserved"


def test_xxhash_that_is_not_installed_is_named(
    file: Path, pool: PinnedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    with pytest.raises(LoadError, match="pip install xxhash"):
        load(file, pool, checksum="xxh3_128")


def test_progress_goes_up_to_the_end_in_order(file: Path, pool: PinnedPool) -> None:
    told: list[tuple[int, int]] = []
    with load(file, pool, progress=lambda done, total: told.append((done, total)), window_bytes=2 * MIB):
        pass
    assert [total for _, total in told] == [SIZE] * len(told)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1][0] == SIZE
    assert len(told) == 10


def test_an_error_of_the_progress_callback_ends_the_loading(file: Path, pool: PinnedPool) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyError("stop here")

    with pytest.raises(KeyError, match="stop here"):
        load(file, pool, progress=fail)
    assert pool.statistics().in_use_count == 0
    assert threads() == []


def test_cancelling_gives_all_back(file: Path, budget: MemoryBudget, pool: PinnedPool) -> None:
    cancel = threading.Event()
    with pytest.raises(LoadCancelled, match="after 1048576 bytes"):
        load(file, pool, progress=lambda *_: cancel.set(), cancel=cancel, window_bytes=MIB)
    pool.trim()
    assert budget.used_bytes == 0
    assert threads() == []


def test_the_reservation_is_made_before_the_first_byte(
    file: Path, budget: MemoryBudget, pool: PinnedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("it was read all the same"))
    with budget.reserve(60 * MIB, owner="other"), pytest.raises(ReserveTimeout):
        load(file, pool, timeout=0)
    small = MemoryBudget(MIB)
    with PinnedPool(small, backend="heap") as small_pool, pytest.raises(BudgetExceeded):
        load(file, small_pool)


def test_while_it_loads_the_ledger_has_it(file: Path, budget: MemoryBudget, pool: PinnedPool) -> None:
    held: list[int] = []
    with load(file, pool, owner="srs", progress=lambda *_: held.append(budget.used_bytes)):
        assert min(held) == max(held) == budget.statistics().owners["srs"].bytes
        assert held[0] >= SIZE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: os.truncate(path, SIZE // 2), "was truncated from 9449529 to 4724764 bytes"),
        (lambda path: os.truncate(path, SIZE + 1), "grew from 9449529 to 9449530 bytes"),
        (os.utime, "was written to while it was read"),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_told(
    file: Path, pool: PinnedPool, change: object, message: str
) -> None:
    changed: list[bool] = []

    def once(done: int, total: int) -> None:
        if not changed:
            changed.append(True)
            change(file)  # type: ignore[operator]

    with pytest.raises(LoadError, match=message):
        load(file, pool, progress=once, threads=1, window_bytes=MIB)
    assert pool.statistics().in_use_count == 0


def test_short_reads_are_put_together(
    file: Path, content: bytes, pool: PinnedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def short(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        return real(descriptor, [memoryview(buffers[0])[: 64 * KIB + 13]], offset, *flags)

    monkeypatch.setattr(os, "preadv", short)
    with load(file, pool, checksum="blake2b") as loaded:
        assert loaded.memory == content
        assert loaded.checksum == hashlib.blake2b(content).hexdigest()


def test_a_disk_that_fails_is_told_with_the_place(
    file: Path, pool: PinnedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def broken(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if offset >= 5 * MIB:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(LoadError, match=r"cannot be read at byte \d+ \(Input/output error\)"):
        load(file, pool, window_bytes=MIB)
    assert pool.statistics().in_use_count == 0
    assert threads() == []


def test_where_direct_reads_are_refused_the_page_cache_serves(
    file: Path, content: bytes, pool: PinnedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def refusing(descriptor: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if Path(f"/proc/self/fdinfo/{descriptor}").read_text().find("flags:\t02140000") >= 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, buffers, offset, *flags)

    make_cold(file)
    monkeypatch.setattr(os, "preadv", refusing)
    with load(file, pool) as loaded:
        assert loaded.memory == content


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (str, "cannot be read: No such file"),
        (Path.mkdir, "is no regular file"),
        (os.mkfifo, "is no regular file"),
        (Path.touch, "is empty"),
    ],
)
def test_what_is_no_file_to_load(tmp_path: Path, pool: PinnedPool, make: object, message: str) -> None:
    make(tmp_path / "it")  # type: ignore[operator]
    with pytest.raises(LoadError, match=message):
        load(tmp_path / "it", pool)


@pytest.mark.parametrize(
    ("into", "message"),
    [
        (bytearray(100), "has 9449529 bytes and the buffer 100"),
        (b"read-only", "cannot be written to"),
        (object(), "give a PinnedPool or a contiguous buffer"),
        (memoryview(bytearray(100))[::2], "contiguous"),
    ],
)
def test_memory_that_cannot_hold_it(file: Path, into: object, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load(file, into)


def test_what_was_loaded_cannot_be_used_after_its_release(file: Path, pool: PinnedPool) -> None:
    loaded = load(file, pool)
    loaded.release()
    with pytest.raises(ValueError, match="released memoryview"):
        loaded.memory[0]
    with pytest.raises(BufferReturned):
        loaded.release()


def test_load_async(file: Path, content: bytes, pool: PinnedPool) -> None:
    async def scenario() -> None:
        with await load_async(file, pool, checksum="blake2b") as loaded:
            assert loaded.memory == content
            assert loaded.checksum == hashlib.blake2b(content).hexdigest()
        memory = bytearray(SIZE)
        await load_async(file, memory)
        assert memory == content
        with pytest.raises(LoadError, match="cannot be read"):
            await load_async("/nowhere", pool)

    asyncio.run(scenario())


@pytest.mark.parametrize("impatience", [1, 3])
def test_a_cancelled_task_has_given_all_back_when_it_ends(
    file: Path, budget: MemoryBudget, pool: PinnedPool, impatience: int
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        go_on = threading.Event()

        def progress(done: int, total: int) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(60)

        task = asyncio.create_task(load_async(file, pool, progress=progress, window_bytes=MIB))
        await begun.wait()
        for _ in range(impatience):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "its threads still read"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.statistics().in_use_count == 0
        assert threads() == []

    asyncio.run(asyncio.wait_for(scenario(), 60))
