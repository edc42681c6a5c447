"""Between the ledger and those who ask: grants are made, sleepers woken, evictors asked.

Whatever returns bytes or leaves the line is followed by `serve`, also when an interrupt comes in between.
Not covered: what may be granted (`ledger`), what may be evicted (`eviction`), the public API.
"""

from __future__ import annotations

import time

from oomproof.errors import BudgetError
from oomproof.memory.arguments import deadline, sooner
from oomproof.memory.eviction import Evictors
from oomproof.memory.ledger import EVERYTHING, WAITING, Holding, Ledger, Request
from oomproof.memory.waiting import TaskRequest, ThreadRequest


class Dispatcher:
    """Serves one ledger with its evictors."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.evictors = Evictors()
        self.lost = self.lost_bytes = 0
        """Holdings whose reservation was garbage-collected."""

    def wait(self, request: ThreadRequest, timeout: float | None) -> int:
        """Stand in line until decided or the deadline; the request's state."""
        try:
            ends = deadline(timeout)
            self.ledger.enqueue(request)
            self.serve()
            while request.state == WAITING:
                look_again = self._relieve(request)
                if request.state != WAITING:
                    break
                left = ends - time.monotonic()
                if left <= 0:
                    self.ledger.expire(request)
                    break
                request.park(sooner(left, look_again))
            self.serve()
        except BaseException:
            self._abandon(request)
            raise
        return request.state

    async def wait_async(self, request: TaskRequest, timeout: float | None) -> int:
        """As `wait`, for a task of the running event loop."""
        try:
            ends = deadline(timeout)
            self.ledger.enqueue(request)
            self.serve()
            while request.state == WAITING:
                look_again = self._relieve_in_thread(request)
                left = ends - time.monotonic()
                if left <= 0:
                    self.ledger.expire(request)
                    break
                await request.park(sooner(left, look_again))
            self.serve()
        except BaseException:
            self._abandon(request)
            raise
        return request.state

    def serve(self) -> None:
        """Grant what can be granted, refuse what never can be, wake whom it concerns. At any time."""
        ledger = self.ledger
        while (request := ledger.decide() or self._first_abandoned()) is not None:
            if not request.wake():
                self._forget(request)
            ledger.dismiss(request)
        if self.evictors and (first := ledger.lead()) is not None:
            first.wake()

    def refuse_the_hopeless(self) -> None:
        """Refuse whoever wants more than the total, wherever in line, then serve the others."""
        for growth in (True, False):
            request: Request | None = None
            while (request := self.ledger.review(request, growth=growth)) is not None:
                if request.state != WAITING:
                    request.wake()
        self.serve()

    def give_back(self, holding: Holding, size: int = EVERYTHING) -> int:
        """As `Ledger.give_back`, and serve who waits for it."""
        try:
            given = self.ledger.give_back(holding, size)
            if given > 0 and self.evictors.active:
                self.evictors.note_release(given)
            if self.ledger.waiting:
                self.serve()
        except BaseException:
            self.serve()
            raise
        return given

    def reclaim(self, holding: Holding) -> None:
        """Take back what a holding has that nobody refers to any more."""
        given = self.give_back(holding)
        if given > 0:
            self.lost += 1
            self.lost_bytes += given

    def wake_first(self) -> None:
        """Make the first in line look anew at what can be evicted."""
        first = self.ledger.first()
        if first is not None:
            first.wake()

    def _first_abandoned(self) -> Request | None:
        """The first in line, withdrawn, if it can never look at what it gets."""
        first = self.ledger.first()
        if first is None or not first.is_abandoned():
            return None
        self._forget(first)
        return first

    def _forget(self, request: Request) -> None:
        if not self.ledger.expire(request):
            self.ledger.revoke(request)

    def _abandon(self, request: Request) -> None:
        """The asker was interrupted or cancelled: nothing of it stays, and nobody misses a wake-up."""
        self._forget(request)
        self.serve()

    def _relieve(self, request: Request) -> float | None:
        """Ask the evictors if `request` is first in line; seconds until the next look (None: when woken)."""
        if not self.evictors or self.ledger.first() is not request:
            return None
        if self.evictors.is_evicting():
            raise BudgetError(
                f"an evictor of budget {self.ledger.name!r} waits for bytes of it, and the budget for the"
                " evictor: use try_reserve there"
            )
        return self.evictors.relieve(self.ledger.shortfall)

    def _relieve_in_thread(self, request: Request) -> float | None:
        if not self.evictors or self.ledger.first() is not request:
            return None
        return self.evictors.relieve_in_thread(self.ledger.shortfall, request.wake)
