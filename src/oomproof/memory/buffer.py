"""A buffer lent by a pool, and its views: memory lives as long as anything points into it.

Every view (memoryview, slice, NumPy array) holds the *exporter*, a ctypes array over the memory. The end
of the exporter is the end of the loan, whoever held the last view. Nothing is copied, and nobody else gets
what was returned while a view of it is left, also one that a finaliser still writes to, or keeps.
"""

from __future__ import annotations

import ctypes
import datetime
import itertools
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from oomproof.errors import BufferReturned
from oomproof.memory.backends import Region
from oomproof.units import format_size

if TYPE_CHECKING:
    from oomproof.memory.reservation import Reservation


@dataclass(slots=True, eq=False)
class Block:
    """One region with its place in the ledger."""

    region: Region
    reservation: Reservation
    returned_at: float = 0.0
    """Time of the pool's clock, while idle."""

    @property
    def size_bytes(self) -> int:
        """What the ledger and the kernel are charged."""
        return self.region.size_bytes


@dataclass(slots=True, eq=False)
class Loan:
    """A block in use. It ends with the last view."""

    block: Block
    size_bytes: int
    """What was asked for."""
    owner: str
    returned: bool = False


class _End(datetime.tzinfo):
    """Tells when the exporter that holds it (see `_hidden`) is gone."""

    def __init__(self, loan: Loan, ended: Callable[[Loan], None]) -> None:
        self._loan = loan
        self._ended = ended

    def __del__(self) -> None:
        self._ended(self._loan)


def _hidden(end: _End) -> datetime.time:
    """`end` where the cycle collector does not see it: it looks into no `datetime.time`.

    Of a cycle that is garbage it calls all finalisers and the callbacks of weak references first, in any
    order, and only then takes it apart, unless a finaliser has brought it back to life. What it does not see
    is told last: when the exporter is taken apart, and no sooner.
    """
    return datetime.time(tzinfo=end)


class PinnedBuffer:
    """Memory lent by a `PinnedPool`; return it with `release`, or use it as a context manager.

    Its content is whatever the buffer held before. A buffer that is lost without being returned is
    reported with a ResourceWarning and goes back to the pool with its last view.
    """

    def __init__(self, loan: Loan, ended: Callable[[Loan], None], settle: Callable[[], None]) -> None:
        """`ended` is called once, after the last view, from anywhere; `settle` after a return."""
        self._loan = loan
        self._settle = settle
        self._views: dict[int, weakref.ref[memoryview]] = {}
        self._numbers = itertools.count()
        exporter: Any = (ctypes.c_ubyte * loan.size_bytes).from_address(loan.block.region.address)
        self._exporter = exporter
        exporter.end = _hidden(_End(loan, ended))  # type: ignore[abstract]

    @property
    def size_bytes(self) -> int:
        """What was asked for."""
        return self._loan.size_bytes

    @property
    def capacity_bytes(self) -> int:
        """What is held for it, and charged to the ledger."""
        return self._loan.block.size_bytes

    @property
    def owner(self) -> str:
        """For whom it was taken, as in the ledger."""
        return self._loan.owner

    @property
    def backend(self) -> str:
        """Where the memory comes from: ``mlock``, ``cuda``, ``heap``, ..."""
        return self._loan.block.region.backend

    @property
    def locked(self) -> bool:
        """Whether its pages stay in memory."""
        return self._loan.block.region.locked

    @property
    def returned(self) -> bool:
        """Whether it was given back."""
        return self._loan.returned

    @property
    def address(self) -> int:
        """Where it begins, for foreign functions; good until the return, and only while the buffer is held.

        Raises BufferReturned after that.
        """
        self._alive()
        return self._loan.block.region.address

    def view(self) -> memoryview:
        """A writable view of its `size_bytes` bytes, without a copy.

        The view cannot be used after the return. What was made from it (slices, NumPy arrays) can:
        it keeps the memory from everyone else, in the ledger, until it is gone.
        Raises BufferReturned after the return.
        """
        view = memoryview(self._alive()).cast("B")
        number, views = next(self._numbers), self._views
        views[number] = weakref.ref(view, lambda _: views.pop(number, None))
        return view

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """``numpy.asarray(buffer)``: an array of its bytes, no copy; it keeps the memory as slices do."""
        exporter = self._alive()
        return {"version": 3, "shape": (self.size_bytes,), "typestr": "|u1", "data": exporter}

    def release(self) -> None:
        """Give it back to the pool; raises BufferReturned the second time."""
        exporter = self._alive()
        self._end()
        del exporter
        self._settle()

    def _alive(self) -> Any:
        exporter = self._exporter
        if exporter is None:
            raise BufferReturned(
                f"the buffer of {format_size(self.size_bytes)} of {self.owner!r} was returned to its pool:"
                " take another, or return it later"
            )
        return exporter

    def _end(self) -> None:
        self._loan.returned = True
        self._exporter = None
        for reference in list(self._views.values()):
            view = reference()
            if view is not None:
                try:
                    view.release()
                except BufferError:
                    pass  # an array or the like was made from it, and keeps the memory until it is gone

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PinnedBuffer cannot be copied or pickled: copy the bytes of its view")

    def __len__(self) -> int:
        return self.size_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._exporter is not None:
            self.release()

    def __del__(self) -> None:
        if getattr(self, "_exporter", None) is None:
            return
        try:
            warnings.warn(
                f"a buffer of {format_size(self.size_bytes)} of {self.owner!r} was lost without being"
                " returned: release it, or use it in a with statement",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            self._end()

    def __repr__(self) -> str:
        state = "returned" if self.returned else self.backend
        return f"<PinnedBuffer {format_size(self.size_bytes)} of {self.owner!r}, {state}>"
