"""How verbs speak: results on stdout, everything else as one line on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence


def print_json(document: object) -> None:
    """One JSON document on stdout, indented for people, parseable by programs."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Columns as wide as their widest cell; `right` names the columns to align right."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    align_right = set(right)
    for row in table:
        cells = [
            cell.rjust(width) if column in align_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def say(message: str) -> None:
    """One line on stderr."""
    print(f"oomproof: {_one_line(message)}", file=sys.stderr, flush=True)


def warning(message: str) -> None:
    """One line on stderr about something that did not stop the work."""
    say(f"warning: {message}")


def error(message: str) -> None:
    """One line on stderr about what stopped the work."""
    say(f"error: {message}")


def _one_line(message: str) -> str:
    return " ".join(message.split())
