"""What an attempt leaves behind although its processes are gone, and others' marks on its cgroup.

Files in ``/dev/shm`` outlive their makers and keep their memory. Not covered: processes,
which `oomproof.launch.supervisor` ends.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from oomproof.leaf import Leaf
from oomproof.units import format_size

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  looked at, not written to
_MOST_NAMES = 5
_MEMORY_BACK_TIMEOUT_S = 2.0


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


def userspace_killer(cgroup: Path) -> str | None:
    """A sentence when systemd-oomd says in the attributes of `cgroup` that it killed there."""
    try:
        count = int(os.getxattr(cgroup, "user.oomd_kill"))
    except (OSError, ValueError):
        return None  # no such attribute: nobody did
    return f"systemd-oomd killed {count} process(es): attribute user.oomd_kill of {cgroup}" if count else None


def wait_for_memory(leaf: Leaf) -> int:
    """Wait until the usage of an emptied leaf no longer falls; returns what is still charged.

    Page cache and tmpfs files stay charged; the kernel gives the first back when others need it.
    """
    deadline = time.monotonic() + _MEMORY_BACK_TIMEOUT_S
    usage = leaf.usage_bytes()
    while time.monotonic() < deadline:
        time.sleep(0.002)
        now = leaf.usage_bytes()
        if now >= usage:
            return now
        usage = now
    return usage
