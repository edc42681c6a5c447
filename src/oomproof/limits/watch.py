"""Telling when the limit changes, without asking all the time.

inotify wakes the watch when a limit file is written through the same mount; a look every few seconds
finds what inotify cannot see (a write from another cgroup namespace, a migration). Between the two
the process sleeps. Imported only where a watch is wanted: it loads ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from oomproof.limits.detect import detect_limits
from oomproof.limits.model import Kind, LimitReport

Changed = Callable[[LimitReport, LimitReport], object]
"""Called with the report before and the one after the change."""

_IN_MODIFY, _IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x8, 0x80, 0x100
_MASK = _IN_MODIFY | _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE
_SETTLE_SECONDS = 0.02
"""A burst of writes is looked at once."""


class LimitWatch:
    """Looks at the limit, sleeps until something may have changed, looks again.

    `run` blocks until `stop`; `start` does the same in a thread of its own. Use as a context manager.
    An exception from the callback ends the watch; `run` passes it on.
    """

    def __init__(self, callback: Changed, *, root: Path | str = "/", interval_seconds: float = 5.0) -> None:
        self.report = detect_limits(root)
        self._callback = callback
        self._root = root
        self._interval = interval_seconds
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._inotify = _Inotify()
        self._follow()

    def run(self) -> None:
        """Block, calling back on each change, until `stop` is called."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._inotify.fd >= 0:
            poll.register(self._inotify.fd, select.POLLIN)
        while not self._stopped.is_set():
            woken = poll.poll(self._interval * 1000)
            if self._stopped.is_set():
                return
            if woken:
                time.sleep(_SETTLE_SECONDS)
                self._inotify.drain()
            self.look()

    def look(self) -> bool:
        """Look once now; whether the limit has changed since the last look."""
        before, now = self.report, detect_limits(self._root)
        self.report = now
        if what_matters(before) == what_matters(now):
            return False
        self._follow()
        self._callback(before, now)
        return True

    def start(self) -> LimitWatch:
        """Run in a daemon thread."""
        self._thread = threading.Thread(target=self.run, name="oomproof-limit-watch", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the watch and free what it holds. Safe to call twice and from the callback."""
        if not self._stopped.is_set():
            self._stopped.set()
            os.write(self._wake_write, b"\0")
        if self._thread is threading.current_thread():
            return
        if self._thread is not None:
            self._thread.join()
        self._inotify.close()
        for descriptor in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):  # closed by an earlier stop
                os.close(descriptor)
        self._wake_read = self._wake_write = -1

    def __enter__(self) -> LimitWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _follow(self) -> None:
        prefix = "" if os.fspath(self._root) == "/" else os.fspath(self._root)
        for row in self.report.candidates:
            if row.kind in (Kind.CGROUP, Kind.SOFT, Kind.SWAP) and row.source.startswith("/"):
                self._inotify.add(prefix + row.source.rpartition("/")[0])


def watch_limits(callback: Changed, *, root: Path | str = "/", interval_seconds: float = 5.0) -> LimitWatch:
    """Call `callback(before, after)` from a thread whenever a limit changes; stop it with ``.stop()``.

    Changes of headroom alone do not count. `interval_seconds`: how often to look at least.
    """
    return LimitWatch(callback, root=root, interval_seconds=interval_seconds).start()


def what_matters(report: LimitReport) -> tuple[object, ...]:
    """The parts of the answer whose change is told: limits, not usage."""
    return (
        report.status,
        report.limit_bytes,
        report.limit_bound_by,
        report.soft_limit_bytes,
        report.swap_limit_bytes,
        report.cgroup,
    )


class _Inotify:
    """inotify(7) on directories; where it cannot be had, `fd` is -1 and the interval alone decides."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def add(self, directory: str) -> None:
        if self.fd >= 0:  # the same directory twice is one watch
            self._libc.inotify_add_watch(self.fd, os.fsencode(directory), ctypes.c_uint32(_MASK))

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.fd >= 0 and len(os.read(self.fd, 1 << 16)) >= struct.calcsize("iIII"):
                pass

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
