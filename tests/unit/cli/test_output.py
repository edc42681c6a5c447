import io
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr("os.get_terminal_size", lambda _fd: os.terminal_size((columns, 24)))
    return terminal


ROWS = [("/a/very/long/path/to/some/cgroup/of/a/container", "1.00 GiB"), ("short", "-")]


def test_a_table_aligns_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("NAME", "SIZE"), [("a", "1"), ("long name", "1000")], right=(1,))
    assert capsys.readouterr().out == "NAME       SIZE\na             1\nlong name  1000\n"


def test_a_pipe_gets_every_cell_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("NAME", "SIZE"), ROWS, right=(1,), elastic=(0,))
    assert ROWS[0][0] in capsys.readouterr().out


def test_a_narrow_terminal_gets_both_ends_of_long_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, columns=40)
    output.print_table(("NAME", "SIZE"), ROWS, right=(1,), elastic=(0,))
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) == 40
    assert lines[1].startswith("/a/very/long")
    assert "..." in lines[1]
    assert lines[1].endswith("container  1.00 GiB")


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6), st.integers(1, 300), st.data())
def test_fitting_never_widens_and_touches_elastic_columns_only(
    widths: list[int], columns: int, data: st.DataObject
) -> None:
    elastic = data.draw(st.sets(st.integers(0, len(widths) - 1)))
    fitted = output._fit(widths, elastic, columns)
    for column, (before, after) in enumerate(zip(widths, fitted, strict=True)):
        assert after == before or (column in elastic and output._NARROWEST <= after < before)


def test_a_message_is_one_line_however_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("first\nsecond\t third")
    assert capsys.readouterr().err == "oomproof: error: first second third\n"
