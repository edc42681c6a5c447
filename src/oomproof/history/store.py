"""The history file: SQLite, in the state directory, safe for several oomproofs at once.

An attempt is committed as started before its program exists, so that a death of the
whole container leaves a started attempt without an end.
Not covered: what to do when the file cannot be used, see `record`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from oomproof.errors import HistoryError
from oomproof.history.model import OpenAttempt, Outcome, Run

SCHEMA_VERSION = 2
BUSY_TIMEOUT_S = 5.0
TOLD_TO_END = "stopped"
"""The verdict of an attempt that was asked to end, as long as it has not ended."""

_SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    started_at TEXT NOT NULL,
    verb TEXT NOT NULL,
    command TEXT NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT,
    supervisor_pid INTEGER NOT NULL,
    limit_bytes INTEGER,
    planned_bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES runs (id),
    attempt INTEGER NOT NULL,
    budget_bytes INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT,
    verdict TEXT,
    confidence TEXT,
    exit_code INTEGER,
    signal INTEGER,
    oom_kills INTEGER,
    peak_bytes INTEGER,
    duration_s REAL,
    next_budget_bytes INTEGER,
    evidence TEXT
) STRICT;
CREATE INDEX attempts_of_run ON attempts (run_id, attempt);
"""
_MIGRATIONS = (_SCHEMA, "ALTER TABLE attempts ADD COLUMN rate REAL;")
"""From the empty file on, one for each version."""


class History:
    """An open history file. Every method commits before it returns; sqlite3.Error passes through."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> History:
        """Open or create the file and its directory.

        Raises OSError or sqlite3.Error when that cannot be done (sqlite3.DatabaseError that is
        no OperationalError: the file is damaged), HistoryError when a newer oomproof wrote it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            # FULL: a started attempt must survive the power being cut, not only a kill.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_started(self, run: Run) -> int:
        """Write down a run; returns its id."""
        return self._insert(
            "runs",
            started_at=_now(),
            verb=run.verb,
            command=json.dumps(run.command),
            host=os.uname().nodename,
            boot_id=_boot_id(),
            supervisor_pid=run.supervisor_pid,
            limit_bytes=run.limit_bytes,
            planned_bytes=run.planned_bytes,
        )

    def attempt_started(
        self, run_id: int, attempt: int, budget_bytes: int, found: Mapping[int, Outcome] | None = None
    ) -> int:
        """Write down that attempt number `attempt` (from 1) is about to start; returns its id.

        `found` are the ends of open attempts by their id. They are closed in the same transaction:
        what they taught is lost only together with the start that it was for.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for attempt_id, outcome in (found or {}).items():
                self._end(attempt_id, outcome)
            attempt_id = self._insert(
                "attempts", run_id=run_id, attempt=attempt, budget_bytes=budget_bytes, started_at=_now()
            )
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        return attempt_id

    def told_to_end(self, attempt_id: int, signal: int) -> None:
        """Write down that an attempt under way was asked to end: its death will be no OOM."""
        self._connection.execute(
            f"UPDATE attempts SET verdict = '{TOLD_TO_END}', signal = ? WHERE id = ? AND ended_at IS NULL",  # noqa: S608
            (signal, attempt_id),
        )

    def attempt_ended(self, attempt_id: int, outcome: Outcome) -> None:
        """Write down how it ended."""
        self._end(attempt_id, outcome)

    def _end(self, attempt_id: int, outcome: Outcome) -> None:
        self._connection.execute(
            "UPDATE attempts SET ended_at = ?, verdict = ?, confidence = ?, exit_code = ?, signal = ?,"
            " oom_kills = ?, peak_bytes = ?, duration_s = ?, next_budget_bytes = ?, evidence = ?, rate = ?"
            " WHERE id = ? AND ended_at IS NULL",
            (
                _now(),
                outcome.verdict,
                outcome.confidence,
                outcome.exit_code,
                outcome.signal,
                outcome.oom_kills,
                outcome.peak_bytes,
                outcome.duration_s,
                outcome.next_budget_bytes,
                json.dumps(outcome.evidence),
                outcome.rate,
                attempt_id,
            ),
        )

    def open_attempts(
        self, command: Sequence[str], limit_bytes: int | None, is_alive: Callable[[int], bool]
    ) -> list[OpenAttempt]:
        """Attempts of this command under this limit that have no end, oldest first.

        `is_alive` tells of a run's id whether its oomproof still runs; those are left out.
        """
        rows = self._connection.execute(
            "SELECT attempts.id, attempts.attempt, attempts.started_at, attempts.budget_bytes, runs.boot_id,"
            " attempts.signal, runs.id FROM attempts JOIN runs ON runs.id = attempts.run_id"
            " WHERE attempts.ended_at IS NULL AND runs.command = ? AND runs.limit_bytes IS ?"
            " ORDER BY attempts.id",
            (json.dumps(command), limit_bytes),
        ).fetchall()
        boot_id = _boot_id()
        return [
            OpenAttempt(
                id=row[0],
                attempt=row[1],
                started_at=row[2],
                budget_bytes=row[3],
                same_boot=None if None in (row[4], boot_id) else row[4] == boot_id,
                told_to_end=row[5],
            )
            for row in rows
            if not is_alive(row[6])
        ]

    def attempts(self) -> list[dict[str, object]]:
        """All attempts with the facts of their run, oldest first."""
        cursor = self._connection.execute(
            "SELECT runs.verb, runs.command, runs.host, runs.limit_bytes, attempts.*"
            " FROM attempts JOIN runs ON runs.id = attempts.run_id ORDER BY attempts.id"
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def _insert(self, table: str, **values: object) -> int:
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        statement = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608 - names from this file
        row_id = self._connection.execute(statement, _sql_values(values)).lastrowid
        assert row_id is not None  # noqa: S101 - an INSERT that did not raise has one
        return row_id


def _sql_values(values: Mapping[str, object]) -> Sequence[object]:
    return list(values.values())


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to SCHEMA_VERSION. Others may be doing the same at this moment."""
    if _version(connection) < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        for script in _MIGRATIONS[_version(connection) :]:
            for statement in filter(str.strip, script.split(";")):
                connection.execute(statement)
        if _version(connection) < SCHEMA_VERSION:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    if _version(connection) > SCHEMA_VERSION:
        raise HistoryError(
            f"a newer oomproof wrote it, schema {_version(connection)}, and this one knows {SCHEMA_VERSION}"
        )


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None  # masked in some containers; the record is complete without it
