"""The idle buffers of a pool, as its budget sees them when it needs room."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from oomproof.memory.buffer import Block

if TYPE_CHECKING:
    from oomproof.memory.pool import PinnedPool


class IdleBuffers:
    """What a pool offers to its budget: its idle buffers, the largest first. Holds the pool weakly."""

    def __init__(self, pool: PinnedPool) -> None:
        self.name = f"idle buffers of pool {pool.name!r}"
        self._pool = weakref.ref(pool)

    @property
    def size_bytes(self) -> int:
        """Of all idle buffers."""
        return sum(block.size_bytes for block in self._blocks())

    @property
    def last_use(self) -> float:
        """When the one that lies idle for longest was returned."""
        return min((block.returned_at for block in self._blocks()), default=0.0)

    @property
    def in_use(self) -> bool:
        """Never: buffers in use are not among them."""
        return False

    def evict(self) -> int:
        """Free the largest; 0 when another thread took the last."""
        pool = self._pool()
        return 0 if pool is None else pool.evict_largest()

    def _blocks(self) -> list[Block]:
        pool = self._pool()
        return [] if pool is None else pool.idle_blocks()
