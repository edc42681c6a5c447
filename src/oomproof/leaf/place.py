"""Where a leaf can be made, and its name; sweeps up what a killed oomproof left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from oomproof.errors import LeafUnavailable
from oomproof.leaf import v1, v2
from oomproof.leaf.model import Leaf, MemoryFiles, remove_if_empty
from oomproof.limits.discovery import find_memory_cgroup
from oomproof.limits.model import MemoryCgroup

PREFIX = "oomproof-"
_STALE_AFTER_S = 10.0
"""An empty leaf younger than this may be one that its process has not entered yet."""


def own_files() -> MemoryFiles | None:
    """What the kernel tells about the cgroup that we are in; None where it cannot be seen."""
    own = find_memory_cgroup()
    if own is None:
        return None
    return v1.MemoryFilesV1(own.directory) if own.version == 1 else v2.MemoryFilesV2(own.directory)


def known_leaf(version: int, directory: Path) -> Leaf:
    """A leaf that another process of ours made."""
    return v1.LeafV1(directory) if version == 1 else v2.LeafV2(directory)


def make_leaf(
    purpose: str, cgroup: MemoryCgroup | None = None, before: Callable[[Leaf], None] = lambda _leaf: None
) -> Leaf:
    """Make a leaf named ``oomproof-PURPOSE-PID-N`` below `cgroup` (default: the own one).

    `before` is called with the leaf that is about to be made, so that somebody who outlives us can
    know of it; its name is one that nobody has used since the machine was started.

    Raises LeafUnavailable, with the reason and the way out, when that cannot be done.
    """
    own = cgroup or find_memory_cgroup()
    if own is None:
        raise LeafUnavailable("no memory cgroup of this process is visible: mount cgroupfs at /sys/fs/cgroup")
    kind, prepare = (v1.LeafV1, v1.prepare) if own.version == 1 else (v2.LeafV2, v2.prepare)
    try:
        parent = prepare(own.directory)
        _sweep(parent)
        leaf = kind(parent / f"{PREFIX}{purpose}-{os.getpid()}-{time.monotonic_ns()}")
        before(leaf)
        leaf.directory.mkdir()
    except OSError as error:
        raise LeafUnavailable(
            f"no cgroup can be made below {own.directory} ({error.strerror}): mount cgroupfs writable"
            " and run as its owner"
        ) from error
    return leaf


def _sweep(parent: Path) -> None:
    """Remove empty leaves whose maker is gone, old enough not to be in use by another pid namespace."""
    for name in os.listdir(parent):  # noqa: PTH208 - names are all that is wanted
        words = name.removeprefix(PREFIX).split("-")
        if not name.startswith(PREFIX) or len(words) < 3 or not words[-2].isdigit():
            continue
        leaf = parent / name
        try:
            # The time is that of the first look, or later: a leaf can seem too young, never too old.
            is_old = time.time() - leaf.stat().st_mtime > _STALE_AFTER_S
            if is_old and not Path("/proc", words[-2]).exists():
                remove_if_empty(leaf)
        except OSError:
            continue  # somebody else sweeps, too; what is left is tried again with the next leaf
