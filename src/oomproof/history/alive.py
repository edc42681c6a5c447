"""Which of the oomproofs that share a history are still there: each holds a lock for its life.

A run locks one byte, numbered by its id, of a file beside the history (``...-live``). The kernel
gives the lock back with the process, however that ends; it means the same in every container
and pid namespace that shares the file, which a pid would not.
Not covered: file systems without locks; there nobody is taken for dead.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

SUFFIX = "-live"


def hold(history: Path, run_id: int) -> int:
    """Lock the byte of our run until the descriptor that is returned is closed, or this process ends.

    POSIX takes away all locks of a process on a file with any descriptor of it: one run at a time.
    Raises OSError where there are no locks.
    """
    fd = _open(history)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, run_id)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_alive(history: Path, run_id: int) -> bool:
    """Whether the oomproof of that run still lives, or that cannot be told.

    To be asked by a process that holds no lock of its own: its answer closes the file.
    """
    try:
        fd = _open(history)
        try:
            # Shared: two that ask at the same time do not take each other for the owner.
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, run_id)
        finally:
            os.close(fd)
    except OSError:
        return True
    return False


def _open(history: Path) -> int:
    path = history.with_name(history.name + SUFFIX)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
