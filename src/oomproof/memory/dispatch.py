"""Between the ledger and those who ask: grants are made, sleepers woken, evictors asked.

Whatever returns bytes or leaves the line is followed by `serve`, also when an interrupt comes in between.
Not covered: what may be granted (`ledger`), what may be evicted (`eviction`), the public API.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from oomproof.errors import BudgetError
from oomproof.memory.arguments import deadline, sooner
from oomproof.memory.eviction import Evictors
from oomproof.memory.ledger import Ledger
from oomproof.memory.records import EVERYTHING, WAITING, Holding, Request
from oomproof.memory.waiting import TaskRequest, ThreadRequest


class Dispatcher:
    """Serves one ledger with its evictors."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.evictors = Evictors(self.ledger.shortfall)
        self.lost = self.lost_bytes = 0
        """Holdings whose reservation was garbage-collected."""
        self.inherited = False
        """Whether this is a forked child's copy."""

    def wait(self, request: ThreadRequest, timeout: float | None) -> int:
        """Stand in line until decided or the deadline; the request's state."""
        self._refuse_an_evictor()
        _asker = request.asked()
        try:
            ends = deadline(timeout)
            self.ledger.enqueue(request)
            self.serve()
            while request.state == WAITING:
                look_again = self._relieve(request)
                left = ends - time.monotonic()
                if left <= 0:
                    self._expire(request)
                elif request.state == WAITING:
                    request.park(sooner(left, look_again))
        except BaseException:
            self.abandon(request)
            raise
        return request.state

    async def wait_async(self, request: TaskRequest, timeout: float | None) -> int:
        """As `wait`, for a task of the running event loop; evictors are asked in a thread of their own."""
        self._refuse_an_evictor()
        try:
            ends = deadline(timeout)
            self.ledger.enqueue(request)
            self.serve()
            while request.state == WAITING:
                look_again = self._relieve_in_thread(request)
                left = ends - time.monotonic()
                if left <= 0:
                    self._expire(request)
                else:
                    await request.park(sooner(left, look_again))
        except BaseException:
            self.abandon(request)
            raise
        return request.state

    def grow(self, request: Request) -> int:
        """Decide a growth at once if that is possible; the request's state."""
        try:
            self.ledger.take_growth(request)
        except BaseException:
            self.abandon(request)
            raise
        return request.state

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

    def set_total(self, total: int) -> None:
        """Refuse who wants more than the new total, serve the others, and evict what is too much."""
        try:
            self.ledger.set_total(total)
            self._refuse_the_hopeless()
        except BaseException:
            self._refuse_the_hopeless()
            raise
        self._ask_evictors(self.ledger.shortfall)

    def relieve_now(self, size: int) -> None:
        """Evict for a request of `size` bytes that will not wait, if that can be enough."""
        ledger = self.ledger
        if self.evictors and not ledger.waiting:
            self._ask_evictors(lambda: ledger.used + size - ledger.total, only_if_enough=True)

    def serve(self) -> None:
        """Grant what can be granted, refuse what never can be, wake whom it concerns. At any time."""
        ledger = self.ledger
        while (request := ledger.decide() or self._first_abandoned()) is not None:
            if not request.wake():
                self._forget(request)
            ledger.dismiss(request)
        if self.evictors and (first := ledger.lead()) is not None:
            first.wake()

    def abandon(self, request: Request) -> None:
        """The asker was interrupted or cancelled: nothing of it stays, and nobody misses a wake-up."""
        self._forget(request)
        self.serve()

    def undo(self, holding: Holding) -> None:
        """As `abandon`, for a holding that will not be handed out."""
        self.ledger.give_back(holding, EVERYTHING)
        self.serve()

    def wake_first(self, *, unless: Request | None = None) -> None:
        """Make the first in line look anew at what can be evicted."""
        first = self.ledger.first()
        if first is not None and first is not unless:
            first.wake()

    def inherit(self) -> None:
        """In a forked child: the threads of the parent that waited or evicted did not come along."""
        self.inherited = True
        self.ledger.reset_line()
        self.evictors.inherit()

    def _refuse_an_evictor(self) -> None:
        if self.evictors.is_asked_by_me():
            raise BudgetError(
                f"an evictor of budget {self.ledger.name!r} waits for bytes of it, and the budget for the"
                " evictor: use try_reserve there"
            )

    def _refuse_the_hopeless(self) -> None:
        """Refuse whoever wants more than the total, wherever in line, then serve the others."""
        for growth in (True, False):
            request: Request | None = None
            while (request := self.ledger.review(request, growth=growth)) is not None:
                if request.state != WAITING:
                    request.wake()
        self.serve()

    def _first_abandoned(self) -> Request | None:
        """The first in line, withdrawn, if it can never look at what it gets."""
        first = self.ledger.first()
        if first is None or not first.is_abandoned():
            return None
        self._forget(first)
        return first

    def _expire(self, request: Request) -> None:
        """The deadline has come; whoever stands behind may fit where this one did not."""
        self.ledger.expire(request)
        self.serve()

    def _forget(self, request: Request) -> None:
        if not self.ledger.expire(request):
            self.ledger.revoke(request)

    def _relieve(self, request: Request) -> float | None:
        """Ask the evictors if `request` is first in line; seconds until the next look (None: when woken)."""
        if not self.evictors or self.ledger.first() is not request:
            return None
        return self._ask_evictors(lambda: self._missing(request), unless=request)

    def _relieve_in_thread(self, request: Request) -> float | None:
        """As `_relieve`; the look is taken here, the eviction elsewhere."""
        if not self.evictors or self.ledger.first() is not request:
            return None
        look_again, can_go = self.evictors.outlook(self._missing(request))
        if not can_go:
            return look_again

        def relieve() -> None:
            self._ask_evictors(lambda: self._missing(request), unless=request)
            request.wake()

        try:
            threading.Thread(target=relieve, name="oomproof-evict", daemon=True).start()
        except RuntimeError:  # no more threads: nothing unusual where memory is short
            relieve()
        return look_again

    def _missing(self, request: Request) -> int:
        """What the first in line still needs; 0 once it is decided."""
        return self.ledger.shortfall() if request.state == WAITING else 0

    def _ask_evictors(
        self, shortfall: Callable[[], int], *, only_if_enough: bool = False, unless: Request | None = None
    ) -> float | None:
        """As `Evictors.relieve`; then whoever has become first meanwhile and found them busy looks again."""
        try:
            return self.evictors.relieve(shortfall, only_if_enough=only_if_enough)
        finally:
            if self.evictors:
                self.wake_first(unless=unless)
