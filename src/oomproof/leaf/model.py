"""The one interface of a leaf cgroup; `v1` and `v2` are its two implementations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """The kernel's counters of what memory pressure did to a cgroup; None: not told here.

    v2: ``memory.events`` (hierarchical) and ``memory.events.local``.
    v1: ``memory.oom_control``, whose ``oom_kill`` counts in the victim's own cgroup
    only and is therefore summed over the subtree.
    """

    oom_kill: int | None
    """Processes killed by the OOM killer, of any cause, in the cgroup and below."""
    oom: int | None
    """Times the limit of this very cgroup was the reason; None where v1 does not count it."""
    oom_group_kill: int | None
    max: int | None
    """Times usage was about to go over the limit (v2 ``max``, v1 ``failcnt``)."""
    high: int | None


class Leaf(ABC):
    """A cgroup that oomproof made and will remove. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def join_path(self) -> Path:
        """Writing ``0`` here moves the writing process into the leaf."""
        return self.directory / "cgroup.procs"

    @abstractmethod
    def set_limit(self, limit_bytes: int) -> None:
        """Limit memory to `limit_bytes` and allow no swap beside it."""

    @abstractmethod
    def limit_bytes(self) -> int | None:
        """The leaf's own limit; None when it has none."""

    @abstractmethod
    def usage_bytes(self) -> int:
        """Bytes charged now, page cache included."""

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Highest usage since the leaf was made; None on kernels that do not keep it (v2 < 5.19)."""

    @abstractmethod
    def events(self) -> MemoryEvents:
        """Counters of the leaf's subtree, read now."""

    @abstractmethod
    def watch(self) -> tuple[int, int]:
        """A file descriptor, and the ``select.poll`` mask under which it becomes ready when a
        counter of `events` may have changed. The caller closes it; readiness is only a hint."""

    @abstractmethod
    def acknowledge(self, fd: int) -> None:
        """Consume the readiness of a descriptor from `watch` so that the next poll blocks again."""

    @abstractmethod
    def processes(self) -> list[int]:
        """Process ids in the leaf and below it."""

    @abstractmethod
    def kill_all(self, timeout_s: float = 10.0) -> list[int]:
        """SIGKILL everything in the leaf and below until it is empty; returns the survivors' pids."""

    @abstractmethod
    def remove(self) -> None:
        """Kill what is left, then remove the cgroup and all below it. Safe to call twice."""

    def __enter__(self) -> Leaf:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
