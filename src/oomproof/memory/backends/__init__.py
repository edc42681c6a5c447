"""Where a pool's memory comes from: one file per kind, each found by name and loaded when asked for.

``mlock``: page-locked by the kernel. ``cuda``: page-locked by the driver, for transfers to a GPU.
``heap``: ordinary memory, where nothing can be locked.
Not covered: keeping buffers and their place in the ledger, see `oomproof.memory.pool`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from oomproof.errors import PoolError


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Memory of one allocation. Whoever calls `free` makes sure that nothing points into it any more."""

    address: int
    size_bytes: int
    locked: bool
    """Whether its pages stay in memory."""
    backend: str
    free: Callable[[], None]


class Backend(Protocol):
    """Allocates regions; called from several threads at once."""

    @property
    def name(self) -> str:
        """As the pool's `backend` argument and its statistics call it."""

    def allocate(self, size_bytes: int) -> Region:
        """A region of `size_bytes`, a multiple of the page size, aligned to a page at least.

        Raises PinningUnavailable when this kind of memory cannot be had here, with the remedy.
        """


_HOMES = {
    "heap": ("oomproof.memory.backends.mapped", "HeapBackend"),
    "mlock": ("oomproof.memory.backends.mapped", "MlockBackend"),
    "cuda": ("oomproof.memory.backends.cuda", "CudaBackend"),
}


def backend_named(name: str) -> Backend:
    """The backend `name`; raises PoolError when there is none, PinningUnavailable when it cannot work."""
    if name not in _HOMES:
        raise PoolError(f"{name!r} is no backend: choose from {', '.join(_HOMES)}")
    module, kind = _HOMES[name]
    backend: Backend = getattr(import_module(module), kind)()
    return backend
