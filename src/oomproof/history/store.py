"""The history: runs and their attempts, in SQLite in the state directory, safe for several oomproofs at once.

An attempt is committed as started before its program exists, so that a death of the
whole container leaves a started attempt without an end.
Not covered: what to do when the file cannot be used, see `record`; the same on a server, see `fleet`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from oomproof.errors import HistoryError
from oomproof.history.documents import ATTEMPT_COLUMNS, RUN_COLUMNS, checked
from oomproof.history.lessons import LACK, TEACHING_COLUMNS, observations
from oomproof.history.model import Observation, OpenAttempt, Outcome, Run, Summary
from oomproof.history.schema import MIGRATIONS, SCHEMA_VERSION, statements

__all__ = ["SCHEMA_VERSION", "Database", "History", "SqliteFile", "key_of"]

BUSY_TIMEOUT_S = 5.0
TOLD_TO_END = "stopped"
"""The verdict of an attempt that was asked to end, as long as it has not ended."""
LEARNED_FROM = 256
"""So many of the newest attempts of a key are read at a start."""

Row = tuple[Any, ...]


class Database(Protocol):
    """What `History` needs of a database: each statement is committed when it returns."""

    next_id: ClassVar[str]
    """SQL for the id of a new row of ``{table}``: no row ever had it, not even a forgotten one."""

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """The rows that it returns; ``?`` stands for a value."""
        ...

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """All statements inside are committed together, and nobody else writes meanwhile."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class SqliteFile:
    """A `Database` in one file."""

    # An oomproof may write to a row that somebody has removed meanwhile, or whose file was set aside: SQLite
    # itself would give its id to the next one. Milliseconds are beyond all that were ever counted.
    next_id: ClassVar[str] = (
        "max((SELECT coalesce(max(id), 0) + 1 FROM {table}),"
        " CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))"
    )

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            # FULL: a started attempt must survive the power being cut, not only a kill.
            self.execute("PRAGMA journal_mode = WAL")
            self.execute("PRAGMA synchronous = FULL")
            self._migrate()
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """See `Database.execute`."""
        return self._connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Database.transaction`."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def close(self) -> None:
        """See `Database.close`."""
        self._connection.close()

    def _migrate(self) -> None:
        """Bring the file to SCHEMA_VERSION. Others may be doing the same at this moment."""
        if self._version() < SCHEMA_VERSION:
            with self.transaction():
                for script in MIGRATIONS[self._version() :]:
                    for statement in statements(script):
                        self.execute(statement)
                if self._version() < SCHEMA_VERSION:
                    self.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        check_version(self._version())

    def _version(self) -> int:
        version: int = self.execute("PRAGMA user_version")[0][0]
        return version


def check_version(version: int) -> None:
    """Raises HistoryError when this oomproof is too old for it."""
    if version > SCHEMA_VERSION:
        raise HistoryError(
            f"a newer oomproof wrote it, schema {version}, and this one knows {SCHEMA_VERSION}"
        )


class History:
    """An open history. Every method commits before it returns; errors of the database pass through."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, path: Path) -> History:
        """Open or create the file and its directory.

        Raises OSError or sqlite3.Error when that cannot be done (sqlite3.DatabaseError that is
        no OperationalError: the file is damaged), HistoryError when a newer oomproof wrote it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            # For its owner alone, as are SQLite's files beside it then: command lines may hold secrets.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return cls(SqliteFile(path))

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing --------------------------------------------------------------------------

    def run_started(self, run: Run) -> int:
        """Write down a run; returns its id."""
        return self._insert(
            "runs",
            uid=os.urandom(16).hex(),
            key=key_of(run),
            started_at=_iso(time.time()),
            verb=run.verb,
            command=json.dumps(run.command),
            recipe=run.recipe,
            templates=json.dumps(run.templates),
            tag=run.tag,
            machine=run.machine,
            host=os.uname().nodename,
            boot_id=_boot_id(),
            supervisor_pid=run.supervisor_pid,
            limit_bytes=run.limit_bytes,
            planned_bytes=run.planned_bytes,
            allowed_bytes=run.allowed_bytes,
        )

    def attempt_started(
        self, run_id: int, attempt: int, budget_bytes: int, found: Mapping[int, Outcome] | None = None
    ) -> int:
        """Write down that attempt number `attempt` (from 1) is about to start; returns its id.

        `found` are the ends of open attempts by their id. They are closed in the same transaction:
        what they taught is lost only together with the start that it was for.
        """
        with self._database.transaction():
            for attempt_id, outcome in (found or {}).items():
                self.attempt_ended(attempt_id, outcome)
            started = _iso(time.time())
            return self._insert(
                "attempts", run_id=run_id, attempt=attempt, budget_bytes=budget_bytes, started_at=started
            )

    def told_to_end(self, attempt_id: int, signal: int) -> None:
        """Write down that an attempt under way was asked to end: its death will be no OOM."""
        self._database.execute(
            "UPDATE attempts SET verdict = ?, signal = ? WHERE id = ? AND ended_at IS NULL",
            (TOLD_TO_END, signal, attempt_id),
        )

    def attempt_ended(self, attempt_id: int, outcome: Outcome) -> None:
        """Write down how it ended."""
        ended: dict[str, object] = {
            "ended_at": _iso(time.time()),
            "verdict": outcome.verdict,
            "confidence": outcome.confidence,
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
            "oom_kills": outcome.oom_kills,
            "peak_bytes": outcome.peak_bytes,
            "peak_of_cgroup": int(outcome.peak_of_cgroup),
            "duration_s": outcome.duration_s,
            "next_budget_bytes": outcome.next_budget_bytes,
            "evidence": json.dumps(outcome.evidence),
            "rate": outcome.rate,
        }
        columns = ", ".join(f"{name} = ?" for name in ended)
        self._database.execute(
            f"UPDATE attempts SET {columns} WHERE id = ? AND ended_at IS NULL",  # noqa: S608 - names from this file
            [*ended.values(), attempt_id],
        )

    def forget(self, keys: Sequence[str]) -> int:
        """Remove all runs of these keys, and their attempts; returns how many runs."""
        marks = ", ".join("?" * len(keys))
        return self._remove(f"key IN ({marks})", keys) if keys else 0

    def forget_all(self) -> int:
        """Remove everything; returns how many runs there were."""
        return self._remove("id IS NOT NULL", ())

    def forget_older_than(self, days: float) -> int:
        """Remove runs that started so many days ago or earlier; returns how many."""
        since = max(0.0, time.time() - timedelta(days=days).total_seconds())
        return self._remove("started_at < ?", (_iso(since),))

    def _remove(self, which: str, values: Sequence[object]) -> int:
        with self._database.transaction():
            self._database.execute(
                f"DELETE FROM attempts WHERE run_id IN (SELECT id FROM runs WHERE {which})",  # noqa: S608
                values,
            )
            return len(self._database.execute(f"DELETE FROM runs WHERE {which} RETURNING id", values))  # noqa: S608

    def import_run(self, document: dict[str, Any]) -> bool:
        """Take in a run of `export`; False when it is here already. Raises HistoryError when it is no run."""
        run, attempts = checked(document)
        with self._database.transaction():
            if self._database.execute("SELECT id FROM runs WHERE uid = ?", (run["uid"],)):
                return False
            run_id = self._insert("runs", **run)
            for attempt in attempts:
                self._insert("attempts", run_id=run_id, **attempt)
        return True

    # -- reading --------------------------------------------------------------------------

    def open_attempts(
        self, command: Sequence[str], limit_bytes: int | None, is_alive: Callable[[int], bool]
    ) -> list[OpenAttempt]:
        """Attempts of this command under this limit that have no end, oldest first.

        `is_alive` tells of a run's id whether its oomproof still runs; those are left out.
        """
        rows = self._database.execute(
            "SELECT attempts.id, attempts.attempt, attempts.started_at, attempts.budget_bytes, runs.boot_id,"
            " attempts.signal, runs.id FROM attempts JOIN runs ON runs.id = attempts.run_id"
            " WHERE attempts.ended_at IS NULL AND runs.command = ? AND coalesce(runs.limit_bytes, -1) = ?"
            " ORDER BY attempts.id",
            (json.dumps(command), -1 if limit_bytes is None else limit_bytes),
        )
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

    def observations(self, run: Run | str) -> list[Observation]:
        """What the finished attempts of runs like `run`, or of a key, teach; oldest first."""
        key = run if isinstance(run, str) else key_of(run)
        rows = self._database.execute(
            f"SELECT {', '.join(TEACHING_COLUMNS)} FROM attempts"  # noqa: S608
            " JOIN runs ON runs.id = attempts.run_id WHERE runs.id IN"
            f" (SELECT id FROM runs WHERE key = ? ORDER BY id DESC LIMIT {LEARNED_FROM})"
            f" ORDER BY attempts.id DESC LIMIT {LEARNED_FROM}",
            (key,),
        )
        return observations([dict(zip(TEACHING_COLUMNS, row, strict=True)) for row in reversed(rows)])

    def summaries(self) -> list[Summary]:
        """One for each key, that with the newest run first; runs without a key are one together."""
        rows = self._database.execute(
            "SELECT key, command, recipe, tag, limit_bytes, machine, id, started_at FROM runs ORDER BY id"
        )
        ended = self._database.execute("SELECT run_id, verdict FROM attempts")
        attempts, kills = Counter(row[0] for row in ended), Counter(row[0] for row in ended if row[1] in LACK)
        found: dict[str | None, Summary] = {}
        for key, command, recipe, tag, limit, machine, run_id, started_at in rows:
            before = found.pop(key, None)
            found[key] = Summary(
                key=key,
                command=tuple(json.loads(command)),
                recipe=recipe,
                tag=tag,
                limit_bytes=limit,
                machine=machine,
                runs=(before.runs if before else 0) + 1,
                attempts=(before.attempts if before else 0) + attempts[run_id],
                out_of_memory=(before.out_of_memory if before else 0) + kills[run_id],
                last_started_at=started_at,
            )
        return list(reversed(found.values()))

    def attempts(self) -> list[dict[str, object]]:
        """All attempts with the facts of their run, oldest first."""
        names = ("verb", "command", "host", "limit_bytes", "id", "run_id", *ATTEMPT_COLUMNS)
        columns = [*(f"runs.{name}" for name in names[:4]), *(f"attempts.{name}" for name in names[4:])]
        rows = self._database.execute(
            f"SELECT {', '.join(columns)} FROM attempts"  # noqa: S608
            " JOIN runs ON runs.id = attempts.run_id ORDER BY attempts.id"
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def export(self) -> Iterator[dict[str, Any]]:
        """Every run with its attempts, oldest first, as JSON documents."""
        runs = self._database.execute(f"SELECT id, {', '.join(RUN_COLUMNS)} FROM runs ORDER BY id")  # noqa: S608
        for run_id, *run in runs:
            attempts = self._database.execute(
                f"SELECT {', '.join(ATTEMPT_COLUMNS)} FROM attempts WHERE run_id = ? ORDER BY id",  # noqa: S608
                (run_id,),
            )
            yield {
                **dict(zip(RUN_COLUMNS, run, strict=True)),
                "attempts": [dict(zip(ATTEMPT_COLUMNS, attempt, strict=True)) for attempt in attempts],
            }

    def _insert(self, table: str, **values: object) -> int:
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        next_id = self._database.next_id.format(table=table)
        [[row_id]] = self._database.execute(
            f"INSERT INTO {table} (id, {columns}) VALUES ({next_id}, {marks}) RETURNING id",  # noqa: S608 - names from here
            list(values.values()),
        )
        return int(row_id)


def key_of(run: Run) -> str:
    """Runs with the same key teach each other: command, template, recipe, input tag, limit, machine."""
    facts = [run.command, run.templates, run.recipe, run.tag, run.limit_bytes, run.machine]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None  # masked in some containers; the record is complete without it
