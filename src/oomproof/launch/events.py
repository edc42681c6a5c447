"""What happens, told to programs: one JSON object a line (``--events FILE|fd:N``).

A public contract: ``event`` is one of `EVENTS`, and every line carries ``schema_version``
and ``time`` (ISO 8601, UTC). A reader that goes away, that is slow or a disk that is full
costs lines and one warning, never the program: writing does not block for longer than
`PATIENCE_S`. Not covered: the lines for people on stderr.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import stat
import time
from collections.abc import Callable
from typing import Self

from oomproof.errors import ConfigError

SCHEMA_VERSION = 1
EVENTS = frozenset({"planned", "attempt_started", "ready", "attempt_ended", "gave_up", "finished"})
PATIENCE_S = 1.0
_CHUNK = 4096
"""PIPE_BUF: what a pipe that polls as writable takes without blocking."""


class EventWriter:
    """Writes events to a descriptor. Use `open_events`; a context manager."""

    def __init__(self, fd: int | None, name: str, warn: Callable[[str], None], *, owned: bool = True) -> None:
        self._fd = fd
        self._name = name
        self._warn = warn
        self._owned = owned
        self._warned = False
        self._torn = False

    def emit(self, event: str, **fields: object) -> None:
        """Write one line, at once. Never raises for what becomes of the line."""
        if event not in EVENTS:
            raise ValueError(f"{event!r} is not one of the events {sorted(EVENTS)}")
        if self._fd is None:
            return
        document = {"schema_version": SCHEMA_VERSION, "time": _utc(time.time()), "event": event, **fields}
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        try:
            self._write(b"\n" + line if self._torn else line)
        except BrokenPipeError:
            self._complain("its reader went away; no more events are written")
            self.close()
        except OSError as error:
            self._complain(f"{error.strerror}; some events are lost")

    def _write(self, line: bytes) -> None:
        assert self._fd is not None  # noqa: S101  emit checked it
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        deadline = time.monotonic() + PATIENCE_S
        rest = line
        while rest:
            self._torn = rest != line
            if not poller.poll(max(0, (deadline - time.monotonic()) * 1000)):
                self._complain("its reader is too slow; some events are lost")
                return
            try:
                rest = rest[os.write(self._fd, rest[:_CHUNK]) :]
            except BlockingIOError:
                # The description is non-blocking for others and was filled by them meanwhile.
                if time.monotonic() > deadline:
                    self._complain("its reader is too slow; some events are lost")
                    return
        self._torn = False

    def _complain(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"events to {self._name}: {what}")

    def close(self) -> None:
        """Stop writing; a descriptor that was given to us stays open for its owner."""
        if self._fd is not None and self._owned:
            os.close(self._fd)
        self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_events(target: str | None, warn: Callable[[str], None]) -> EventWriter:
    """The writer for ``fd:N`` or a file (appended to); None: a writer that writes nothing.

    `warn` is called at most once. Raises ConfigError when it cannot be written to.
    """
    if target is None:
        return EventWriter(None, "nowhere", warn)
    if target.startswith("fd:"):
        return EventWriter(_given_descriptor(target), target, warn, owned=False)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(target, flags, 0o644)
    except OSError as error:
        cure = "start its reader first" if _is_fifo(target) else "give a file that can be written to"
        raise ConfigError(f"--events {target}: {error.strerror}; {cure}, or fd:N") from error
    return EventWriter(fd, target, warn)


def _given_descriptor(target: str) -> int:
    number = target.removeprefix("fd:")
    if not (number.isascii() and number.isdigit()):
        raise ConfigError(f"--events {target}: {number!r} is no descriptor number; write for example fd:3")
    fd = int(number)
    try:
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, OverflowError):
        access = None
    if access not in (os.O_WRONLY, os.O_RDWR):
        raise ConfigError(
            f"--events {target}: the descriptor is not open for writing;"
            f" open it when calling, for example {number}>events.jsonl"
        )
    # The program has no business with it; stdout and stderr stay its own.
    if fd > 2:
        os.set_inheritable(fd, False)
    return fd


def _utc(seconds: float) -> str:
    # The datetime module alone would cost a supervisor half a megabyte.
    milliseconds = round(seconds * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{whole}.{milliseconds % 1000:03d}Z"


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116  pathlib is not needed otherwise
    except OSError:
        return False
