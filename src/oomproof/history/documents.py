"""A run as a JSON document, as ``history export`` writes it and ``import`` takes it in from anybody.

Not covered: reading and writing the tables, see `store`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oomproof.errors import HistoryError

RUN_COLUMNS = (
    *("uid", "key", "verb", "command", "recipe", "templates", "tag", "machine", "host", "boot_id"),
    *("started_at", "supervisor_pid", "limit_bytes", "planned_bytes", "allowed_bytes"),
)
ATTEMPT_COLUMNS = (
    *("attempt", "budget_bytes", "started_at", "ended_at", "verdict", "confidence", "exit_code", "signal"),
    *("oom_kills", "peak_bytes", "peak_of_cgroup", "duration_s", "next_budget_bytes", "evidence", "rate"),
)

_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("uid", "verb", "command", "host", "started_at"), str),
    **dict.fromkeys(("key", "recipe", "templates", "tag", "machine", "boot_id"), (str, type(None))),
    **dict.fromkeys(("supervisor_pid", "planned_bytes", "attempt", "budget_bytes"), int),
    **dict.fromkeys(("duration_s", "rate"), (int, float, type(None))),
    **dict.fromkeys(("ended_at", "verdict", "confidence", "evidence"), (str, type(None))),
}
_OTHERS = (int, type(None))
_LISTS = ("command", "templates", "evidence")
"""Columns that hold JSON: lists of strings."""
_MOST = (1 << 63) - 1


def checked(document: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The columns of a run, and of its attempts. Raises HistoryError that says what is wrong."""
    attempts = document.get("attempts")
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise HistoryError("it has no list of attempts")
    return _row(document, RUN_COLUMNS), [_row(attempt, ATTEMPT_COLUMNS) for attempt in attempts]


def _row(document: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    row = {name: document.get(name) for name in columns}
    for name, value in row.items():
        fits = isinstance(value, _TYPES.get(name, _OTHERS)) and not isinstance(value, bool)
        least = -_MOST if name == "rate" else 0
        if not fits or (isinstance(value, int | float) and not least <= value <= _MOST):
            raise HistoryError(f"its {name} is {value!r}")
        if name in _LISTS and value is not None and not _is_list(value):
            raise HistoryError(f"its {name} is {value!r}, which is no list of strings as JSON")
    for name in ("started_at", "ended_at"):
        try:
            datetime.fromisoformat(row.get(name) or "1970-01-01")
        except ValueError:
            raise HistoryError(f"its {name} is {row[name]!r}") from None
    return row


def _is_list(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
