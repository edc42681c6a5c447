"""The history on a real PostgreSQL server: what one machine learns, another of its kind knows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from oomproof.cli import main
from oomproof.errors import HistoryError
from oomproof.history.fleet import open_fleet
from oomproof.history.record import Record, learned
from oomproof.history.schema import SCHEMA_VERSION
from oomproof.history.store import History, key_of
from rigs.pytest_worlds import need
from unit.history.postgres import problem, server
from unit.history.test_learning import LIVED
from unit.history.test_store import KILLED, RUN


@pytest.fixture(scope="module")
def running() -> Iterator[str]:
    need(problem())
    with server() as address:
        yield address


@pytest.fixture
def fleet(running: str) -> Iterator[str]:
    """An empty one."""
    yield running
    with open_fleet(running) as history:
        history.forget_all()


def remember(target: str, *ends: tuple[int, bool]) -> None:
    record = Record(target, pytest.fail)
    assert record.run_started(RUN) == ()
    for number, (budget, lived) in enumerate(ends, 1):
        record.attempt_ended(record.attempt_started(number, budget), LIVED if lived else KILLED)


def test_what_one_machine_learns_another_of_its_kind_knows(fleet: str) -> None:
    remember(fleet, (900, False), (800, True))
    there = Record(fleet, pytest.fail)
    there.run_started(replace(RUN, supervisor_pid=1))
    assert [(seen.budget_bytes, seen.lived, seen.after_oom) for seen in there.seen] == [
        (900, False, False),
        (800, True, True),
    ]
    assert learned(fleet, RUN) != ()
    assert learned(fleet, replace(RUN, machine="aarch64-1GiB-1cpu")) == ()


def test_nobody_on_a_server_is_taken_for_dead(fleet: str) -> None:
    record = Record(fleet, pytest.fail)
    record.run_started(RUN)
    attempt = record.attempt_started(1, 900)
    assert Record(fleet, pytest.fail).run_started(RUN) == ()
    record.attempt_ended(attempt, LIVED)
    assert [seen.lived for seen in learned(fleet, RUN)] == [True]


def test_a_stop_is_written_down_on_a_server_too(fleet: str) -> None:
    with open_fleet(fleet) as history:
        attempt = history.attempt_started(history.run_started(RUN), 1, 900)
        history.told_to_end(attempt, 15)
        [row] = history.attempts()
    assert (row["verdict"], row["signal"], row["ended_at"]) == ("stopped", 15, None)


WRITE_TEN = """
import sys
from oomproof.history.fleet import open_fleet
from oomproof.history.model import Outcome, Run
with open_fleet(sys.argv[1]) as history:
    run = history.run_started(Run("run", ("x",), None, 1))
    for number in range(1, 11):
        attempt = history.attempt_started(run, number, number)
        history.attempt_ended(attempt, Outcome("oom_kill", "certain", None, 9, 1, 1, 1.5, None, ()))
"""


def test_several_may_come_first_at_once_and_lose_nothing() -> None:
    need(problem())
    with server() as address:
        writers = [subprocess.Popen([sys.executable, "-c", WRITE_TEN, address]) for _ in range(4)]
        assert [writer.wait(60) for writer in writers] == [0] * 4
        with open_fleet(address) as history:
            attempts = history.attempts()
    assert sorted(str(a["attempt"]) for a in attempts) == sorted([str(n) for n in range(1, 11)] * 4)
    assert {a["verdict"] for a in attempts} == {"oom_kill"}


def test_a_file_moves_to_the_server_and_back(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(fleet, (900, False), (800, True))
    exported = str(tmp_path / "runs.jsonl")
    assert main(["history", "--history", fleet, "export", exported]) == 0
    assert main(["history", "--history", str(tmp_path / "h"), "import", exported]) == 0
    assert main(["history", "--history", fleet, "import", exported]) == 0
    assert "0 runs taken in, 1 here already" in capsys.readouterr().out
    with History.open(tmp_path / "h") as file, open_fleet(fleet) as there:
        assert list(file.export()) == list(there.export())
        assert file.summaries() == there.summaries()
    assert main(["history", "--history", fleet, "--json"]) == 0
    [key] = json.loads(capsys.readouterr().out)["keys"]
    assert (key["key"], key["known_good_bytes"], key["known_bad_bytes"]) == (key_of(RUN), 800, 900)
    assert main(["history", "--history", fleet, "forget", key["key"]]) == 0
    assert learned(fleet, RUN) == ()


def test_old_runs_are_forgotten_on_a_server_too(fleet: str) -> None:
    remember(fleet, (800, True))
    with open_fleet(fleet) as history:
        assert history.forget_older_than(1) == 0
        assert history.forget_older_than(-1) == 1


def test_tables_of_a_newer_oomproof_are_left_alone(fleet: str) -> None:
    import psycopg

    open_fleet(fleet).close()
    with psycopg.connect(fleet, autocommit=True) as connection:
        connection.execute("UPDATE oomproof_schema SET version = version + 1")
        with pytest.raises(HistoryError, match="newer oomproof"):
            open_fleet(fleet)
        connection.execute("UPDATE oomproof_schema SET version = %s", (SCHEMA_VERSION,))


def test_a_server_that_is_away_is_said_once_and_costs_the_start_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"postgresql://ann:secret@/fleet?host={tmp_path}"
    assert main(["run", "--no-leaf", "--history", address, "--", "true"]) == 0
    said = capsys.readouterr().err
    assert said.count("cannot be used") == 1
    assert "secret" not in said


def test_the_launcher_itself_loads_no_driver(fleet: str) -> None:
    script = (
        "import sys\n"
        "from oomproof.history.model import Run; from oomproof.history.record import Record\n"
        "record = Record(sys.argv[1], print); record.run_started(Run('run', ('x',), None, 1))\n"
        "assert record.attempt_started(1, 5) is not None\n"
        "print([name for name in sys.modules if 'psycopg' in name or 'sqlite' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script, fleet], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
