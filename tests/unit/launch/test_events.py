"""The event stream: one whole JSON object a line, and no reader or disk can stop the launcher."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.errors import ConfigError
from oomproof.launch.events import PATIENCE_S, open_events


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            pass  # closed by the test


def test_each_event_is_one_line_with_time_and_version(tmp_path: Path, warnings: list[str]) -> None:
    file = tmp_path / "events"
    with open_events(str(file), warnings.append) as events:
        events.emit("planned", budget_bytes=7, text="two\nlines \udcff")
        assert file.read_text().endswith("\n"), "written at once"
        events.emit("finished", exit_status=0)
    planned, finished = (json.loads(line) for line in file.read_text().splitlines())
    assert planned["event"] == "planned"
    assert planned["schema_version"] == 1
    assert planned["text"] == "two\nlines \udcff"
    assert abs(time.time() - _seconds(planned["time"])) < 60
    assert finished["exit_status"] == 0
    assert warnings == []


def _seconds(text: str) -> float:
    from datetime import datetime

    assert text.endswith("Z")
    return datetime.fromisoformat(text).timestamp()


def test_a_file_is_appended_to(tmp_path: Path, warnings: list[str]) -> None:
    file = tmp_path / "events"
    for _ in range(2):
        with open_events(str(file), warnings.append) as events:
            events.emit("planned")
    assert len(file.read_text().splitlines()) == 2


def test_a_given_descriptor_is_written_to_but_not_inherited_nor_closed(
    pipe: tuple[int, int], warnings: list[str]
) -> None:
    reader, writer = pipe
    os.set_inheritable(writer, True)
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    with open_events(f"fd:{writer}", warnings.append) as events:
        events.emit("planned")
    assert json.loads(os.read(reader, 4096))["event"] == "planned"
    assert not os.get_inheritable(writer)
    assert fcntl.fcntl(writer, fcntl.F_GETFL) == flags


@pytest.mark.parametrize("target", ["fd:", "fd:x", "fd:-1", "fd:987", "fd:99999999999999999999"])
def test_a_bad_descriptor_is_refused(target: str, warnings: list[str]) -> None:
    with pytest.raises(ConfigError, match=target):
        open_events(target, warnings.append)


def test_a_descriptor_open_for_reading_only_is_refused(pipe: tuple[int, int], warnings: list[str]) -> None:
    with pytest.raises(ConfigError, match="not open for writing"):
        open_events(f"fd:{pipe[0]}", warnings.append)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, warnings: list[str]) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        open_events(str(tmp_path / "missing" / "events"), warnings.append)
    with pytest.raises(ConfigError, match="directory"):
        open_events(str(tmp_path), warnings.append)


def test_a_fifo_without_reader_is_refused_at_once(tmp_path: Path, warnings: list[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="start its reader first"):
        open_events(str(tmp_path / "fifo"), warnings.append)


def test_a_reader_that_goes_away_is_one_warning(pipe: tuple[int, int], warnings: list[str]) -> None:
    reader, writer = pipe
    events = open_events(f"fd:{writer}", warnings.append)
    os.close(reader)
    for _ in range(3):
        events.emit("planned")
    assert len(warnings) == 1
    assert "went away" in warnings[0]


def test_a_full_disk_is_one_warning(warnings: list[str]) -> None:
    with open_events("/dev/full", warnings.append) as events:
        for _ in range(3):
            events.emit("planned")
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


def test_a_reader_that_sleeps_costs_lines_not_time_and_later_lines_are_whole(
    pipe: tuple[int, int], warnings: list[str]
) -> None:
    reader, writer = pipe
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
    events = open_events(f"fd:{writer}", warnings.append)
    begun = time.monotonic()
    events.emit("planned", text="x" * 20000)
    assert time.monotonic() - begun < PATIENCE_S + 1
    assert len(warnings) == 1
    assert "too slow" in warnings[0]
    os.read(reader, 65536)
    events.emit("finished")
    last_line = os.read(reader, 65536).splitlines()[-1]
    assert json.loads(last_line)["event"] == "finished"


def test_an_unknown_event_is_a_fault_of_the_caller(tmp_path: Path, warnings: list[str]) -> None:
    with (
        open_events(str(tmp_path / "events"), warnings.append) as events,
        pytest.raises(ValueError, match="invented"),
    ):
        events.emit("invented")


def test_without_a_target_nothing_is_written(warnings: list[str]) -> None:
    open_events(None, warnings.append).emit("planned")
    assert warnings == []
