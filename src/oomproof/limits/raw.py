"""What the kernel's files say, level by level, as frozen data: values are not filtered or judged here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from oomproof.limits.files import Fact


class PageCache(NamedTuple):
    """The parts of a level's page cache that decide what can be had back; bytes, subtree included."""

    inactive_file: int
    active_file: int
    dirty: int
    writeback: int


class Level(NamedTuple):
    """One cgroup on the way from this process up to the topmost level that can be seen."""

    version: Literal[1, 2]
    path: str
    directory: str
    limit: Fact
    """v2 memory.max, v1 memory.limit_in_bytes."""
    soft: Fact
    """v2 memory.high (throttles), v1 memory.soft_limit_in_bytes (reclaimed first)."""
    swap: Fact
    """v2 memory.swap.max: swap alone. v1 memory.memsw.limit_in_bytes: memory plus swap."""
    usage: Fact
    swap_usage: Fact
    stat: Fact
    """Whether memory.stat could be read; `page_cache` holds what it says."""
    page_cache: PageCache | None = None
    separate: bool = False
    """v1 use_hierarchy=0: what is charged here is not charged to the levels above."""
    hierarchical_limit: int | None = None
    """v1 hierarchical_memory_limit: the tightest limit of this level and all above, hidden ones too."""


class Host(NamedTuple):
    """The whole machine, as /proc/meminfo and /sys have it."""

    total: Fact
    available: int | None = None
    huge_pages: int = 0
    """Bytes set aside for huge pages of every size."""
    virtualised: bool = False
    """/proc/meminfo is lxcfs's, which shows a container's memory in place of the host's."""
    problem: str = ""
    """What is wrong with /proc/meminfo, in words, even where the total is known from elsewhere."""


class Nodes(NamedTuple):
    """The NUMA nodes this process may allocate from, when they are not all."""

    allowed: str
    total: int
    huge_pages: int
    used: int | None
    page_cache: PageCache
    source: str


class Process(NamedTuple):
    """What concerns this process alone: its resource limits and what it uses of them."""

    rlimits: Mapping[str, int | None]
    """Soft limits by name (``AS``, ``DATA``, ``MEMLOCK``) in bytes; None: unlimited. Missing: not told."""
    source: str
    address_space: int | None = None
    data: int | None = None
    locked: int | None = None
    may_lock_all: bool = False
    """CAP_IPC_LOCK: RLIMIT_MEMLOCK does not apply."""


class Readings(NamedTuple):
    """Everything that was read for one answer."""

    host: Host
    nodes: Nodes | None
    levels: tuple[Level, ...]
    process: Process
    history: Mapping[str, int]
