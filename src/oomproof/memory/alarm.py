"""When drift is told and when the total follows it: decisions that neither flicker nor forget.

A kind of drift is *named* once it was at least the threshold for some looks in a row, and no longer named
once it was below half of it for as many. The total is lowered by what is named, and raised again.
Sizes in bytes; nothing is read and nothing is told here.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.units import MIB


class Alarm:
    """Which kinds of drift are named, look by look."""

    def __init__(self, threshold_bytes: int, looks: int) -> None:
        self._threshold = threshold_bytes
        self._looks = looks
        self._streaks: dict[str, int] = {}
        self.named: dict[str, int] = {}
        """Kinds and sizes as they were last told."""

    def would_tell(self, sizes: Mapping[str, int]) -> bool:
        """What `update` would answer, without taking anything in."""
        trial = Alarm(self._threshold, self._looks)
        trial._streaks, trial.named = dict(self._streaks), dict(self.named)
        return trial.update(sizes)

    def update(self, sizes: Mapping[str, int]) -> bool:
        """Take in one look; whether there is something new to tell: another kind, or another size."""
        changed = False
        for name in {*sizes, *self.named}:
            size = sizes.get(name, 0)
            changed |= self._update_one(name, size)
        return changed

    def _update_one(self, name: str, size: int) -> bool:
        is_named = name in self.named
        disagrees = size < self._threshold // 2 if is_named else size >= self._threshold
        self._streaks[name] = self._streaks.get(name, 0) + 1 if disagrees else 0
        if self._streaks[name] >= self._looks:
            self._streaks[name] = 0
            if is_named:
                del self.named[name]
            else:
                self.named[name] = size
            return True
        if is_named and not disagrees and abs(size - self.named[name]) >= self._threshold // 2:
            self.named[name] = size
            return True
        return False


class TotalFollower:
    """What the total should be, given what is named; knows the total that others set from its own."""

    def __init__(self, min_total_bytes: int) -> None:
        self._min_total = min_total_bytes
        self._base: int | None = None
        """The total without drift."""
        self._ours: int | None = None
        """The total as it was last set here."""

    def next_total(self, total_bytes: int, drift_bytes: int) -> int | None:
        """The new total; None: leave it. `drift_bytes` is rounded up to MiB."""
        if self._base is None or total_bytes != self._ours:
            self._base = (
                total_bytes  # nothing of ours is in it: the first look, or somebody resized the budget
            )
        drift = -(-drift_bytes // MIB) * MIB
        wanted = min(max(self._base - drift, self._min_total), self._base)
        self._ours = wanted
        return None if wanted == total_bytes else wanted

    def restored(self, total_bytes: int) -> int | None:
        """The total as it would be without us; None: it is."""
        if self._base is None or total_bytes != self._ours or total_bytes == self._base:
            return None
        return self._base
