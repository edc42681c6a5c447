"""What is remembered, and where, as frozen data: SQLite is not imported here. Sizes are bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oomproof.units import GIB

STATE_VARIABLE = "OOMPROOF_STATE_DIR"
FILE_NAME = "history.sqlite3"


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a launching verb. Sizes in bytes."""

    verb: str
    command: tuple[str, ...]
    """As it was given, with its placeholders."""
    limit_bytes: int | None
    """The effective one."""
    planned_bytes: int
    """By check and probe alone, before anything learned had a say."""
    allowed_bytes: int | None = None
    """What could be had before anything was taken off."""
    recipe: str | None = None
    templates: tuple[str, ...] = ()
    """Configuration files that are rendered for it, ``SRC:DST``."""
    tag: str | None = None
    """What the caller calls the kind of input (``--tag``)."""
    machine: str = ""
    """What the caller calls the kind of machine, else `machine_kind`."""
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
    peak_of_cgroup: bool = False
    """The peak is that of the attempt's own cgroup, not of the main process alone."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An attempt that teaches something: it ended well, or for lack of memory. Sizes in bytes."""

    budget_bytes: int
    lived: bool
    peak_bytes: int | None
    """Of the attempt's own cgroup; None: not measured. At a death it bounds only from below."""
    duration_s: float
    age_s: float
    """Since it ended."""
    after_oom: bool = False
    """The attempt before it in the same run ran out of memory: its budget was lowered by us."""
    allowed_bytes: int | None = None
    """What could be had at its time; None: not known."""

    @property
    def overhead_bytes(self) -> int:
        """What was taken beside the budget; 0: nothing, or nobody knows."""
        return max(0, (self.peak_bytes or 0) - self.budget_bytes)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of the runs with one key."""

    key: str | None
    """None: runs of a time before there were keys."""
    command: tuple[str, ...]
    recipe: str | None
    tag: str | None
    limit_bytes: int | None
    machine: str | None
    runs: int
    attempts: int
    out_of_memory: int
    """Of the attempts."""
    last_started_at: str


def machine_kind(total_bytes: int | None) -> str:
    """``x86_64-64GiB-16cpu``: budgets that were learned on one machine hold on others of its kind.

    Not the host's name: a container has another one at each start, and a fleet learns together.
    """
    memory = "?" if total_bytes is None else str(round(total_bytes / GIB))
    return f"{os.uname().machine}-{memory}GiB-{os.cpu_count()}cpu"


def is_server(target: str) -> bool:
    """Whether a history is a database server's, by its address."""
    return target.startswith(("postgresql://", "postgres://"))


def printable_target(target: Path | str) -> str:
    """Without the password that an address may hold, in its authority or among its parameters."""
    text = str(target)
    if not is_server(text):
        return text
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


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
