"""What a budget tells about itself, as frozen data. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnerStatistics:
    """One owner; listed while it holds or waits for anything."""

    bytes: int
    """Held now."""
    peak_bytes: int
    """The most that was held since the owner was last listed anew."""
    reservations: int
    waiting: int
    """Requests in line."""
    waiting_bytes: int


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """One moment of a budget: the owners' bytes add up to `used_bytes`."""

    name: str
    total_bytes: int
    used_bytes: int
    available_bytes: int
    """Nobody's; 0 while more is held than the total, after it was lowered."""
    peak_bytes: int
    """The most that was ever held at once."""
    waiting: int
    """Requests in line, of all owners."""
    owners: Mapping[str, OwnerStatistics]
    granted: int
    """Reservations made since the beginning."""
    waited: int
    """Requests that had to stand in line, granted in the end or not."""
    withdrawn: int
    """Requests given up: deadlines, cancellations, interrupts."""
    lost: int
    """Reservations that were garbage-collected while held."""
    lost_bytes: int
    """Their bytes; all came back."""
    evictions: int
    """Calls of an evictor after which bytes had come back to the ledger."""
    evicted_bytes: int
    """What they gave back, by the ledger."""
    eviction_failures: int
    """Calls of an evictor that raised, or whose word and the ledger did not agree."""
