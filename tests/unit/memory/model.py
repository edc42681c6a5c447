"""What a budget should do, in the plainest words: lists and loops, no lock, no thread.

After each step the real one, with its threads, loop and evictors, must come to the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Held:
    owner: str
    size: int
    open: bool = True


@dataclass(eq=False)
class Asked:
    """A request in line; `held` is what it wants to add to, where it is a growth."""

    owner: str
    size: int
    held: Held | None = None
    ends: str = "waits"
    """... or granted, exceeded, released."""
    granted: Held | None = None


@dataclass(eq=False)
class Cached:
    held: Held
    last_use: int
    in_use: bool = False


@dataclass
class Model:
    total: int
    held: list[Held] = field(default_factory=list)
    growing: list[Asked] = field(default_factory=list)
    beginning: list[Asked] = field(default_factory=list)
    caches: list[Cached] = field(default_factory=list)
    lost: int = 0

    @property
    def used(self) -> int:
        return sum(held.size for held in self.held)

    @property
    def waiting(self) -> list[Asked]:
        return self.growing + self.beginning

    def owners(self) -> dict[str, tuple[int, int, int, int]]:
        """Bytes, reservations, requests and their bytes, by owner."""
        found: dict[str, tuple[int, int, int, int]] = {}

        def add(owner: str, *more: int) -> None:
            found[owner] = tuple(map(sum, zip(found.get(owner, (0, 0, 0, 0)), more, strict=True)))  # type: ignore[assignment]

        for held in self.held:
            add(held.owner, held.size, 1, 0, 0)
        for asked in self.waiting:
            add(asked.owner, 0, 0, 1, asked.size)
        return found

    # What callers do.

    def ask(self, asked: Asked, *, stays: bool = True) -> None:
        """Stand in line, or (not `stays`) only if it need not wait for anything but evictors."""
        if not self._possible(asked):
            return
        line = self.beginning if asked.held is None else self.growing
        line.append(asked)
        self.settle()
        if not stays and asked.ends == "waits":
            line.remove(asked)
            self.settle()

    def try_to(self, asked: Asked) -> bool:
        """As `try_reserve` and `try_grow`; whether it was granted."""
        if not self._possible(asked):
            return False
        if self.growing if asked.held else self.waiting:
            return False
        missing = self.used + asked.size - self.total
        idle = [cached for cached in self.caches if not cached.in_use]
        if missing > 0 and (self.waiting or sum(cached.held.size for cached in idle) < missing):
            return False
        while self.used + asked.size > self.total:
            self._evict_one()
        self._grant(asked)
        self.settle()
        return True

    def give_back(self, held: Held, size: int) -> None:
        held.size -= size
        if not held.size:
            held.open = False
            self.held.remove(held)
        self.settle()

    def lose(self, held: Held) -> None:
        self.lost += held.size > 0
        self.give_back(held, held.size)

    def split(self, held: Held, size: int, owner: str) -> Held:
        held.size -= size
        part = Held(owner, size)
        self.held.append(part)
        return part

    def leave(self, asked: Asked) -> None:
        """Cancelled in line."""
        (self.beginning if asked.held is None else self.growing).remove(asked)
        self.settle()

    def set_total(self, total: int) -> None:
        self.total = total
        for line in (self.growing, self.beginning):
            for asked in list(line):
                if asked.size + (asked.held.size if asked.held else 0) > total:
                    asked.ends = "exceeded"
                    line.remove(asked)
        self.settle()
        while self.used > self.total and self._evict_one():
            self.settle()

    def settle(self) -> None:
        """First come, first served; the first in line has evicted for it what is idle."""
        while self.waiting:
            first = self.waiting[0]
            line = self.growing if self.growing else self.beginning
            if self._possible(first):
                if self.used + first.size > self.total:
                    if self._evict_one():
                        continue
                    return
                self._grant(first)
            line.remove(first)

    def _possible(self, asked: Asked) -> bool:
        if asked.held and not asked.held.open:
            asked.ends = "released"
        elif asked.size + (asked.held.size if asked.held else 0) > self.total:
            asked.ends = "exceeded"
        return asked.ends == "waits"

    def _grant(self, asked: Asked) -> None:
        asked.ends = "granted"
        if asked.held:
            asked.held.size += asked.size
        else:
            asked.granted = Held(asked.owner, asked.size)
            self.held.append(asked.granted)

    def _evict_one(self) -> bool:
        idle = [cached for cached in self.caches if not cached.in_use]
        if not idle:
            return False
        oldest = min(idle, key=lambda cached: cached.last_use)
        self.caches.remove(oldest)
        oldest.held.open = False
        self.held.remove(oldest.held)
        return True
