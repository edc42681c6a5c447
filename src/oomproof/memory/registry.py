"""The pools of this process: which belong to a budget, and which must live because somebody uses a buffer."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomproof.memory.budget import MemoryBudget
    from oomproof.memory.pool import PinnedPool

lending: set[PinnedPool] = set()
"""Those with buffers in use, kept alive by them: only a pool can free them when their last view is gone."""

_pools: weakref.WeakSet[PinnedPool] = weakref.WeakSet()
_lock = threading.Lock()


def add(pool: PinnedPool) -> None:
    """Have `pools_of` find it as long as it lives."""
    with _lock:
        _pools.add(pool)


def pools_of(budget: MemoryBudget) -> list[PinnedPool]:
    """The pools that take their buffers from `budget`."""
    with _lock:
        return [pool for pool in _pools if pool.budget is budget]


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - the one that was copied may be held by a thread that was not
    _lock = threading.Lock()
    for pool in list(_pools):
        pool.inherit()


os.register_at_fork(after_in_child=_after_fork_in_child)
