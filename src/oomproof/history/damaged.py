"""A file that is no history any more: it is set aside, once, and a new one begun.

Imports SQLite, so a launcher leaves it to its children. Not covered: what cannot be opened, see `record`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from oomproof.errors import HistoryError
from oomproof.history import alive
from oomproof.history.store import History

_SQLITE_HEADER = b"SQLite format 3\0"


def open_or_replace(path: Path, warn: Callable[[str], None], *, replace_any: bool) -> History:
    """The history in `path`; a damaged one is set aside and a new one begun.

    Without `replace_any` only what is an SQLite file is taken for a damaged history.
    """
    file = identity(path)
    if _is_something_else(path):
        if not replace_any:
            raise HistoryError("it is something else than a history")
        set_aside(path, file, "no SQLite file", warn)
        file = identity(path)
    try:
        return History.open(path)
    except sqlite3.OperationalError:
        raise  # locked, full, read-only: the file itself may be fine
    except sqlite3.DatabaseError as error:
        set_aside(path, file, str(error), warn)
        return History.open(path)


def set_aside(path: Path, file: object, why: str, warn: Callable[[str], None]) -> None:
    """Unless another oomproof was first: then `path` is no longer `file`, but a new history."""
    with _alone_in(path.parent):
        if identity(path) != file:
            return
        aside = f".damaged-{time.strftime('%Y%m%dT%H%M%S')}"
        # Its companions go with it: they may hold what the file itself lost. They go first: once the file is
        # away, others may have made those of a new one.
        for companion in ("-wal", "-shm", alive.SUFFIX, ""):
            part = path.with_name(path.name + companion)
            if part.exists():
                part.rename(path.with_name(path.name + aside + companion))
    warn(f"the history {path} is damaged ({why}): set aside as {path.name}{aside}, a new one is begun")


def identity(target: Path | str) -> tuple[int, int] | None:
    """Which file it is, whatever it is called; None: there is none."""
    try:
        found = Path(target).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other oomproof sets a file aside there meanwhile, on a disk that has locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_something_else(path: Path) -> bool:
    """Looked at before SQLite opens it, which would throw the companions of such a file away."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_HEADER)) not in (b"", _SQLITE_HEADER)
    except FileNotFoundError:
        return False


def is_damage(error: Exception) -> bool:
    """Whether the file itself is at fault."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
