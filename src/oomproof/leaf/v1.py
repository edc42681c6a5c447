"""A leaf on cgroup v1's memory hierarchy (kernel: admin-guide/cgroup-v1/memory.rst)."""

from __future__ import annotations

import os
import select
from pathlib import Path

from oomproof.errors import LeafUnavailable
from oomproof.leaf.model import Leaf, MemoryEvents, MemoryFiles, is_gone, read_fields, read_limit


class MemoryFilesV1(MemoryFiles):
    """``memory.usage_in_bytes`` and its neighbours."""

    version = 1

    @property
    def events_path(self) -> Path:
        """See `MemoryFiles.events_path`."""
        return self.directory / "memory.oom_control"

    def limit_bytes(self) -> int | None:
        """See `MemoryFiles.limit_bytes`."""
        return read_limit(self.directory / "memory.limit_in_bytes")

    def usage_bytes(self) -> int:
        """See `MemoryFiles.usage_bytes`."""
        return int((self.directory / "memory.usage_in_bytes").read_text())

    def peak_bytes(self) -> int | None:
        """See `MemoryFiles.peak_bytes`."""
        return int((self.directory / "memory.max_usage_in_bytes").read_text())

    def highest_charge_bytes(self) -> int | None:
        """See `MemoryFiles.highest_charge_bytes`."""
        names = ("memory.max_usage_in_bytes", "memory.memsw.max_usage_in_bytes")
        files = (self.directory / name for name in names)
        return max(int(file.read_text()) for file in files if file.exists())

    def events(self) -> MemoryEvents:
        """See `MemoryFiles.events`. Kills in nested cgroups that are removed already are not seen."""
        kills: int | None = None
        for cgroup in self.cgroups():
            try:
                fields = read_fields(cgroup / "memory.oom_control")
            except OSError as error:
                if cgroup == self.directory or not is_gone(error):
                    raise
                continue
            # Absent before Linux 4.13.
            if (in_cgroup := fields.get("oom_kill")) is not None:
                kills = (kills or 0) + in_cgroup
        return MemoryEvents(
            oom_kill=kills,
            oom=None,
            oom_group_kill=None,
            max=int((self.directory / "memory.failcnt").read_text()),
            high=None,
        )

    def watch(self) -> tuple[int, int]:
        """See `MemoryFiles.watch`: an eventfd registered for the OOM notifications of the cgroup."""
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
        """See `MemoryFiles.acknowledge`."""
        try:
            os.eventfd_read(fd)
        except BlockingIOError:
            pass  # acknowledged before


class LeafV1(MemoryFilesV1, Leaf):
    """A leaf with ``memory.limit_in_bytes``."""

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
