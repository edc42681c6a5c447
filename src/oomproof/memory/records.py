"""What the ledger writes on: accounts, holdings, and places in line. Sizes are bytes.

Their fields are changed by the ledger alone, under its lock.
"""

from __future__ import annotations

from typing import Final

WAITING: Final = 0
"""For want of free bytes, or behind somebody who wants some."""
GRANTED: Final = 1
EXCEEDED: Final = 2
"""More than the total."""
RELEASED: Final = 3
"""The holding that was to grow has been released."""
WITHDRAWN: Final = 4
"""By the one who asked: a deadline, a cancellation, an interrupt."""

CLOSED: Final = -1
"""In place of a size: the holding is not open."""
TOO_MUCH: Final = -2
"""In place of a size: more than the holding has."""
EVERYTHING: Final = -1
"""As a size to give back."""


class Account:
    """What one owner has; listed in the ledger while it holds or waits for anything. Sizes are bytes."""

    __slots__ = ("bytes", "owner", "peak", "reservations", "waiting", "waiting_bytes")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.bytes = self.peak = self.reservations = self.waiting = self.waiting_bytes = 0


class Holding:
    """The bytes of one reservation. Changed by the ledger alone."""

    __slots__ = ("_account", "_bytes", "_open")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._bytes = 0
        self._open = False

    @property
    def bytes(self) -> int:
        """Held now; 0 before and after."""
        return self._bytes

    @property
    def owner(self) -> str:
        """The name under which they are listed."""
        return self._account.owner


class Request:
    """A place in line: `holding` wants `size` bytes, as its first or (`growth`) on top of what it has."""

    __slots__ = ("account", "after", "before", "growth", "holding", "leads", "linked", "size", "state")

    def __init__(self, holding: Holding, size: int, *, growth: bool = False) -> None:
        self.holding = holding
        self.account = holding._account
        self.size = size
        self.growth = growth
        self.state: int = WAITING
        self.linked = False
        self.leads = False
        """Whether it has been told that it is the first in line."""
        # Unset until it is linked: a ring of one would keep a lost holding from coming back at once.
        self.before: Request
        self.after: Request

    def wake(self) -> bool:
        """Make the one who asked look at `state`; False when nobody is there any more. From any thread."""
        return True

    def is_abandoned(self) -> bool:
        """Whether the one who asked can never look again."""
        return False
