"""The leaf cgroups of attempts, or of their helpers, one after another, under a guardian that outlives us.

Not covered: cgroups as such, see `oomproof.leaf`; what runs in them, see `supervisor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Self

from oomproof.errors import LeafUnavailable, OomproofError
from oomproof.launch.guardian import Guardian, guard
from oomproof.leaf import Leaf, make_leaf


class AttemptLeaves:
    """Leaves with a limit (None: with none of their own). A context manager: its end dismisses the guardian.

    What cannot be removed is a warning to `say`.
    """

    def __init__(self, limit_bytes: int | None, say: Callable[[str], None], purpose: str = "run") -> None:
        self._limit_bytes = limit_bytes
        self._say = say
        self._purpose = purpose
        self._guardian: Guardian | None = None

    @contextlib.contextmanager
    def fresh(self) -> Iterator[tuple[Leaf, Guardian | None]]:
        """A fresh leaf and its guardian; the leaf is removed afterwards.

        The guardian knows of the leaf before it is made, so that SIGKILL at no moment leaves one
        behind. PID 1 has none: its death ends all anyway. Raises LeafUnavailable, and OomproofError
        when no process can be forked.
        """
        leaf = self._make()
        try:
            self._limit(leaf)
            yield leaf, self._guardian
        finally:
            self._remove(leaf)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._guardian is not None:
            self._guardian.dismiss()

    def _guard(self, leaf: Leaf) -> None:
        if self._guardian is not None and self._guardian.turn_to(leaf):
            return
        if self._guardian is not None:
            self._guardian.dismiss()
        self._guardian = guard(leaf)

    def _make(self) -> Leaf:
        try:
            return make_leaf(self._purpose, before=self._guard)
        except LeafUnavailable as error:
            if self._limit_bytes is None:
                raise
            raise LeafUnavailable(
                f"--limit needs a cgroup to put it on: {error}, or leave --limit out"
            ) from error

    def _limit(self, leaf: Leaf) -> None:
        if self._limit_bytes is None:
            return
        try:
            leaf.set_limit(self._limit_bytes)
        except OSError as error:
            raise LeafUnavailable(
                f"the kernel refuses a limit of {self._limit_bytes} bytes for {leaf.directory}"
                f" ({error.strerror}); give another --limit"
            ) from error

    def _remove(self, leaf: Leaf) -> None:
        try:
            leaf.remove()
        except (OomproofError, OSError) as error:
            self._say(f"warning: {error}")
