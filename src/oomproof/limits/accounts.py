"""What the kernel charges, by kind: to this process and to its memory cgroup. Values are not judged here.

Sources: proc_pid_status(5), proc_pid_smaps(5); Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst, ``memory.stat``. Sizes in bytes; None: the kernel does not tell.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from oomproof.limits.discovery import CGROUP_FILE, find_place
from oomproof.limits.files import Tree, keyed_pattern, parse_keyed, read_value
from oomproof.limits.process import STATUS

SMAPS = "/proc/self/smaps_rollup"

_STATUS = keyed_pattern(
    ("RssAnon", "RssFile", "RssShmem", "VmSwap", "VmPTE", "VmLck", "VmPin"),
    between=":",
)
_SMAPS = keyed_pattern(("Anonymous",), between=":")
_V2 = ("anon", "file", "shmem", "kernel", "pagetables")
_V1 = ("total_rss", "total_cache", "total_shmem")
_STAT = {1: keyed_pattern(_V1), 2: keyed_pattern(_V2)}


class ProcessAccounts(NamedTuple):
    """What is charged for this process alone."""

    anonymous: int | None = None
    """Heap, stacks, private mappings: nothing but swap can take it back."""
    file: int | None = None
    """Resident pages of mapped files."""
    shared: int | None = None
    """Resident pages of shared memory: tmpfs, memfd, shared anonymous mappings."""
    swapped: int | None = None
    page_tables: int | None = None
    locked: int | None = None
    """By mlock(2) and the like; also in `anonymous` as far as it is touched."""
    pinned: int | None = None
    """By drivers, through the kernel's accounting of pinned pages."""


class CgroupAccounts(NamedTuple):
    """What is charged to the memory cgroup, and those below it."""

    version: Literal[1, 2]
    directory: str
    usage: int | None = None
    anonymous: int | None = None
    cache: int | None = None
    """Page cache, `shared` included."""
    shared: int | None = None
    kernel: int | None = None
    """Page tables, stacks, slab, sockets; v2 tells it since 5.18."""
    page_tables: int | None = None
    """v2 alone."""


def read_process_accounts(tree: Tree, exact: bool = False) -> ProcessAccounts:
    """The accounts of this process, from /proc/self/status.

    Its counters of resident pages may lag behind by some pages for each processor. `exact` has the kernel
    count the anonymous ones anew (/proc/self/smaps_rollup), which takes time with the memory held.
    """
    values = parse_keyed(tree.read_or_none(STATUS) or b"", _STATUS)
    if exact:
        counted = parse_keyed(tree.read_or_none(SMAPS) or b"", _SMAPS)
        if "Anonymous" in counted:
            values["RssAnon"] = counted["Anonymous"]
    return ProcessAccounts(
        anonymous=values.get("RssAnon"),
        file=values.get("RssFile"),
        shared=values.get("RssShmem"),
        swapped=values.get("VmSwap"),
        page_tables=values.get("VmPTE"),
        locked=values.get("VmLck"),
        pinned=values.get("VmPin"),
    )


def read_cgroup_accounts(tree: Tree) -> CgroupAccounts | None:
    """The accounts of the own memory cgroup; None when there is none or it cannot be seen."""
    place = find_place(tree, tree.read_or_none(CGROUP_FILE))
    if place.cgroup is None or place.version is None:
        return None
    directory = place.levels[0][1]
    version = place.version
    stat = parse_keyed(tree.read_or_none(f"{directory}/memory.stat") or b"", _STAT[version])
    if version == 1:
        return CgroupAccounts(
            version,
            directory,
            usage=read_value(tree, f"{directory}/memory.usage_in_bytes").value,
            anonymous=stat.get("total_rss"),
            cache=stat.get("total_cache"),
            shared=stat.get("total_shmem"),
            kernel=read_value(tree, f"{directory}/memory.kmem.usage_in_bytes").value,
        )
    return CgroupAccounts(
        version,
        directory,
        usage=read_value(tree, f"{directory}/memory.current").value,
        anonymous=stat.get("anon"),
        cache=stat.get("file"),
        shared=stat.get("shmem"),
        kernel=stat.get("kernel"),
        page_tables=stat.get("pagetables"),
    )
