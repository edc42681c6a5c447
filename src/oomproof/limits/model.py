"""What `limits` answers, as frozen data: no file is read here.

All sizes are bytes; None means that the kernel's files do not tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal


class Status(StrEnum):
    """Three answers, never two."""

    LIMITED = "limited"
    """Something below the host's own memory limits this process."""
    UNLIMITED = "unlimited"
    """Every level was read and only the host's memory limits this process."""
    UNKNOWN = "unknown"
    """No file tells, or one that would tell cannot be read or understood."""


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """Where the kernel charges this process's memory."""

    version: Literal[1, 2]
    path: str
    """As in ``/proc/self/cgroup``, for example ``/system.slice/engine.service``."""
    directory: Path
    """The cgroup's directory in the filesystem (below ``root`` when one was given)."""
    mount_point: Path
    """Where the hierarchy is mounted; the topmost level that can be seen."""


class Kind(StrEnum):
    """What sort of limit a candidate is; only the first four are ever compared."""

    HOST = "host"
    NUMA = "numa"
    CGROUP = "cgroup"
    LEAF = "leaf"
    """The limit that oomproof itself is about to put on an attempt's leaf cgroup."""
    SOFT = "soft"
    SWAP = "swap"
    ADDRESS_SPACE = "address_space"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row of the table: something that may limit the memory of this process."""

    kind: Kind
    name: str
    """For people: ``host MemTotal``, ``cgroup v2 /a/b``, ``RLIMIT_AS``."""
    limit_bytes: int | None
    """None: this level sets no limit, or its file cannot be read (``verdict`` says which)."""
    usage_bytes: int | None
    available_bytes: int | None
    """Headroom counting only clean inactive page cache as reclaimable."""
    available_optimistic_bytes: int | None
    """Headroom if the kernel dropped all clean page cache."""
    source: str
    """The file the value came from, as the process sees it."""
    verdict: str
    """``binds`` (limit and headroom), ``binds limit``, ``binds headroom``, or why it does not."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A condition that the reader of the answer should know; ``code`` is stable."""

    code: str
    message: str
    source: str | None = None
    value_bytes: int | None = None
    """The size it speaks of, where there is one (hints)."""


@dataclass(frozen=True, slots=True)
class LimitReport:
    """How much memory this process may use, who says so, and how much is left."""

    status: Status
    limit_bytes: int | None
    available_bytes: int | None
    limit_bound_by: str | None
    """``name`` of the candidate that sets the limit."""
    available_bound_by: str | None
    candidates: tuple[Candidate, ...]
    notices: tuple[Notice, ...] = ()
    host_total_bytes: int | None = None
    host_available_bytes: int | None = None
    """MemAvailable: what the whole host can still give; not folded into ``available_bytes``."""
    soft_limit_bytes: int | None = None
    swap_limit_bytes: int | None = None
    pinned_limit_bytes: int | None = None
    hints: tuple[Notice, ...] = ()
    """Limits declared elsewhere (scheduler, platform, environment): shown, never enforced."""
    cgroup: MemoryCgroup | None = None
    facts: dict[str, int] = field(default_factory=dict)
    """History of the place (oom_kill, max and high events, peak, ...), by the kernel's names."""
