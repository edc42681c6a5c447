"""Set keys in a TOML document and leave all else, comments and order, as it stands.

Works on lines, then proves with a parser that the result is the old document with those keys
set and nothing else: whatever the lines looked like, a wrong result is never returned.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]\s*(?:#.*)?")
_ANY_HEADER = re.compile(r"\s*\[")


def set_keys(text: str, keys: Mapping[str, str]) -> str:
    """`text` with each dotted key of `keys` set to a string.

    Raises ValueError when `text` is not TOML, or writes a key in a way that lines do not show.
    """
    for key, value in keys.items():
        table, _, name = key.rpartition(".")
        expected = _with(tomllib.loads(text), key, value)
        edited = _set(text.splitlines(), table, name, json.dumps(value, ensure_ascii=False))
        if not _says(edited, expected):
            raise ValueError(f"{key} cannot be set: write it as {name} = ... on a line below [{table}]")
        text = edited
    return text


def _set(lines: list[str], table: str, name: str, value: str) -> str:
    section = _section(lines, table)
    if section is None:
        lines.append(f"[{table}]")
        section = range(len(lines), len(lines))
    assignment = re.compile(rf"\s*{re.escape(name)}\s*=")
    for number in section:
        if assignment.match(lines[number]):
            lines[number] = f"{name} = {value}"
            break
    else:
        lines.insert(section.start, f"{name} = {value}")
    return "\n".join(lines) + "\n"


def _section(lines: list[str], table: str) -> range | None:
    """The lines of a table, without its header; None when there is no such table."""
    headers = [number for number, line in enumerate(lines) if _ANY_HEADER.match(line)]
    ends = [*headers[1:], len(lines)]
    if not table:
        return range(headers[0] if headers else len(lines))
    for number, end in zip(headers, ends, strict=False):
        found = _HEADER.fullmatch(lines[number])
        if found is not None and found[1] == table:
            return range(number + 1, end)
    return None


def _says(text: str, expected: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        return False


def _with(document: dict[str, Any], key: str, value: str) -> dict[str, Any]:
    *tables, name = key.split(".")
    inner = document
    for table in tables:
        inner = inner.setdefault(table, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{key} cannot be set: {table} is no table")  # noqa: TRY004
    inner[name] = value
    return document
