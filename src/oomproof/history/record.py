"""How a launcher writes the history: a disk that cannot be used is said once, never a refusal to start.

Not covered: the file itself, see `store`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from oomproof.errors import HistoryError
from oomproof.history.store import History, Outcome, Run

_T = TypeVar("_T")

REMEDY = "name a writable place with --history FILE or OOMPROOF_STATE_DIR, or pass --history none"


class Record:
    """The history of one run. After a failure it goes on without memory; `warn` is told once."""

    def __init__(self, history: History | None, warn: Callable[[str], None]) -> None:
        self._history = history
        self._warn = warn
        self._run_id: int | None = None

    def run_started(self, run: Run) -> None:
        """Write down the run that the following attempts belong to."""
        self._run_id = self._try(lambda history: history.run_started(run))

    def attempt_started(self, attempt: int, budget_bytes: int) -> int | None:
        """Committed when this returns; None when nothing is remembered."""
        run_id = self._run_id
        if run_id is None:
            return None
        return self._try(lambda history: history.attempt_started(run_id, attempt, budget_bytes))

    def attempt_ended(self, attempt_id: int | None, outcome: Outcome) -> None:
        """Write down the end of an attempt of `attempt_started`."""
        if attempt_id is not None:
            self._try(lambda history: history.attempt_ended(attempt_id, outcome))

    def close(self) -> None:
        """Release the file."""
        if self._history is not None:
            self._history.close()
            self._history = None

    def _try(self, write: Callable[[History], _T]) -> _T | None:
        if self._history is None:
            return None
        try:
            return write(self._history)
        except sqlite3.Error as error:
            self._warn(f"the history cannot be written ({error}), attempts are not remembered: {REMEDY}")
            self.close()
            return None


def open_record(path: Path, warn: Callable[[str], None], *, required: bool) -> Record:
    """The record kept in `path`.

    A damaged file is set aside and a new one begun. A file that cannot be opened or written is
    a warning, or, when the caller was asked for this very file (`required`), a HistoryError.
    """
    try:
        return Record(_open_or_replace(path, warn), warn)
    except (OSError, sqlite3.Error, HistoryError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        message = f"the history {path} cannot be used ({cause})"
        if required:
            raise HistoryError(f"{message}: {REMEDY}") from error
        warn(f"{message}, attempts are not remembered: {REMEDY}")
        return Record(None, warn)


def _open_or_replace(path: Path, warn: Callable[[str], None]) -> History:
    try:
        return History.open(path)
    except sqlite3.OperationalError:
        raise  # locked, full, read-only: the file itself may be fine
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        path.rename(aside)
        for companion in ("-wal", "-shm"):
            path.with_name(path.name + companion).unlink(missing_ok=True)
        warn(f"the history {path} is damaged ({error}): set aside as {aside.name}, a new one is begun")
        return History.open(path)
