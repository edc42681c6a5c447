"""What may go on beside the program of an attempt, as the supervisor's loop drives it: here, nothing.

`sidecar.Sidecar` is the one that does something; who asked for nothing need not import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oomproof.launch.model import Evidence, Exit, StopReason
from oomproof.launch.relay import Relay


class Beside:
    """Nothing."""

    has_client = False
    """A benchmark's client, with whose end the attempt ends."""
    stdout: Relay | None = None
    """What the program's own stdout is to be led through; the supervisor drives and drains it."""

    def __init__(self) -> None:
        self.wish: StopReason | None = None
        """Why the attempt shall end now; None: it shall not."""
        self.environment: Mapping[str, str] = {}
        """What the program must be told."""

    def begin(self, started: float) -> None:
        """The program was executed; `started` is when its attempt began (monotonic)."""

    def wants(self) -> Iterable[tuple[int, int]]:
        """Descriptors and masks to poll for before the next `turn`."""
        return ()

    def due(self) -> float | None:
        """When to call `turn` at the latest (monotonic); None: not before something happens."""
        return None

    def turn(self, ready: set[int]) -> None:
        """See to the descriptors that are `ready`, and to what is due. Never blocks."""

    def child_ended(self, pid: int, exit_: Exit) -> None:
        """A child of oomproof other than the program has ended."""

    def cancel(self) -> None:
        """There is nothing to wait for and nothing to measure any longer."""

    def end_everything(self, timeout_s: float) -> list[int]:  # noqa: ARG002  nothing takes no time
        """The end of the attempt: kill what is left; returns the survivors."""
        return []

    def add_to(self, evidence: Evidence) -> Evidence:
        """After `end_everything`: with what was seen here."""
        return evidence
