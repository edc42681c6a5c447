"""The one thread of a pool: ends loans that ended where no lock may be taken, and trims what lies idle.

A view can die anywhere, also in the garbage collector in the midst of somebody's critical section. There the
end of the loan is only put into a `collections.deque`, and a `queue.SimpleQueue` wakes this thread: both are
safe to use there. It, or whoever next asks the pool for something, does the rest. The items are not in the
queue themselves: since Python 3.13 it hands them to who waits, and nobody else could handle them meanwhile.
The thread holds the pool weakly and ends with it.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections import deque
from typing import Generic, Protocol, TypeVar

_PAUSE_SECONDS = 1.0
"""After a failure."""

_log = logging.getLogger("oomproof.memory")

Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)


class House(Protocol[Item_contra]):
    """What a housekeeper works for."""

    def handle(self, item: Item_contra, /) -> None:
        """Do what an item asks for; called by several threads."""

    def keep_house(self) -> float | None:
        """Do what is due; seconds until something may be due again, None: not before the next item."""

    @property
    def over(self) -> bool:
        """Whether nothing will ever be due again."""


class Housekeeper(Generic[Item]):
    """Items put in from anywhere, handled by whoever comes first: `drain`, or the thread."""

    def __init__(self, name: str, house: House[Item]) -> None:
        self._items: deque[Item] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._name = name
        self._house = weakref.ref(house)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, item: Item) -> None:
        """Have `item` handled soon. Safe in destructors and weakref callbacks."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Have the thread look at once what is due."""
        self._wakes.put(None)

    def drain(self) -> None:
        """Handle now what was put in until now."""
        house = self._house()
        if house is not None:
            _drain(self._items, house)

    def start(self) -> None:
        """Have the thread run."""
        if self._thread is None or not self._thread.is_alive():
            with self._starting:
                if self._thread is None or not self._thread.is_alive():
                    arguments = (self._items, self._wakes, self._house)
                    self._thread = threading.Thread(
                        target=_keep, args=arguments, name=self._name, daemon=True
                    )
                    self._thread.start()

    def inherit(self) -> None:
        """In a forked child: the thread did not come along."""
        self._starting = threading.Lock()
        self._thread = None


def _drain(items: deque[Item], house: House[Item]) -> None:
    while True:
        try:
            item = items.popleft()
        except IndexError:
            return
        house.handle(item)


def _keep(items: deque[Item], wakes: queue.SimpleQueue[None], reference: weakref.ref[House[Item]]) -> None:
    while (house := reference()) is not None:
        try:
            _drain(items, house)
            seconds = house.keep_house()
        except Exception:  # noqa: BLE001 - told, and the others are looked after
            _log.exception("%s failed, and goes on", threading.current_thread().name)
            seconds = _PAUSE_SECONDS
        if house.over:
            return
        del house  # while this thread sleeps, it must not keep the pool
        try:
            wakes.get(timeout=seconds)
            while True:  # one look is enough for all that came until now
                wakes.get_nowait()
        except queue.Empty:
            pass
