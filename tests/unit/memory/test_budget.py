"""MemoryBudget and Reservation, one thread at a time: what is granted, refused, counted."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from oomproof.errors import (
    BudgetError,
    BudgetExceeded,
    OomproofError,
    OverRelease,
    ReservationReleased,
    ReserveTimeout,
    UsageError,
)
from oomproof.memory import BudgetStatistics, MemoryBudget, Reservation
from unit.memory.helpers import Threads, wait_for


def test_a_reservation_is_counted_until_its_block_ends(budget: MemoryBudget) -> None:
    with budget.reserve(60, owner="srs:porep") as reservation:
        assert (reservation.bytes, reservation.owner, reservation.released) == (60, "srs:porep", False)
        assert (budget.used_bytes, budget.available_bytes, budget.total_bytes) == (60, 40, 100)
    assert reservation.released
    assert budget.used_bytes == 0


def test_an_exception_in_the_block_releases_too(budget: MemoryBudget) -> None:
    with pytest.raises(ZeroDivisionError), budget.reserve(60, owner="a"):
        _ = 1 // 0
    assert budget.used_bytes == 0


def test_more_than_the_total_is_an_error_at_once_and_never_a_wait(budget: MemoryBudget) -> None:
    with budget.reserve(100, owner="a"):
        for ask in (budget.reserve, budget.try_reserve):
            with pytest.raises(BudgetExceeded, match=r"'b' asks budget 'test' for 101 B.* total of 100 B"):
                ask(101, owner="b")
    assert budget.statistics().waited == 0


def test_the_deadline_is_kept_and_named(budget: MemoryBudget) -> None:
    with budget.reserve(90, owner="a"):
        begun = time.monotonic()
        with pytest.raises(ReserveTimeout, match=r"within 0\.05 s: 90 B of 100 B are held") as caught:
            budget.reserve(20, owner="b", timeout=0.05)
        assert time.monotonic() - begun >= 0.05
    assert isinstance(caught.value, TimeoutError)
    assert budget.used_bytes == 0


@pytest.mark.parametrize("timeout", [0, -1, -1e300])
def test_a_deadline_that_has_passed_waits_not_at_all_but_takes_what_is_free(
    budget: MemoryBudget, timeout: float
) -> None:
    with budget.reserve(60, owner="a", timeout=timeout), pytest.raises(ReserveTimeout):
        budget.reserve(60, owner="b", timeout=timeout)


def test_parts_can_be_released_and_no_more_than_is_held(budget: MemoryBudget) -> None:
    with budget.reserve(60, owner="a") as reservation:
        reservation.release(50)
        assert (reservation.bytes, budget.used_bytes) == (10, 10)
        with pytest.raises(OverRelease, match=r"11 bytes cannot be released.* holds 10"):
            reservation.release(11)
        assert (reservation.bytes, budget.used_bytes) == (10, 10)
        reservation.release(10)
        assert reservation.released


def test_a_second_release_is_an_error(budget: MemoryBudget) -> None:
    reservation = budget.reserve(60, owner="a")
    reservation.release()
    uses: list[Callable[[], object]] = [
        reservation.release,
        lambda: reservation.release(0),
        lambda: reservation.grow(1),
        lambda: reservation.try_grow(1),
        lambda: reservation.split(1),
        lambda: reservation.transfer("b"),
        reservation.__enter__,
    ]
    for use in uses:
        with pytest.raises(ReservationReleased, match="released before"):
            use()
    assert budget.statistics().owners == {}


def test_an_empty_reservation_is_one_that_can_grow(budget: MemoryBudget) -> None:
    with budget.reserve(0, owner="a") as reservation:
        reservation.grow(30)
        assert reservation.try_grow(70)
        assert not reservation.try_grow(0) or reservation.bytes == 100
        assert budget.available_bytes == 0
        with pytest.raises(BudgetExceeded, match="on top of 100 B"):
            reservation.grow(1)


def test_split_and_transfer_move_bytes_and_make_none(budget: MemoryBudget) -> None:
    with budget.reserve(60, owner="a") as whole:
        part = whole.split(20, owner="b")
        assert (whole.bytes, part.bytes, part.owner, budget.used_bytes) == (40, 20, "b", 60)
        twin = whole.split(40)
        assert (whole.bytes, whole.released, twin.owner) == (0, False, "a")
        twin.transfer("c")
        assert {name: owner.bytes for name, owner in budget.statistics().owners.items()} == {
            "a": 0,
            "b": 20,
            "c": 40,
        }
        with pytest.raises(OverRelease, match="21 bytes cannot be split off"):
            part.split(21)
        twin.transfer("c")
        part.release()
        twin.release()
    assert budget.statistics().owners == {}


def test_a_lost_reservation_gives_its_bytes_back_with_a_warning_that_names_the_owner(
    budget: MemoryBudget,
) -> None:
    with pytest.warns(ResourceWarning, match="60 bytes by 'srs:porep' was garbage-collected while held"):
        budget.reserve(60, owner="srs:porep")
    assert budget.used_bytes == 0

    with pytest.warns(ResourceWarning, match="'in a cycle'"):
        cycle: list[object] = [budget.reserve(50, owner="in a cycle")]
        cycle.append(cycle)
        del cycle
        gc.collect()
    statistics = budget.statistics()
    assert (statistics.used_bytes, statistics.lost, statistics.lost_bytes) == (0, 2, 110)


def test_a_lost_reservation_wakes_who_waits_for_it(budget: MemoryBudget) -> None:
    holder = [budget.reserve(60, owner="lost")]
    got: list[Reservation] = []
    waiter = threading.Thread(target=lambda: got.append(budget.reserve(100, owner="b")))
    waiter.start()
    wait_for(lambda: budget.statistics().waiting == 1)
    with pytest.warns(ResourceWarning, match="'lost'"):
        holder.clear()
    waiter.join(60)
    got.pop().release()


def test_statistics_of_very_many_owners_come_to_an_end(threads: Threads) -> None:
    """However much happens meanwhile."""
    budget = MemoryBudget(10**9)
    held = [budget.reserve(1, owner=f"job {number}") for number in range(20_000)]
    done = threading.Event()

    def bustle() -> None:
        while not done.is_set():
            budget.reserve(1, owner="busy").release()

    for _ in range(2):
        threads.start(bustle)
    try:
        statistics = threads.start(budget.statistics)
        wait_for(lambda: bool(statistics))
    finally:
        done.set()
        for reservation in held:
            reservation.release()
    (found,) = statistics
    assert isinstance(found, BudgetStatistics)
    assert sum(one.bytes for one in found.owners.values()) == found.used_bytes


@pytest.mark.parametrize("size", [1.5, "1", None])
def test_a_size_is_an_integer(budget: MemoryBudget, size: object) -> None:
    with pytest.raises(TypeError):
        budget.reserve(size, owner="a")  # type: ignore[arg-type]


def test_what_makes_no_sense_is_refused(budget: MemoryBudget) -> None:
    for nonsense in (
        lambda: budget.reserve(-1, owner="a"),
        lambda: budget.reserve(1, owner=""),
        lambda: budget.set_total(-1),
        lambda: MemoryBudget(-1),
    ):
        with pytest.raises(UsageError):
            nonsense()
    with budget.reserve(100, owner="a"), pytest.raises(UsageError):
        budget.reserve(1, owner="a", timeout=float("nan"))
    assert budget.statistics().waiting == 0


def test_the_errors_are_of_one_family() -> None:
    for error in (BudgetExceeded, ReserveTimeout, OverRelease, ReservationReleased):
        assert issubclass(error, BudgetError)
        assert issubclass(error, OomproofError)
