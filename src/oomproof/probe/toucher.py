"""The sacrificial process: a script of its own, started as ``python -I -S toucher.py``.

Two processes, so that nothing is left behind whichever one dies:

- the *toucher* makes itself the OOM killer's first choice, joins the leaf cgroup, and
  touches as much as it is told; it dies with the guard;
- the *guard*, its parent, holds no memory. It kills the toucher as soon as the command
  pipe is closed, and, when oomproof itself has died, removes the leaf cgroup too.

File descriptors: 0 commands (``join DIRECTORY``, ``load cuda-pinned``, ``touch BYTES SHAPE``,
``release``), 1 answers, 3 the lifeline, which stays open until oomproof is done or dead; what is
written there (``VERSION DIRECTORY``) names the leaf to remove. 4, where files are to be mapped, an
empty file. SHAPE is one of `model.Shape`.
Arguments: directory that holds the package ``oomproof``, largest number of threads.
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oomproof.probe.cuda import Driver

_COMMANDS, _ANSWERS, _LIFELINE, _FILE = 0, 1, 3, 4
_SIGKILL = 9
_PR_SET_PDEATHSIG = 1
_PROT_READ, _PROT_READ_WRITE = 0x1, 0x1 | 0x2
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS = 0x01, 0x02, 0x20
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_HUGEPAGE = 14
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23  # Linux 5.14
_ACCOUNTS = ("VmPTE", "RssAnon", "RssFile", "RssShmem", "VmSwap")
_PIECE = 4 << 20
"""What a thread populates in one call: long beside the cost of a call, and whole huge pages."""

_regions: list[tuple[int, int]] = []
"""Address and size of what is held."""
_driver: Driver | None = None
"""Holds what CUDA has page-locked, once it is loaded."""

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
_libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


def main(package: str, threads: str) -> int:
    """Fork into guard and toucher; both come back here to exit."""
    guard = os.getpid()
    toucher = os.fork()
    if toucher == 0:
        os.close(_LIFELINE)
        return _serve(guard, package, int(threads))
    os.close(_ANSWERS)
    _close_file()
    _guard(toucher, package)
    return 0


def _close_file() -> None:
    """The file's pages live as long as any process has it open; so only the toucher may."""
    try:
        os.close(_FILE)
    except OSError as error:
        if error.errno != errno.EBADF:  # no file is to be mapped
            raise


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


def _serve(guard: int, package: str, threads: int) -> int:
    """Answer commands until the pipe is closed or one cannot be obeyed."""
    try:
        _die_with(guard)
        _write("/proc/self/oom_score_adj", "1000")
        with open(_COMMANDS, "rb", buffering=0) as commands:
            for line in commands:
                _answer(_obey(line.decode().removesuffix("\n"), package, threads))
    except OSError as error:
        _answer(f"failed {error.filename}: {error.strerror}")
        return 1
    return 0


def _obey(command: str, package: str, threads: int) -> str:
    word, _, argument = command.partition(" ")
    if word == "join":
        if argument:
            _write(f"{argument}/cgroup.procs", "0")
        return f"ready {_accounts()}"
    if word == "load":
        return _load_driver(package) or f"ready {_accounts()}"
    if word == "release":
        _release()
        return f"done {_accounts()}"
    size, _, shape = argument.partition(" ")
    trouble = _pin_with_driver(int(size)) if shape == "cuda-pinned" else _touch(int(size), shape, threads)
    return trouble or f"done {_accounts()}"


def _release() -> None:
    """Give all back. Not by exiting: the OOM killer no longer sees a process that exits, and would
    take a neighbour that grows while the memory is on its way back."""
    while _regions:
        _libc.munmap(*_regions.pop())
    _close_file()  # unmapping alone leaves its pages in the page cache
    if _driver is not None:
        _driver.release()


def _load_driver(package: str) -> str:
    """Make ready to page-lock through CUDA; returns "", or why that cannot be done."""
    global _driver  # noqa: PLW0603 - this process is one toucher
    sys.path.insert(0, package)
    from oomproof.probe.cuda import Driver, DriverMissing

    try:
        _driver = Driver()
    except DriverMissing as error:
        return f"failed {error}"
    return ""


def _pin_with_driver(size: int) -> str:
    if _driver is None:
        return "failed touch cuda-pinned came before load"
    reason = _driver.pin(size)
    return f"refused {reason}" if reason else ""


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
    try:
        address = _map_file(size) if shape == "file" else _map(size, shape)
    except OSError as error:
        return f"refused {error.strerror}"
    if shape == "hugepage":
        _libc.madvise(address, size, _MADV_HUGEPAGE)  # advice: a kernel without huge pages refuses it
    trouble = ""
    populate = _populate_read if shape == "file" else _populate
    if number := _in_parallel(address, size, threads, populate):
        trouble = f"refused {os.strerror(number)}"
    elif shape == "pinned" and _libc.mlock(address, size) != 0:
        trouble = f"unlockable {os.strerror(ctypes.get_errno())}"
    if trouble:
        _libc.munmap(address, size)
        if shape == "file":
            os.ftruncate(_FILE, os.fstat(_FILE).st_size - size)
    else:
        _regions.append((address, size))
    return trouble


def _map(size: int, shape: str) -> int:
    sharing = _MAP_SHARED if shape == "shmem" else _MAP_PRIVATE
    return _mmap(size, _PROT_READ_WRITE, sharing | _MAP_ANONYMOUS, -1, 0)


def _map_file(size: int) -> int:
    """More of the file, which becomes longer by a hole: its pages are memory and no block of a disk."""
    end, page = os.fstat(_FILE).st_size, os.sysconf("SC_PAGE_SIZE")
    start = -(-end // page) * page
    os.ftruncate(_FILE, start + size)
    try:
        return _mmap(size, _PROT_READ, _MAP_SHARED, _FILE, start)
    except OSError:
        os.ftruncate(_FILE, end)
        raise


def _mmap(size: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    address: int = _libc.mmap(None, size, protection, flags, descriptor, offset)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address


def _in_parallel(address: int, size: int, most_threads: int, populate: Callable[[int, int], int]) -> int:
    """`populate` by several threads at once; 0, or the errno of a piece that failed.

    In pieces, because the kernel holds the address space's lock during a call: a thread that
    starts, or Python that wants memory, would wait until all is done. And a thread that gets
    less processor time leaves more pieces to the others.
    """
    threads = max(1, min(most_threads, size // _PIECE))
    starts = iter(range(0, size, _PIECE))
    taking = _thread.allocate_lock()
    errors: list[int] = []

    def work(ended: _thread.LockType) -> None:
        while not errors:
            with taking:
                start = next(starts, None)
            if start is None:
                break
            if error := populate(address + start, min(_PIECE, size - start)):
                errors.append(error)
        ended.release()

    ends = [_thread.allocate_lock() for _ in range(threads)]
    for ended in ends:
        ended.acquire()
    for ended in ends[1:]:
        try:
            _thread.start_new_thread(work, (ended,))
        except RuntimeError:  # pids.max, or no address space for its stack: those that run do its pieces
            ended.release()
    work(ends[0])
    for ended in ends:
        ended.acquire()
    return errors[0] if errors else 0


def _populate(address: int, size: int) -> int:
    """Have the kernel back every page of the range; 0, or an errno. Lets other threads run."""
    error = _advise(address, size, _MADV_POPULATE_WRITE)
    if error != errno.EINVAL:
        return error
    ctypes.memset(address, 1, size)  # before Linux 5.14: one fault a page, in C all the same
    return 0


def _populate_read(address: int, size: int) -> int:
    """The same without writing: pages of a file stay clean, so that none of them goes to the disk."""
    error = _advise(address, size, _MADV_POPULATE_READ)
    if error == errno.EINVAL:
        _libc.memchr(address, 1, size)  # reads zeros to the end
        return 0
    return error


def _advise(address: int, size: int, advice: int) -> int:
    return 0 if _libc.madvise(address, size, advice) == 0 else ctypes.get_errno()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
