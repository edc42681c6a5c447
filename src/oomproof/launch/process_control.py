"""What the kernel must be told about us and our children: prctl, oom_score_adj, descendants.

Not covered: cgroups, see `oomproof.leaf`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE_ADJ_MAX = 1000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02

_PPID, _PGRP = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans among our descendants become our children, as those of PID 1 do (Linux 3.4)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent dies, or at once when `parent` is dead already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def give_memory_back() -> None:
    """Return what start-up needed and nobody holds any more to the kernel (glibc; elsewhere nothing)."""
    gc.collect()
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def raise_oom_score_adj(value: int) -> None:
    """Set our own ``oom_score_adj`` to `value`, or leave it where it is higher already.

    Never lowers: a protected supervisor's negative value is not passed on, and raising
    needs no privilege.
    """
    file = Path("/proc/self/oom_score_adj")
    try:
        if int(file.read_text()) < value:
            file.write_text(str(min(value, _OOM_SCORE_ADJ_MAX)))
    except OSError:
        pass  # a masked or read-only /proc: it is a preference, not a reason to start nothing


def send(pid: int, number: int) -> bool:
    """Signal a process (or, negative, a group); False when nobody is there.

    A process that is not ours to signal (setuid) is left to be found among the survivors.
    """
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def group_of(pid: int) -> int | None:
    """The process group of `pid`; None when it has ended."""
    return _field(pid, _PGRP)


def exists(pid: int) -> bool:
    """Whether there is such a process, zombies included."""
    return _field(pid, _PPID) is not None


def alone_in_group() -> bool:
    """Whether no other process is in our process group: no pipeline, no script around us."""
    return all(_field(pid, _PGRP) != os.getpgrp() for pid in _processes() if pid != os.getpid())


def descendants(pid: int, spare: frozenset[int] = frozenset()) -> list[int]:
    """All that descend from `pid`, zombies included, without those in `spare` and their children."""
    parents = _parents()
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in spare:
                found.append(child)
                queue.append(child)
    return found


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208  names wanted


def _field(pid: int, number: int) -> int | None:
    """A field of ``/proc/PID/stat`` after the command (0 is the state); None when it cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # hidepid shows others' names and nothing more
    # The command in parentheses may hold anything: fields are counted from the last ")".
    return int(stat.rpartition(")")[2].split()[number])


def _parents() -> dict[int, int]:
    """Parent of every process that can be seen."""
    found = ((pid, _field(pid, _PPID)) for pid in _processes())
    return {pid: parent for pid, parent in found if parent is not None}


def children() -> set[int]:
    """The direct children of this process, zombies included, whichever of its threads started them."""
    pid = os.getpid()
    try:
        return {int(word) for task in _tasks(pid) for word in task.read_text().split()}
    except (FileNotFoundError, ProcessLookupError):  # no CONFIG_PROC_CHILDREN; a thread that ended
        return {child for child, parent in _parents().items() if parent == pid}


def _tasks(pid: int) -> list[Path]:
    """The kernel lists children by the thread that started them."""
    threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  names wanted
    return [Path(f"/proc/{pid}/task/{thread}/children") for thread in threads]


def kill_descendants(spare: frozenset[int], timeout_s: float) -> list[int]:
    """SIGKILL and reap everything below this process until nothing is left; returns survivors.

    Complete because we are their subreaper: who loses a parent becomes our child.
    """
    me = os.getpid()
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while children() - spare:
        alive = descendants(me, spare)
        for pid in alive:
            send(pid, signal.SIGKILL)
        for pid in alive:
            _reap(pid)
        if not children() - spare:
            break
        if time.monotonic() > deadline:
            return descendants(me, spare)
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
    return []


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # a grandchild: its own parent, or later we, will reap it
