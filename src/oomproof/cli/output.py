"""How verbs speak: results on stdout, everything else as one line on stderr."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

_GAP = 2
_PATIENCE_MS = 1000
_NARROWEST = 16
"""Columns between two cells, and what an elastic column keeps at least."""
_MATTERS = ("warning: ", "error: ", "giving up: ", "failed: ")


def print_json(document: object) -> None:
    """One JSON document on stdout, indented for people, parseable by programs."""
    import json

    # Bytes of a command line that are no text are lone surrogates, which cannot be printed.
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print(text.encode("utf-8", "backslashreplace").decode())


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[int] = (),
    elastic: Iterable[int] = (),
) -> None:
    """Columns as wide as their widest cell; `right` names the columns to align right.

    On a terminal that is too narrow the `elastic` columns lose the middle of their long cells. A row is
    one line whatever is in it: what cannot be printed is escaped.
    """
    table = [list(header), *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    if sys.stdout is not None and sys.stdout.isatty():
        widths = _fit(widths, set(elastic), os.get_terminal_size(sys.stdout.fileno()).columns)
    align_right = set(right)
    for row in table:
        cells = [
            cell.rjust(width) if column in align_right else _shorten(cell, width).ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print((" " * _GAP).join(cells).rstrip())


def _printable(cell: str) -> str:
    """Without line breaks, escapes for the terminal and bytes that are no text."""
    if cell.isprintable():
        return cell
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in cell
    )


def _fit(widths: Sequence[int], elastic: set[int], columns: int) -> list[int]:
    """`widths` with the widest elastic column narrowed until all fit, or none can give any more."""
    fitted = list(widths)
    while sum(fitted) + _GAP * (len(fitted) - 1) > columns:
        widest = max(elastic, key=lambda column: fitted[column], default=None)
        if widest is None or fitted[widest] <= _NARROWEST:
            break
        fitted[widest] -= 1
    return fitted


def _shorten(cell: str, width: int) -> str:
    """``/a/very/long/path`` -> ``/a/ver...path``: both ends of a path tell most."""
    if len(cell) <= width:
        return cell
    tail = (width - 3) // 2
    return f"{cell[: width - 3 - tail]}...{cell[len(cell) - tail :]}"


def say(message: str) -> None:
    """One line on stderr. A stderr that is closed or full costs the line, never the program: nor does a
    reader that sleeps hold up a supervisor that has signals to pass on."""
    if sys.stderr is None or not _has_room(sys.stderr):
        return
    try:
        print(f"oomproof: {_one_line(message)}", file=sys.stderr, flush=True)
    except OSError:
        # There is nowhere left to say it. The descriptor is the program's, too, and stays as it is; the
        # interpreter must not try again at its end and replace our exit code.
        sys.stderr = None


def _has_room(stream: TextIO) -> bool:
    """Whether a line can be written without waiting for a reader, at the latest in a second."""
    try:
        fd = stream.fileno()
    except OSError:
        return True  # no descriptor: a test reads it
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(_PATIENCE_MS))


def say_if_it_matters(message: str) -> None:
    """As `say`, but only warnings and why a run could not be saved."""
    if message.startswith(_MATTERS):
        say(message)


def warning(message: str) -> None:
    """One line on stderr about something that did not stop the work."""
    say(f"warning: {message}")


def error(message: str) -> None:
    """One line on stderr about what stopped the work."""
    say(f"error: {message}")


def _one_line(message: str) -> str:
    return " ".join(message.split())
