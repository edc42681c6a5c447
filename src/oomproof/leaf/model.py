"""The one interface of a memory cgroup, and of a leaf; `v1` and `v2` are its two implementations."""

from __future__ import annotations

import errno
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from oomproof.errors import OomproofError

REMOVE_TIMEOUT_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """The kernel's counters of what memory pressure did to a cgroup; None: not told here.

    v2: ``memory.events``, which counts the whole subtree, removed cgroups included.
    v1: ``memory.oom_control``, whose ``oom_kill`` counts in the victim's own cgroup
    only; it is summed over the subtree that exists now.
    """

    oom_kill: int | None
    """Processes killed by the OOM killer, of any cause, in the cgroup and below."""
    oom: int | None
    """Times that a limit in this subtree could not be kept by reclaim; v1 does not count it."""
    oom_group_kill: int | None
    max: int | None
    """Times usage was about to go over the limit (v2 ``max``, v1 ``failcnt``)."""
    high: int | None


class MemoryFiles(ABC):
    """What the kernel tells about one cgroup and those below it. Only reads."""

    version: ClassVar[int]
    """1 or 2."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    @abstractmethod
    def events_path(self) -> Path:
        """The file whose ``oom_kill`` field counts; on v1 members of this very cgroup only."""

    @abstractmethod
    def limit_bytes(self) -> int | None:
        """The cgroup's own limit; None when it has none."""

    @abstractmethod
    def usage_bytes(self) -> int:
        """Bytes charged now, page cache included."""

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Highest usage so far; None where the kernel keeps none (v2 before 5.19)."""

    @abstractmethod
    def highest_charge_bytes(self) -> int | None:
        """What came nearest to the limit so far, swap included where the limit counts it; None: not kept."""

    @abstractmethod
    def events(self) -> MemoryEvents:
        """Counters of the subtree, read now."""

    @abstractmethod
    def watch(self) -> tuple[int, int]:
        """A file descriptor, and the ``select.poll`` mask under which it becomes ready when a
        counter of `events` may have changed. The caller closes it; readiness is only a hint:
        it may come before the counter moves (v1), and on v1 an OOM of a nested cgroup, against
        a limit of its own, is not reported."""

    @abstractmethod
    def acknowledge(self, fd: int) -> None:
        """Consume the readiness of a descriptor from `watch` so that the next poll blocks again."""

    def stat(self) -> dict[str, int]:
        """``memory.stat`` as the kernel names it (on v1 the ``total_`` fields cover the subtree)."""
        return read_fields(self.directory / "memory.stat")

    def cgroups(self) -> Iterator[Path]:
        """Directories of the subtree, deepest first, the cgroup itself last."""
        return subtree(self.directory)

    def processes(self) -> list[int]:
        """Process ids in the cgroup and below it; 0 stands for one outside our pid namespace."""
        pids: list[int] = []
        for cgroup in self.cgroups():
            try:
                pids += [int(word) for word in (cgroup / "cgroup.procs").read_text().split()]
            except OSError as error:
                if not is_gone(error):
                    raise
        return pids


class Leaf(MemoryFiles):
    """A cgroup that oomproof made and will remove. Use as a context manager."""

    @property
    def join_path(self) -> Path:
        """Writing ``0`` here moves the writing process into the leaf."""
        return self.directory / "cgroup.procs"

    @abstractmethod
    def set_limit(self, limit_bytes: int) -> None:
        """Limit memory to `limit_bytes` and allow no swap beside it."""

    def kill_all(self, timeout_s: float = 10.0) -> list[int]:
        """SIGKILL everything in the leaf and below until it is empty; returns the survivors' pids."""
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while survivors := self.processes():
            if time.monotonic() > deadline:
                return survivors
            self._kill(survivors)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
        return []

    def _kill(self, pids: list[int]) -> None:
        """One round of `kill_all`. New processes may appear meanwhile: the caller repeats."""
        for pid in pids:
            if pid > 0:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it ended by itself between the reading and the killing
                except PermissionError:
                    pass  # another user's (setuid): the caller finds it among the survivors

    def remove(self) -> None:
        """Kill what is left, then remove the cgroup and all below it. Safe to call twice.

        Raises OomproofError when it cannot be emptied or removed in time.
        """
        self.kill_all(REMOVE_TIMEOUT_S)
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        pause = _FIRST_PAUSE_S
        while not remove_if_empty(self.directory):
            if time.monotonic() > deadline:
                raise OomproofError(
                    f"{self.directory} cannot be removed, processes {self.processes()} are still in it:"
                    " end them, then rmdir it"
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def is_gone(error: OSError) -> bool:
    """Whether `error` says that a cgroup was removed while it was read."""
    return error.errno in (errno.ENOENT, errno.ENODEV)


def subtree(directory: Path) -> Iterator[Path]:
    """Cgroups at and below `directory`, deepest first."""
    for path, _, _ in os.walk(directory, topdown=False):
        yield Path(path)


def remove_if_empty(directory: Path) -> bool:
    """Remove a cgroup and all below it; False while the kernel still finds one of them busy."""
    for cgroup in subtree(directory):
        try:
            cgroup.rmdir()
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            if not is_gone(error):
                raise
    return True


def read_fields(path: Path) -> dict[str, int]:
    """A flat keyed file of the kernel (``key value`` lines) as a dictionary."""
    fields: dict[str, int] = {}
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        fields[key] = int(value)
    return fields


def read_limit(path: Path) -> int | None:
    """A single number; None for ``max`` or, on v1, the largest page counter."""
    text = path.read_text().strip()
    if text == "max":
        return None
    value = int(text)
    return None if value >= _V1_UNLIMITED else value


_V1_UNLIMITED = 0x7FFF_FFFF_FFFF_FFFF // 65536 * 65536
"""``PAGE_COUNTER_MAX`` in bytes on the coarsest page size in use (64 KiB)."""
