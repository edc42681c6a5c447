"""What the C library's allocator keeps: memory that was freed by the program and not by the allocator.

Sources: mallinfo(3), malloc_trim(3). glibc 2.33 and newer tell; musl and older ones do not, and None says so.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple


class HeapAccounts(NamedTuple):
    """malloc's own accounts, over all arenas. Sizes in bytes."""

    arenas: int
    """Had from the kernel for arenas, large allocations aside."""
    mapped: int
    """Had from the kernel by allocations so large that each is a mapping."""
    in_use: int
    free: int
    """Freed chunks in arenas. What `trim_heap` would give back at most; it stays here afterwards."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


_libc = ctypes.CDLL(None)


def read_heap() -> HeapAccounts | None:
    """What malloc says now; None where this C library does not tell."""
    try:
        ask = _libc.mallinfo2
    except AttributeError:
        return None
    ask.restype = _Mallinfo2
    told = ask()
    return HeapAccounts(told.arena, told.hblkhd, told.uordblks, told.fordblks)


def trim_heap() -> bool:
    """Have malloc give back to the kernel what it can; whether it gave anything. False where it cannot."""
    try:
        return bool(_libc.malloc_trim(ctypes.c_size_t(0)))
    except AttributeError:
        return False
