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

from oomproof.units import format_size

LOOK_AGAIN_SECONDS = 0.25
"""How soon to look again whether something in use has become idle."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""An evictor that gave nothing is left alone for a second, then two, ... up to a minute."""

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

        May be called from any thread. It decides for itself, under its own lock, whether it has come into use
        since it was asked: then it keeps everything and returns 0. It must not wait for bytes of the budget.
        """


@dataclass(frozen=True, slots=True)
class Candidate:
    """One evictable as it was at one moment."""

    entry: Entry
    size_bytes: int
    last_use: float
    in_use: bool


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

    def gave(self, size: int, now: float) -> None:
        """Note what it gave: one that gives nothing is asked less and less often."""
        if size > 0:
            self.pause = FIRST_PAUSE_SECONDS
        else:
            self.not_before = now + self.pause
            self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)


class Evictors:
    """The registered evictables, and one eviction at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[int, Entry] = {}
        self._one_at_a_time = threading.Lock()
        self._thread = 0
        """Who evicts now; 0: nobody."""
        self._came_back = 0
        self.evictions = self.evicted_bytes = self.failures = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, evictable: Evictable, min_idle: float) -> None:
        """Register; again: with another `min_idle`."""
        self._entries[id(evictable)] = Entry(evictable, min_idle)

    def remove(self, evictable: Evictable) -> bool:
        """Forget; whether it was registered. An eviction that has begun is not waited for."""
        return self._entries.pop(id(evictable), None) is not None

    def is_evicting(self) -> bool:
        """Whether this very thread is inside an evictor."""
        return self._thread == threading.get_ident()

    def note_release(self, size: int) -> None:
        """Told of every release while `active`: those of the evicting thread are the evictor's."""
        if self._thread == threading.get_ident():
            self._came_back += size

    @property
    def active(self) -> bool:
        """Whether an eviction is under way in any thread."""
        return self._thread != 0

    def relieve(self, shortfall: Callable[[], int]) -> float | None:
        """Evict until `shortfall` says 0 or nothing may go; in how many seconds to look again (None: never).

        Each evictable is asked at most once. Where another thread evicts, that is left to it.
        """
        if not self._entries:
            return None
        if not self._one_at_a_time.acquire(blocking=False):
            return None if self.is_evicting() else LOOK_AGAIN_SECONDS
        try:
            asked: set[int] = set()
            while shortfall() > 0:
                entries = [entry for entry in self._entries.copy().values() if id(entry) not in asked]
                victim, look_again = choose(self._look(entries), self._clock())
                if victim is None:
                    return LOOK_AGAIN_SECONDS if asked and look_again is None else look_again
                asked.add(id(victim.entry))
                self._evict(victim.entry)
            return None
        finally:
            self._one_at_a_time.release()

    def relieve_in_thread(self, shortfall: Callable[[], int], done: Callable[[], object]) -> float | None:
        """As `relieve`, but evict in a thread of its own, which calls `done` at its end."""
        if shortfall() <= 0 or not self._entries:
            return None
        victim, look_again = choose(self._look(list(self._entries.copy().values())), self._clock())
        if victim is None or self.active:
            return look_again if victim is None else LOOK_AGAIN_SECONDS

        def relieve() -> None:
            self.relieve(shortfall)
            done()

        threading.Thread(target=relieve, name="oomproof-evict", daemon=True).start()
        return LOOK_AGAIN_SECONDS

    def _look(self, entries: list[Entry]) -> list[Candidate]:
        candidates = []
        for entry in entries:
            it = entry.evictable
            try:
                candidates.append(Candidate(entry, it.size_bytes, it.last_use, it.in_use))
            except Exception:  # noqa: BLE001 - somebody else's code: reported, and the request goes on
                self._failed(entry, "%s cannot be asked whether it may be evicted", exc_info=True)
        return candidates

    def _evict(self, entry: Entry) -> None:
        self._came_back = 0
        self._thread = threading.get_ident()
        try:
            said = entry.evictable.evict()
        except Exception:  # noqa: BLE001 - somebody else's code: reported, and the request goes on
            self._thread = 0
            self._failed(entry, "the evictor of %s failed", exc_info=True)
        else:
            self._thread = 0
            if said != self._came_back:
                self._failed(
                    entry,
                    f"the evictor of %s says that it freed {format_size(said)}; the ledger got back"
                    f" {format_size(self._came_back)} from its thread, and that is what counts",
                )
        finally:
            self._thread = 0
            entry.gave(self._came_back, self._clock())
        if self._came_back:
            self.evictions += 1
            self.evicted_bytes += self._came_back

    def _failed(self, entry: Entry, message: str, *, exc_info: bool = False) -> None:
        self.failures += 1
        log.warning(message, _name(entry.evictable), exc_info=exc_info)


def _name(evictable: Evictable) -> str:
    try:
        return str(evictable.name)
    except Exception:  # noqa: BLE001 - somebody else's code: reported, and the request goes on
        return repr(type(evictable))
