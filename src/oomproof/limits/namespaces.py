"""Finding the own cgroup below a mount that shows more than the cgroup namespace does.

A container that mounts the host's whole hierarchy sees ``/../..`` as the mount's root: its own
cgroup lies two levels below, under names that no file tells. The names are found by looking:
the right directory is there, at exactly that depth.
"""

from __future__ import annotations

from collections.abc import Iterator

from oomproof.limits.files import Tree, keyed_pattern, parse_keyed

_PID = keyed_pattern(("Pid",), between=":")

MAX_SEARCHED_DIRECTORIES = 4096
"""How many directories are looked at, at most."""


def locate(
    tree: Tree, top: str, unnamed: int, names: tuple[str, ...], same_as: str | None
) -> list[str] | None:
    """The directories from `top` down to the own cgroup; None when it cannot be told which they are.

    Just `top` when no directory lies that deep: then what is shown is not the whole.
    `unnamed` levels of unknown name lie between `top` and `names`. `same_as` is the own
    cgroup's directory as another mount shows it.
    """
    chains = []
    for chain in _at_depth(tree, [top], unnamed, [MAX_SEARCHED_DIRECTORIES]):
        own = chain[-1] + "".join(f"/{name}" for name in names)
        if not names or tree.is_directory(own):
            chains.append(chain)
    if not chains:
        return [top]
    chosen = _choose(tree, chains, names, same_as)
    if chosen is None:
        return None
    for name in names:
        chosen = [*chosen, f"{chosen[-1]}/{name}"]
    return chosen


def _at_depth(tree: Tree, chain: list[str], depth: int, left: list[int]) -> Iterator[list[str]]:
    if depth == 0:
        yield chain
        return
    for name in tree.directories(chain[-1]):
        if left[0] <= 0:
            return
        left[0] -= 1
        yield from _at_depth(tree, [*chain, f"{chain[-1]}/{name}"], depth - 1, left)


def _choose(
    tree: Tree, chains: list[list[str]], names: tuple[str, ...], same_as: str | None
) -> list[str] | None:
    tail = "".join(f"/{name}" for name in names)
    if same_as is not None and (wanted := tree.identity(same_as)) is not None:
        for chain in chains:
            if tree.identity(chain[-1] + tail) == wanted:
                return chain
    if len(chains) == 1:
        return chains[0]
    own_pid = parse_keyed(tree.read_or_none("/proc/self/status") or b"", _PID).get("Pid")
    if own_pid is None:
        return None
    for chain in chains:
        members = tree.read_or_none(f"{chain[-1]}{tail}/cgroup.procs") or b""
        if str(own_pid).encode() in members.split():
            return chain
    return None
