"""The history of a fleet: the same tables on a PostgreSQL server; machines of one kind learn together.

Needs psycopg (``pip install 'oomproof[fleet]'``). Not covered: what is kept, see `store`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import ClassVar

from oomproof.errors import HistoryError
from oomproof.history.schema import MIGRATIONS, SCHEMA_VERSION, statements
from oomproof.history.store import History, Row, check_version

CONNECT_TIMEOUT_S = 5
LOCK_TIMEOUT_S = 5
_MIGRATION_LOCK = 0x6F6F6D70
"""An advisory lock of this number is held while tables are made: several oomproofs may start at once."""

_TYPES = (
    ("id INTEGER PRIMARY KEY", "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    (" INTEGER", " BIGINT"),
    (" REAL", " DOUBLE PRECISION"),
    (") STRICT", ")"),
)
"""SQLite's words for what PostgreSQL calls otherwise."""


def open_fleet(address: str) -> History:
    """The history on the server at ``postgresql://...``; its tables are made where they are missing.

    Raises HistoryError without psycopg or when a newer oomproof made the tables, psycopg.Error
    when the server cannot be reached or refuses.
    """
    return History(_Server(address))


class _Server:
    """A `Database` on a PostgreSQL server."""

    next_id: ClassVar[str] = "DEFAULT"

    def __init__(self, address: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 - an extra, and only the child of a launcher loads it
        except ImportError as error:
            raise HistoryError("psycopg is not installed: pip install 'oomproof[fleet]'") from error
        options = f"-c lock_timeout={LOCK_TIMEOUT_S}s -c statement_timeout={2 * LOCK_TIMEOUT_S}s"
        self._connection = psycopg.connect(
            address, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, options=options
        )
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """See `Database.execute`."""
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Database.transaction`."""
        with self._connection.transaction():
            yield

    def close(self) -> None:
        """See `Database.close`."""
        self._connection.close()

    def _migrate(self) -> None:
        """Others may be doing the same at this moment."""
        if self._version() < SCHEMA_VERSION:
            # Held from before the transaction: one that began earlier would not see the tables of others.
            self.execute("SELECT pg_advisory_lock(?)", (_MIGRATION_LOCK,))
            try:
                with self.transaction():
                    self._make_tables(self._version())
            finally:
                self.execute("SELECT pg_advisory_unlock(?)", (_MIGRATION_LOCK,))
        check_version(self._version())

    def _make_tables(self, version: int) -> None:
        for script in MIGRATIONS[version:]:
            for statement in statements(_translated(script)):
                self.execute(statement)
        if version == 0:
            self.execute("CREATE TABLE oomproof_schema (version BIGINT NOT NULL)")
            self.execute("INSERT INTO oomproof_schema VALUES (0)")
        self.execute("UPDATE oomproof_schema SET version = GREATEST(version, ?)", (SCHEMA_VERSION,))

    def _version(self) -> int:
        [[table]] = self.execute("SELECT to_regclass('oomproof_schema')")
        return int(self.execute("SELECT version FROM oomproof_schema")[0][0]) if table else 0


def _translated(script: str) -> str:
    for sqlite, postgresql in _TYPES:
        script = script.replace(sqlite, postgresql)
    return script
