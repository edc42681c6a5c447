"""The leaf cgroup of one attempt, or of its helpers, and the guardian that outlives us to remove it.

Not covered: cgroups as such, see `oomproof.leaf`; what runs in it, see `supervisor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from oomproof.errors import LeafUnavailable, OomproofError
from oomproof.launch.guardian import Guardian, guard
from oomproof.leaf import Leaf, make_leaf


@contextlib.contextmanager
def attempt_leaf(
    limit_bytes: int | None, say: Callable[[str], None], purpose: str = "run"
) -> Iterator[tuple[Leaf, Guardian | None]]:
    """A fresh leaf with `limit_bytes` (None: no limit of its own) and its guardian; removed afterwards.

    The guardian is there before the leaf is, so that SIGKILL at no moment leaves one behind. PID 1
    has none: its death ends all anyway. Raises LeafUnavailable, and OomproofError when no process
    can be forked; what cannot be removed is a warning to `say`.
    """
    guardians: list[Guardian | None] = []
    leaf = None
    try:
        leaf = _make(purpose, limit_bytes, lambda leaf: guardians.append(guard(leaf)))
        if limit_bytes is not None:
            _limit(leaf, limit_bytes)
        yield leaf, guardians[-1] if guardians else None
    finally:
        if leaf is not None:
            _remove(leaf, say)
        for guardian in guardians:
            if guardian is not None:
                guardian.dismiss()


def _make(purpose: str, limit_bytes: int | None, before: Callable[[Leaf], None]) -> Leaf:
    try:
        return make_leaf(purpose, before=before)
    except LeafUnavailable as error:
        if limit_bytes is None:
            raise
        raise LeafUnavailable(
            f"--limit needs a cgroup to put it on: {error}, or leave --limit out"
        ) from error


def _limit(leaf: Leaf, limit_bytes: int) -> None:
    try:
        leaf.set_limit(limit_bytes)
    except OSError as error:
        raise LeafUnavailable(
            f"the kernel refuses a limit of {limit_bytes} bytes for {leaf.directory}"
            f" ({error.strerror}); give another --limit"
        ) from error


def _remove(leaf: Leaf, say: Callable[[str], None]) -> None:
    try:
        leaf.remove()
    except (OomproofError, OSError) as error:
        say(f"warning: {error}")
