"""Page-locked buffers that are in the ledger from their allocation until they are freed, also while idle.

An idle buffer costs as much memory as one in use, so it keeps its reservation, under the pool's own name.
Buffers are reused by best fit within a bound of waste and freed largest first: when asked, when they lie
idle for long, when headroom runs out, and when the budget needs room (the pool is one of its Evictables).
Not covered: how memory is had (`backends`), how long views live (`buffer`), which sizes (`sizes`).
"""

from __future__ import annotations

import operator
import os
import threading
import time
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from oomproof.errors import PoolError
from oomproof.limits import detect_limits
from oomproof.memory import registry
from oomproof.memory.arguments import plain_owner
from oomproof.memory.backends import Backend
from oomproof.memory.backends.chain import BackendChain
from oomproof.memory.budget import MemoryBudget
from oomproof.memory.buffer import Block, Loan, PinnedBuffer
from oomproof.memory.handover import Allocators, Handover
from oomproof.memory.housekeeping import Housekeeper
from oomproof.memory.idle import IdleBuffers
from oomproof.memory.reservation import Reservation
from oomproof.memory.sizes import best_fit, largest_first, size_class, whole_pages
from oomproof.memory.statistics import PoolStatistics
from oomproof.units import format_size

_LOOK_AT_HEADROOM_SECONDS = 1.0
_LONGEST_SECTION_SECONDS = 0.1
"""Whoever cannot have the pool's lock for so long has most likely interrupted its holder."""


class PinnedPool:
    """Page-locked buffers from one budget. Thread-safe. Close it, or use it as a context manager.

    `budget`: where every buffer is reserved, idle ones too.
    `backend`: ``mlock``, ``cuda``, ``heap``, an object of yours, or several, of which the next is tried where
    one cannot pin (then `notices` says so).
    `max_waste`: an idle buffer serves a request if it is at most so much larger (0.25: a quarter), or of its
    size class.
    `max_idle_seconds`: buffers idle for longer are freed; None: they are kept.
    `min_headroom_bytes`: idle buffers are freed when the kernel would give less than this, as `headroom` says
    (default: what oomproof's limits find).
    """

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        name: str = "pinned",
        backend: str | Backend | Sequence[str | Backend] = ("mlock", "heap"),
        max_waste: float = 0.25,
        max_idle_seconds: float | None = 60.0,
        min_headroom_bytes: int | None = None,
        headroom: Callable[[], int | None] = lambda: detect_limits().available_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_waste < 0:
            raise PoolError(f"max_waste is {max_waste}: 0 or more, 0.25 for a quarter")
        self.name = plain_owner(name)
        self._budget = budget
        self._max_waste = max_waste
        self._max_idle_seconds = max_idle_seconds
        self._min_headroom_bytes = min_headroom_bytes
        self._headroom = headroom
        self._clock = clock
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Block] = []
        """Ascending by size, of equal size the longest idle first."""
        self._loans: set[Loan] = set()
        self._stuck: list[Block] = []
        """Whose memory could not be freed: the kernel charges it, and so does the ledger."""
        self._reused = self._allocated = self._held_bytes = self._peak_bytes = 0
        self._locked_bytes = 0
        self._freed: Counter[str] = Counter()
        self._next_look: float | None = None
        """In how many seconds the housekeeper looks by itself."""
        self._keeper: Housekeeper[Loan] = Housekeeper(f"oomproof-pool-{name}", self)
        self._allocators = Allocators(f"oomproof-pool-{name}")
        self._backends = BackendChain(backend, name)
        self.notices = self._backends.notices
        self._evictable = IdleBuffers(self)
        budget.add_evictable(self._evictable)
        registry.add(self)
        self._closed = False

    def take(
        self, size_bytes: int, *, owner: str | None = None, timeout: float | None = None
    ) -> PinnedBuffer:
        """A buffer of `size_bytes` for `owner` (default: the pool's name); waits until the budget has room.

        Raises what `MemoryBudget.reserve` raises (more than the total; no room within `timeout` seconds), and
        PinningUnavailable when the memory is there but cannot be locked and no other backend was given.
        """
        size_bytes, owner = self._check(size_bytes, owner)
        block = self._take_idle(size_bytes, owner)
        if block is None:
            block = self._allocate(
                self._budget.reserve(self._new_size(size_bytes), owner=owner, timeout=timeout)
            )
        return self._lend(block, size_bytes, owner)

    def try_take(self, size_bytes: int, *, owner: str | None = None) -> PinnedBuffer | None:
        """As `take`, but None at once where it would have to wait."""
        size_bytes, owner = self._check(size_bytes, owner)
        block = self._take_idle(size_bytes, owner)
        if block is None:
            reservation = self._budget.try_reserve(self._new_size(size_bytes), owner=owner)
            if reservation is None:
                return None
            block = self._allocate(reservation)
        return self._lend(block, size_bytes, owner)

    async def take_async(
        self, size_bytes: int, *, owner: str | None = None, timeout: float | None = None
    ) -> PinnedBuffer:
        """As `take`, for an event loop: neither waiting nor locking pages holds it up."""
        size_bytes, owner = self._check(size_bytes, owner)
        block = self._take_idle(size_bytes, owner)
        if block is None:
            size = self._new_size(size_bytes)
            reservation = await self._budget.reserve_async(size, owner=owner, timeout=timeout)
            handover = Handover(reservation, self._allocate, lambda block: self._free([block], "cancelled"))
            block = await handover.allocate_in_thread(self._allocators)
        return self._lend(block, size_bytes, owner)

    def trim(self, size_bytes: int | None = None) -> int:
        """Free idle buffers, the largest first, until `size_bytes` are free (None: all); bytes freed."""
        self._keeper.drain()
        return self._trim(size_bytes, "asked")

    def close(self) -> None:
        """Free what is idle; what is in use is freed with its last view. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._keeper.drain()
        self._trim(None, "closed")
        self._budget.remove_evictable(self._evictable)
        self._keeper.wake()

    def statistics(self) -> PoolStatistics:
        """What it holds now, and what it has done."""
        self._keeper.drain()
        with self._lock:
            loans = list(self._loans)
            backends: Counter[str] = Counter()
            for block in [*self._idle, *(loan.block for loan in loans)]:
                backends[block.region.backend] += block.size_bytes
            idle = sum(block.size_bytes for block in self._idle)
            return PoolStatistics(
                name=self.name,
                in_use_bytes=sum(loan.block.size_bytes for loan in loans),
                in_use_count=len(loans),
                requested_bytes=sum(loan.size_bytes for loan in loans),
                viewed_bytes=sum(loan.block.size_bytes for loan in loans if loan.returned),
                idle_bytes=idle,
                idle_count=len(self._idle),
                peak_bytes=self._peak_bytes,
                bytes_by_backend=dict(backends),
                reused=self._reused,
                allocated=self._allocated,
                freed_bytes=dict(self._freed),
            )

    def idle_blocks(self) -> list[Block]:
        """Those that may be freed now, ascending by size."""
        self._settle()
        return list(self._idle)

    def evict_largest(self) -> int:
        """Free the largest idle buffer for the budget; its bytes, 0 when there is none.

        Also from a signal handler that has interrupted this very pool: then it gives nothing.
        """
        if not self._lock.acquire(timeout=_LONGEST_SECTION_SECONDS):
            return 0
        try:
            blocks = [self._idle.pop()] if self._idle else []
        finally:
            self._lock.release()
        return self._free(blocks, "evicted")

    def inherit(self) -> None:
        """In a forked child: other threads, which may have held the lock, did not come along."""
        self._lock = threading.Lock()
        self._keeper.inherit()

    @property
    def budget(self) -> MemoryBudget:
        """Where its buffers are reserved."""
        return self._budget

    @property
    def locked_bytes(self) -> int:
        """What the kernel may count as locked (``VmLck``) of its buffers, those on their way included."""
        return self._locked_bytes

    # -- taking

    def _check(self, size_bytes: int, owner: str | None) -> tuple[int, str]:
        size_bytes = operator.index(size_bytes)  # also NumPy's integers, no fractions
        if size_bytes <= 0:
            raise PoolError(f"a buffer of {size_bytes} bytes cannot be taken: ask for 1 or more")
        if self._process != os.getpid():
            raise PoolError(
                f"pool {self.name!r} belongs to process {self._process}, which forked this one: make one here"
            )
        if self._closed:
            raise PoolError(f"pool {self.name!r} is closed: take buffers before close()")
        self._keeper.drain()
        return size_bytes, self.name if owner is None else plain_owner(owner)

    def _take_idle(self, size_bytes: int, owner: str) -> Block | None:
        if self._budget.waiting:
            return None  # those in line come first, and they may need the room
        with self._lock:
            index = best_fit([block.size_bytes for block in self._idle], size_bytes, self._max_waste)
            if index is None:
                return None
            # The one returned last of that size: the others have a chance to be trimmed.
            last = bisect_right(self._idle, self._idle[index].size_bytes, key=_size) - 1
            block = self._idle.pop(last)
            self._reused += 1
        try:
            self._bring_back(block, owner)
        except BaseException:
            self._free([block], "cancelled")
            raise
        return block

    def _new_size(self, size_bytes: int) -> int:
        """Its size class, unless that would be more than the whole budget."""
        size = size_class(size_bytes)
        return size if size <= self._budget.total_bytes else whole_pages(size_bytes)

    def _allocate(self, reservation: Reservation) -> Block:
        size = reservation.bytes
        with self._lock:
            self._locked_bytes += size  # the kernel counts them from the first page on
        try:
            region = self._backends.allocate(size)
        except BaseException:
            with self._lock:
                self._locked_bytes -= size
            reservation.release()
            raise
        with self._lock:
            if region.backend != "mlock":
                self._locked_bytes -= size
            self._allocated += 1
            self._held_bytes += region.size_bytes
            self._peak_bytes = max(self._peak_bytes, self._held_bytes)
        return Block(region, reservation)

    def _lend(self, block: Block, size_bytes: int, owner: str) -> PinnedBuffer:
        loan = Loan(block, size_bytes, owner)
        try:
            with self._lock:
                self._loans.add(loan)
                registry.lending.add(self)
            self._keeper.start()
            return PinnedBuffer(loan, self._keeper.put, self._settle)
        except BaseException:  # an interrupt, or no more threads: nothing unusual where memory is short
            with self._lock:
                self._forget(loan)
            self._free([block], "cancelled")
            raise

    # -- returning

    def _settle(self) -> None:
        # A destructor may return a buffer while its own thread holds the lock: then the housekeeper does it.
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self._keeper.drain()

    def handle(self, loan: Loan) -> None:
        """The last view of a loan is gone."""
        if loan not in self._loans:
            return  # it was never lent
        block = loan.block
        self._put_by(block)
        with self._lock:
            self._forget(loan)
            cause = "closed" if self._closed else "wanted" if self._budget.waiting else None
            if cause is None:
                block.returned_at = self._clock()
                self._idle.insert(bisect_right(self._idle, block.size_bytes, key=_size), block)
        if cause is not None:
            self._free([block], cause)
        elif self._next_look is None:
            self._keeper.wake()

    def _forget(self, loan: Loan) -> None:
        self._loans.discard(loan)
        if not self._loans:
            registry.lending.discard(self)

    def _put_by(self, block: Block) -> None:
        """Have the ledger know that `block` is idle now."""
        block.reservation.transfer(self.name)

    def _bring_back(self, block: Block, owner: str) -> None:
        """Have the ledger know that `block` is in use again."""
        block.reservation.transfer(owner)

    # -- trimming

    def _trim(self, wanted: int | None, cause: str) -> int:
        with self._lock:
            sizes = [block.size_bytes for block in self._idle]
            count = len(sizes) if wanted is None else largest_first(sizes, wanted)
            blocks = self._idle[len(sizes) - count :]
            del self._idle[len(sizes) - count :]
        return self._free(blocks, cause)

    def _free(self, blocks: Sequence[Block], cause: str) -> int:
        """The memory first, then its place in the ledger: it must never hold less than the kernel charges."""
        gone, failure = [], None
        for block in blocks:
            try:
                block.region.free()
            except Exception as error:  # noqa: BLE001 - raised below, when the others are free
                self._stuck.append(block)
                failure = error
            else:
                block.reservation.release()
                gone.append(block)
        freed = sum(block.size_bytes for block in gone)
        with self._lock:
            self._held_bytes -= freed
            self._locked_bytes -= sum(block.size_bytes for block in gone if block.region.backend == "mlock")
            self._freed[cause] += freed
        if failure is not None:
            raise failure
        return freed

    def _trim_long_idle(self) -> None:
        if self._max_idle_seconds is None:
            return
        with self._lock:
            until = self._clock() - self._max_idle_seconds
            old = [block for block in self._idle if block.returned_at <= until]
            self._idle = [block for block in self._idle if block.returned_at > until]
        if old:
            self._free(old, "idle")

    def _trim_under_pressure(self) -> None:
        if self._min_headroom_bytes is None or not self._idle:
            return
        headroom = self._headroom()
        if headroom is not None and headroom < self._min_headroom_bytes:
            self._trim(self._min_headroom_bytes - headroom, "pressure")

    # -- the housekeeper's

    def keep_house(self) -> float | None:
        """Trim what is due; seconds until more may be due, None: not before a buffer is returned."""
        self._trim_long_idle()
        self._trim_under_pressure()
        with self._lock:
            waits = []
            if self._idle and self._max_idle_seconds is not None:
                oldest = min(block.returned_at for block in self._idle)
                waits.append(max(oldest + self._max_idle_seconds - self._clock(), 0.0))
            if self._idle and self._min_headroom_bytes is not None:
                waits.append(_LOOK_AT_HEADROOM_SECONDS)
            self._next_look = min(waits, default=None)
            return self._next_look

    @property
    def over(self) -> bool:
        """Whether it is closed and nobody uses a buffer of it any more."""
        return self._closed and not self._loans

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        self._closed = True
        held = format_size(self._held_bytes)
        self._budget.remove_evictable(self._evictable)
        self._keeper.wake()
        self._free(self._idle, "closed")
        warnings.warn(
            f"pool {self.name!r} with {held} was never closed", ResourceWarning, stacklevel=2, source=self
        )


def _size(block: Block) -> int:
    return block.size_bytes
