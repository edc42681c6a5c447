"""After fork: the parent's budget is the parent's; the child can release what it inherited, and no more."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable

import pytest

from oomproof.errors import BudgetError
from oomproof.memory import MemoryBudget
from unit.memory.helpers import Threads, wait_for_line


def in_a_child(work: Callable[[], None]) -> int:
    """The exit status of a forked child that does `work`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is the point here
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - shown, and told by the status
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_cannot_reserve_and_can_release(budget: MemoryBudget, threads: Threads) -> None:
    holder = budget.reserve(60, owner="holder")
    waits = threads.start(lambda: budget.reserve(80, owner="waits").release())
    wait_for_line(budget, 1)

    def child() -> None:
        for ask in (budget.reserve, budget.try_reserve):
            with pytest.raises(BudgetError, match=f"belongs to process {os.getppid()}, from which"):
                ask(1, owner="child")
        assert (budget.used_bytes, budget.statistics().waiting) == (60, 0)
        holder.release()
        assert budget.statistics().owners == {}
        own = MemoryBudget(10)
        with own.reserve(10, owner="child"):
            assert own.available_bytes == 0

    assert in_a_child(child) == 0
    assert (budget.used_bytes, budget.statistics().waiting, waits) == (60, 1, []), "the parent's is as it was"
    holder.release()


def test_a_child_does_not_complain_of_what_its_parent_holds(budget: MemoryBudget) -> None:
    held = [budget.reserve(60, owner="holder")]

    def child() -> None:
        warnings.simplefilter("error")
        held.clear()
        assert budget.used_bytes == 0

    assert in_a_child(child) == 0
    held.pop().release()


def test_a_grandchild_names_the_process_that_made_it(budget: MemoryBudget) -> None:
    made_in = os.getpid()

    def grandchild() -> None:
        with pytest.raises(BudgetError, match=f"belongs to process {made_in},"):
            budget.reserve(1, owner="grandchild")

    def child() -> None:
        assert in_a_child(grandchild) == 0

    assert in_a_child(child) == 0
