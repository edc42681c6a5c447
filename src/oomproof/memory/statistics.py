"""What a budget and a pool tell about themselves, as frozen data. Sizes are bytes."""

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


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool holds, and what it has done so far."""

    name: str
    in_use_bytes: int
    """Of buffers in use, `viewed_bytes` included; as the ledger is charged."""
    in_use_count: int
    requested_bytes: int
    """What was asked for of `in_use_bytes`; the rest is waste."""
    viewed_bytes: int
    """Of buffers that were returned, but that slices or arrays still look at."""
    idle_bytes: int
    idle_count: int
    peak_bytes: int
    """Highest sum of buffers in use and idle."""
    bytes_by_backend: Mapping[str, int]
    """In use and idle."""
    reused: int
    """Requests that an idle buffer served."""
    allocated: int
    """Requests that needed new memory."""
    freed_bytes: Mapping[str, int]
    """By cause: ``asked``, ``cancelled``, ``closed``, ``idle``, ``pressure``, ``evicted`` (the budget needed
    room), ``wanted`` (somebody waited for room when it was returned)."""
