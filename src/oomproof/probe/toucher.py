"""The sacrificial process: a script of its own, started as ``python -I -S toucher.py``.

Two processes, so that nothing is left behind whichever one dies:

- the *toucher* makes itself the OOM killer's first choice, joins the leaf cgroup, and
  touches as much as it is told; it dies with the guard;
- the *guard*, its parent, holds no memory. It kills the toucher as soon as the command
  pipe is closed, and, when oomproof itself has died, removes the leaf cgroup too.

File descriptors: 0 commands (``join DIRECTORY``, ``touch BYTES``, ``release``), 1 answers, 3 the
lifeline, which stays open until oomproof is done or dead; what is written there
(``VERSION DIRECTORY``) names the leaf to remove.
Arguments: directory that holds the package ``oomproof``, shape of the memory (`model.Shape`),
largest number of threads.
Not covered: how much to touch and when to stop, see `decide`.
"""

# Every import is memory that cannot be probed: `signal` and `threading` alone would be 1.3 MiB.
# ruff: noqa: PTH112, PTH123, PLC0415
from __future__ import annotations

import _thread
import ctypes
import errno
import os
import select
import sys

_COMMANDS, _ANSWERS, _LIFELINE = 0, 1, 3
_SIGKILL = 9
_PR_SET_PDEATHSIG = 1
_PROT_READ_WRITE = 0x1 | 0x2
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS = 0x01, 0x02, 0x20
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_ACCOUNTS = ("VmPTE", "RssAnon", "RssShmem", "VmSwap")
_PIECE = 4 << 20
"""What a thread populates in one call: long beside the cost of a call, and whole huge pages."""

_regions: list[tuple[int, int]] = []
"""Address and size of what is held."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def main(package: str, shape: str, threads: str) -> int:
    """Fork into guard and toucher; both come back here to exit."""
    guard = os.getpid()
    toucher = os.fork()
    if toucher == 0:
        os.close(_LIFELINE)
        return _serve(guard, shape, int(threads))
    os.close(_ANSWERS)
    _guard(toucher, package)
    return 0


def _guard(toucher: int, package: str) -> None:
    _wait_for_close(_COMMANDS)
    os.kill(toucher, _SIGKILL)
    os.waitpid(toucher, 0)
    _wait_for_close(_LIFELINE)
    version, _, leaf = os.read(_LIFELINE, 1 << 16).decode().partition(" ")
    if leaf and os.path.isdir(leaf):
        _remove_leaf(version, leaf, package)


def _wait_for_close(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # POLLHUP alone: what is written is for the toucher
    poll.poll()


def _remove_leaf(version: str, leaf: str, package: str) -> None:
    """What oomproof would have done, had it lived."""
    sys.path.insert(0, package)
    from pathlib import Path

    from oomproof.leaf import known_leaf

    known_leaf(int(version), Path(leaf)).remove()


def _serve(guard: int, shape: str, threads: int) -> int:
    """Answer commands until the pipe is closed or one cannot be obeyed."""
    try:
        _die_with(guard)
        _write("/proc/self/oom_score_adj", "1000")
        with open(_COMMANDS, "rb", buffering=0) as commands:
            for line in commands:
                _answer(_obey(line.decode().removesuffix("\n"), shape, threads))
    except OSError as error:
        _answer(f"failed {error.filename}: {error.strerror}")
        return 1
    return 0


def _obey(command: str, shape: str, threads: int) -> str:
    word, _, argument = command.partition(" ")
    if word == "join":
        if argument:
            _write(f"{argument}/cgroup.procs", "0")
        return f"ready {_accounts()}"
    if word == "release":
        # Not by exiting: the OOM killer no longer sees a process that exits, and would take a
        # neighbour that grows while the memory is on its way back.
        while _regions:
            _libc.munmap(*_regions.pop())
        return f"done {_accounts()}"
    trouble = _touch(int(argument), shape, threads)
    return trouble or f"done {_accounts()}"


def _die_with(guard: int) -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != guard:  # it died before the kernel knew
        os.kill(os.getpid(), _SIGKILL)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def _answer(line: str) -> None:
    os.write(_ANSWERS, line.encode() + b"\n")


def _accounts() -> str:
    """The kernel's accounts of this process, as ``name=bytes`` words."""
    words = []
    with open("/proc/self/status", "rb") as status:
        for line in status:
            name, _, rest = line.decode().partition(":")
            if name in _ACCOUNTS:
                words.append(f"{name}={int(rest.split()[0]) * 1024}")
    return " ".join(words)


def _touch(size: int, shape: str, threads: int) -> str:
    """Map `size` bytes and have every page backed; returns "", or the trouble with nothing kept."""
    sharing = _MAP_SHARED if shape == "shmem" else _MAP_PRIVATE
    address = _libc.mmap(None, size, _PROT_READ_WRITE, sharing | _MAP_ANONYMOUS, -1, 0)
    if address == _MAP_FAILED:
        return f"refused {os.strerror(ctypes.get_errno())}"
    if shape == "hugepage":
        _libc.madvise(address, size, _MADV_HUGEPAGE)  # advice: a kernel without huge pages refuses it
    trouble = ""
    if error := _in_parallel(address, size, threads):
        trouble = f"refused {os.strerror(error)}"
    elif shape == "pinned" and _libc.mlock(address, size) != 0:
        trouble = f"unlockable {os.strerror(ctypes.get_errno())}"
    if trouble:
        _libc.munmap(address, size)
    else:
        _regions.append((address, size))
    return trouble


def _in_parallel(address: int, size: int, most_threads: int) -> int:
    """`_populate` by several threads at once; 0, or the errno of a piece that failed.

    In pieces, because the kernel holds the address space's lock during a call: a thread that
    starts, or Python that wants memory, would wait until all is done. And a thread that gets
    less processor time leaves more pieces to the others.
    """
    threads = max(1, min(most_threads, size // _PIECE))
    starts = iter(range(0, size, _PIECE))
    taking = _thread.allocate_lock()
    errors: list[int] = []

    def populate(ended: _thread.LockType) -> None:
        while not errors:
            with taking:
                start = next(starts, None)
            if start is None:
                break
            if error := _populate(address + start, min(_PIECE, size - start)):
                errors.append(error)
        ended.release()

    ends = [_thread.allocate_lock() for _ in range(threads)]
    for ended in ends:
        ended.acquire()
    for ended in ends[1:]:
        _thread.start_new_thread(populate, (ended,))
    populate(ends[0])
    for ended in ends:
        ended.acquire()
    return errors[0] if errors else 0


def _populate(address: int, size: int) -> int:
    """Have the kernel back every page of the range; 0, or an errno. Lets other threads run."""
    if _libc.madvise(address, size, _MADV_POPULATE_WRITE) == 0:
        return 0
    error = ctypes.get_errno()
    if error != errno.EINVAL:
        return error
    ctypes.memset(address, 1, size)  # before Linux 5.14: one fault a page, in C all the same
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
