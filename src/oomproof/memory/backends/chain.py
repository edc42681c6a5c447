"""Several backends as one: where the first cannot pin memory, the next serves, and a notice says so."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from oomproof.errors import PinningUnavailable, PoolError
from oomproof.limits.model import Notice
from oomproof.memory.backends import Backend, Region, backend_named

_log = logging.getLogger("oomproof.memory")


class BackendChain:
    """Backends in the order in which they are tried, each time anew: a smaller region may fit again."""

    def __init__(self, wanted: str | Backend | Sequence[str | Backend], pool: str) -> None:
        """`wanted`: names, or objects of the caller's; `pool`: for messages.

        Raises PinningUnavailable when none of them can be used here, PoolError where none is named.
        """
        self.notices: list[Notice] = []
        """What stood in for what, and why; each reason once."""
        self._pool = pool
        self._backends: list[Backend] = []
        chain = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Sequence) else wanted
        if not chain:
            raise PoolError(f"pool {pool!r} has no backend: name one, such as 'mlock' or 'heap'")
        for position, backend in enumerate(chain):
            try:
                self._backends.append(backend_named(backend) if isinstance(backend, str) else backend)
            except PinningUnavailable as error:
                if position + 1 == len(chain):
                    raise
                self._notice(None, error)

    def allocate(self, size_bytes: int) -> Region:
        """From the first that can; raises what the last one raises."""
        for backend in self._backends[:-1]:
            try:
                return backend.allocate(size_bytes)
            except PinningUnavailable as error:
                self._notice(backend.name, error)
        return self._backends[-1].allocate(size_bytes)

    def _notice(self, backend: str | None, error: PinningUnavailable) -> None:
        if any(notice.source == backend for notice in self.notices):
            return
        message = f"pool {self._pool!r}: {error}; the next backend is used"
        self.notices.append(Notice("pinning_unavailable", message, source=backend))
        _log.warning("%s", message)
