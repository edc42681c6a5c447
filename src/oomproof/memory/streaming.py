"""Reads a file straight into memory with several threads, leaving no page cache behind.

What the page cache holds already is copied from it; everything else is read with O_DIRECT where the
filesystem and the destination allow it, and through the cache, a window at a time, where they do not. So the
kernel never holds more of the file than the window, beside what it held before.
Sources: open(2) on O_DIRECT, preadv2(2) on RWF_NOWAIT, posix_fadvise(2).
Not covered: where the memory comes from and checksums, see `oomproof.memory.loader`.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import queue
import stat
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from oomproof.errors import LoadError
from oomproof.units import MIB, format_size

BLOCK_BYTES = 4096
"""What direct reads are aligned to: no block device in use asks for more."""
LARGEST_CHUNK, SMALLEST_CHUNK = 8 * MIB, MIB


def chunk_size(window_bytes: int, threads: int) -> int:
    """Bytes that one thread reads at a time, so that all of them stay within the window."""
    size = min(max(window_bytes // threads, SMALLEST_CHUNK), LARGEST_CHUNK)
    return size // BLOCK_BYTES * BLOCK_BYTES


@dataclass(slots=True)
class Traffic:
    """Where the bytes came from."""

    direct_bytes: int = 0
    """Read past the page cache."""
    cached_bytes: int = 0
    """Copied from the page cache, or read through it."""


class SourceFile:
    """A regular file, opened to be read once. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Raises LoadError when it cannot be opened or is no regular file."""
        self.path = path
        self.buffered = self.direct = -1
        try:
            # O_NONBLOCK: a pipe in the place of the file must not stop us.
            self.buffered = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._status = os.fstat(self.buffered)
        except OSError as error:
            self.close()
            raise LoadError(
                f"{path} cannot be read: {error.strerror}: check the path and its rights"
            ) from error
        if not stat.S_ISREG(self._status.st_mode):
            self.close()
            raise LoadError(f"{path} is no regular file: name one whose size is known")
        self.direct = self._open_directly()
        self.size_bytes = self._status.st_size
        # Without it the kernel reads ahead of what is asked for, by megabytes on some disks, and for nobody.
        os.posix_fadvise(self.buffered, 0, 0, os.POSIX_FADV_RANDOM)

    def _open_directly(self) -> int:
        """The same file with O_DIRECT; -1: through the page cache, then."""
        try:
            direct = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            return -1  # a filesystem without direct reads (tmpfs before 6.6)
        if os.path.samestat(os.fstat(direct), self._status):
            return direct
        os.close(direct)  # another one has just been put in its place
        return -1

    def is_cached(self, offset: int) -> bool:
        """Whether the page at `offset` is in the page cache."""
        try:
            return os.preadv(self.buffered, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
        except OSError:
            return False  # not there, or not told by this filesystem; reading it will say what is wrong

    def forget(self, offset: int, size: int) -> None:
        """Drop what the page cache holds of a range (size 0: from there to the end)."""
        os.posix_fadvise(self.buffered, offset, size, os.POSIX_FADV_DONTNEED)

    def check_unchanged(self) -> None:
        """Raises LoadError when the file is not what it was when it was opened."""
        now, before = os.fstat(self.buffered), self._status
        if now.st_size != before.st_size:
            verb = "grew" if now.st_size > before.st_size else "was truncated"
            raise LoadError(
                f"{self.path} {verb} from {before.st_size} to {now.st_size} bytes while it was read:"
                " load it again when its writer is done"
            )
        if now.st_mtime_ns != before.st_mtime_ns:
            raise LoadError(
                f"{self.path} was written to while it was read: load it again when its writer is done"
            )

    def close(self) -> None:
        """Safe to call twice."""
        for descriptor in (self.buffered, self.direct):
            if descriptor >= 0:
                os.close(descriptor)
        self.buffered = self.direct = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream:
    """One reading of a whole file into `destination`, by `threads` threads in chunks of `chunk_bytes`."""

    def __init__(
        self, source: SourceFile, destination: memoryview, threads: int, chunk_bytes: int, keep_cache: bool
    ) -> None:
        self.traffic = Traffic()
        self._source = source
        self._destination = destination
        self._chunk_bytes = chunk_bytes
        self._keep_cache = keep_cache
        self._threads = min(threads, -(-source.size_bytes // chunk_bytes))
        self._next = itertools.count(0, chunk_bytes)
        self._stopped = threading.Event()
        self._ended: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._counting = threading.Lock()
        address = ctypes.addressof(ctypes.c_char.from_buffer(destination))
        self._direct = source.direct >= 0 and address % BLOCK_BYTES == 0

    def run(self) -> Generator[tuple[int, int], None, None]:
        """Read, and give begin and end of each chunk in the file's order, once it is in its place.

        Raises LoadError for a file that cannot be read to its end, from whichever thread. However it ends,
        no thread is left.
        """
        workers = [
            threading.Thread(target=self._work, name=f"oomproof-load-{number}", daemon=True)
            for number in range(self._threads)
        ]
        try:
            for worker in workers:
                worker.start()
            yield from self._in_order()
        finally:
            self._stopped.set()
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            if not self._keep_cache:
                self._source.forget(0, 0)

    def _in_order(self) -> Iterator[tuple[int, int]]:
        size, begin = self._source.size_bytes, 0
        early: set[int] = set()
        while begin < size:
            ended = self._ended.get()
            if isinstance(ended, BaseException):
                raise ended
            early.add(ended)
            while begin in early:
                early.remove(begin)
                end = min(begin + self._chunk_bytes, size)
                yield begin, end
                begin = end

    def _work(self) -> None:
        try:
            while not self._stopped.is_set():
                begin = next(self._next)
                if begin >= self._source.size_bytes:
                    return
                self._read_chunk(begin, min(begin + self._chunk_bytes, self._source.size_bytes))
                self._ended.put(begin)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that called us
            self._ended.put(error)

    def _read_chunk(self, begin: int, end: int) -> None:
        at = begin
        if self._direct and not (self._source.is_cached(begin) and self._source.is_cached(end - 1)):
            at = self._read_direct(begin, begin + (end - begin) // BLOCK_BYTES * BLOCK_BYTES)
        if at < end:
            self._read_buffered(at, end)
        with self._counting:
            self.traffic.direct_bytes += at - begin
            self.traffic.cached_bytes += end - at

    def _read_direct(self, at: int, end: int) -> int:
        """Read whole blocks; returns how far it came, short of `end` where the rest needs the page cache."""
        while at < end and at % BLOCK_BYTES == 0 and not self._stopped.is_set():
            try:
                at += self._read(self._source.direct, at, end)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise self._unreadable(at, error) from error
                self._direct = False  # larger blocks than any we know: not here, then
                break
        return at

    def _read_buffered(self, begin: int, end: int) -> None:
        at = begin
        while at < end and not self._stopped.is_set():
            try:
                at += self._read(self._source.buffered, at, end)
            except OSError as error:
                raise self._unreadable(at, error) from error
        if not self._keep_cache:
            self._source.forget(begin, end - begin)

    def _read(self, descriptor: int, at: int, end: int) -> int:
        with self._destination[at:end] as part:
            count = os.preadv(descriptor, [part], at)
        if count == 0:
            self._source.check_unchanged()
            raise LoadError(
                f"{self._source.path} ended at byte {at} of {self._source.size_bytes}: it was truncated"
                " while it was read"
            )
        return count

    def _unreadable(self, at: int, error: OSError) -> LoadError:
        left = format_size(self._source.size_bytes - at)
        return LoadError(
            f"{self._source.path} cannot be read at byte {at} ({error.strerror}), {left} before its end:"
            " check the disk and the kernel's log"
        )
