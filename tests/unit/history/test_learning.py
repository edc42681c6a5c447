"""What a history teaches the next run, and how it grows, moves and forgets."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oomproof.errors import HistoryError
from oomproof.history.model import FILE_NAME, Observation, Outcome, Run, machine_kind, printable_target
from oomproof.history.record import Record, learned
from oomproof.history.schema import MIGRATIONS
from oomproof.history.store import SCHEMA_VERSION, History, key_of
from unit.history.test_store import KILLED, RUN, WRITE_TEN, attempts_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / FILE_NAME


@pytest.fixture
def warnings() -> list[str]:
    return []


LIVED = Outcome("exited", "certain", 0, None, 0, 850 << 20, 60.0, None, (), peak_of_cgroup=True)


def remember(path: Path, run: Run, *ends: tuple[int, Outcome]) -> None:
    record = Record(path, pytest.fail)
    record.run_started(run)
    for number, (budget, outcome) in enumerate(ends, 1):
        record.attempt_ended(record.attempt_started(number, budget), outcome)


def taught(path: Path, run: Run, keep_days: float = 0) -> tuple[Observation, ...]:
    record = Record(path, pytest.fail, keep_days=keep_days)
    record.run_started(run)
    return record.seen


def test_a_run_learns_from_those_before_it(path: Path) -> None:
    assert taught(path, RUN) == ()
    remember(path, RUN, (900, KILLED), (800, LIVED))
    died, lived = taught(path, RUN)
    assert (died.budget_bytes, died.lived, died.after_oom, died.peak_bytes) == (900, False, False, None)
    assert (lived.budget_bytes, lived.lived, lived.after_oom) == (800, True, True)
    assert lived.peak_bytes == 850 << 20
    assert 0 <= lived.age_s < 60
    assert [seen.budget_bytes for seen in learned(path, RUN)] == [900, 800]


@pytest.mark.parametrize(
    "other",
    [
        replace(RUN, command=("engine",)),
        replace(RUN, limit_bytes=2 << 30),
        replace(RUN, recipe="jvm"),
        replace(RUN, tag="large"),
        replace(RUN, machine="x86_64-64GiB-16cpu"),
        replace(RUN, templates=("engine.toml:/run/engine.toml",)),
    ],
)
def test_another_key_learns_nothing_from_it(path: Path, other: Run) -> None:
    remember(path, RUN, (800, LIVED))
    assert taught(path, other) == ()
    assert key_of(other) != key_of(RUN)


def test_the_verb_and_what_was_planned_are_no_part_of_the_key() -> None:
    assert key_of(replace(RUN, verb="entrypoint", planned_bytes=5)) == key_of(RUN)


def test_a_history_that_is_not_there_teaches_nothing_and_is_not_made(path: Path) -> None:
    assert learned(path, RUN) == ()
    assert not path.exists()


def test_old_runs_are_forgotten(path: Path) -> None:
    remember(path, RUN, (800, LIVED))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET started_at = '2020-01-01T00:00:00.000+00:00'")
    connection.close()
    assert len(taught(path, RUN)) == 1
    assert taught(path, RUN, keep_days=90) == ()
    assert attempts_in(path) == []


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_file_of_an_older_schema_is_brought_along(path: Path, version: int) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        for script in MIGRATIONS[:version]:
            connection.executescript(script)
        for number in (1, 2):
            connection.execute(
                "INSERT INTO runs (id, started_at, verb, command, host, boot_id, supervisor_pid,"
                " limit_bytes, planned_bytes)"
                " VALUES (?, '2026-01-01T00:00:00.000+00:00', 'run', '[\"x\"]', 'host', NULL, 7, NULL, 5)",
                (number,),
            )
        if version >= 3:
            connection.execute("UPDATE runs SET uid = 'run ' || id")
        connection.execute(
            "INSERT INTO attempts (run_id, attempt, budget_bytes, started_at, verdict)"
            " VALUES (1, 1, 5, '2026-01-01T00:00:00.000+00:00', 'exited')"
        )
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    remember(path, RUN, (800, replace(LIVED, rate=12.5)))
    with History.open(path) as history:
        attempts = history.attempts()
        assert [attempt["verdict"] for attempt in attempts] == ["exited", "exited"]
        assert [attempt["rate"] for attempt in attempts] == [None, 12.5]
        runs = list(history.export())
    assert len({run["uid"] for run in runs}) == 3
    assert [run["key"] for run in runs] == [None, None, key_of(RUN)]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
    connection.close()


def test_several_may_migrate_at_once(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(MIGRATIONS[0])
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    writers = [subprocess.Popen([sys.executable, "-c", WRITE_TEN, str(path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(attempts_in(path)) == 30


def test_a_damaged_page_is_noticed_when_it_is_read(path: Path, warnings: list[str]) -> None:
    for _ in range(30):
        remember(path, RUN, *[(800, LIVED)] * 2)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    assert Record(path, warnings.append).run_started(RUN) == ()
    [warning] = warnings
    assert "damaged" in warning
    assert attempts_in(path) == []


def test_what_is_exported_is_imported_once(path: Path, tmp_path: Path) -> None:
    remember(path, RUN, (900, KILLED), (800, LIVED))
    with History.open(path) as history:
        documents = list(history.export())
    other = tmp_path / "other.sqlite3"
    with History.open(other) as history:
        assert [history.import_run(document) for document in documents] == [True]
        assert [history.import_run(document) for document in documents] == [False]
        assert list(history.export()) == documents
    assert [seen.lived for seen in learned(other, RUN)] == [False, True]


IMPORTED = {"attempt": 1, "budget_bytes": 5, "started_at": "2026-01-01"}


@pytest.mark.parametrize(
    "damage",
    [
        {"attempts": None},
        {"uid": None},
        {"planned_bytes": "5"},
        {"limit_bytes": 1 << 70},
        {"started_at": "yesterday"},
        {"attempts": [{"attempt": 1}]},
        {"command": "engine"},
        {"command": "[1]"},
        {"command": "[" * 100_000},
        {"templates": "{"},
        {"planned_bytes": -1},
        {"attempts": [{**IMPORTED, "budget_bytes": -5}]},
        {"attempts": [{**IMPORTED, "duration_s": float("inf")}]},
        {"attempts": [{**IMPORTED, "duration_s": float("nan")}]},
    ],
)
def test_what_is_no_run_is_not_imported(path: Path, damage: dict[str, object]) -> None:
    remember(path, RUN, (800, LIVED))
    with History.open(path) as history:
        [document] = history.export()
        with pytest.raises(HistoryError, match=r"its \w+ is|list of attempts"):
            history.import_run({**document, "uid": "new", **damage})
        assert len(list(history.export())) == 1


def test_what_is_forgotten_is_gone(path: Path) -> None:
    remember(path, RUN, (800, LIVED))
    remember(path, replace(RUN, tag="large"), (700, LIVED))
    with History.open(path) as history:
        assert history.forget([key_of(RUN)]) == 1
        assert [attempt["budget_bytes"] for attempt in history.attempts()] == [700]
        assert history.forget([]) == 0
        assert history.forget_all() == 1
        assert history.attempts() == []


def test_an_end_is_never_taken_for_that_of_another_run(path: Path) -> None:
    forgotten = Record(path, pytest.fail)
    forgotten.run_started(RUN)
    attempt = forgotten.attempt_started(1, 900)
    with History.open(path) as history:
        history.forget_all()
    remember(path, replace(RUN, command=("other",)), (700, LIVED))
    other = Record(path, pytest.fail)
    other.run_started(replace(RUN, command=("other",)))
    other.attempt_started(1, 800)
    forgotten.attempt_ended(attempt, KILLED)
    assert [(row["budget_bytes"], row["verdict"]) for row in attempts_in(path)] == [
        (700, "exited"),
        (800, None),
    ]


def test_as_many_days_as_one_can_write(path: Path) -> None:
    assert taught(path, RUN, keep_days=999_999_999) == ()


def test_no_password_is_printed() -> None:
    assert (
        printable_target("postgresql://ann:secret@db:5432/fleet?password=secret")
        == "postgresql://db:5432/fleet"
    )
    assert printable_target(Path("/state/history.sqlite3")) == "/state/history.sqlite3"


def test_machines_of_one_kind_have_one_name() -> None:
    assert machine_kind(64 << 30) == machine_kind((64 << 30) - (100 << 20))
    assert machine_kind(64 << 30) != machine_kind(32 << 30)
    assert "?GiB" in machine_kind(None)
