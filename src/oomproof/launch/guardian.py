"""A tiny process that outlives a SIGKILL of oomproof, to leave nothing running behind it.

It holds one end of a pipe and sleeps. When oomproof dies the pipe ends, and it kills what
the attempt left: the leaf cgroup and all in it; without a leaf, every process that carries
the attempt's mark in its environment, which setsid grandchildren inherit as well. One that has
wiped its environment, too, is not found.
It costs 1 to 2 MiB of private memory, since it shares all else with oomproof.
Not needed by PID 1: when that dies, the kernel kills the whole pid namespace.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import stat
import time
from pathlib import Path
from typing import NoReturn

from oomproof.errors import OomproofError
from oomproof.leaf import Leaf, known_leaf

MARK_VARIABLE = "OOMPROOF_MARK"
"""Environment variable that tells the processes of one attempt from all others."""

_DONE = b"\0"
"""No path ends with it."""
_ROUNDS, _PAUSE_S = 50, 0.01
_REMOVALS = 60
"""Each of them tries for seconds."""


class Guardian:
    """Ours to `dismiss` once nothing of the attempt is left. Use `start`."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe = pipe

    @classmethod
    def start(cls, leaf: Leaf | None, mark: str) -> Guardian:
        """Fork the guardian of an attempt in `leaf`, or of processes marked with `mark`.

        Raises OSError when no process can be forked.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _guard(reader, leaf, mark)
        except OSError:
            os.close(writer)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(reader)
        return cls(pid, writer)

    def turn_to(self, leaf: Leaf) -> bool:
        """From now on guard `leaf` instead; False when the guardian is gone."""
        try:
            os.write(self._pipe, b"%d:%s\n" % (leaf.version, os.fsencode(leaf.directory)))
        except BrokenPipeError:
            return False  # somebody killed it
        return True

    def dismiss(self) -> None:
        """End the guardian without any killing."""
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: it is gone as it should be
            os.write(self._pipe, _DONE)
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def guard(leaf: Leaf | None, mark: str = "") -> Guardian | None:
    """A guardian, but none for PID 1, whose death ends all anyway. Raises OomproofError."""
    try:
        return None if os.getpid() == 1 else Guardian.start(leaf, mark)
    except OSError as error:
        raise OomproofError(
            f"no process could be forked: {error.strerror}; free memory, or raise pids.max and ulimit -u"
        ) from error


def _guard(pipe: int, leaf: Leaf | None, mark: str) -> NoReturn:
    """The forked guardian. All signals stay blocked: who wants it gone kills oomproof first."""
    try:
        gc.disable()  # a collection would touch, and so copy, pages that are shared
        os.setsid()
        os.chdir("/")
        # Pipes to other programs must not stay open because of us.
        _close_all_but({pipe, 2} if _nobody_waits_for_the_end_of(2) else {pipe})
        said = b""
        while not said.endswith(_DONE):
            chunk = os.read(pipe, 4096)
            if chunk == b"":
                _end_everything(_last_leaf(said) or leaf, mark)
                break
            said = _last_line(said) + chunk
    finally:
        os._exit(0)


def _last_line(said: bytes) -> bytes:
    """All that may still be needed of what was said: the last whole line, and what has come of the next."""
    return said[said.rfind(b"\n", 0, max(0, said.rfind(b"\n"))) + 1 :]


def _last_leaf(said: bytes) -> Leaf | None:
    """The last one that we were turned to; None: to none."""
    *_, last, _ = [b"", *said.split(b"\n")]
    version, colon, directory = last.partition(b":")
    return known_leaf(int(version), Path(os.fsdecode(directory))) if colon else None


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  names are all that is wanted
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


def _nobody_waits_for_the_end_of(fd: int) -> bool:
    """Whether it is a file or a terminal, and no pipe whose reader would wait for us."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISCHR(mode)


def _end_everything(leaf: Leaf | None, mark: str) -> None:
    if leaf is not None:
        _remove(leaf)
        return
    for _ in range(_ROUNDS):
        marked = marked_processes(mark)
        if not marked:
            return
        for pid in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # ended, or setuid
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _remove(leaf: Leaf) -> None:
    """For as long as it takes: a process that hangs in the kernel dies when that lets go of it."""
    for attempt in range(_REMOVALS):
        try:
            leaf.remove()
        except (OomproofError, OSError) as error:
            if attempt == 0:
                _complain(f"oomproof was killed, and its guardian could not clean up yet: {error}")
            time.sleep(1.0)
        else:
            return


def _complain(message: str) -> None:
    with contextlib.suppress(
        OSError
    ):  # a pipe that was given up, a disk that is full: nobody is left to tell
        os.write(2, f"oomproof: warning: {message}\n".encode())


def marked_processes(mark: str) -> list[int]:
    """Processes whose environment at their start held `mark`."""
    needle = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208  names are all that is wanted
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                environment = Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue  # ended meanwhile, or another user's
            if needle in environment.split(b"\0"):
                found.append(int(entry))
    return found
