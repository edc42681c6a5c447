"""Memory mapped from the kernel: ``heap`` (pages come when they are touched) and ``mlock`` (page-locked).

Locking is done by mlock(2) after mapping: ``MAP_LOCKED`` alone would hide that a page could not be had
(mmap(2)), and mlock2(2) without flags is mlock(2). Locked pages count towards RLIMIT_MEMLOCK unless the
process has CAP_IPC_LOCK. Large regions ask for huge pages: fewer faults, smaller page tables.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource

from oomproof.errors import PinningUnavailable
from oomproof.limits.accounts import read_process_accounts
from oomproof.limits.files import Tree
from oomproof.memory.backends import Region
from oomproof.units import MIB, format_size

HUGE_PAGE_BYTES = 2 * MIB
"""What x86-64 and arm64 with 4 KiB pages have; elsewhere it is only an alignment."""

_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_HUGEPAGE = 14

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


class HeapBackend:
    """Ordinary anonymous memory, charged as it is touched."""

    name = "heap"

    def allocate(self, size_bytes: int) -> Region:
        """Map `size_bytes`; raises MemoryError when the kernel refuses."""
        address = _map(size_bytes)
        return Region(address, size_bytes, False, self.name, lambda: _unmap(address, size_bytes))


class MlockBackend:
    """Memory whose pages are all there and stay there."""

    name = "mlock"

    def allocate(self, size_bytes: int) -> Region:
        """Map and lock `size_bytes`; nothing is kept when it cannot be locked."""
        address = _map(size_bytes)
        try:
            locked = _libc.mlock(address, size_bytes) == 0
        except BaseException:  # of a signal handler: it may take seconds
            _unmap(address, size_bytes)
            raise
        if not locked:
            number = ctypes.get_errno()
            _unmap(address, size_bytes)
            raise PinningUnavailable(_why_not_locked(number, size_bytes))
        return Region(address, size_bytes, True, self.name, lambda: _unmap(address, size_bytes))


def _map(size_bytes: int) -> int:
    """Map anonymous memory, aligned to a huge page where it can hold one."""
    slack = HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else 0
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, size_bytes + slack, protection, flags, -1, 0)
    if address == _MAP_FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise MemoryError(
            f"mmap of {format_size(size_bytes)}: {reason}: lower what is asked for, or raise RLIMIT_AS"
            " (ulimit -v) or vm.overcommit_memory's bound"
        )
    if not slack:
        return int(address)
    head = -address % HUGE_PAGE_BYTES
    if head:
        _unmap(address, head)
    if slack - head:
        _unmap(address + head + size_bytes, slack - head)
    _libc.madvise(address + head, size_bytes, _MADV_HUGEPAGE)  # advice: refused by kernels without them
    return int(address + head)


def _unmap(address: int, size_bytes: int) -> None:
    if _libc.munmap(address, size_bytes) != 0:
        raise OSError(ctypes.get_errno(), f"munmap of {format_size(size_bytes)} failed")


def _why_not_locked(number: int, size_bytes: int) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    what = f"{format_size(size_bytes)} cannot be page-locked"
    process = read_process_accounts(Tree())
    locked = process.locked or 0
    limited = soft != resource.RLIM_INFINITY and locked + size_bytes > soft
    if number == errno.EPERM or (number in (errno.ENOMEM, errno.EAGAIN) and limited):
        enough = hard == resource.RLIM_INFINITY or locked + size_bytes <= hard
        remedy = (
            "raise the soft limit (resource.setrlimit; the hard limit allows it)"
            if enough
            else "raise it (ulimit -l, LimitMEMLOCK= of systemd, docker run --ulimit memlock=-1)"
            " or grant CAP_IPC_LOCK"
        )
        return (
            f"{what}: RLIMIT_MEMLOCK is {format_size(soft)} and {format_size(locked)} is locked already:"
            f" {remedy}, or use the backend 'heap'"
        )
    return f"{what}: mlock: {os.strerror(number)}: lower what is asked for, or use the backend 'heap'"
