"""Notices OOM kills while the main process still runs: by the kernel's notification, else by looking.

Not covered: the counters themselves (`counters`), what is done about a kill (`supervisor`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from oomproof.launch.counters import Counters

_RECHECKS_S = (0.005, 0.05, 0.3, 0.9)
"""When to read the counter again after a notification: v1 notifies before the counter moves."""


class KillWatch:
    """Watches `counters` (None: nothing can be seen) from `begin` to `end`. Times are monotonic."""

    def __init__(self, counters: Counters | None) -> None:
        self._counters = counters
        self._fd: int | None = None
        self._mask = 0
        self._looks: list[float] = []
        self.noticed_at: float | None = None
        """When the first kill was noticed."""

    def begin(self) -> None:
        """From now on."""
        watch = self._counters.watch() if self._counters is not None else None
        if watch is not None:
            self._fd, self._mask = watch
        else:
            self._look_again()

    def end(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def wants(self) -> Iterable[tuple[int, int]]:
        """Descriptors and masks to poll for before the next `turn`."""
        return () if self._fd is None else ((self._fd, self._mask),)

    def due(self) -> float | None:
        """When to call `turn` at the latest; None: not before something happens."""
        return self._looks[0] if self._looks else None

    def turn(self, ready: set[int]) -> bool:
        """See to what is ready or due; True when the first kill was noticed right now."""
        now = time.monotonic()
        look = False
        if self._fd in ready and self._counters is not None:
            self._counters.acknowledge(self._fd)
            self._looks = [now + delay for delay in _RECHECKS_S]
            look = True
        while self._looks and self._looks[0] <= now:
            self._looks.pop(0)
            look = True
        if not look or self.noticed_at is not None or self._counters is None:
            return False
        if self._counters.kills_so_far() <= 0:
            self._look_again()
            return False
        self.noticed_at = now
        self._looks = []
        return True

    def _look_again(self) -> None:
        """Where the kernel does not notify."""
        if self._fd is None and self._counters is not None and self._counters.look_every_s is not None:
            self._looks = [time.monotonic() + self._counters.look_every_s]
