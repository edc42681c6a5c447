"""This process's side of the toucher: start it, have it touch, be rid of it.

Not covered: what runs over there, see `toucher`; how much to touch, see `decide`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from oomproof.errors import ProbeError
from oomproof.leaf import Leaf
from oomproof.probe.model import Shape
from oomproof.probe.readings import NO_ACCOUNTS, Accounts

_SCRIPT = Path(__file__).with_name("toucher.py")
_PACKAGE_PARENT = Path(__file__).parents[2]
_START_TIMEOUT_S = 30.0
_LOAD_TIMEOUT_S = 120.0
"""CUDA's driver compiles for a GPU that it does not know yet."""
_RELEASE_TIMEOUT_S = 10.0
_SCRIPT_FDS = (0, 1, 3, 4)
_FIRST_FREE_FD = 10
"""Above all descriptors that have a meaning for the script."""


_ACCOUNTS = {
    "page_tables": "VmPTE",
    "anonymous": "RssAnon",
    "file": "RssFile",
    "shared": "RssShmem",
    "swapped": "VmSwap",
}
"""Fields of `Accounts` by their names in proc_pid_status(5)."""


class Outcome(Enum):
    """What became of one command."""

    READY = "ready"
    DONE = "done"
    REFUSED = "refused"
    """The kernel gave none of it; what was touched before is kept."""
    UNLOCKABLE = "unlockable"
    """The memory is there, but RLIMIT_MEMLOCK does not let it be locked; none of it is kept."""
    DIED = "died"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Answer:
    """The toucher's answer to one command."""

    outcome: Outcome
    accounts: Accounts = NO_ACCOUNTS
    reason: str = ""


class Toucher:
    """A started toucher. `close` it, then remove its leaf, then `finish`; each is safe to repeat."""

    def __init__(self, threads: int, file: int | None = None, with_packages: bool = False) -> None:
        """Start it, in the own cgroup as yet.

        `file` is a descriptor of the empty file that it may map; `with_packages` lets it import
        what is installed. Raises ProbeError when the interpreter cannot be started.
        """
        if not sys.executable:
            raise ProbeError("sys.executable is empty, so no child can be started: run oomproof with python3")
        commands_read, self._commands = _pipe()
        self._answers, answers_write = _pipe()
        lifeline_read, self._lifeline = _pipe()
        ours = [commands_read, answers_write, lifeline_read]
        if file is not None:
            ours.append(_above_the_scripts(file))
        isolation = ("-P",) if with_packages else ("-I", "-S")
        try:
            self._guard: int | None = os.posix_spawn(
                sys.executable,
                [sys.executable, *isolation, str(_SCRIPT), str(_PACKAGE_PARENT), str(threads)],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(ours, _SCRIPT_FDS, strict=False)
                ],
                setpgroup=0,  # Ctrl-C is for us: we tell the toucher
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
            )
        except OSError as error:
            for fd in (self._commands, self._answers, self._lifeline):
                os.close(fd)
            raise ProbeError(
                f"{sys.executable} cannot be started ({error.strerror}): free a process or some memory first"
            ) from error
        finally:
            for fd in ours:
                os.close(fd)
        self._pending = b""
        self._busy = False
        """Whether a command has no answer yet."""

    def inherit(self, leaf: Leaf) -> None:
        """Have the guard remove `leaf` should this process die before `finish`."""
        try:
            os.write(self._lifeline, f"{leaf.version} {leaf.directory}".encode())
        except BrokenPipeError:
            pass  # the guard is dead, and so is the toucher: `join` will tell

    def join(self, leaf: Leaf | None) -> Accounts:
        """Have it move into `leaf` (None: stay) and wait until it is ready to touch.

        Raises ProbeError when it does not get there.
        """
        answer = self._ask(f"join {leaf.directory if leaf else ''}", time.monotonic() + _START_TIMEOUT_S)
        if answer.outcome is not Outcome.READY:
            reason = answer.reason or f"it {answer.outcome.value} before it was ready"
            raise ProbeError(f"the toucher could not start ({reason}): try again, or go without a probe")
        return answer.accounts

    def load_cuda(self) -> Accounts:
        """Have it load CUDA's driver, which takes memory of its own. Raises ProbeError when it cannot."""
        answer = self._ask(f"load {Shape.CUDA_PINNED}", time.monotonic() + _LOAD_TIMEOUT_S)
        if answer.outcome is not Outcome.READY:
            reason = answer.reason or f"the toucher {answer.outcome.value}"
            raise ProbeError(f"no memory can be pinned through CUDA: {reason}")
        return answer.accounts

    def touch(self, size: int, shape: Shape, until: float | None = None) -> Answer:
        """Have it map and touch `size` more bytes; `until` is a time of `time.monotonic`.

        After ``TIMED_OUT`` it goes on, and `wait` gives the answer.
        """
        return self._ask(f"touch {size} {shape}", until)

    def wait(self, until: float | None = None) -> Answer:
        """The answer to the command that has none yet."""
        return self._read(until)

    def release(self) -> None:
        """Have it give its memory back while it is still the OOM killer's first choice.

        Only quicker and safer than `close`, which gives back what this does not, in time or at all.
        """
        if self._busy or self._commands < 0:
            return
        self._ask("release", time.monotonic() + _RELEASE_TIMEOUT_S)

    def close(self, timeout_s: float = 60.0) -> None:
        """Have it killed and wait until its memory is back; raises ProbeError when that takes too long."""
        if self._commands < 0:
            return
        os.close(self._commands)
        self._commands = -1
        deadline = time.monotonic() + timeout_s
        while (outcome := self._read(deadline).outcome) is not Outcome.DIED:
            if outcome is Outcome.TIMED_OUT:
                raise ProbeError(f"the toucher did not die within {timeout_s:.0f} s of SIGKILL: see dmesg")

    def finish(self) -> None:
        """Let the guard go, and reap it. Until then it removes the leaf, should this process die."""
        if self._guard is None:
            return
        self.close()
        os.close(self._lifeline)
        os.close(self._answers)
        guard, self._guard = self._guard, None
        try:
            os.waitpid(guard, 0)
        except ChildProcessError:
            pass  # reaped already by a launcher that waits for every child

    def _ask(self, command: str, until: float | None) -> Answer:
        self._busy = True
        try:
            os.write(self._commands, f"{command}\n".encode())
        except BrokenPipeError:
            return Answer(Outcome.DIED)
        return self._read(until)

    def _read(self, until: float | None) -> Answer:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while b"\n" not in self._pending:
            left_ms = None if until is None else max(until - time.monotonic(), 0) * 1000
            if not poll.poll(left_ms):
                return Answer(Outcome.TIMED_OUT)
            data = os.read(self._answers, 4096)
            if not data:
                return Answer(Outcome.DIED)
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        self._busy = False
        return parse_answer(line.decode())


def parse_answer(line: str) -> Answer:
    """One line of the toucher; raises ProbeError when it is none."""
    word, _, rest = line.partition(" ")
    if word == "failed":
        return Answer(Outcome.DIED, reason=rest)
    if word in ("refused", "unlockable"):
        return Answer(Outcome(word), reason=rest)
    try:
        outcome = Outcome(word)
        told = {name: int(value) for name, _, value in (pair.partition("=") for pair in rest.split())}
    except ValueError as error:
        raise ProbeError(
            f"the toucher answered {line!r}, which is no answer: report this as a fault"
        ) from error
    return Answer(outcome, Accounts(**{field: told.get(name, 0) for field, name in _ACCOUNTS.items()}))


def _pipe() -> tuple[int, int]:
    """A pipe whose two ends cannot be mistaken for standard input and output."""
    ends = os.pipe()
    try:
        read, write = (_above_the_scripts(end) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return read, write


def _above_the_scripts(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is through, so that what it makes has an owner."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
