"""How one who asked sleeps until the ledger has decided: a thread, or a task of an event loop.

`wake` may be called from any thread, from a finaliser or a signal handler, and more than once.
Not covered: what is decided, and when (`ledger`).
"""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING

from oomproof.memory.records import Holding, Request

if TYPE_CHECKING:
    import asyncio


class _Asker:
    """Lives as long as the call that waits."""

    __slots__ = ("__weakref__",)


class ThreadRequest(Request):
    """Asked by a thread, which sleeps."""

    __slots__ = ("_asker", "_wakes")

    def __init__(self, holding: Holding, size: int, *, growth: bool = False) -> None:
        super().__init__(holding, size, growth=growth)
        # The one thing of the standard library that may be put to by a finaliser that interrupts the putting.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asker: weakref.ref[_Asker] | None = None

    def asked(self) -> object:
        """To be kept by the one who waits for as long as it waits, and by nobody else."""
        asker = _Asker()
        self._asker = weakref.ref(asker)
        return asker

    def wake(self) -> bool:
        """Make the thread look at `state`; False when it waits no more."""
        self._wakes.put(None)
        return not self.is_abandoned()

    def is_abandoned(self) -> bool:
        """Whether the thread has left without a word: struck by a second interrupt while it went."""
        return self._asker is not None and self._asker() is None

    def park(self, seconds: float | None) -> None:
        """Sleep until woken, at most so long (None: for ever); may return early."""
        if seconds is not None:
            seconds = min(seconds, threading.TIMEOUT_MAX)
        try:
            self._wakes.get(timeout=seconds)
        except queue.Empty:
            pass


class TaskRequest(Request):
    """Asked by a task of the running event loop, which awaits."""

    __slots__ = ("_alarm", "_loop", "_woken")

    def __init__(self, holding: Holding, size: int, *, growth: bool = False) -> None:
        import asyncio  # noqa: PLC0415 - whoever awaits has it loaded; the others need not

        super().__init__(holding, size, growth=growth)
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.Future[None] | None = None
        self._woken = False

    def wake(self) -> bool:
        """Make the task look at `state`; False when its loop is closed."""
        try:
            # Also on the loop's own thread: a finaliser may run between the loop's look at what is ready and
            # its sleep, and only this call ends that sleep.
            self._loop.call_soon_threadsafe(self._ring)
        except RuntimeError:
            if self._loop.is_closed():
                return False
            raise
        return True

    def is_abandoned(self) -> bool:
        """Whether the loop is closed: the task will never run again."""
        return self._loop.is_closed()

    async def park(self, seconds: float | None) -> None:
        """Await until woken, at most so long (None: for ever); may return early."""
        if self._woken:
            self._woken = False
            return
        alarm = self._alarm = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._ring) if seconds is not None else None
        try:
            await alarm
        finally:
            self._alarm = None
            self._woken = False
            if timer is not None:
                timer.cancel()

    def _ring(self) -> None:
        self._woken = True
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)
