"""Allocating in another thread for a task that may be cancelled meanwhile: then nothing is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from oomproof.errors import PoolError
from oomproof.memory.buffer import Block
from oomproof.memory.reservation import Reservation

if TYPE_CHECKING:
    from concurrent.futures import Executor

_ALLOCATORS = 4
"""Locking pages keeps a processor busy, and the kernel's locks make more of them wait for each other."""


class Allocators:
    """Threads of a pool's own, started when needed, which never wait for bytes.

    Those of the event loop might all wait for what one of them, not started yet, would have to give back.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: Executor | None = None

    def get(self) -> Executor:
        """For tasks of event loops; ends with this object."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - whoever awaits has it loaded

        if self._executor is None:
            self._executor = ThreadPoolExecutor(_ALLOCATORS, thread_name_prefix=self._name)
        return self._executor


class Handover:
    """`allocate` runs in the other thread; a task that gives up calls `abandon`, whenever that is.

    An allocation that has begun cannot be interrupted: it goes back as soon as the kernel is through with it.
    """

    def __init__(
        self,
        reservation: Reservation,
        allocate: Callable[[Reservation], Block],
        free: Callable[[Block], object],
    ) -> None:
        """`allocate` takes the reservation over, also when it raises."""
        self._reservation = reservation
        self._allocate = allocate
        self._free = free
        self._lock = threading.Lock()
        self._begun = self._abandoned = False
        self._block: Block | None = None

    def allocate(self) -> Block:
        """The block; raises PoolError when the task has given up before this began."""
        if not self._begin():
            raise PoolError("the task that wanted a buffer was cancelled")
        block = self._allocate(self._reservation)
        if not self._finish(block):
            self._free(block)
        return block

    async def allocate_in_thread(self, allocators: Allocators) -> Block:
        """As `allocate`, without holding up the running event loop; nothing is kept when cancelled."""
        import asyncio  # noqa: PLC0415 - as above

        try:
            return await asyncio.get_running_loop().run_in_executor(allocators.get(), self.allocate)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Nobody will take the block."""
        with self._lock:
            self._abandoned = True
            begun, block = self._begun, self._block
        if not begun:
            self._reservation.release()
        elif block is not None:
            self._free(block)

    def _begin(self) -> bool:
        with self._lock:
            self._begun = not self._abandoned
            return self._begun

    def _finish(self, block: Block) -> bool:
        with self._lock:
            self._block = block
            return not self._abandoned
