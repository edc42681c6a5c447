"""A leaf on cgroup v1's memory hierarchy (kernel: admin-guide/cgroup-v1/memory.rst)."""

from __future__ import annotations

import os
import select
from pathlib import Path

from oomproof.errors import LeafUnavailable
from oomproof.leaf.model import Leaf, MemoryEvents, read_fields, read_limit


class LeafV1(Leaf):
    """``memory.limit_in_bytes`` and its neighbours."""

    def set_limit(self, limit_bytes: int) -> None:
        """See `Leaf.set_limit`. memsw counts memory plus swap, so the same number means no swap."""
        memory = self.directory / "memory.limit_in_bytes"
        with_swap = self.directory / "memory.memsw.limit_in_bytes"
        # The kernel keeps memory <= memsw at every moment: lower memory first, raise memsw first.
        files = [memory, with_swap] if with_swap.exists() else [memory]
        if (current := read_limit(memory)) is not None and current < limit_bytes:
            files.reverse()
        for file in files:
            file.write_text(str(limit_bytes))

    def limit_bytes(self) -> int | None:
        """See `Leaf.limit_bytes`."""
        return read_limit(self.directory / "memory.limit_in_bytes")

    def usage_bytes(self) -> int:
        """See `Leaf.usage_bytes`."""
        return int((self.directory / "memory.usage_in_bytes").read_text())

    def peak_bytes(self) -> int | None:
        """See `Leaf.peak_bytes`."""
        return int((self.directory / "memory.max_usage_in_bytes").read_text())

    def events(self) -> MemoryEvents:
        """See `Leaf.events`. Kills in nested cgroups that are removed already are not seen."""
        kills: int | None = None
        for cgroup in self.cgroups():
            # Absent before Linux 4.13.
            in_cgroup = read_fields(cgroup / "memory.oom_control").get("oom_kill")
            if in_cgroup is not None:
                kills = (kills or 0) + in_cgroup
        return MemoryEvents(
            oom_kill=kills,
            oom=None,
            oom_group_kill=None,
            max=int((self.directory / "memory.failcnt").read_text()),
            high=None,
        )

    def watch(self) -> tuple[int, int]:
        """See `Leaf.watch`: an eventfd registered for the OOM notifications of the leaf."""
        notification = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        control = os.open(self.directory / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (self.directory / "cgroup.event_control").write_text(f"{notification} {control}")
        except OSError:
            os.close(notification)
            raise
        finally:
            os.close(control)
        return notification, select.POLLIN

    def acknowledge(self, fd: int) -> None:
        """See `Leaf.acknowledge`."""
        try:
            os.eventfd_read(fd)
        except BlockingIOError:
            pass  # acknowledged before


def prepare(parent: Path) -> Path:
    """The directory below which a leaf can be made; raises LeafUnavailable when it would not be bound
    by the limits above it."""
    hierarchy = parent / "memory.use_hierarchy"
    is_root = not (parent.parent / "memory.use_hierarchy").exists()
    if not is_root and hierarchy.exists() and hierarchy.read_text().strip() == "0":
        raise LeafUnavailable(
            f"{hierarchy} is 0, so a cgroup below would escape the limit of {parent}:"
            " write 1 there before anything is made below it"
        )
    return parent
