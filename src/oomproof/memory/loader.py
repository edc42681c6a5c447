"""Loads a parameter file into a buffer of a pool, or into yours, without holding it twice.

The place in the ledger is taken before the first byte is read; whatever goes wrong gives it back.
Not covered: how the bytes are read, see `oomproof.memory.streaming`; what they mean.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from oomproof.errors import LoadCancelled, LoadError
from oomproof.memory.buffer import PinnedBuffer
from oomproof.memory.pool import PinnedPool
from oomproof.memory.streaming import SourceFile, Stream, chunk_size
from oomproof.units import MIB

if TYPE_CHECKING:
    import asyncio

WINDOW_BYTES = 32 * MIB
"""What may be under way at once."""

_XXHASH = ("xxh32", "xxh64", "xxh3_64", "xxh3_128")

Progress = Callable[[int, int], object]
"""Called with the bytes that are in their place, all before them included, and those of the whole file."""


class Digest(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: memoryview, /) -> None:
        """Take more bytes in."""

    def hexdigest(self) -> str:
        """The checksum of all bytes so far."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file in memory. Release it, or use it as a context manager, when it came from a pool."""

    path: Path
    size_bytes: int
    buffer: PinnedBuffer | None
    """The pool's; None when the memory is yours."""
    checksum: str | None
    """In hexadecimal, of the algorithm that was asked for."""
    seconds: float
    direct_bytes: int
    """Read past the page cache."""
    cached_bytes: int
    """Copied from the page cache, or read through it."""
    memory: memoryview
    """The file's bytes. Not usable after `release`; what was made from it is, see PinnedBuffer.view."""

    def release(self) -> None:
        """Give the buffer back to its pool, if it is one's; raises BufferReturned the second time."""
        if self.buffer is not None:
            self.buffer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.buffer is not None and not self.buffer.returned:
            self.buffer.release()


@dataclass(frozen=True, slots=True)
class _Wishes:
    """How to load, as the caller has it."""

    checksum: str | None
    expected: str | None
    progress: Progress | None
    cancel: threading.Event | None
    threads: int
    window_bytes: int
    keep_cache: bool


def load(
    path: Path | str,
    into: PinnedPool | bytearray | memoryview | Any,
    *,
    owner: str | None = None,
    timeout: float | None = None,
    checksum: str | None = None,
    expected: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    threads: int | None = None,
    window_bytes: int = WINDOW_BYTES,
    keep_cache: bool = False,
) -> Loaded:
    """Read the file `path` into memory.

    `into`: a pool, of which a buffer is taken for `owner` (default: the file's name) within `timeout`
    seconds; or anything with a writable, contiguous buffer that is large enough.
    `checksum`: ``blake2b`` or another name that hashlib knows, or ``xxh3_128`` and the like with the package
    xxhash. `expected`: what it has to be, in hexadecimal.
    `progress(done, total)` is called in this thread, chunk by chunk; what it raises ends the loading.
    `cancel`: once it is set, reading stops within a chunk; waiting for room ends with `timeout` only.
    `keep_cache`: leave in the page cache what comes through it, for others who read the file.

    Raises LoadError (cannot be read; changed, grew or was truncated meanwhile; wrong checksum; no room in
    `into`), LoadCancelled, and what `PinnedPool.take` raises. Nothing is kept then.
    """
    wishes = _checked(
        _Wishes(
            checksum=checksum,
            expected=expected,
            progress=progress,
            cancel=cancel,
            threads=_usual_threads() if threads is None else threads,
            window_bytes=window_bytes,
            keep_cache=keep_cache,
        )
    )
    with SourceFile(Path(path)) as source:
        _check_size(source)
        if not isinstance(into, PinnedPool):
            return _fill(source, _own_memory(into, source), None, wishes)
        buffer = into.take(source.size_bytes, owner=owner or source.path.name, timeout=timeout)
        return _fill_buffer(source, buffer, wishes)


async def load_async(
    path: Path | str,
    into: PinnedPool | bytearray | memoryview | Any,
    *,
    owner: str | None = None,
    timeout: float | None = None,
    checksum: str | None = None,
    expected: str | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    window_bytes: int = WINDOW_BYTES,
    keep_cache: bool = False,
) -> Loaded:
    """As `load`, without holding up the event loop. A cancelled task has given all back when it ends.

    `progress` is called in another thread.
    """
    import asyncio  # noqa: PLC0415 - programs without an event loop do without its megabytes

    cancel = threading.Event()
    wishes = _checked(
        _Wishes(
            checksum=checksum,
            expected=expected,
            progress=progress,
            cancel=cancel,
            threads=_usual_threads() if threads is None else threads,
            window_bytes=window_bytes,
            keep_cache=keep_cache,
        )
    )
    with SourceFile(Path(path)) as source:
        _check_size(source)
        if isinstance(into, PinnedPool):
            buffer = await into.take_async(
                source.size_bytes, owner=owner or source.path.name, timeout=timeout
            )
            try:
                reading = _in_thread(lambda: _fill_buffer(source, buffer, wishes))
            except BaseException:
                buffer.release()
                raise
        else:
            memory = _own_memory(into, source)
            reading = _in_thread(lambda: _fill(source, memory, None, wishes))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            cancel.set()
            while not reading.done():  # the threads read from a file that is closed next
                try:
                    await asyncio.wait([reading])
                except asyncio.CancelledError:
                    continue  # an impatient caller: it is a matter of one chunk
            if reading.exception() is None:
                reading.result().__exit__()
            raise


def _in_thread(work: Callable[[], Loaded]) -> asyncio.Future[Loaded]:
    """In one of its own: those of the event loop may all wait for bytes that this load holds."""
    import asyncio  # noqa: PLC0415 - as above
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - as above

    executor = ThreadPoolExecutor(1, thread_name_prefix="oomproof-awaited-load")
    try:
        return asyncio.get_running_loop().run_in_executor(executor, work)
    finally:
        executor.shutdown(wait=False)  # its thread ends with its work


def _checked(wishes: _Wishes) -> _Wishes:
    """`wishes` that make sense; raises LoadError for others, before anything is opened or reserved."""
    if wishes.threads < 1:
        raise LoadError(f"{wishes.threads} threads cannot read: ask for 1 or more")
    if wishes.expected is not None and wishes.checksum is None:
        raise LoadError("a checksum is expected but no algorithm is named: add checksum='blake2b'")
    if wishes.checksum is not None:
        _digest(wishes.checksum)  # an unknown name
    return wishes


def _usual_threads() -> int:
    """One for each processor, at most 8; two at least: one may copy while the other waits for the disk."""
    return max(2, min(len(os.sched_getaffinity(0)), 8))


def _check_size(source: SourceFile) -> None:
    if source.size_bytes == 0:
        raise LoadError(f"{source.path} is empty: there is nothing to load")


def _own_memory(into: Any, source: SourceFile) -> memoryview:
    try:
        memory = memoryview(into).cast("B")
    except TypeError as error:
        raise LoadError(
            f"{type(into).__name__} cannot be loaded into ({error}): give a PinnedPool or a contiguous buffer"
        ) from error
    if memory.readonly:
        raise LoadError(f"{type(into).__name__} cannot be written to: give a PinnedPool or a writable buffer")
    if memory.nbytes < source.size_bytes:
        raise LoadError(
            f"{source.path} has {source.size_bytes} bytes and the buffer {memory.nbytes}: give a larger one"
        )
    return memory[: source.size_bytes]


def _fill_buffer(source: SourceFile, buffer: PinnedBuffer, wishes: _Wishes) -> Loaded:
    try:
        return _fill(source, buffer.view(), buffer, wishes)
    except BaseException:
        buffer.release()
        raise


def _fill(source: SourceFile, memory: memoryview, buffer: PinnedBuffer | None, wishes: _Wishes) -> Loaded:
    begun = time.perf_counter()
    digest = None if wishes.checksum is None else _digest(wishes.checksum)
    stream = Stream(
        source, memory, wishes.threads, chunk_size(wishes.window_bytes, wishes.threads), wishes.keep_cache
    )
    chunks = stream.run()
    try:
        for begin, end in chunks:
            if wishes.cancel is not None and wishes.cancel.is_set():
                raise LoadCancelled(f"loading {source.path} was cancelled after {begin} bytes")
            if digest is not None:
                digest.update(memory[begin:end])
            if wishes.progress is not None:
                wishes.progress(end, source.size_bytes)
    finally:
        chunks.close()
    source.check_unchanged()
    found = None if digest is None else digest.hexdigest()
    if wishes.expected is not None and found != wishes.expected.lower():
        raise LoadError(
            f"{source.path} has the {wishes.checksum} checksum {found} and not {wishes.expected}:"
            " fetch it anew"
        )
    return Loaded(
        path=source.path,
        size_bytes=source.size_bytes,
        buffer=buffer,
        checksum=found,
        seconds=time.perf_counter() - begun,
        direct_bytes=stream.traffic.direct_bytes,
        cached_bytes=stream.traffic.cached_bytes,
        memory=memory,
    )


def _digest(name: str) -> Digest:
    if name in _XXHASH:
        try:
            made: Digest = getattr(import_module("xxhash"), name)()
        except ImportError as error:
            raise LoadError(
                f"{name} needs the package xxhash: pip install xxhash, or take 'blake2b'"
            ) from error
        return made
    try:
        digest = hashlib.new(name)
        digest.hexdigest()  # not without a length, where the name is that of a shake
    except (ValueError, TypeError) as error:
        raise LoadError(f"{name!r} is no checksum: take 'blake2b', 'sha256' or 'xxh3_128'") from error
    return digest
