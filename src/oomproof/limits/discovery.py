"""Where the files are: which cgroup this process is in, and where that cgroup can be seen.

Covered: v1, v2 and hybrid; cgroup namespaces (``/..`` paths, mounts above the namespace);
several mounts of one hierarchy, bind mounts of a subtree; machines without /proc or mountinfo.
Not covered: what the files say (`v1`, `v2`) and what that means (`judgement`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from oomproof.limits.files import Tree, printable
from oomproof.limits.model import MemoryCgroup, Notice
from oomproof.limits.mounts import Membership, Mount, Route, parse_cgroup, parse_mountinfo, route, split_path
from oomproof.limits.namespaces import locate

CGROUP_FILE = "/proc/self/cgroup"
MOUNTINFO_FILE = "/proc/self/mountinfo"
CONVENTIONAL = "/sys/fs/cgroup"
DELETED = " (deleted)"

_FILES_OF_A_CGROUP = (
    "cgroup.procs",
    "cgroup.controllers",
    "memory.max",
    "memory.limit_in_bytes",
    "memory.stat",
)


class Place(NamedTuple):
    """The levels that apply to this process and can be seen, own cgroup first."""

    cgroup: MemoryCgroup | None = None
    version: Literal[1, 2] | None = None
    levels: tuple[tuple[str, str], ...] = ()
    """(path for people, directory as the process sees it)."""
    hidden: bool = False
    """There is a cgroup of ours that no mount shows: nothing can be said about its limit."""
    notices: tuple[Notice, ...] = ()


def find_memory_cgroup(root: Path | str = "/") -> MemoryCgroup | None:
    """This process's memory cgroup; None when there is none or its directory cannot be seen.

    Looks anew on every call. `root` stands for ``/`` (a recorded machine).
    """
    tree = Tree(root)
    return find_place(tree, tree.read_or_none(CGROUP_FILE)).cgroup


def find_place(tree: Tree, cgroup_file: bytes | None) -> Place:
    """The levels of this process's memory cgroup; `cgroup_file` is the content of /proc/self/cgroup."""
    mountinfo = tree.read_or_none(MOUNTINFO_FILE)
    mounts = parse_mountinfo(mountinfo or b"")
    v1, v2 = parse_cgroup(cgroup_file or b"")
    if v1 is None and v2 is None and not _lists_hierarchies(cgroup_file or b""):
        return _topmost_place(tree, mounts)
    places = []
    # The kernel binds memory to one hierarchy only: a v1 line that names it decides.
    for membership in (v1, v2):
        if membership is not None:
            shown = [mount for mount in mounts if mount.version == membership.version]
            place = _place_in(tree, membership, shown or _conventional_mounts(tree, membership.version))
            if place.levels and (v1 is None or membership is v1 or _carries_memory(tree, place)):
                return place
            places.append(place)
    if v1 is None and v2 is None:
        return Place(notices=(no_memory_controller(CGROUP_FILE),))
    return next((place for place in places if place.hidden), Place(notices=(_no_cgroupfs(),)))


def _lists_hierarchies(cgroup_file: bytes) -> bool:
    """Whether the file names any hierarchy; one without memory is an answer, an empty file is none."""
    return any(line.count(b":") >= 2 for line in cgroup_file.split(b"\n"))


def _carries_memory(tree: Tree, place: Place) -> bool:
    return any(tree.exists(f"{directory}/memory.max") for _, directory in place.levels)


def no_memory_controller(source: str) -> Notice:
    """`source` tells that memory is controlled by no hierarchy."""
    return Notice(
        "memory_controller_absent",
        "The cgroup hierarchy has no memory controller, so no cgroup can limit memory here.",
        source,
    )


def _no_cgroupfs() -> Notice:
    return Notice(
        "no_cgroupfs",
        "No cgroup filesystem can be seen here, so a limit set outside this view would not show.",
        MOUNTINFO_FILE,
    )


def _conventional_mounts(tree: Tree, version: int) -> list[Mount]:
    """What is usual, for machines that do not show their mounts."""
    if version == 1:
        points = (f"{CONVENTIONAL}/memory", CONVENTIONAL)
        return [Mount(1, "/", point) for point in points if tree.exists(f"{point}/memory.limit_in_bytes")]
    points = (CONVENTIONAL, f"{CONVENTIONAL}/unified")
    return [Mount(2, "/", point) for point in points if tree.exists(f"{point}/cgroup.controllers")]


def _topmost_place(tree: Tree, mounts: list[Mount]) -> Place:
    """Without /proc/self/cgroup the topmost level that can be seen is the best there is."""
    notice = Notice(
        "no_proc",
        f"{CGROUP_FILE} cannot be read, so the topmost cgroup that can be seen is taken for the own one.",
        CGROUP_FILE,
    )
    usual = _conventional_mounts(tree, 1) + _conventional_mounts(tree, 2)
    for mount in sorted(mounts or usual, key=lambda mount: mount.version):
        if _is_cgroup(tree, mount.point):
            cgroup = _memory_cgroup(tree, mount, mount.root, mount.point)
            return Place(cgroup, mount.version, ((mount.root, mount.point),), notices=(notice,))
    return Place(notices=(notice, _no_cgroupfs()))


def _is_cgroup(tree: Tree, directory: str) -> bool:
    """Whether `directory` is a cgroup's, and not what was mounted over it or a mask."""
    return any(tree.exists(f"{directory}/{name}") for name in _FILES_OF_A_CGROUP)


def _memory_cgroup(tree: Tree, mount: Mount, path: str, directory: str) -> MemoryCgroup:
    return MemoryCgroup(mount.version, path, Path(tree.real(directory)), Path(tree.real(mount.point)))


def _place_in(tree: Tree, membership: Membership, mounts: list[Mount]) -> Place:
    """The levels of `membership`, through whichever of `mounts` show them."""
    topmost = {mount.point: mount for mount in mounts}  # what is mounted later on a point hides the earlier
    path = membership.path
    routes = [found for mount in topmost.values() if (found := route(path, mount))]
    deleted = path.endswith(DELETED) and not any(_shows(tree, found) for found in routes)
    if deleted:
        path = path.removesuffix(DELETED)
        # A directory of that name would be another, newer cgroup: the way ends one level above.
        routes = [
            Route(mount, found.unnamed, found.names[:-1])
            for mount in topmost.values()
            if (found := route(path, mount))
        ]
    routes = [found for found in routes if _is_there(tree, found)]
    if not routes and not any(_is_cgroup(tree, point) for point in topmost):
        return Place()

    plain = max((r for r in routes if not r.unnamed), key=lambda r: _merit(tree, r), default=None)
    levels = _plain_levels(tree, plain) if plain else []
    top = plain
    for above in (found for found in routes if found.unnamed):
        longer = _levels_from_above(tree, above, plain)
        if len(longer) > len(levels):
            levels, top = longer, above
    notices = [*_namespace_notices(path, routes)]
    if top is None or not levels:
        notices.append(_not_visible(f"No mount shows this process's cgroup {printable(path)}"))
        return Place(None, membership.version, hidden=True, notices=tuple(notices))
    own_path, own_directory = levels[0]
    cgroup = None
    if deleted:
        notices.append(_deleted(path))
    elif split_path(own_path) == split_path(path):
        cgroup = _memory_cgroup(tree, (plain or top).mount, membership.path, own_directory)
    else:
        where = f"does not exist below {printable(top.mount.point)}"
        notices.append(_not_visible(f"The cgroup {printable(path)} {where}"))
    if _ancestors_hidden(tree, top.mount, levels[-1][1]):
        notices.append(_hidden_above(levels[-1][0]))
    return Place(cgroup, membership.version, tuple(levels), notices=tuple(notices))


def _is_there(tree: Tree, found: Route) -> bool:
    """Whether any level on the way is a cgroup: not what was mounted over it, and no mask."""
    if _is_cgroup(tree, found.mount.point) or _shows(tree, found):
        return True
    between = (found.names[:depth] for depth in range(1, len(found.names)))
    return not found.unnamed and any(_is_cgroup(tree, _join(found.mount.point, *names)) for names in between)


def _shows(tree: Tree, found: Route) -> bool:
    """Whether the own directory itself is there."""
    return not found.unnamed and _is_cgroup(tree, _join(found.mount.point, *found.names))


def _merit(tree: Tree, found: Route) -> tuple[bool, int, bool]:
    """Mounts that show the own directory first, then those that show more of the way up to the root."""
    point = f"{found.mount.point}/"
    return _shows(tree, found), len(found.names), point.startswith(f"{CONVENTIONAL}/")


def _plain_levels(tree: Tree, found: Route) -> list[tuple[str, str]]:
    up, root_names = split_path(found.mount.root)
    levels = [(_join("/.." * up, *root_names), found.mount.point)]
    for name in found.names:
        path, directory = levels[-1]
        levels.append((_join(path, name), _join(directory, name)))
    return [levels[0], *(level for level in levels[1:] if tree.is_directory(level[1]))][::-1]


def _join(path: str, *names: str) -> str:
    return "/".join((path.rstrip("/"), *names)) or "/"


def _levels_from_above(tree: Tree, above: Route, plain: Route | None) -> list[tuple[str, str]]:
    """The levels as a mount from above the namespace shows them, the own part through `plain` if any."""
    own = _plain_levels(tree, plain) if plain else []
    chain = locate(tree, above.mount.point, above.unnamed, above.names, own[0][1] if own else None)
    up = split_path(above.mount.root)[0]
    if chain is None and not own:
        return []
    if chain is None or len(chain) == 1:
        # The names in between are not known, but the mount's root is above the namespace for certain.
        return [*own, (_join("/.." * up), above.mount.point)]
    levels: list[tuple[str, str]] = []
    for depth, directory in enumerate(chain):
        below = depth - above.unnamed
        path = _join(levels[-1][0], above.names[below - 1]) if below > 0 else _join("/.." * (up - depth))
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


def _namespace_notices(path: str, routes: list[Route]) -> list[Notice]:
    notices = []
    if split_path(path)[0]:
        message = f"This process's cgroup {printable(path)} lies outside its cgroup namespace."
        notices.append(Notice("outside_namespace", message, CGROUP_FILE))
    for found in routes:
        if split_path(found.mount.root)[0]:
            point = printable(found.mount.point)
            message = f"{point} shows the cgroup hierarchy from above this process's namespace."
            notices.append(Notice("mount_above_namespace", message, MOUNTINFO_FILE))
            break
    return notices


def _not_visible(what: str) -> Notice:
    return Notice("cgroup_not_visible", f"{what}, so a limit of its own would not show.", CGROUP_FILE)


def _deleted(path: str) -> Notice:
    message = f"The cgroup {printable(path)} was removed; the nearest level that still exists answers."
    return Notice("cgroup_deleted", message, CGROUP_FILE)


def _hidden_above(path: str) -> Notice:
    message = f"The levels above {printable(path)} cannot be seen: a tighter limit there would not show."
    return Notice("ancestors_hidden", message, MOUNTINFO_FILE)
