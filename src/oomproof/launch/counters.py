"""The kernel's counters of OOM kills around an attempt: the leaf's, the own cgroup's, the host's.

Not covered: what a rise of a counter means, see `oomproof.launch.verdict`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from oomproof.launch import process_control
from oomproof.launch.model import Kills, Scope
from oomproof.leaf import Leaf, MemoryEvents, MemoryFiles, own_files
from oomproof.leaf.model import read_fields

PRESSURE = Path("/proc/pressure/memory")

_VMSTAT = Path("/proc/vmstat")
"""Its ``oom_kill`` counts every OOM kill on this kernel (Linux 4.13)."""

_CHARGE_BATCH_BYTES = 64 * 4096
"""The kernel asks for memory in batches of 64 pages: this near to a limit one may be refused."""


class Counters(Protocol):
    """A counter read at the start of an attempt (by making the object) and at its end."""

    look_every_s: float | None
    """How often to look where the kernel does not notify; None: never."""

    @property
    def directory(self) -> Path:
        """The cgroup that is counted in."""
        ...

    def kills_so_far(self) -> int:
        """Kills since the start."""
        ...

    def are_ours(self) -> bool:
        """Whether they are the attempt's, as surely as to end it for them."""
        ...

    def watch(self) -> tuple[int, int] | None:
        """As `Leaf.watch`; None where the kernel does not notify."""
        ...

    def acknowledge(self, fd: int) -> None:
        """As `Leaf.acknowledge`."""
        ...

    def finish(self) -> Kills | None:
        """The difference; None when the counter can be read no more."""
        ...


def counters_for(leaf: Leaf | None) -> Counters | None:
    """The narrowest counters that can be read here, started; None when there are none."""
    if leaf is not None:
        if leaf.events().oom_kill is not None:
            return LeafCounters(leaf)
    else:
        own = own_files()
        if own is not None:
            try:
                return OwnCounters(own)
            except (OSError, LookupError):
                pass  # no counter in that directory (v1 before 4.13, the root of v2): the host's is left
    try:
        return HostCounters()
    except (OSError, LookupError):
        return None  # no /proc/vmstat, or one without oom_kill: nothing counts here


class LeafCounters:
    """Of a leaf that holds the attempt alone."""

    look_every_s: float | None = 0.9

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._before = leaf.events()
        self._seen = 0

    def kills_so_far(self) -> int:
        """See `Counters`."""
        try:
            self._seen = (self._leaf.events().oom_kill or 0) - (self._before.oom_kill or 0)
        except OSError:
            pass  # somebody removed the leaf under our feet: what was seen before still holds
        return self._seen

    @property
    def directory(self) -> Path:
        """See `Counters`."""
        return self._leaf.directory

    def are_ours(self) -> bool:
        """See `Counters`."""
        return True

    def watch(self) -> tuple[int, int] | None:
        """See `Counters`."""
        try:
            return self._leaf.watch()
        except OSError:
            return None  # the kernel has no notification to spare

    def acknowledge(self, fd: int) -> None:
        """See `Counters`."""
        self._leaf.acknowledge(fd)

    def finish(self) -> Kills | None:
        """See `Counters`."""
        before = self._before.oom_kill or 0
        try:
            after, limit = self._leaf.events(), self._leaf.limit_bytes()
        except OSError:
            # The empty leaf was removed by somebody: no word about kills that we did not see.
            seen = Kills(Scope.LEAF, str(self._leaf.events_path), before, before + self._seen, alone=True)
            return seen if self._seen else None
        return Kills(
            scope=Scope.LEAF,
            source=str(self._leaf.events_path),
            before=before,
            after=after.oom_kill or 0,
            own_limit_reached=self._own_limit_reached(after, limit),
            limit_bytes=limit,
            group_kill=(after.oom_group_kill or 0) > (self._before.oom_group_kill or 0),
            alone=True,
        )

    def _own_limit_reached(self, after: MemoryEvents, limit: int | None) -> bool:
        """v2 counts such events in ``oom``. v1 does not, and its failcnt may stand still (seen on
        6.18), but no charge was refused while usage never came near the limit."""
        if limit is None:
            return False
        if after.oom is not None:
            return after.oom > (self._before.oom or 0)
        return (self._leaf.highest_charge_bytes() or 0) > limit - _CHARGE_BATCH_BYTES


class OwnCounters:
    """Of the cgroup that oomproof itself runs in, which others may share."""

    look_every_s: float | None = 0.9
    """v1 notifies only who may write to the cgroup, and there it is read-only as a rule."""

    def __init__(self, own: MemoryFiles) -> None:
        self._own = own
        self._before = self._count()
        self._ooms = self._ooms_so_far()
        self._alone = True
        self._look_around()

    @property
    def directory(self) -> Path:
        """See `Counters`."""
        return self._own.directory

    def kills_so_far(self) -> int:
        """See `Counters`."""
        try:
            return self._count() - self._before
        except OSError:
            return 0  # cgroupfs was unmounted: the end will tell

    def are_ours(self) -> bool:
        """See `Counters`. Only in a container of our own: elsewhere a victim may have come and gone
        between two looks, and no program shall be ended for a stranger."""
        self._look_around()
        return self._alone and os.getpid() == 1

    def watch(self) -> tuple[int, int] | None:
        """See `Counters`."""
        try:
            return self._own.watch()
        except OSError:
            return None

    def acknowledge(self, fd: int) -> None:
        """See `Counters`. The kernel tells before it kills: now the victim can still be seen."""
        self._own.acknowledge(fd)
        ooms = self._ooms_so_far()
        if ooms is None or ooms != self._ooms:
            self._ooms = ooms
            self._look_around()

    def _ooms_so_far(self) -> int | None:
        """Others than OOMs are notified as well on v2; on v1 nothing else is."""
        return read_fields(self._own.events_path).get("oom")

    def finish(self) -> Kills:
        """See `Counters`."""
        self._look_around()
        return Kills(
            scope=Scope.OWN,
            source=str(self._own.events_path),
            before=self._before,
            after=self._count(),
            alone=self._alone,
        )

    def _count(self) -> int:
        # Of this very cgroup: v1 counts a victim where it lives, and v2's file includes all below.
        return read_fields(self._own.events_path)["oom_kill"]

    def _look_around(self) -> None:
        """A foreign process that was seen once may have been the victim at any time."""
        # Looking takes a while, in which ours end and find new parents: a stranger is seen twice.
        if self._alone and self._strangers() & self._strangers():
            self._alone = False

    def _strangers(self) -> set[int]:
        me = os.getpid()
        return set(self._own.processes()) - {me, *process_control.descendants(me)}


class HostCounters:
    """Of the whole kernel. Others' kills are no reason to act, so none is looked for meanwhile."""

    look_every_s: float | None = None
    directory: Path = Path("/")

    def __init__(self) -> None:
        self._before = self._count()

    def kills_so_far(self) -> int:
        """See `Counters`."""
        return 0

    def are_ours(self) -> bool:
        """See `Counters`."""
        return False

    def watch(self) -> tuple[int, int] | None:
        """See `Counters`."""
        return None

    def acknowledge(self, fd: int) -> None:
        """See `Counters`."""

    def finish(self) -> Kills:
        """See `Counters`."""
        return Kills(Scope.HOST, str(_VMSTAT), self._before, self._count(), alone=False)

    def _count(self) -> int:
        return read_fields(_VMSTAT)["oom_kill"]


def peak_of(leaf: Leaf | None) -> int | None:
    """The highest usage of a leaf; None without one, and where the kernel keeps none."""
    try:
        return leaf.peak_bytes() if leaf is not None else None
    except OSError:
        return None  # somebody removed the empty leaf


def host_pressure_percent(file: Path = PRESSURE) -> float | None:
    """Share of the last ten seconds in which at least one task of the host waited for memory.

    None where the kernel does not tell (before 4.20, or booted with psi=0).
    """
    try:
        words = file.read_text().split()
    except OSError:
        return None
    # some avg10=0.00 avg60=0.00 avg300=0.00 total=0
    return float(words[1].partition("=")[2])
