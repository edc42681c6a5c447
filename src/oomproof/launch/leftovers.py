"""What an attempt leaves behind although its processes are gone: memory, files, others' marks on its cgroup.

Files in ``/dev/shm`` outlive their makers and keep their memory. Not covered: processes,
which `oomproof.launch.supervisor` ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from oomproof.leaf import Leaf
from oomproof.limits.mounts import unescape
from oomproof.units import format_size

MOUNTS = Path("/proc/self/mounts")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  looked at, not written to
_MOST_NAMES = 5
_MEMORY_BACK_TIMEOUT_S = 2.0
_RESIDUE_BYTES = 1 << 20
"""What an empty cgroup may be charged for a while: each processor keeps up to 64 pages in stock."""


class SharedMemory:
    """The files in a tmpfs at the start of an attempt."""

    def __init__(self, directory: Path = SHARED_MEMORY) -> None:
        self._directory = directory
        self._before = set(self._files())

    def new_files(self) -> tuple[str, ...]:
        """One sentence if there are files of ours that were not there at the start."""
        new = {key: size for key, size in self._files().items() if key not in self._before}
        if not new:
            return ()
        names = sorted(name for name, _ in new)
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        held = format_size(sum(new.values()))
        return (f"{len(new)} new file(s) in {self._directory} still hold {held}: {shown}",)

    def _files(self) -> dict[tuple[str, int], int]:
        """Bytes held by (name, inode), for files of this user."""
        held = {}
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed meanwhile
                    if status.st_uid == os.getuid():
                        held[entry.name, status.st_ino] = status.st_blocks * 512
        except OSError:
            return {}  # no such tmpfs here
        return held


def userspace_killer(cgroups: Iterable[Path]) -> str | None:
    """A sentence when systemd-oomd says in the attributes of one of `cgroups` that it killed there.

    It counts its decisions before it kills (``user.oomd_ooms``) and the processes after that
    (``user.oomd_kill``), maybe later than we look: systemd's src/oom/oomd-util.c.
    """
    for cgroup in cgroups:
        for attribute in ("user.oomd_ooms", "user.oomd_kill"):
            try:
                count = int(os.getxattr(cgroup, attribute))
            except (OSError, ValueError):
                continue  # no such attribute, or none in this file system: nobody did
            if count:
                return f"systemd-oomd killed here: attribute {attribute} of {cgroup} is {count}"
    return None


def full_tmpfs(mounts: Path = MOUNTS) -> tuple[str, ...]:
    """Where a tmpfs is mounted in which nothing can grow any more."""
    full = []
    for line in mounts.read_bytes().splitlines():
        _, escaped, kind, options, *_ = line.split(b" ")
        if kind != b"tmpfs" or b"ro" in options.split(b","):
            continue
        directory = os.fsdecode(unescape(escaped))
        try:
            state = os.statvfs(directory)
        except OSError:
            continue  # hidden under another mount, or not ours to look at
        if state.f_blocks and not state.f_bfree:
            full.append(directory)
    return tuple(full)


def wait_for_memory(leaf: Leaf) -> int:
    """Wait until the usage of an emptied leaf no longer falls; returns what is still charged.

    Page cache and tmpfs files stay charged; the kernel gives the first back when others need it.
    """
    deadline = time.monotonic() + _MEMORY_BACK_TIMEOUT_S
    try:
        usage = leaf.usage_bytes()
        while usage > _RESIDUE_BYTES and time.monotonic() < deadline:
            time.sleep(0.002)
            now = leaf.usage_bytes()
            if now >= usage:
                return now
            usage = now
    except OSError:
        return 0  # somebody removed the empty leaf
    return usage
