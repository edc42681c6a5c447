"""Eviction: idle things that others can do without give way to a request that cannot be met.

Least recently used first, never what is in use, only after it was idle for `min_idle` seconds. What an
evictor says it freed is compared with what came back to the ledger, and the ledger alone is believed.
Not covered: who is granted what with the bytes that came back (`ledger`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

LOOK_AGAIN_SECONDS = 0.25
"""How soon to look again whether something in use has become idle."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""One that failed or kept what it had offered is left alone for a second, then two, ... up to a minute."""

log = logging.getLogger("oomproof.memory")


class Evictable(Protocol):
    """Something whose memory can be had back; all of it is asked without any lock of the budget."""

    @property
    def name(self) -> str:
        """For logs and statistics."""

    @property
    def size_bytes(self) -> int:
        """What an eviction would give back now; 0: nothing."""

    @property
    def last_use(self) -> float:
        """When it was last used, by `time.monotonic`."""

    @property
    def in_use(self) -> bool:
        """Whether somebody needs it now."""

    def evict(self) -> int:
        """Free it and release its reservation, in this thread, before returning; the bytes released.

        A part of it is enough, a buffer of many: it is asked again while bytes are missing and it gives some.
        May be called from any thread. It decides for itself, under its own lock, whether it has come into use
        since it was asked: then it keeps everything and returns 0. It must not wait for bytes of the budget,
        nor for a lock of somebody who does.
        """


@dataclass(frozen=True, slots=True)
class Candidate:
    """One evictable as it was at one moment."""

    entry: Entry
    size_bytes: int
    last_use: float
    in_use: bool

    def seconds_to_wait(self, now: float) -> float:
        """How long until it may go, or until it is worth another look; 0 or less: it may go now."""
        pause = self.entry.not_before - now
        if self.in_use or self.size_bytes <= 0:
            return max(LOOK_AGAIN_SECONDS, pause)
        return max(self.last_use + self.entry.min_idle - now, pause)


def choose(candidates: Iterable[Candidate], now: float) -> tuple[Candidate | None, float | None]:
    """The least recently used one that may go now; and where there is none, seconds until the next look.

    (None, None): nothing will ever go by itself.
    """
    victim: Candidate | None = None
    look_again: float | None = None
    for candidate in candidates:
        if candidate.size_bytes <= 0 or candidate.in_use:
            wait = LOOK_AGAIN_SECONDS
        else:
            entry = candidate.entry
            wait = max(candidate.last_use + entry.min_idle, entry.not_before) - now
        if wait > 0:
            look_again = wait if look_again is None else min(look_again, wait)
        elif victim is None or candidate.last_use < victim.last_use:
            victim = candidate
    return victim, look_again


class Entry:
    """A registered evictable, and how it has behaved."""

    __slots__ = ("evictable", "min_idle", "not_before", "pause")

    def __init__(self, evictable: Evictable, min_idle: float) -> None:
        self.evictable = evictable
        self.min_idle = min_idle
        self.not_before = float("-inf")
        self.pause = FIRST_PAUSE_SECONDS

    def gave(self) -> None:
        """Something came back."""
        self.pause = FIRST_PAUSE_SECONDS

    def disappointed(self, now: float) -> None:
        """It failed, or kept what it had offered: it is asked less and less often."""
        self.not_before = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)


class Evictors:
    """The registered evictables, and one eviction at a time."""

    def __init__(self, missing: Callable[[], int]) -> None:
        self._missing = missing
        """Bytes that the budget as a whole is short of."""
        self._entries: dict[int, Entry] = {}
        self._guard = threading.Lock()
        self._thread = 0
        """The one that asks evictors now; 0: none. Set under the guard, taken back by itself."""
        self._turned_away = False
        """Whether somebody came while another thread was at it."""
        self._came_back = 0
        self.evictions = self.evicted_bytes = self.failures = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def active(self) -> bool:
        """Whether some thread asks evictors now."""
        return self._thread != 0

    def add(self, evictable: Evictable, min_idle: float) -> None:
        """Register; again: with another `min_idle`."""
        self._entries[id(evictable)] = Entry(evictable, min_idle)

    def remove(self, evictable: Evictable) -> bool:
        """Forget; whether it was registered. An eviction that has begun is not waited for."""
        return self._entries.pop(id(evictable), None) is not None

    def inherit(self) -> None:
        """In a forked child: no other thread came along."""
        self._guard = threading.Lock()
        self._thread = 0
        self._turned_away = False

    def is_asked_by_me(self) -> bool:
        """Whether this very thread is inside something evictable."""
        return self._thread == threading.get_ident()

    def note_release(self, size: int) -> None:
        """Told of every release while `active`: those of the asking thread are the evictor's."""
        if self.is_asked_by_me():
            self._came_back += size

    def relieve(self, shortfall: Callable[[], int], *, only_if_enough: bool = False) -> float | None:
        """Evict until `shortfall` says 0 or nothing may go; seconds until the next look (None: no use).

        Each is asked until it gives nothing, or has given what it had at first. What another thread is at is
        left to it.
        `only_if_enough`: evict nothing when all that may go now is less than the shortfall.
        """
        me = threading.get_ident()
        if not self._entries or self._thread == me:
            return None
        try:
            # An interrupt between here and the end cannot leave the flag behind: it is ours or it is not.
            with self._guard:
                if not self._thread:
                    self._thread = me
                elif not only_if_enough:
                    self._turned_away = True
            if self._thread != me:
                return LOOK_AGAIN_SECONDS
            look_again = self._relieve(shortfall, only_if_enough)
            while not self._finished():
                self._relieve(self._missing, only_if_enough=False)
            return look_again
        finally:
            if self._thread == me:
                self._thread = 0

    def _finished(self) -> bool:
        """Stop, unless somebody was turned away meanwhile."""
        with self._guard:
            if self._turned_away:
                self._turned_away = False
                return False
            self._thread = 0
            return True

    def outlook(self, shortfall: int) -> tuple[float | None, bool]:
        """Seconds until the next look (None: no use), and whether `relieve` would evict something now."""
        if shortfall <= 0 or self.active:
            return LOOK_AGAIN_SECONDS, False  # somebody else may take what comes back
        return self._next_look()

    def _next_look(self) -> tuple[float | None, bool]:
        victim, look_again = choose(self._look(self._entries.copy().values()), time.monotonic())
        return (look_again, False) if victim is None else (LOOK_AGAIN_SECONDS, True)

    def _relieve(self, shortfall: Callable[[], int], only_if_enough: bool) -> float | None:
        left = self._entries.copy()
        if only_if_enough and shortfall() > self._can_go(left.values()):
            return None
        promised: dict[int, int] = {}
        while shortfall() > 0:
            victim, _ = choose(self._look(left.values()), time.monotonic())
            if victim is None:
                return self._next_look()[0]
            key = id(victim.entry.evictable)
            owed = promised.get(key, victim.size_bytes)
            promised[key] = owed - (given := self._evict(victim.entry))
            # One that takes again what it gives would be asked for ever.
            if not given or promised[key] <= 0:
                del left[key]
        return LOOK_AGAIN_SECONDS

    def _can_go(self, entries: Iterable[Entry]) -> int:
        now = time.monotonic()
        return sum(one.size_bytes for one in self._look(entries) if one.seconds_to_wait(now) <= 0)

    def _look(self, entries: Iterable[Entry]) -> list[Candidate]:
        now = time.monotonic()
        return [self._look_at(entry, now) for entry in entries]

    def _look_at(self, entry: Entry, now: float) -> Candidate:
        it = entry.evictable
        if entry.not_before <= now:
            try:
                return Candidate(entry, it.size_bytes, it.last_use, it.in_use)
            except Exception:  # noqa: BLE001 - somebody else's code: reported, and the request goes on
                self._failed(entry, "%s cannot be asked whether it may be evicted", exc_info=True)
        return Candidate(entry, 0, 0.0, in_use=False)

    def _evict(self, entry: Entry) -> int:
        """Ask it; the bytes that came back."""
        self._came_back = 0
        try:
            said = entry.evictable.evict()
        except Exception:  # noqa: BLE001 - somebody else's code: reported, and the request goes on
            self._failed(entry, "the evictor of %s failed", exc_info=True)
        else:
            if said != self._came_back:
                self._failed(
                    entry,
                    f"the evictor of %s says that it freed {said} bytes; {self._came_back} came back to the"
                    " ledger from its thread, and these count",
                )
        if self._came_back:
            entry.gave()
            self.evictions += 1
            self.evicted_bytes += self._came_back
        elif (now := time.monotonic()) >= entry.not_before and self._look_at(entry, now).seconds_to_wait(
            now
        ) <= 0:
            entry.disappointed(now)  # it did not just come into use
        return self._came_back

    def _failed(self, entry: Entry, message: str, *, exc_info: bool = False) -> None:
        self.failures += 1
        entry.disappointed(time.monotonic())
        log.warning(message, _name(entry.evictable), exc_info=exc_info)


def _name(evictable: Evictable) -> str:
    try:
        return str(evictable.name)
    except Exception:  # noqa: BLE001 - somebody else's code: reported, and the request goes on
        return repr(type(evictable))
