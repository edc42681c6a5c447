"""What is remembered, and where, as frozen data: SQLite is not imported here. Sizes are bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STATE_VARIABLE = "OOMPROOF_STATE_DIR"
FILE_NAME = "history.sqlite3"


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a launching verb. Sizes in bytes."""

    verb: str
    command: tuple[str, ...]
    limit_bytes: int | None
    planned_bytes: int
    supervisor_pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that was started, whose end nobody wrote down, and whose oomproof is gone."""

    id: int
    attempt: int
    started_at: str
    budget_bytes: int
    same_boot: bool | None
    """Whether the machine has not been started anew since; None where that cannot be told."""
    told_to_end: int | None
    """The last signal that asked it to end; None: nobody did."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, in the words of the event stream. Sizes in bytes."""

    verdict: str
    confidence: str
    exit_code: int | None
    signal: int | None
    oom_kills: int | None
    peak_bytes: int | None
    duration_s: float | None
    next_budget_bytes: int | None
    evidence: tuple[str, ...]
    rate: float | None = None
    """What a benchmark measured with this budget."""


def default_path(environ: Mapping[str, str]) -> Path:
    """``OOMPROOF_STATE_DIR``, else the user's state directory, else ``/var/lib/oomproof``."""
    if directory := environ.get(STATE_VARIABLE):
        return Path(directory) / FILE_NAME
    if state_home := environ.get("XDG_STATE_HOME"):
        return Path(state_home) / "oomproof" / FILE_NAME
    home = environ.get("HOME")
    if home and home != "/":
        return Path(home) / ".local" / "state" / "oomproof" / FILE_NAME
    return Path("/var/lib/oomproof") / FILE_NAME
