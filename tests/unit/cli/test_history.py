"""``oomproof history`` on files that runs have left."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomproof.cli import main
from oomproof.history.store import History, key_of
from oomproof.units import GIB, MIB
from unit.cli.test_usage import OOMPROOF, full
from unit.history.test_learning import LIVED, remember
from unit.history.test_store import KILLED, RUN

__all__ = ["full"]

LARGE = replace(RUN, tag="large", recipe="jvm")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OOMPROOF_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("OOMPROOF_HISTORY", raising=False)
    return tmp_path / "history.sqlite3"


@pytest.fixture
def runs(file: Path) -> Path:
    remember(file, RUN, (900 * MIB, KILLED), (800 * MIB, LIVED))
    remember(file, LARGE, (700 * MIB, LIVED))
    return file


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["history", *arguments]) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["history", *arguments]) != 0
    [line] = capsys.readouterr().err.splitlines()
    return line


def keys(capsys: pytest.CaptureFixture[str], *names: str) -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads(said(capsys, "--json", "show", *names))
    assert document["schema_version"] == 1
    found: list[dict[str, Any]] = document["keys"]
    return found


def test_a_history_that_is_not_there_is_empty_and_stays_away(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys) == "nothing is remembered\n"
    assert keys(capsys) == []
    assert said(capsys, "export") == ""
    assert said(capsys, "forget", "--all") == "0 runs forgotten\n"
    assert not file.exists()


def test_what_is_known_of_each_key(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, oldest = keys(capsys)
    assert (newest["tag"], newest["recipe"], newest["out_of_memory"]) == ("large", "jvm", 0)
    assert oldest == {
        "key": key_of(RUN),
        "command": list(RUN.command),
        "recipe": None,
        "tag": None,
        "limit_bytes": GIB,
        "machine": "",
        "runs": 1,
        "attempts": 2,
        "out_of_memory": 1,
        "last_started_at": oldest["last_started_at"],
        "known_good_bytes": 800 * MIB,
        "known_bad_bytes": 900 * MIB,
        "confidence": 1.0,
    }
    table = said(capsys)
    assert "800.00 MiB" in table
    assert "--recipe jvm --tag large engine" in table


def test_a_key_can_be_shortened(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [each["key"] for each in keys(capsys, key_of(LARGE)[:6])] == [key_of(LARGE)]


def test_only_what_was_named_is_forgotten(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "forget", key_of(RUN)) == "1 run forgotten\n"
    assert [each["key"] for each in keys(capsys)] == [key_of(LARGE)]
    assert "say what to forget" in complaint(capsys, "forget")
    assert "no key begins with 'zz'" in complaint(capsys, "forget", "zz")
    assert json.loads(said(capsys, "--json", "--all", "forget"))["forgotten_runs"] == 1
    assert keys(capsys) == []


def test_what_was_exported_is_taken_in_once(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = tmp_path / "runs.jsonl"
    said(capsys, "export", str(exported))
    assert exported.read_text() == said(capsys, "export")
    elsewhere = str(tmp_path / "elsewhere" / "history")
    into = ["--history", elsewhere]
    assert said(capsys, *into, "import", str(exported)) == "2 runs taken in, 0 here already\n"
    assert said(capsys, *into, "import", str(exported)) == "0 runs taken in, 2 here already\n"
    with History.open(Path(elsewhere)) as history, History.open(runs) as origin:
        assert list(history.export()) == list(origin.export())


@pytest.mark.parametrize(
    "line",
    [
        *(b"no json", b"[]", b'{"schema_version": 2}', b'{"schema_version": 1, "uid": 5}'),
        *(b"\xff\xfe", b"[" * 100_000),
    ],
    ids=["words", "list", "version", "uid", "bytes", "depth"],
)
def test_what_is_no_export_is_refused_with_its_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(line + b"\n")
    assert "bad.jsonl, line 1: " in complaint(capsys, "import", str(tmp_path / "bad.jsonl"))
    assert len(keys(capsys)) == 2


def test_a_file_of_somebody_else_is_left_alone(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("my notes\n" * 100)
    line = complaint(capsys, "--history", str(notes))
    assert f"the history {notes} cannot be used (it is something else than a history)" in line
    assert notes.read_text() == "my notes\n" * 100


def test_a_disk_without_room_for_the_export_is_not_held_against_the_history(
    runs: Path, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "export", str(full))
    assert line == f"oomproof: error: {full}: No space left on device: give another file, or -"


def test_a_stdout_without_room_is_not_held_against_the_history(runs: Path, full: Path) -> None:
    with full.open("w") as stdout:
        done = subprocess.run(
            [*OOMPROOF, "history", "--history", str(runs)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 125
    assert "No space left on device" in done.stderr
    assert "the history" not in done.stderr


def test_a_directory_is_no_history(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"the history {tmp_path} cannot be used (Is a directory): " in complaint(
        capsys, "--history", str(tmp_path)
    )


def test_what_makes_no_sense_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no history to work on" in complaint(capsys, "--history", "none")
    assert "--all is for forget" in complaint(capsys, "--all", "show")
    assert "one file, not 2" in complaint(capsys, "export", "a", "b")
    assert "no such file" in complaint(capsys, "import", "/nowhere/at/all").lower()


def test_a_run_is_one_line_whatever_its_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("sh", "-c", "true\n\x1b[31m", os.fsdecode(b"\xff"))
    remember(file, replace(RUN, command=command), (800 * MIB, LIVED))
    [_, line] = said(capsys).splitlines()
    assert line.endswith(r"sh -c true\n\x1b[31m \udcff")
    assert keys(capsys)[0]["command"] == list(command)


def test_a_plan_without_a_history_that_can_be_used_is_that_of_a_run(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("no history at all")
    plan = ["plan", "--no-probe", "--budget", "1MiB", "--bytes"]
    assert main([*plan, "--", "engine"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{MIB}\n"
    assert "warning: the history" in told.err
    assert main([*plan, "--history", str(file), "--", "engine"]) == 125


def test_runs_of_an_older_oomproof_are_shown_and_teach_nothing(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    with sqlite3.connect(runs) as connection:
        connection.execute("UPDATE runs SET key = NULL WHERE tag IS NULL")
    connection.close()
    assert "(runs of an older oomproof)" in said(capsys)
    [unknown] = [each for each in keys(capsys) if each["key"] is None]
    assert (unknown["known_good_bytes"], unknown["runs"]) == (None, 1)
