"""Where the files are: which cgroup this process is in, and where that cgroup can be seen.

Covered: v1, v2 and hybrid; cgroup namespaces (``/..`` paths, mounts above the namespace);
several mounts of one hierarchy, bind mounts of a subtree; machines without /proc or mountinfo.
Not covered: what the files say (`v1`, `v2`) and what that means (`judgement`).
See cgroups(7), cgroup_namespaces(7), proc_pid_cgroup(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oomproof.limits.files import Tree
from oomproof.limits.model import MemoryCgroup, Notice
from oomproof.limits.namespaces import locate

CGROUP_FILE = "/proc/self/cgroup"
MOUNTINFO_FILE = "/proc/self/mountinfo"
CONVENTIONAL = "/sys/fs/cgroup"
DELETED = " (deleted)"

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Membership:
    """This process's path in one hierarchy, from one line of /proc/self/cgroup."""

    version: Literal[1, 2]
    path: str


@dataclass(frozen=True, slots=True)
class Mount:
    """One cgroup mount that could show the memory controller."""

    version: Literal[1, 2]
    root: str
    """Which cgroup appears at the mount point, seen from this process's cgroup namespace."""
    point: str


@dataclass(frozen=True, slots=True)
class Place:
    """The levels that apply to this process and can be seen, own cgroup first."""

    cgroup: MemoryCgroup | None
    version: Literal[1, 2] | None
    levels: tuple[tuple[str, str], ...] = ()
    """(path for people, directory as the process sees it)."""
    hidden: bool = False
    """There is a cgroup of ours that no mount shows: nothing can be said about its limit."""
    notices: tuple[Notice, ...] = ()


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
        root, point = _unescape(fields[3]), _unescape(fields[4])
        if root.startswith("/") and point.startswith("/"):
            mounts.append(Mount(version, root, point))
    return mounts


def _unescape(text: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text))


def split_path(path: str) -> tuple[int, tuple[str, ...]]:
    """``/../../a/b`` -> (2, ("a", "b")): steps up from the namespace's root, then names down."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    up = 0
    while up < len(names) and names[up] == "..":
        up += 1
    return up, tuple(names[up:])


@dataclass(frozen=True, slots=True)
class Route:
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


def find_place(tree: Tree, cgroup_file: bytes | None) -> Place:
    """The levels of this process's memory cgroup; `cgroup_file` is the content of /proc/self/cgroup."""
    mountinfo = tree.read_or_none(MOUNTINFO_FILE)
    if cgroup_file is None:
        return _place_without_proc(tree, mountinfo)
    v1, v2 = parse_cgroup(cgroup_file)
    mounts = parse_mountinfo(mountinfo) if mountinfo is not None else _conventional_mounts(tree)
    # The kernel binds memory to one hierarchy only: a v1 line that names it decides.
    hidden: Place | None = None
    for membership in (v1, v2):
        if membership is None:
            continue
        place = _place_in(tree, membership, [m for m in mounts if m.version == membership.version])
        if place.levels:
            return place
        if place.hidden:
            hidden = hidden or place
    if hidden:
        return hidden
    if v1 is None and v2 is None and not _any_entry(cgroup_file):
        return _place_without_proc(tree, mountinfo)
    return Place(None, None, notices=(_no_cgroupfs(),))


def _any_entry(cgroup_file: bytes) -> bool:
    return any(line.count(b":") >= 2 for line in cgroup_file.split(b"\n"))


def _no_cgroupfs() -> Notice:
    return Notice(
        "no_cgroupfs",
        "No cgroup filesystem can be seen here, so a limit set outside this view would not show.",
        MOUNTINFO_FILE,
    )


def _conventional_mounts(tree: Tree) -> list[Mount]:
    """What is usual, for machines that do not show their mounts."""
    mounts = []
    for point in (f"{CONVENTIONAL}/memory", CONVENTIONAL, f"{CONVENTIONAL}/unified"):
        if tree.exists(f"{point}/memory.limit_in_bytes"):
            mounts.append(Mount(1, "/", point))
        elif tree.exists(f"{point}/cgroup.controllers"):
            mounts.append(Mount(2, "/", point))
    return mounts


def _place_without_proc(tree: Tree, mountinfo: bytes | None) -> Place:
    """Without /proc/self/cgroup the topmost level that can be seen is the best there is."""
    notice = Notice(
        "no_proc",
        f"{CGROUP_FILE} cannot be read, so the topmost cgroup that can be seen is taken for the own one.",
        CGROUP_FILE,
    )
    mounts = (parse_mountinfo(mountinfo) if mountinfo is not None else []) or _conventional_mounts(tree)
    mounts.sort(key=lambda mount: mount.version)
    for mount in mounts:
        if _is_cgroupfs(tree, mount.point):
            cgroup = _memory_cgroup(tree, mount, mount.root, mount.point)
            return Place(cgroup, mount.version, ((mount.root, mount.point),), notices=(notice,))
    return Place(None, None, notices=(notice, _no_cgroupfs()))


def _is_cgroupfs(tree: Tree, directory: str) -> bool:
    return any(
        tree.exists(f"{directory}/{name}")
        for name in (
            "cgroup.procs",
            "cgroup.controllers",
            "memory.stat",
            "memory.max",
            "memory.limit_in_bytes",
        )
    )


def _memory_cgroup(tree: Tree, mount: Mount, path: str, directory: str) -> MemoryCgroup:
    return MemoryCgroup(mount.version, path, Path(tree.real(directory)), Path(tree.real(mount.point)))


def _place_in(tree: Tree, membership: Membership, mounts: list[Mount]) -> Place:
    """The levels of `membership`, through whichever mounts show them."""
    last_on_point = {mount.point: mount for mount in mounts}
    seen = [mount for mount in last_on_point.values() if _is_cgroupfs(tree, mount.point)]
    if not seen:
        return Place(None, None)
    own_path, deleted = _existing_path(tree, membership.path, seen)
    routes = [found for mount in seen if (found := route(own_path, mount)) is not None]
    notices = []
    if split_path(own_path)[0]:
        notices.append(
            Notice(
                "outside_namespace",
                f"This process's cgroup {own_path} lies outside its cgroup namespace.",
                CGROUP_FILE,
            )
        )
    plain = max(
        (found for found in routes if not found.unnamed), key=lambda found: _merit(tree, found), default=None
    )
    levels = _plain_levels(tree, plain) if plain else []
    top = plain.mount if plain else None
    for above in (found for found in routes if found.unnamed):
        longer = _levels_from_above(tree, above, plain)
        if len(longer) > len(levels):
            levels, top = longer, above.mount
        notices.append(
            Notice(
                "mount_above_namespace",
                f"{above.mount.point} shows the cgroup hierarchy from above this process's namespace.",
                MOUNTINFO_FILE,
            )
        )
    if not levels or top is None:
        notices.append(
            Notice(
                "cgroup_not_visible",
                f"No mount shows this process's cgroup {own_path}, so its limit cannot be read.",
                MOUNTINFO_FILE,
            )
        )
        return Place(None, membership.version, hidden=True, notices=tuple(notices))
    own_mount = plain.mount if plain else top
    cgroup = None
    if tree.is_directory(levels[0][1]) and levels[0][0] == own_path:
        cgroup = _memory_cgroup(tree, own_mount, membership.path, levels[0][1])
    elif deleted:
        notices.append(
            Notice(
                "cgroup_deleted",
                f"The cgroup {own_path} was removed; the nearest level that still exists answers.",
                CGROUP_FILE,
            )
        )
    else:
        notices.append(
            Notice(
                "cgroup_not_visible",
                f"The cgroup {own_path} does not exist below {own_mount.point};"
                " the nearest level that can be seen answers.",
                CGROUP_FILE,
            )
        )
    if _ancestors_hidden(tree, top, levels[-1][1]):
        notices.append(
            Notice(
                "ancestors_hidden",
                f"The levels above {levels[-1][0]} cannot be seen here; a tighter limit there would not show.",
                MOUNTINFO_FILE,
            )
        )
    return Place(cgroup, membership.version, tuple(levels), notices=tuple(notices))


def _existing_path(tree: Tree, path: str, mounts: list[Mount]) -> tuple[str, bool]:
    """The path without the kernel's mark for a removed cgroup, and whether it bore that mark."""
    if not path.endswith(DELETED):
        return path, False
    for mount in mounts:
        found = route(path, mount)
        if found and tree.is_directory("/".join((mount.point, *found.names))):
            return path, False  # a cgroup may well be named so
    return path.removesuffix(DELETED) or "/", True


def _merit(tree: Tree, found: Route) -> tuple[bool, int, bool]:
    """Mounts that show the own directory first, then those that show more of the way up to the root."""
    directory = "/".join((found.mount.point, *found.names))
    conventional = found.mount.point == CONVENTIONAL or found.mount.point.startswith(f"{CONVENTIONAL}/")
    return tree.is_directory(directory), len(found.names), conventional


def _plain_levels(tree: Tree, found: Route) -> list[tuple[str, str]]:
    up, root_names = split_path(found.mount.root)
    start = "/.." * up + "".join(f"/{name}" for name in root_names)
    levels = [(start or "/", found.mount.point)]
    for name in found.names:
        path, directory = levels[-1]
        levels.append((f"{path.rstrip('/')}/{name}", f"{directory.rstrip('/')}/{name}"))
    return [levels[0], *(level for level in levels[1:] if tree.is_directory(level[1]))][::-1]


def _levels_from_above(tree: Tree, above: Route, plain: Route | None) -> list[tuple[str, str]]:
    """The levels as a mount from above the namespace shows them, the own part through `plain` if any."""
    own = _plain_levels(tree, plain) if plain else []
    chain = locate(tree, above.mount.point, above.unnamed, above.names, own[0][1] if own else None)
    if chain is None:
        return own
    own_up = split_path(above.mount.root)[0] - above.unnamed
    levels = []
    for depth, directory in enumerate(chain):
        if depth <= above.unnamed:
            path = "/.." * (own_up + above.unnamed - depth) or "/"
        else:
            path = f"{levels[-1][0].rstrip('/')}/{above.names[depth - above.unnamed - 1]}"
        levels.append((path, directory))
    levels.reverse()
    if plain:
        levels[: len(plain.names) + 1] = own
    return levels


def _ancestors_hidden(tree: Tree, top: Mount, directory: str) -> bool:
    up, names = split_path(top.root)
    if names:
        return True
    # v2's true root is the one cgroup without a limit file.
    return up > 0 and not (top.version == 2 and not tree.exists(f"{directory}/memory.max"))


def find_memory_cgroup(root: Path | str = "/") -> MemoryCgroup | None:
    """This process's memory cgroup; None when there is none or its directory cannot be seen.

    Looks anew on every call. `root` stands for ``/`` (a recorded machine).
    """
    tree = Tree(root)
    return find_place(tree, tree.read_or_none(CGROUP_FILE)).cgroup
