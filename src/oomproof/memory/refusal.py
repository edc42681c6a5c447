"""Why something was not granted or not changed, as the error that says so."""

from __future__ import annotations

from oomproof.errors import BudgetExceeded, OomproofError, OverRelease, ReservationReleased, ReserveTimeout
from oomproof.memory.ledger import Ledger
from oomproof.memory.records import CLOSED, EXCEEDED, RELEASED, Holding
from oomproof.units import format_size


def not_granted(
    ledger: Ledger, state: int, holding: Holding, size: int, timeout: float | None
) -> OomproofError:
    """For a request of `size` bytes that ended in `state`."""
    if state == RELEASED:
        return not_changed(ledger, CLOSED, holding, 0, "grown")
    wanted = f"{holding.owner!r} asks budget {ledger.name!r} for {format_size(size)}"
    if state == EXCEEDED:
        held = f" on top of {format_size(holding.bytes)}" if holding.bytes else ""
        return BudgetExceeded(
            f"{wanted}{held}, more than its total of"
            f" {format_size(ledger.total)}: ask for less, or raise the total"
        )
    return ReserveTimeout(
        f"{wanted} and did not get it within {timeout:g} s: {format_size(ledger.used)} of"
        f" {format_size(ledger.total)} are held, {ledger.waiting} more wait:"
        " allow more time, or see in statistics() who holds them"
    )


def not_changed(ledger: Ledger, given: int, holding: Holding, size: int, done: str) -> OomproofError:
    """For `size` bytes of a `holding` that could not be `done` (released, ...): CLOSED or TOO_MUCH."""
    which = f"the reservation of {holding.owner!r} in budget {ledger.name!r}"
    if given == CLOSED:
        return ReservationReleased(f"{which} cannot be {done}: it has been released before, look for who did")
    return OverRelease(
        f"{size} bytes cannot be {done}: {which} holds {holding.bytes}: pass at most that, or nothing for all"
    )
