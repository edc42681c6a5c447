"""In-process library for programs that hold most of a machine's memory: a budget that engines can keep.

`MemoryBudget` is one ledger of bytes for all threads and event loops of a process; `Reservation` what
somebody holds of it; `Evictable` what can be had back. Standard library only.
Not covered: other processes, and what the process uses beside its ledger.
"""

from oomproof.memory.budget import MemoryBudget
from oomproof.memory.eviction import Evictable
from oomproof.memory.reservation import Reservation
from oomproof.memory.statistics import BudgetStatistics, OwnerStatistics

__all__ = ["BudgetStatistics", "Evictable", "MemoryBudget", "OwnerStatistics", "Reservation"]
