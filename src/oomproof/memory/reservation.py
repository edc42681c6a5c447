"""A reservation: bytes of a budget that belong to one owner until they are released.

Not covered: getting one, see `MemoryBudget.reserve` and its kin.
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import NoReturn, Self

from oomproof.memory.arguments import plain_owner, plain_size
from oomproof.memory.dispatch import Dispatcher
from oomproof.memory.records import CLOSED, EVERYTHING, GRANTED, WAITING, Account, Holding, Request
from oomproof.memory.refusal import not_changed, not_granted
from oomproof.memory.waiting import TaskRequest, ThreadRequest


class Reservation(Holding):
    """Held bytes of a budget; made by the budget alone. Safe to use from several threads.

    As a context manager it releases what is left of it. One that is garbage-collected while it holds bytes
    gives them back with a ResourceWarning.
    """

    __slots__ = ("__weakref__", "_dispatcher")

    def __init__(self, dispatcher: Dispatcher, account: Account) -> None:
        super().__init__(account)
        self._dispatcher = dispatcher

    @property
    def released(self) -> bool:
        """Whether it is over: nothing can be done with it any more."""
        return not self._open

    def release(self, size: int | None = None) -> None:
        """Give back `size` bytes; None: all that is left. Giving back the last byte ends the reservation.

        Never waits. Raises OverRelease for more than is held (nothing is given back then) and
        ReservationReleased when it has been released before.
        """
        wanted = EVERYTHING if size is None else plain_size(size)
        given = self._dispatcher.give_back(self, wanted)
        if given < 0:
            raise not_changed(self._dispatcher.ledger, given, self, wanted, "released")

    def grow(self, size: int, *, timeout: float | None = None) -> None:
        """Add `size` bytes, waiting for them at most `timeout` seconds (None: for ever).

        Growth is served before new reservations: whoever holds memory must be able to finish, or it never
        comes back. It is not free of deadlock: two that each hold half and each want more wait for each
        other. Reserve all that a piece of work needs at its beginning and release early, or give a timeout
        and release on ReserveTimeout.

        Raises BudgetExceeded when the reservation would become larger than the total, ReserveTimeout, and
        ReservationReleased, also when it is released while the growth waits.
        """
        size = plain_size(size)
        request = ThreadRequest(self, size, growth=True)
        state = self._dispatcher.grow(request)
        if state == WAITING:
            state = self._dispatcher.wait(request, timeout)
        if state != GRANTED:
            raise not_granted(self._dispatcher.ledger, state, self, size, timeout)

    async def grow_async(self, size: int, *, timeout: float | None = None) -> None:
        """As `grow`, for a task of an asyncio event loop."""
        size = plain_size(size)
        request = TaskRequest(self, size, growth=True)
        state = self._dispatcher.grow(request)
        if state == WAITING:
            state = await self._dispatcher.wait_async(request, timeout)
        if state != GRANTED:
            raise not_granted(self._dispatcher.ledger, state, self, size, timeout)

    def try_grow(self, size: int) -> bool:
        """Add `size` bytes if they can be had without waiting; whether they were."""
        size = plain_size(size)
        request = Request(self, size, growth=True)
        state = self._dispatcher.grow(request)
        if state == WAITING:
            self._dispatcher.relieve_now(size)
            state = self._dispatcher.grow(request)
        if state not in (GRANTED, WAITING):
            raise not_granted(self._dispatcher.ledger, state, self, size, None)
        return state == GRANTED

    def split(self, size: int, *, owner: str | None = None) -> Reservation:
        """Move `size` of the bytes into a reservation of their own, for `owner` (None: the same).

        Raises OverRelease for more than is held, and ReservationReleased.
        """
        ledger, size = self._dispatcher.ledger, plain_size(size)
        part = Reservation(
            self._dispatcher, ledger.account(self.owner if owner is None else plain_owner(owner))
        )
        given = ledger.split(self, part, size)
        if given < 0:
            raise not_changed(ledger, given, self, size, "split off")
        return part

    def transfer(self, owner: str) -> None:
        """List the bytes under another owner from now on. Raises ReservationReleased."""
        ledger = self._dispatcher.ledger
        given = ledger.transfer(self, ledger.account(plain_owner(owner)))
        if given < 0:
            raise not_changed(ledger, given, self, 0, "transferred")

    def __enter__(self) -> Self:
        if not self._open:
            raise not_changed(self._dispatcher.ledger, CLOSED, self, 0, "entered")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # All of it may have been released inside the block: that is no second release.
        self._dispatcher.give_back(self)

    def __repr__(self) -> str:
        state = f"{self._bytes} bytes" if self._open else "released"
        return f"<Reservation of {self.owner!r} in {self._dispatcher.ledger.name!r}: {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a reservation cannot be copied or pickled: its bytes are there once")

    def __del__(self) -> None:
        # An interrupt may have struck before __init__ had set anything.
        if getattr(self, "_open", False):
            size, owner = self._bytes, self.owner
            self._dispatcher.reclaim(self)
            # A forked child has copies of what its parent holds, and nothing to hold them by.
            if size and not self._dispatcher.inherited:
                warnings.warn(
                    f"a reservation of {size} bytes by {owner!r} was garbage-collected while held;"
                    " its bytes came back to the budget: release it, or use it in a with statement",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )
