"""What a program says itself about a lack of memory: exit codes and lines on its stderr.

Only by rules that the user asked for, since no rule is right for every program. To read
stderr it is led through a pipe of ours and passed on unchanged; the program then no longer
sees a terminal there. Not covered: kills by the kernel, see `counters`.
"""

from __future__ import annotations

import os
import re
import select

from oomproof.launch.model import Confidence, Exit, OwnWords

_CHUNK = 4096
"""PIPE_BUF: what a pipe that polls as writable takes without blocking."""
_OVERLAP = 4096
"""A pattern that spans two reads is found if it is no longer than this."""
_DRAIN_PATIENCE_MS = 1000


def judge_words(rules: OwnWords, exit_: Exit, found: tuple[str, ...]) -> tuple[tuple[str, Confidence], ...]:
    """Sentences with a confidence; `found` are the patterns that stderr matched."""
    failed = exit_.status != 0
    said = [
        (f"stderr matched {pattern!r}", Confidence.HIGH if failed else Confidence.LOW) for pattern in found
    ]
    if exit_.code in rules.exit_codes:
        # With a matching line both agree; alone the code may have other reasons.
        said.append((f"exit code {exit_.code} stands for a lack of memory by rule", Confidence.MEDIUM))
    return tuple(said)


class StderrRelay:
    """Passes the program's stderr on and looks for patterns in it, without ever blocking.

    While our own stderr takes nothing, nothing is read either: the program waits, as it
    would without us.
    """

    def __init__(self, patterns: tuple[str, ...], target: int = 2) -> None:
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._target: int | None = target
        self._patterns = {pattern: re.compile(pattern.encode()) for pattern in patterns}
        self._found: list[str] = []
        self._tail = b""
        self._pending = b""
        self._ended = False

    @property
    def found(self) -> tuple[str, ...]:
        """Patterns that matched so far, in the order of their appearance."""
        return tuple(self._found)

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
            # Our own stderr is gone (EPIPE, EIO): the program need not die of it, the search goes on.
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
        text = self._tail + data
        self._found += [
            pattern
            for pattern, expression in self._patterns.items()
            if pattern not in self._found and expression.search(text)
        ]
        self._tail = text[-_OVERLAP:]
        if self._target is not None:
            self._pending = data
