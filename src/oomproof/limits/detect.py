"""`detect_limits`: find, read, judge.

Values are read anew on every call. Where they are is found once and again when the process
forked, moved to another cgroup, or its cgroup is gone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from oomproof.limits import v1, v2
from oomproof.limits.discovery import CGROUP_FILE, MOUNTINFO_FILE, Place, find_place, no_memory_controller
from oomproof.limits.files import Tree
from oomproof.limits.hints import read_hints
from oomproof.limits.host import read_host, read_nodes
from oomproof.limits.judgement import judge
from oomproof.limits.model import LimitReport
from oomproof.limits.process import STATUS, read_process
from oomproof.limits.raw import Level, Readings

ENVIRON_FILE = "/proc/self/environ"

_found: list[tuple[bytes | None, Place, bool]] = []
"""At most one: /proc/self/cgroup, what was found from it, whether lxcfs stands in for /proc/meminfo."""

os.register_at_fork(after_in_child=_found.clear)


def detect_limits(
    root: Path | str = "/",
    *,
    environment: Mapping[str, str] | None = None,
    rlimits: Mapping[str, int | None] | None = None,
) -> LimitReport:
    """How much memory this process may use, who says so, and how much is left.

    Never raises for what it finds: what cannot be told is None, with a notice that says why.
    `root` stands for ``/`` (a recorded machine). `environment` and `rlimits` (``AS``, ``DATA``,
    ``MEMLOCK``: bytes, None or negative for unlimited) default to the process's own; for a recorded
    machine to what was recorded.
    """
    return read_report(Tree(root), environment, rlimits)


def read_report(
    tree: Tree,
    environment: Mapping[str, str] | None = None,
    rlimits: Mapping[str, int | None] | None = None,
) -> LimitReport:
    """As `detect_limits`, below a tree that may keep a record of what is read."""
    place, virtualised = _place(tree)
    status = tree.read_or_none(STATUS)
    levels = _read_levels(tree, place)
    host = read_host(tree, virtualised)
    history = _read_history(tree, place)
    readings = Readings(
        host=host,
        nodes=read_nodes(tree, status),
        levels=levels,
        process=read_process(tree, status, rlimits),
        history=history,
    )
    if environment is None:
        environment = os.environ if tree.is_live else _recorded_environment(tree)
    return judge(_with_controller_notice(tree, place, levels), readings, read_hints(environment))


def _place(tree: Tree) -> tuple[Place, bool]:
    content = tree.read_or_none(CGROUP_FILE)
    if not tree.is_live or tree.records:
        return find_place(tree, content), _is_virtualised(tree)
    for known, place, virtualised in _found[:]:
        if known == content and (place.cgroup is None or place.cgroup.directory.is_dir()):
            return place, virtualised
    found = find_place(tree, content), _is_virtualised(tree)
    _found[:] = [(content, *found)]
    return found


def _is_virtualised(tree: Tree) -> bool:
    for line in (tree.read_or_none(MOUNTINFO_FILE) or b"").split(b"\n"):
        if b" /proc/meminfo " in line and b"lxcfs" in line:
            return True
    return False


def _read_levels(tree: Tree, place: Place) -> tuple[Level, ...]:
    read_level = v1.read_level if place.version == 1 else v2.read_level
    return tuple(
        read_level(tree, path, directory, own=not nearer)
        for nearer, (path, directory) in enumerate(place.levels)
    )


def _read_history(tree: Tree, place: Place) -> dict[str, int]:
    if not place.levels:
        return {}
    read_history = v1.read_history if place.version == 1 else v2.read_history
    return read_history(tree, place.levels[0][1])


def _with_controller_notice(tree: Tree, place: Place, levels: tuple[Level, ...]) -> Place:
    """Tell a v2 hierarchy that does not carry the memory controller at all."""
    if place.version != 2 or not levels or any(_has_files(level) for level in levels):
        return place
    source = f"{levels[-1].directory}/cgroup.controllers"
    controllers = tree.read_or_none(source)
    if controllers is None or b"memory" in controllers.split():
        return place
    return place._replace(notices=(*place.notices, no_memory_controller(source)))


def _has_files(level: Level) -> bool:
    return level.limit.state.value != "absent" or level.usage.state.value != "absent"


def _recorded_environment(tree: Tree) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in (tree.read_or_none(ENVIRON_FILE) or b"").split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
