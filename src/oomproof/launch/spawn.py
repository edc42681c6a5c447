"""One process, started the way a shell starts a job: own process group, terminal, clean slate.

The child joins its leaf cgroup before it executes the program, so that not one page of
the program is charged elsewhere. What goes wrong before or in ``execve`` comes back
over a close-on-exec pipe. stdin, stdout, stderr and inheritable descriptors pass through.
Not covered: watching the process, see `oomproof.launch.supervisor`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from oomproof.errors import CommandError, CommandNotExecutable, CommandNotFound, OomproofError
from oomproof.launch import process_control
from oomproof.launch.model import SpawnFailure, SpawnStep
from oomproof.launch.signals import Signals
from oomproof.launch.terminal import Terminal

_STEPS = list(SpawnStep)


@dataclass(frozen=True, slots=True)
class Start:
    """What to start, and where."""

    command: Sequence[str]
    environment: Mapping[str, str]
    join_path: Path | None = None
    """``cgroup.procs`` of the cgroup to run in; None: where we are."""
    oom_score_adj: int = 0
    """The child's, unless our own is higher already."""
    terminal: Terminal | None = None
    """To give to the child; None when it is not ours to give."""
    streams: Mapping[int, int] = field(default_factory=dict)
    """Descriptors of ours to give the child as its stdin, stdout or stderr (0, 1, 2); the others are ours."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was forked; whether it could execute the program is told by `report_fd`."""

    pid: int
    report_fd: int
    """Readable when the program was executed (end of file) or could not be; see `read_report`."""


def spawn(start: Start, signals: Signals) -> Child | SpawnFailure:
    """Fork; the child joins its cgroup and executes the command by PATH search.

    Returns at once: `read_report` tells whether the program could be executed.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    # With all signals blocked none can be caught twice, by us and by the copy of us.
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(start, signals, writer, parent)
    except OSError as error:
        os.close(reader)
        return SpawnFailure(SpawnStep.FORK, error.errno or 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writer)
    # The child does the same: whoever comes first, the group exists before anyone signals it.
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)
    return Child(pid, reader)


def read_report(child: Child) -> SpawnFailure | None:
    """Why the program of `child` could not be executed; None when it was (or died before)."""
    report = os.read(child.report_fd, 64)
    os.close(child.report_fd)
    if not report:
        return None
    step, number = report.split()
    return SpawnFailure(_STEPS[int(step)], int(number))


def _become(start: Start, signals: Signals, report: int, parent: int) -> NoReturn:
    """The forked child: never returns and never raises."""
    step = SpawnStep.PREPARE
    try:
        process_control.die_with_parent(parent)
        os.setpgid(0, 0)
        if start.terminal is not None:
            start.terminal.give_to(os.getpid())
        process_control.raise_oom_score_adj(start.oom_score_adj)
        if start.join_path is not None:
            step = SpawnStep.JOIN
            _write(start.join_path, b"0")
        for number, descriptor in start.streams.items():
            os.dup2(descriptor, number)
        step = SpawnStep.EXEC
        signals.restore_for_child()
        _execute(start)
    except OSError as error:
        os.write(report, b"%d %d" % (_STEPS.index(step), error.errno or 0))
    except BaseException:  # noqa: BLE001  nothing of the parent's code may ever run on in the child
        os.write(report, b"%d %d" % (_STEPS.index(step), errno.EINVAL))
    finally:
        os._exit(127)


def _execute(start: Start) -> NoReturn:
    if not start.command[0]:
        raise FileNotFoundError(errno.ENOENT, "an empty name")  # PATH search would find a directory
    os.execvpe(start.command[0], list(start.command), dict(start.environment))  # noqa: S606  no shell: wanted


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, data)
    os.close(fd)


def failure_to_error(failure: SpawnFailure, command: Sequence[str], path: str | None) -> OomproofError:
    """The error that a user should read about a program that never ran."""
    name = command[0]
    reason = os.strerror(failure.errno)
    if failure.step is SpawnStep.FORK:
        return OomproofError(
            f"no process could be forked for {name!r}: {reason}; free memory, or raise pids.max and ulimit -u"
        )
    if failure.step is SpawnStep.JOIN:
        return OomproofError(
            f"{name!r} could not enter its limited cgroup: {reason}; see that its cgroup.procs can be written"
            " to, or go without --limit"
        )
    if failure.step is not SpawnStep.EXEC:
        return OomproofError(
            f"the process for {name!r} could not be prepared ({failure.step.value}): {reason}"
        )
    return _exec_error(failure.errno, name, reason, path)


def executable_problem(name: str, path: str | None) -> OomproofError | None:
    """Why `name` cannot be executed, as far as can be told without executing it; None: it most likely can."""
    places = [""] if "/" in name else (os.defpath if path is None else path).split(":")
    files = [os.path.join(place, name) for place in places]  # noqa: PTH118  as execvp does it
    if any(os.access(file, os.X_OK) and not os.path.isdir(file) for file in files):  # noqa: PTH112
        return None
    found = any(os.path.exists(file) for file in files)  # noqa: PTH110
    number = errno.EACCES if found else errno.ENOENT
    return _exec_error(number, name, os.strerror(number), path)


def _exec_error(number: int, name: str, reason: str, path: str | None) -> CommandError:
    if number not in (errno.ENOENT, errno.ENOTDIR):
        return CommandNotExecutable(f"{name!r} cannot be executed: {reason}{_CURES.get(number, '')}")
    if "/" not in name:
        where = os.defpath if path is None else path
        return CommandNotFound(
            f"command {name!r} was not found in PATH ({where}): install it or give its full path"
        )
    if Path(name).exists():
        return CommandNotFound(
            f"{name!r} exists but the interpreter or loader it asks for does not:"
            " correct its #! line or install what it needs"
        )
    return CommandNotFound(f"command {name!r} does not exist: correct the path")


_CURES = {
    errno.EACCES: "; chmod +x it, and see that it is a file on a filesystem mounted without noexec",
    errno.ENOEXEC: "; give a script its #! line, take a binary for the architecture of this machine",
    errno.E2BIG: "; pass fewer or shorter arguments and variables",
    errno.ENOMEM: "; give it a larger limit",
}
