"""Whether tests can make leaf cgroups on this machine, found out by trying.

Deliberately not with oomproof's own code: a fault in that must fail the tests, not skip them.
"""

from __future__ import annotations

import os
from pathlib import Path


def leaf_problem() -> str | None:
    """Why no leaf with a memory limit can be made below the own cgroup; None when one can."""
    directory = _own_memory_cgroup()
    if directory is None:
        return "no cgroup hierarchy with a memory controller is mounted"
    leaf = directory / f"oomproof-tests-trial-{os.getpid()}"
    try:
        leaf.mkdir()
    except OSError as error:
        return f"no cgroup can be made below {directory}: {error.strerror}"
    try:
        if any((leaf / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
            return None
        return (
            f"{directory} holds processes, so that cgroup v2 does not let it hand down the memory controller"
        )
    finally:
        leaf.rmdir()


def _own_memory_cgroup() -> Path | None:
    """The directory of the cgroup that this process's memory is charged to."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        mounted_root, mount_point = mount.split()[3:5]
        file_system, _, options = source.split(" ", 2)
        is_v1 = file_system == "cgroup" and "memory" in options.split(",")
        is_v2 = file_system == "cgroup2" and "memory" not in own and "" in own
        if is_v1 or is_v2:
            path = own["memory" if is_v1 else ""]
            # A container sees its own cgroup as the root of the mount.
            below = path.removeprefix(mounted_root) if mounted_root != "/" else path
            return Path(mount_point, below.lstrip("/"))
    return None
