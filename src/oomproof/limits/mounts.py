"""Parsers of the files that say where this process's cgroup is; pure, on bytes.

Covered: any bytes at all; a line that is not of the expected form is skipped, never the file.
See cgroups(7), cgroup_namespaces(7), proc_pid_cgroup(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple

_OCTAL = re.compile(rb"\\([0-7]{3})")


class Membership(NamedTuple):
    """This process's path in one hierarchy, from one line of /proc/self/cgroup."""

    version: Literal[1, 2]
    path: str


class Mount(NamedTuple):
    """One cgroup mount that could show the memory controller."""

    version: Literal[1, 2]
    root: str
    """Which cgroup appears at the mount point, seen from this process's cgroup namespace."""
    point: str


def parse_cgroup(content: bytes) -> tuple[Membership | None, Membership | None]:
    """This process's cgroup under v1's memory controller and under v2; None where not listed.

    A line of /proc/self/cgroup has three fields, and only the first two colons separate::

        4:cpu,memory:/a:b     v1: hierarchy number : controllers, in any order : path
        0::/system.slice/x    v2: always number 0, no controllers

    The path is written raw, up to the line's end. Lines of any other form are skipped.
    """
    v1 = v2 = None
    for line in content.split(b"\n"):
        fields = line.split(b":", 2)
        if len(fields) != 3 or not fields[2].startswith(b"/") or b"\0" in line:
            continue
        number, controllers, path = fields
        if number == b"0" and not controllers:
            v2 = v2 or Membership(2, os.fsdecode(path))
        elif b"memory" in controllers.split(b","):
            v1 = v1 or Membership(1, os.fsdecode(path))
    return v1, v2


def parse_mountinfo(content: bytes) -> list[Mount]:
    """The cgroup mounts that can carry memory, in mount order; lines that are not mounts are skipped.

    A line of /proc/self/mountinfo is separated by single blanks (blanks inside a field are
    written as octal escapes), with any number of optional fields before a lone dash::

        35 31 0:31 /docker/x /sys/fs/cgroup/memory ro shared:4 master:9 - cgroup none rw,memory
        id up dev  root      mount point           |  |---optional----| | type   src  options
                                                   own options          dash          of the filesystem
    """
    mounts = []
    for line in content.split(b"\n"):
        if b"cgroup" not in line or b"\0" in line:
            continue
        fields = line.split(b" ")
        try:
            dash = fields.index(b"-", 6)
            kind, options = fields[dash + 1], fields[dash + 3 :]
        except (ValueError, IndexError):
            continue
        if kind == b"cgroup2":
            version: Literal[1, 2] = 2
        elif kind == b"cgroup" and any(b"memory" in option.split(b",") for option in options):
            version = 1
        else:
            continue
        root, point = os.fsdecode(unescape(fields[3])), os.fsdecode(unescape(fields[4]))
        if root.startswith("/") and point.startswith("/"):
            mounts.append(Mount(version, root, point))
    return mounts


def unescape(text: bytes) -> bytes:
    """Octal escapes, as the kernel writes blanks and backslashes in a field, turned back into bytes."""
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text)


def split_path(path: str) -> tuple[int, tuple[str, ...]]:
    """``/../../a/b`` -> (2, ("a", "b")): steps up from the namespace's root, then names down."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    up = 0
    while up < len(names) and names[up] == "..":
        up += 1
    return up, tuple(names[up:])


class Route(NamedTuple):
    """The way from a mount point down to this process's cgroup."""

    mount: Mount
    unnamed: int
    """Levels between the mount point and the namespace's root, whose names no file tells."""
    names: tuple[str, ...]


def route(own_path: str, mount: Mount) -> Route | None:
    """How `mount` shows the cgroup `own_path`; None when it shows another part of the hierarchy.

    The kernel writes both paths as the shortest way from the namespace's root, so a cgroup
    lies below the mount's root in just two cases: both climb equally far and the names begin
    alike, or the mount's root is a plain ``/..`` chain, an ancestor of the whole namespace.
    """
    own_up, own_names = split_path(own_path)
    up, names = split_path(mount.root)
    if ".." in own_names or ".." in names:
        return None
    if up == own_up and own_names[: len(names)] == names:
        return Route(mount, 0, own_names[len(names) :])
    if up > own_up and not names:
        return Route(mount, up - own_up, own_names)
    return None
