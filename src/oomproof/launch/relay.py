"""One stream of a program led through a pipe of ours, looked at and passed on unchanged.

Only where somebody asked for what is in it: the program then no longer sees a terminal there.
Not covered: what is looked for, see `own_words` and `rate`.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping

_CHUNK = 4096
"""PIPE_BUF: what a pipe that polls as writable takes without blocking."""
_DRAIN_PATIENCE_MS = 1000


class Relay:
    """Passes what a program writes on to `target`, without ever blocking; `look` sees every piece.

    While `target` takes nothing, nothing is read either: the program waits, as it would without us.
    """

    def __init__(self, target: int) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._target: int | None = target
        self._pending = b""
        self._ended = False

    def look(self, data: bytes) -> None:
        """What was read, before it is passed on."""

    def started(self) -> None:
        """The child has its copy: ours would keep the pipe open for ever."""
        os.close(self.writer)
        self.writer = -1

    def wants(self) -> tuple[int, int] | None:
        """What to poll for before the next `turn`; None when all was passed on."""
        if self._pending and self._target is not None:
            return self._target, select.POLLOUT
        return None if self._ended else (self.reader, select.POLLIN)

    def turn(self) -> None:
        """One step: pass on a piece, or read one."""
        if self._pending and self._target is not None:
            self._pass_on(self._target)
        elif not self._ended:
            self._read()

    def drain(self) -> None:
        """Read and pass on what the dead program has left in the pipe."""
        poller = select.poll()
        while (want := self.wants()) is not None:
            poller.register(*want)
            # Nothing there: somebody who survived holds the pipe open, or our reader sleeps.
            ready = poller.poll(_DRAIN_PATIENCE_MS if self._pending else 0)
            poller.unregister(want[0])
            if not ready:
                break
            self.turn()

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.reader)
        if self.writer >= 0:
            os.close(self.writer)

    def _pass_on(self, target: int) -> None:
        try:
            written = os.write(target, self._pending[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:
            # Our own end is gone (EPIPE, EIO): the program need not die of it, the search goes on.
            self._target, self._pending = None, b""
            return
        self._pending = self._pending[written:]

    def _read(self) -> None:
        try:
            data = os.read(self.reader, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._ended = True
            return
        self.look(data)
        if self._target is not None:
            self._pending = data


class Relays:
    """The streams of one program that are led through pipes, by descriptor number."""

    def __init__(self, by_number: Mapping[int, Relay]) -> None:
        self._by_number = by_number

    def streams(self) -> dict[int, int]:
        """What the child's descriptors are to be."""
        return {number: relay.writer for number, relay in self._by_number.items()}

    def started(self) -> None:
        """See `Relay.started`."""
        for relay in self._by_number.values():
            relay.started()

    def wants(self) -> list[tuple[int, int]]:
        """See `Relay.wants`."""
        return [want for relay in self._by_number.values() if (want := relay.wants()) is not None]

    def turn(self, ready: set[int]) -> None:
        """One step of those whose descriptor is `ready`."""
        for relay in self._by_number.values():
            want = relay.wants()
            if want is not None and want[0] in ready:
                relay.turn()

    def drain(self) -> None:
        """See `Relay.drain`."""
        for relay in self._by_number.values():
            relay.drain()
