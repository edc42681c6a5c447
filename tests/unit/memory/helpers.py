"""Help for tests of the budget: waiting for what comes true, and threads that are not forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from oomproof.memory import MemoryBudget


def assert_at_rest(budget: MemoryBudget) -> None:
    statistics = budget.statistics()
    assert (statistics.used_bytes, statistics.waiting, dict(statistics.owners)) == (0, 0, {})


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        time.sleep(0.0005)


def wait_for_line(budget: MemoryBudget, length: int) -> None:
    """Until so many requests are in line."""
    wait_for(lambda: budget.statistics().waiting == length)


class Threads:
    """Threads whose results and errors are asked for; none is left running."""

    def __init__(self) -> None:
        self._running: list[threading.Thread] = []

    def start(self, work: Callable[[], object]) -> list[object]:
        """Run `work`; the list will hold what it returns, or raises."""
        ends_with: list[object] = []

        def run() -> None:
            try:
                ends_with.append(work())
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                ends_with.append(error)

        thread = threading.Thread(target=run)
        self._running.append(thread)
        thread.start()
        return ends_with

    def join(self, seconds: float = 60) -> None:
        ends = time.monotonic() + seconds
        for thread in self._running:
            thread.join(max(0.0, ends - time.monotonic()))
        assert not [thread for thread in self._running if thread.is_alive()], "somebody was forgotten"
        self._running.clear()
