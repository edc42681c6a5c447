"""In-process library for programs that hold most of a machine's memory: a budget that engines can keep.

`MemoryBudget` is one ledger of bytes for all threads and event loops of a process; `Reservation` what
somebody holds of it; `Evictable` what can be had back. `PinnedPool` lends page-locked buffers that are in the
ledger as long as they exist; `load` brings a file into one. `Reconciler` tells what the kernel charges beside
the ledger. Standard library only.
Not covered: other processes' budgets.
"""

from oomproof.memory.budget import MemoryBudget
from oomproof.memory.buffer import PinnedBuffer
from oomproof.memory.drift import Drift, DriftReport
from oomproof.memory.eviction import Evictable
from oomproof.memory.heap import trim_heap
from oomproof.memory.loader import Loaded, load, load_async
from oomproof.memory.pool import PinnedPool
from oomproof.memory.reconcile import Reconciler
from oomproof.memory.reservation import Reservation
from oomproof.memory.statistics import BudgetStatistics, OwnerStatistics, PoolStatistics

__all__ = [
    "BudgetStatistics",
    "Drift",
    "DriftReport",
    "Evictable",
    "Loaded",
    "MemoryBudget",
    "OwnerStatistics",
    "PinnedBuffer",
    "PinnedPool",
    "PoolStatistics",
    "Reconciler",
    "Reservation",
    "load",
    "load_async",
    "trim_heap",
]
