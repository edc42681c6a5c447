"""A leaf on cgroup v2 (kernel: admin-guide/cgroup-v2.rst).

A v2 cgroup other than the root either holds processes or hands the memory controller
down, never both ("no internal processes"). Where the own cgroup holds nobody but
oomproof itself (PID 1 of a container with a writable cgroupfs), oomproof steps down
into a cgroup of its own beside the leaf and steps back up when the leaf is removed.
"""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

from oomproof.errors import LeafUnavailable
from oomproof.leaf.model import Leaf, MemoryEvents, MemoryFiles, read_fields, read_limit

SUPERVISOR_NAME = "oomproof-supervisor"
"""Name of the cgroup that oomproof steps down into."""


class MemoryFilesV2(MemoryFiles):
    """``memory.current`` and its neighbours."""

    version = 2

    @property
    def events_path(self) -> Path:
        """See `MemoryFiles.events_path`."""
        return self.directory / "memory.events"

    def limit_bytes(self) -> int | None:
        """See `MemoryFiles.limit_bytes`."""
        return read_limit(self.directory / "memory.max")

    def usage_bytes(self) -> int:
        """See `MemoryFiles.usage_bytes`."""
        return int((self.directory / "memory.current").read_text())

    def peak_bytes(self) -> int | None:
        """See `MemoryFiles.peak_bytes`."""
        try:
            return int((self.directory / "memory.peak").read_text())
        except FileNotFoundError:
            return None

    def events(self) -> MemoryEvents:
        """See `MemoryFiles.events`."""
        fields = read_fields(self.directory / "memory.events")
        return MemoryEvents(
            oom_kill=fields.get("oom_kill"),
            oom=fields.get("oom"),
            oom_group_kill=fields.get("oom_group_kill"),
            max=fields.get("max"),
            high=fields.get("high"),
        )

    def watch(self) -> tuple[int, int]:
        """See `MemoryFiles.watch`: the events file itself, which the kernel marks as urgent on change."""
        fd = os.open(self.directory / "memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self.acknowledge(fd)
        return fd, select.POLLPRI

    def acknowledge(self, fd: int) -> None:
        """See `MemoryFiles.acknowledge`: reading from the start is what rearms the notification."""
        try:
            os.pread(fd, 4096, 0)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise  # ENODEV: the leaf was removed, nothing will come any more

    def highest_charge_bytes(self) -> int | None:
        """See `MemoryFiles.highest_charge_bytes`: v2 limits memory without swap."""
        return self.peak_bytes()


class LeafV2(MemoryFilesV2, Leaf):
    """A leaf with ``memory.max``."""

    def set_limit(self, limit_bytes: int) -> None:
        """See `Leaf.set_limit`."""
        (self.directory / "memory.max").write_text(str(limit_bytes))
        swap = self.directory / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def _kill(self, pids: list[int]) -> None:
        """All at once where the kernel can (5.14) and lets us, so that nothing can fork ahead of us."""
        try:
            (self.directory / "cgroup.kill").write_text("1")
        except (FileNotFoundError, PermissionError):
            super()._kill(pids)

    def remove(self) -> None:
        """See `Leaf.remove`."""
        super().remove()
        step_up(self.directory.parent)


def prepare(own: Path) -> Path:
    """The directory below which a leaf can be made, with the memory controller handed down to it.

    Raises LeafUnavailable when the kernel's rules or the rights of this process forbid it.
    """
    parent = own.parent if own.name == SUPERVISOR_NAME else own
    kind = parent / "cgroup.type"
    is_root = not kind.exists()
    if not is_root and (type_of_own := kind.read_text().strip()) != "domain":
        raise LeafUnavailable(
            f"{kind} says {type_of_own!r}: only a cgroup of type 'domain' can account memory"
        )
    if "memory" not in (parent / "cgroup.controllers").read_text().split():
        raise LeafUnavailable(
            f"the memory controller is not handed down to {parent}: enable it in"
            f" {parent.parent / 'cgroup.subtree_control'}, or delegate it (systemd: Delegate=memory)"
        )
    if "memory" in (parent / "cgroup.subtree_control").read_text().split():
        return parent
    if not is_root:
        _step_down(parent)
    try:
        (parent / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        step_up(parent)
        raise
    return parent


def _step_down(parent: Path) -> None:
    pids = _pids(parent)
    strangers = [pid for pid in pids if not _is_ours(pid)]
    if strangers:
        raise LeafUnavailable(
            f"{parent} also holds processes that are not ours ({_some(strangers)}), and cgroup v2 allows a"
            " leaf only below a cgroup without processes: start oomproof in a cgroup of its own, for"
            " example with systemd-run --scope -p Delegate=yes"
        )
    below = parent / SUPERVISOR_NAME
    below.mkdir(exist_ok=True)
    _move(pids, below)


def step_up(parent: Path) -> None:
    """Undo `prepare`'s step down, unless another leaf still needs it."""
    below = parent / SUPERVISOR_NAME
    if not below.exists() or any(child != below for child in parent.iterdir() if child.is_dir()):
        return
    if "memory" in (parent / "cgroup.subtree_control").read_text().split():
        (parent / "cgroup.subtree_control").write_text("-memory")
    _move(_pids(below), parent)
    below.rmdir()


def _move(pids: list[int], cgroup: Path) -> None:
    for pid in pids:
        try:
            (cgroup / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            pass  # it ended meanwhile


def _pids(cgroup: Path) -> list[int]:
    return [int(word) for word in (cgroup / "cgroup.procs").read_text().split()]


def _is_ours(pid: int) -> bool:
    """This process, a descendant of it, or the init of its container (``docker run --init``)."""
    if pid == 1 or os.getpid() == 1:
        return True
    while pid > 1 and pid != os.getpid():
        try:
            # The command in parentheses may hold anything: fields are counted from the last ")".
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return True  # it ended: nothing to move
    return pid == os.getpid()


def _some(pids: list[int]) -> str:
    shown = ", ".join(str(pid) for pid in pids[:5])
    return f"pid {shown}" + (f" and {len(pids) - 5} more" if len(pids) > 5 else "")
