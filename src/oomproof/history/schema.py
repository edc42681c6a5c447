"""The tables of the history and how they grew: one script per version, in SQLite's words.

Not covered: running them, see `store` (SQLite) and `fleet` (PostgreSQL).
"""

from __future__ import annotations

MIGRATIONS = (
    """
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
""",
    "ALTER TABLE attempts ADD COLUMN rate REAL;",
    # Runs of before have no key: what they were run on is not known well enough to learn from them.
    """
ALTER TABLE runs ADD COLUMN uid TEXT;
ALTER TABLE runs ADD COLUMN key TEXT;
ALTER TABLE runs ADD COLUMN recipe TEXT;
ALTER TABLE runs ADD COLUMN templates TEXT;
ALTER TABLE runs ADD COLUMN tag TEXT;
ALTER TABLE runs ADD COLUMN machine TEXT;
ALTER TABLE attempts ADD COLUMN peak_of_cgroup INTEGER;
UPDATE runs SET uid = host || '/' || started_at || '/' || supervisor_pid || '/' || id;
CREATE UNIQUE INDEX runs_uid ON runs (uid);
CREATE INDEX runs_key ON runs (key);
""",
    "ALTER TABLE runs ADD COLUMN allowed_bytes INTEGER;",
)
"""``MIGRATIONS[n]`` brings version n to version n + 1."""

SCHEMA_VERSION = len(MIGRATIONS)


def statements(script: str) -> list[str]:
    """The statements of a script, one by one."""
    return [statement.strip() for statement in script.split(";") if statement.strip()]
