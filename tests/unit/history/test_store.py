import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oomproof.errors import HistoryError
from oomproof.history import damaged
from oomproof.history.model import FILE_NAME, OpenAttempt, Outcome, Run, default_path
from oomproof.history.record import Record
from oomproof.history.store import SCHEMA_VERSION, History

RUN = Run("run", ("engine", "--memory", "{budget}"), 1 << 30, 900 << 20)
KILLED = Outcome(
    "oom_kill", "certain", None, 9, 1, 1 << 30, 1.5, 800 << 20, ("memory.events: oom_kill 0 -> 1",)
)


def attempts_in(path: Path) -> list[dict[str, object]]:
    with History.open(path) as history:
        return history.attempts()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / FILE_NAME


@pytest.fixture
def warnings() -> list[str]:
    return []


def test_an_attempt_is_there_before_and_after_its_end(path: Path) -> None:
    with History.open(path) as history:
        attempt = history.attempt_started(history.run_started(RUN), 1, 900 << 20)
        [started] = attempts_in(path)
        assert (started["attempt"], started["budget_bytes"], started["ended_at"]) == (1, 900 << 20, None)
        history.attempt_ended(attempt, KILLED)
    [ended] = attempts_in(path)
    assert ended["ended_at"] is not None
    assert (ended["verdict"], ended["signal"], ended["oom_kills"]) == ("oom_kill", 9, 1)
    assert (ended["next_budget_bytes"], ended["evidence"]) == (
        800 << 20,
        '["memory.events: oom_kill 0 -> 1"]',
    )
    assert (ended["verb"], ended["command"]) == ("run", '["engine", "--memory", "{budget}"]')


def test_command_lines_are_for_nobody_else_to_read(path: Path) -> None:
    with History.open(path) as history:
        history.run_started(RUN)
        beside = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
        assert len(beside) == 3, "the file, its journal and the journal's index"
        assert {stat.S_IMODE(file.stat().st_mode) for file in beside} == {0o600}


def test_a_started_attempt_survives_sigkill_at_once(path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from oomproof.history.model import Run; from oomproof.history.store import History\n"
        "history = History.open(Path(sys.argv[1]))\n"
        "history.attempt_started(history.run_started(Run('run', ('x',), None, 1)), 1, 5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (
        subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -signal.SIGKILL
    )
    [attempt] = attempts_in(path)
    assert (attempt["budget_bytes"], attempt["verdict"]) == (5, None)


RECORD_ONE = """
import sys
from pathlib import Path
from oomproof.history.model import Run
from oomproof.history.record import Record
print("ready", flush=True)
sys.stdin.read()
record = Record(Path(sys.argv[1]), print)
record.run_started(Run("run", ("x",), None, 1))
record.attempt_started(1, 5)
"""

WRITE_TEN = """
import sys; from pathlib import Path
from oomproof.history.model import Outcome, Run; from oomproof.history.store import History
with History.open(Path(sys.argv[1])) as history:
    run = history.run_started(Run("run", ("x",), None, 1))
    for number in range(1, 11):
        attempt = history.attempt_started(run, number, number)
        history.attempt_ended(attempt, Outcome("oom_kill", "certain", None, 9, 1, 1, 1.5, None, ()))
"""


def test_several_at_once_lose_nothing(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITE_TEN, str(path)]) for _ in range(4)]
    for writer in writers:
        assert writer.wait(60) == 0
    attempts = attempts_in(path)
    assert sorted(a["attempt"] for a in attempts) == sorted(list(range(1, 11)) * 4)  # type: ignore[type-var]
    assert all(a["verdict"] == "oom_kill" for a in attempts)


@pytest.mark.parametrize(
    "content", [b"this is no database, but it is long enough to look at" * 20, b"SQLite format 3\0junk" * 99]
)
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    path: Path, warnings: list[str], content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    record = Record(path, warnings.append)
    record.run_started(RUN)
    assert record.attempt_started(1, 5) is not None
    [warning] = warnings
    assert "damaged" in warning
    [aside] = path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == content
    assert len(attempts_in(path)) == 1


def test_a_file_of_somebody_else_that_was_named_is_left_alone(path: Path, warnings: list[str]) -> None:
    path.parent.mkdir()
    path.write_text("my notes\n" * 100)
    with pytest.raises(HistoryError, match="something else than a history"):
        Record(path, warnings.append, required=True).run_started(RUN)
    assert path.read_text() == "my notes\n" * 100
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_lies_beside_a_damaged_file_is_set_aside_with_it(path: Path, warnings: list[str]) -> None:
    path.parent.mkdir()
    path.write_bytes(b"junk" * 999)
    path.with_name(path.name + "-wal").write_bytes(b"committed")
    Record(path, warnings.append).run_started(RUN)
    [wal] = path.parent.glob("*.damaged-*-wal")
    assert wal.read_bytes() == b"committed"


def test_a_damaged_file_is_set_aside_by_one_of_many(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"junk" * 999)
    command = [sys.executable, "-c", RECORD_ONE, str(path)]
    said = b""
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(6)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.close()
        for writer in writers:
            assert writer.stdout is not None
            said += writer.stdout.read()
            assert writer.wait(60) == 0
    assert said.count(b"\n") == 1, said
    assert len(attempts_in(path)) == 6
    [aside] = path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == b"junk" * 999


def test_a_history_that_another_oomproof_has_just_begun_is_not_set_aside(
    path: Path, warnings: list[str]
) -> None:
    path.parent.mkdir()
    path.write_bytes(b"junk" * 999)
    found = damaged.identity(path)
    Record(path, warnings.append).run_started(RUN)
    damaged.set_aside(path, found, "as it was", pytest.fail)
    with History.open(path) as history:
        assert len(list(history.export())) == 1
    assert len(warnings) == 1


@pytest.fixture
def unusable(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / FILE_NAME


def test_an_unusable_place_is_said_once_and_nothing_is_remembered(
    unusable: Path, warnings: list[str]
) -> None:
    record = Record(unusable, warnings.append)
    record.run_started(RUN)
    attempt = record.attempt_started(1, 5)
    record.attempt_ended(attempt, KILLED)
    assert attempt is None
    [warning] = warnings
    assert str(unusable) in warning
    assert "OOMPROOF_STATE_DIR" in warning


def test_an_unusable_place_that_was_asked_for_is_an_error(unusable: Path, warnings: list[str]) -> None:
    with pytest.raises(HistoryError, match="--history none") as caught:
        Record(unusable, warnings.append, required=True).run_started(RUN)
    assert caught.value.exit_code == 125
    assert not warnings


def test_a_file_of_a_newer_oomproof_is_left_alone(path: Path, warnings: list[str]) -> None:
    History.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    Record(path, warnings.append).run_started(RUN)
    assert "newer oomproof" in warnings[0]
    with pytest.raises(HistoryError, match="newer oomproof"):
        Record(path, warnings.append, required=True).run_started(RUN)


def test_a_disk_that_fails_later_is_said_once(path: Path, warnings: list[str]) -> None:
    record = Record(path, warnings.append)
    record.run_started(RUN)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE attempts")
    connection.close()
    assert record.attempt_started(1, 5) is None
    assert record.attempt_started(2, 4) is None
    [warning] = warnings
    assert "not remembered" in warning


def test_a_disk_that_hangs_is_given_up_and_said(
    path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oomproof.history.record.PATIENCE_S", 0.5)
    History.open(path).close()
    with sqlite3.connect(path, isolation_level=None) as holder:
        holder.execute("BEGIN IMMEDIATE")
        Record(path, warnings.append).run_started(RUN)
    holder.close()
    [warning] = warnings
    assert "no answer from the disk" in warning
    # Nobody is left to be collected; of this thread alone: others may run guests meanwhile.
    assert Path("/proc/thread-self/children").read_text() == ""


def test_the_writer_of_the_history_is_all_that_loads_sqlite(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from oomproof.history.model import Run; from oomproof.history.record import Record\n"
        "record = Record(Path(sys.argv[1]), print); record.run_started(Run('run', ('x',), None, 1))\n"
        "assert record.attempt_started(1, 5) is not None\n"
        "print([name for name in sys.modules if 'sqlite' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
    assert len(attempts_in(path)) == 1


def test_where_the_file_lives() -> None:
    home = {"HOME": "/home/ann"}
    assert default_path(home | {"OOMPROOF_STATE_DIR": "/state"}) == Path("/state/history.sqlite3")
    assert default_path(home | {"XDG_STATE_HOME": "/x"}) == Path("/x/oomproof/history.sqlite3")
    assert default_path(home) == Path("/home/ann/.local/state/oomproof/history.sqlite3")
    assert default_path({}) == default_path({"HOME": "/"}) == Path("/var/lib/oomproof/history.sqlite3")


# -- attempts that nobody saw end -----------------------------------------------------------

START_AND = """
import os, signal, sys, time; from pathlib import Path
from oomproof.history.model import Run; from oomproof.history.record import Record
record = Record(Path(sys.argv[1]), print)
record.run_started(Run("run", ("engine",), 5, 4))
attempt = record.attempt_started(1, 4)
"""
DIE = START_AND + "os.kill(os.getpid(), signal.SIGKILL)"
LIVE = START_AND + "print('started', flush=True); sys.stdin.read()"
TOLD = START_AND + "record.told_to_end(attempt, 15); os.wait(); os.kill(os.getpid(), signal.SIGKILL)"

ENGINE = Run("run", ("engine",), 5, 4)


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def open_now(path: Path, run: Run = ENGINE) -> tuple[OpenAttempt, ...]:
    return Record(path, pytest.fail).run_started(run)


def test_an_attempt_whose_oomproof_was_killed_is_found_open(path: Path) -> None:
    subprocess.run([*script(DIE), str(path)], check=False)
    [found] = open_now(path)
    assert (found.attempt, found.budget_bytes, found.same_boot, found.told_to_end) == (1, 4, True, None)


def test_an_attempt_of_a_living_oomproof_is_not_open(path: Path) -> None:
    living = subprocess.Popen(
        [*script(LIVE), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with living:
        assert living.stdout is not None
        assert living.stdout.readline() == "started\n"
        assert open_now(path) == ()
        living.kill()
    assert len(open_now(path)) == 1


def test_an_attempt_of_this_very_process_is_not_open(path: Path) -> None:
    record = Record(path, pytest.fail)
    record.run_started(ENGINE)
    record.attempt_started(1, 4)
    assert open_now(path) == ()


@pytest.mark.parametrize(
    "run",
    [Run("run", ("engine", "x"), 5, 4), Run("run", ("engine",), 6, 4), Run("run", ("engine",), None, 4)],
)
def test_another_command_or_limit_is_another_story(path: Path, run: Run) -> None:
    subprocess.run([*script(DIE), str(path)], check=False)
    assert open_now(path, run) == ()
    assert len(open_now(path)) == 1


def test_a_request_to_end_is_found_with_the_open_attempt(path: Path) -> None:
    subprocess.run([*script(TOLD), str(path)], check=False)
    [found] = open_now(path)
    assert found.told_to_end == signal.SIGTERM


def test_a_request_to_end_that_comes_late_changes_no_end(path: Path) -> None:
    with History.open(path) as history:
        attempt = history.attempt_started(history.run_started(RUN), 1, 5)
        history.attempt_ended(attempt, KILLED)
        history.told_to_end(attempt, 15)
    [row] = attempts_in(path)
    assert (row["verdict"], row["signal"]) == ("oom_kill", 9)


def test_an_open_attempt_is_closed_once_and_with_the_start_that_learned_from_it(path: Path) -> None:
    subprocess.run([*script(DIE), str(path)], check=False)
    records = [Record(path, pytest.fail) for _ in range(2)]
    for record in records:
        [found] = record.run_started(ENGINE)
        record.found_open({found.id: replace(KILLED, verdict="oom_suspected", next_budget_bytes=3)})
    assert attempts_in(path)[0]["ended_at"] is None, "only with the next attempt"
    for record in records:
        record.attempt_started(1, 3)
    first, *others = attempts_in(path)
    assert (first["verdict"], first["next_budget_bytes"]) == ("oom_suspected", 3)
    assert [row["ended_at"] for row in others] == [None, None]
    assert open_now(path) == ()


def test_the_pid_that_is_written_down_is_the_supervisors(path: Path) -> None:
    Record(path, pytest.fail).run_started(ENGINE)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT supervisor_pid FROM runs").fetchall() == [(os.getpid(),)]
    connection.close()


def test_an_end_may_wait_for_the_next_start_and_no_longer(path: Path) -> None:
    record = Record(path, pytest.fail)
    record.run_started(ENGINE)
    first = record.attempt_started(1, 4)
    record.attempt_ended(first, KILLED, goes_on=True)
    second = record.attempt_started(2, 3)
    assert [row["verdict"] for row in attempts_in(path)] == ["oom_kill", None]
    record.attempt_ended(second, KILLED, goes_on=True)
    record.flush()
    assert [row["verdict"] for row in attempts_in(path)] == ["oom_kill", "oom_kill"]


def test_when_a_run_is_over_the_history_is_one_file(path: Path) -> None:
    record = Record(path, pytest.fail)
    record.run_started(ENGINE)
    record.attempt_ended(record.attempt_started(1, 4), KILLED)
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, path.name + "-live"]
