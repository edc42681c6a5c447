"""`MemoryBudget`: one ledger of bytes for all threads and event loops of a process.

It counts; it allocates nothing and measures nothing. Not covered: what the process really uses beside the
ledger, and giving other processes a share.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any, Self

from oomproof.errors import BudgetError, UsageError
from oomproof.memory.arguments import plain_owner, plain_size
from oomproof.memory.dispatch import Dispatcher
from oomproof.memory.eviction import Evictable
from oomproof.memory.ledger import Ledger
from oomproof.memory.records import GRANTED, WAITING
from oomproof.memory.refusal import not_granted
from oomproof.memory.reservation import Reservation
from oomproof.memory.statistics import BudgetStatistics, OwnerStatistics
from oomproof.memory.waiting import TaskRequest, ThreadRequest

_GLANCES = 20
"""At the statistics before all others have to wait for them."""


class MemoryBudget:
    """`total_bytes` that the consumers of one process share, each under a name.

    Requests are served first come, first served, whatever their size: a small one never passes a large one
    that waits. All methods may be called from any thread; those that wait have an ``_async`` twin for tasks
    of an asyncio event loop, in the same line. The others never wait; those that ask no evictor may be called
    anywhere, also in finalisers and signal handlers.

    A forked child inherits what was held and no line of those who wait; there it can be released but nothing
    can be reserved: two processes cannot share one ledger.
    """

    def __init__(self, total_bytes: int, *, name: str = "memory") -> None:
        self._ledger = Ledger(plain_size(total_bytes, "total_bytes"), name)
        self._dispatcher = Dispatcher(self._ledger)
        self._process = os.getpid()
        _budgets.add(self)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, name: str = "memory") -> Self:
        """The budget that the launcher passed (``OOMPROOF_BUDGET_BYTES``), else one planned from the limits.

        The plan is that of ``oomproof plan --no-probe``: what the limits and the host leave to this process
        now, less the default margin. Raises ConfigError for a variable that is no size, and PlanError where
        nothing is known or left.
        """
        from oomproof.memory.environment import budget_bytes  # noqa: PLC0415 - reads limits only where asked

        return cls(budget_bytes(os.environ if environ is None else environ), name=name)

    @property
    def name(self) -> str:
        """For messages and statistics."""
        return self._ledger.name

    @property
    def total_bytes(self) -> int:
        """What may be held at once."""
        return self._ledger.total

    @property
    def used_bytes(self) -> int:
        """What is held now; above `total_bytes` only after that was lowered."""
        return self._ledger.used

    @property
    def available_bytes(self) -> int:
        """What nobody holds, never negative; somebody may be waiting for it."""
        return max(0, self._ledger.total - self._ledger.used)

    @property
    def waiting(self) -> int:
        """Requests in line now."""
        return self._ledger.waiting

    def reserve(self, size: int, *, owner: str, timeout: float | None = None) -> Reservation:
        """Take `size` bytes for `owner`, waiting in line at most `timeout` seconds (None: for ever).

        Asks evictors, in this thread, when this request is the first in line and cannot be met. On an event
        loop's thread use `reserve_async`: waiting here would stop the tasks that hold the bytes.

        Raises BudgetExceeded at once for more than the total, and later if the total is lowered below `size`;
        ReserveTimeout at the deadline.
        """
        reservation, size = self._new(owner), plain_size(size)
        try:
            state = self._ledger.take(reservation, size)
            if state == WAITING:
                state = self._dispatcher.wait(ThreadRequest(reservation, size), timeout)
        except BaseException:
            self._dispatcher.undo(reservation)
            raise
        return self._granted(state, reservation, size, timeout)

    async def reserve_async(self, size: int, *, owner: str, timeout: float | None = None) -> Reservation:
        """As `reserve`, for a task of an asyncio event loop: ``with await budget.reserve_async(...):``.

        Does not yield to the loop when the bytes are free. Evictors are asked in a thread of their own.
        """
        reservation, size = self._new(owner), plain_size(size)
        try:
            state = self._ledger.take(reservation, size)
            if state == WAITING:
                state = await self._dispatcher.wait_async(TaskRequest(reservation, size), timeout)
        except BaseException:
            self._dispatcher.undo(reservation)
            raise
        return self._granted(state, reservation, size, timeout)

    def try_reserve(self, size: int, *, owner: str) -> Reservation | None:
        """Take `size` bytes for `owner` if that is possible without waiting, else None.

        None too while others wait. Asks evictors, in this thread, when that can help and no other thread asks
        them. Raises BudgetExceeded
        for more than the total.
        """
        reservation, size = self._new(owner), plain_size(size)
        try:
            state = self._ledger.take(reservation, size)
            if state == WAITING:
                self._dispatcher.serve()  # should the first in line have gone without a word
                self._dispatcher.relieve_now(size)
                state = self._ledger.take(reservation, size)
        except BaseException:
            self._dispatcher.undo(reservation)
            raise
        return None if state == WAITING else self._granted(state, reservation, size, None)

    def set_total(self, total_bytes: int) -> None:
        """Change the total, up or down, while running.

        Below what is held: nobody loses anything, nobody gets anything until enough came back, and evictors
        are asked at once, in this thread. Requests in line that are larger than the new total fail with
        BudgetExceeded.
        """
        self._dispatcher.set_total(plain_size(total_bytes, "total_bytes"))

    def add_evictable(self, evictable: Evictable, *, min_idle: float = 0.0) -> None:
        """From now on, evict it when a request cannot be met and it was idle for `min_idle` seconds.

        It is kept alive until `remove_evictable`.
        """
        if not min_idle >= 0:
            raise UsageError(f"min_idle={min_idle} makes no sense: give seconds from 0 up")
        self._dispatcher.evictors.add(evictable, min_idle)
        self._dispatcher.wake_first()

    def remove_evictable(self, evictable: Evictable) -> None:
        """Ask it no more; an eviction that has begun is not waited for. Raises UsageError for a stranger."""
        if not self._dispatcher.evictors.remove(evictable):
            raise UsageError(f"{evictable!r} is no evictable of budget {self.name!r}: add it first")

    def statistics(self) -> BudgetStatistics:
        """One moment of the budget."""
        ledger = self._ledger
        for _ in range(_GLANCES):
            before = ledger.changes
            seen = self._glance()
            if ledger.changes == before:
                break
        else:  # so many owners, and such bustle, that it has to stop for a moment
            with ledger.standstill:
                seen = self._glance()
        fields, accounts = seen
        owners = {owner: OwnerStatistics(*account) for owner, *account in accounts}
        return BudgetStatistics(owners=owners, **fields)

    def _glance(self) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        """What is true of one moment if nothing changed meanwhile: quick, so that this is likely."""
        ledger, evictors = self._ledger, self._dispatcher.evictors
        accounts = [
            (one.owner, one.bytes, one.peak, one.reservations, one.waiting, one.waiting_bytes)
            for one in list(ledger.accounts.values())
        ]
        return {
            "name": self.name,
            "total_bytes": ledger.total,
            "used_bytes": ledger.used,
            "available_bytes": max(0, ledger.total - ledger.used),
            "peak_bytes": ledger.peak,
            "waiting": ledger.waiting,
            "granted": ledger.granted,
            "waited": ledger.waited,
            "withdrawn": ledger.withdrawn,
            "lost": self._dispatcher.lost,
            "lost_bytes": self._dispatcher.lost_bytes,
            "evictions": evictors.evictions,
            "evicted_bytes": evictors.evicted_bytes,
            "eviction_failures": evictors.failures,
        }, accounts

    def __repr__(self) -> str:
        ledger = self._ledger
        state = f"{ledger.used} of {ledger.total} bytes held, {ledger.waiting} waiting"
        return f"<MemoryBudget {self.name!r}: {state}>"

    def _new(self, owner: str) -> Reservation:
        if self._dispatcher.inherited:
            raise BudgetError(
                f"budget {self.name!r} belongs to process {self._process}, from which this one was forked:"
                " make one here, with a share of its own"
            )
        return Reservation(self._dispatcher, self._ledger.account(plain_owner(owner)))

    def _granted(self, state: int, reservation: Reservation, size: int, timeout: float | None) -> Reservation:
        if state != GRANTED:
            raise not_granted(self._ledger, state, reservation, size, timeout)
        return reservation


_budgets: weakref.WeakSet[MemoryBudget] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for budget in list(_budgets):
        budget._dispatcher.inherit()


os.register_at_fork(after_in_child=_after_fork_in_child)
