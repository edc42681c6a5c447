"""The one thread of a pool: ends loans that ended where no lock may be taken, and trims what lies idle.

A view can die anywhere, also in the garbage collector in the midst of somebody's critical section. There the
end of the loan is only put into a `queue.SimpleQueue`, which is safe to do (its documentation says so); this
thread, or whoever next asks the pool for something, does the rest. It holds the pool weakly and ends with it.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
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
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._name = name
        self._house = weakref.ref(house)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, item: Item) -> None:
        """Have `item` handled soon. Safe in destructors and weakref callbacks."""
        self._items.put(item)

    def wake(self) -> None:
        """Have the thread look at once what is due."""
        self._items.put(None)

    def drain(self) -> None:
        """Handle now what was put in until now."""
        meant_for_thread = False
        while (house := self._house()) is not None:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                break
            if item is None:
                meant_for_thread = True
            else:
                house.handle(item)
        if meant_for_thread:
            self.wake()

    def start(self) -> None:
        """Have the thread run."""
        if self._thread is None or not self._thread.is_alive():
            with self._starting:
                if self._thread is None or not self._thread.is_alive():
                    arguments = (self._items, self._house)
                    self._thread = threading.Thread(
                        target=_keep, args=arguments, name=self._name, daemon=True
                    )
                    self._thread.start()

    def inherit(self) -> None:
        """In a forked child: the thread did not come along."""
        self._starting = threading.Lock()
        self._thread = None


def _keep(items: queue.SimpleQueue[Item | None], reference: weakref.ref[House[Item]]) -> None:
    item = None
    while (house := reference()) is not None:
        try:
            if item is not None:
                house.handle(item)
            seconds = house.keep_house()
        except Exception:  # noqa: BLE001 - told, and the others are looked after
            _log.exception("%s failed, and goes on", threading.current_thread().name)
            seconds = _PAUSE_SECONDS
        if house.over:
            return
        item = None
        del house  # while this thread sleeps, it must not keep the pool
        try:
            item = items.get(timeout=seconds)
        except queue.Empty:
            pass
