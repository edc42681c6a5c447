"""Every signal that can be caught, turned into something a poll loop can wait for.

The handlers do nothing: the interpreter writes the signal's number into a pipe, and
`read` returns those numbers. Signals that were ignored when oomproof was started
(``nohup``) stay ignored, for us and for the program.
Not covered: signals that report a fault of this very process (SIGSEGV, ...), left alone.
"""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType, TracebackType
from typing import Self

FAULTS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGSYS,
    }
)
_UNTOUCHED = FAULTS | {signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU}
_IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
CAUGHT = frozenset(int(number) for number in signal.valid_signals()) - _UNTOUCHED - _IGNORED_BY_PYTHON
"""What `Signals` catches: all that can be passed on, and SIGCHLD."""

STOPS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""Signals that ask a program to end."""


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Exists so that the interpreter catches the signal and writes to the pipe."""


class Signals:
    """Catches from ``__enter__`` to ``__exit__``. Only one at a time, in the main thread."""

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._kept: list[int] = []
        self._ignored: set[int] = set()

    def __enter__(self) -> Self:
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._old_handlers = {}
        for number in CAUGHT:
            old = signal.getsignal(number)
            if old == signal.SIG_IGN and number != signal.SIGCHLD:
                self._ignored.add(number)
                continue
            self._old_handlers[number] = old
            signal.signal(number, _nothing)
        # A mask inherited from a careless parent would make us deaf.
        self._old_mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._old_mask)
        for number, old in self._old_handlers.items():
            # None: installed by other code than Python's, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if old is None else old)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self.fd)
        os.close(self._writer)

    def read(self) -> list[int]:
        """The signals that arrived since the last call, in order; never blocks."""
        arrived, self._kept = self._kept, []
        while True:
            try:
                chunk = os.read(self.fd, 512)
            except BlockingIOError:
                return arrived
            arrived += chunk
            if len(chunk) < 512:
                return arrived

    def keep(self, number: int) -> None:
        """Put a signal that came too late for one reader back for the next."""
        self._kept.append(number)

    def stop_requested(self) -> int | None:
        """The first pending signal that asks to end; all others that are pending are dropped.

        For the moments when there is no program to pass them on to.
        """
        pending = self.read()
        stop = next((number for number in pending if number in STOPS), None)
        if stop is not None:
            self._kept = [stop]
        return stop

    def stop_within(self, seconds: float) -> int | None:
        """Wait, but no longer than until a signal asks to stop; returns that signal."""
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        while (stop := self.stop_requested()) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            poller.poll(remaining * 1000)
        return stop

    def stop_own_group(self) -> None:
        """Stop our whole job as SIGTSTP by default does; returns after SIGCONT, which `read` tells.

        The kernel discards the stop where no shell could ever continue us.
        """
        old = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, old)

    def restore_for_child(self) -> None:
        """In the forked child: the dispositions with which oomproof itself was started."""
        signal.set_wakeup_fd(-1)
        for number in (*self._old_handlers, *_IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
