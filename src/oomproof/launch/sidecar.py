"""What goes on beside the program of an attempt: is it ready? then a benchmark's client, until that ends.

The supervisor's loop drives it (`Sidecar.wants`, `due`, `turn`) and is never held up. The
client and the commands of ``exec:`` run in a cgroup of their own, so that neither their memory
nor their OOM kills are the program's, under a guardian of their own, so that they outlive
nobody. Not covered: what follows from what is seen here, see `verdict`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from oomproof.errors import LeafUnavailable
from oomproof.launch import process_control
from oomproof.launch.attempt_leaf import AttemptLeaves
from oomproof.launch.beside import Beside
from oomproof.launch.guardian import MARK_VARIABLE, guard
from oomproof.launch.model import (
    ClientEnd,
    Evidence,
    Exit,
    Readiness,
    SidecarPolicy,
    SpawnFailure,
    StopReason,
)
from oomproof.launch.readiness import Kind, Target
from oomproof.launch.ready_checks import Check, ConnectCheck, NotifyCheck, check_for, resolve
from oomproof.launch.signals import Signals
from oomproof.launch.spawn import Child, Start, read_report, spawn
from oomproof.leaf import Leaf

if TYPE_CHECKING:
    from oomproof.launch.rate import Capture

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Between two questions; doubled after each."""
_STRANGER_PATIENCE_S = 0.2


class Wait:
    """Asks again and again, with growing pauses, until the answer is yes."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.ready = False
        self._over = False
        self._asked = False
        self._pause_s = FIRST_PAUSE_S
        self._when = 0.0
        """Of the next question; while one is under way, when it has taken too long."""

    def due(self) -> float | None:
        """When to call `turn` at the latest; None: not before the program does something."""
        if self.check.patience_s is None or self._over:
            return None
        if self.ready and self.check.wants() is None:
            return None
        return self._when

    def turn(self, ready_fds: set[int], now: float) -> None:
        """See to what is there, and to what is due."""
        want = self.check.wants()
        if want is not None and want[0] in ready_fds:
            self.check.turn()
        if self._over or self.check.patience_s is None:
            self.ready = self.ready or (bool(self.check.answer) and not self._over)
            return
        if self.ready:
            if self._when <= now:
                self.check.abandon()
            return
        if self._asked and self.check.answer is None and self._when <= now:
            self.check.abandon()
        if self._asked and self.check.answer is not None:
            self._answered(now)
        if not self._asked and not self.ready and self._when <= now:
            self._asked = True
            self._when = now + self.check.patience_s
            self.check.begin()
            if self.check.answer is not None:
                self._answered(now)

    def _answered(self, now: float) -> None:
        if self.check.answer:
            self.ready = True
            return
        self._asked = False
        self._when = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def stop(self) -> None:
        """Ask no more. What the program says by itself is still read: it would block otherwise."""
        self._over = True
        if self.check.patience_s is not None:
            trouble = self.check.trouble
            self.check.abandon()
            self.check.trouble = trouble  # a question that was only just put tells less than the one before


class Place(NamedTuple):
    """Where helpers run."""

    leaf: Leaf | None
    environment: Mapping[str, str]
    """By which their guardian finds them where there is no leaf."""


@contextlib.contextmanager
def place_for(policy: SidecarPolicy, *, use_leaf: bool, warn: Callable[[str], None]) -> Iterator[Place]:
    """A cgroup of their own for the helpers of one attempt, where they have any and one can be made.

    Raises OomproofError when their guardian cannot be forked.
    """
    if not policy.client and (policy.ready is None or policy.ready.kind is not Kind.EXEC):
        yield Place(None, {})
        return
    with contextlib.ExitStack() as stack:
        try:
            leaves = stack.enter_context(AttemptLeaves(None, warn, "client"))
            leaf = stack.enter_context(leaves.fresh())[0] if use_leaf else None
        except LeafUnavailable:
            leaf = None  # then the attempt itself has none, and that is said
        if leaf is not None:
            yield Place(leaf, {})
            return
        mark = f"{os.getpid()}-{time.monotonic_ns()}-client"
        guardian = guard(None, mark)
        if guardian is not None:
            stack.callback(guardian.dismiss)
        yield Place(None, {MARK_VARIABLE: mark})


class Sidecar(Beside):
    """Of one attempt. A context manager; the program's environment needs `environment`."""

    def __init__(
        self,
        policy: SidecarPolicy,
        place: Place,
        environment: Mapping[str, str],
        signals: Signals,
        *,
        oom_score_adj: int = 0,
        on_ready: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """Raises OomproofError when the name of a host cannot be resolved."""
        super().__init__()
        self.has_client = bool(policy.client)
        self._capture = _capture() if policy.rate else None
        self.stdout = None if policy.client else self._capture
        self._policy = policy
        self._place = place
        self._environment = {**environment, **place.environment}
        self._signals = signals
        self._oom_score_adj = oom_score_adj
        self._on_ready = on_ready
        self._devnull = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._wait: Wait | None = None
        if policy.ready is not None:
            check = check_for(policy.ready, self._spawn_quietly, environment.get("NOTIFY_SOCKET"))
            self._wait = Wait(check)
            if isinstance(check, NotifyCheck):
                self.environment = check.environment
        self._started: float | None = None
        """None: the program was not executed yet, so there is nobody to ask."""
        self._deadline: float | None = None
        self._ready_s: float | None = None
        self._cancelled = False
        self._client: Child | None = None
        self._client_started = 0.0
        self._client_end: ClientEnd | None = None
        self._kills_before = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._wait is not None:
            self._wait.check.close()
        if self._client is not None:
            os.close(self._client.report_fd)
        if self._capture is not None:
            self._capture.close()
        os.close(self._devnull)

    # -- driven by the supervisor's loop --------------------------------------------------

    def begin(self, started: float) -> None:
        """See `Beside`."""
        self._started = started
        if self._policy.ready_timeout_s is not None and self._wait is not None:
            self._deadline = started + self._policy.ready_timeout_s

    def wants(self) -> Iterator[tuple[int, int]]:
        """See `Beside`."""
        begun = self._started is not None
        for want in (self._wait.check.wants() if self._wait and begun else None, self._output_wants()):
            if want is not None:
                yield want

    def due(self) -> float | None:
        """See `Beside`."""
        if self._started is None or self._cancelled or self.wish is not None:
            return None
        if self._ready_s is None and self._wait is None:
            return 0.0  # at once: nobody needs to be asked
        pending = [self._deadline, self._wait.due() if self._wait else None]
        return min((when for when in pending if when is not None), default=None)

    def turn(self, ready: set[int]) -> None:
        """See `Beside`."""
        if self._started is None:
            return
        now = time.monotonic()
        want = self._output_wants()
        if self._capture is not None and want is not None and want[0] in ready:
            self._capture.turn()
        if self._wait is not None:
            self._wait.turn(ready, now)
        if self._cancelled or self.wish is not None or self._ready_s is not None:
            return
        if self._wait is None or self._wait.ready:
            self._became_ready(now, now - self._started)
        elif self._deadline is not None and self._deadline <= now:
            self.wish = StopReason.NOT_READY
            self._wait.stop()

    def child_ended(self, pid: int, exit_: Exit) -> None:
        """See `Beside`."""
        if self._wait is not None:
            self._wait.check.child_ended(pid, exit_)
        if self._client is None or pid != self._client.pid:
            return
        client, self._client = self._client, None
        process_control.send(-pid, signal.SIGKILL)  # what it has left running
        self._end_client(exit_, read_report(client))

    def cancel(self) -> None:
        """See `Beside`."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._wait is not None:
            self._wait.stop()
        if self._client is not None:
            process_control.send(-self._client.pid, signal.SIGKILL)
            process_control.send(self._client.pid, signal.SIGKILL)

    # -- what was seen --------------------------------------------------------------------

    def end_everything(self, timeout_s: float) -> list[int]:
        """See `Beside`; also reads what the client has left in its pipe."""
        self.cancel()
        survivors = self._place.leaf.kill_all(timeout_s) if self._place.leaf else []
        if self._capture is not None and self.has_client:
            self._capture.drain()
        if self._client is not None:
            self._end_client(None, None)
        return survivors

    def add_to(self, evidence: Evidence) -> Evidence:
        """See `Beside`."""
        rate, rate_trouble = self._rate()
        ready = None
        if self._policy.ready is not None and self._wait is not None:
            ready = Readiness(self._policy.ready.text, self._ready_s, self._wait.check.trouble)
        return replace(evidence, ready=ready, client=self._client_end, rate=rate, rate_trouble=rate_trouble)

    def _rate(self) -> tuple[float | None, str | None]:
        """The benchmark's rate, or why there is none; neither where nothing was measured."""
        if self._policy.rate is None or self._capture is None:
            return None, None
        if self.has_client and (self._client_end is None or not self._client_end.succeeded):
            return None, None
        from oomproof.launch.rate import find_rate  # noqa: PLC0415

        try:
            return find_rate(self._policy.rate, self._capture.output), None
        except ValueError as error:
            return None, str(error)

    # -- the client -----------------------------------------------------------------------

    def _became_ready(self, now: float, seconds: float) -> None:
        self._ready_s = seconds
        self._deadline = None
        if self._wait is not None:
            self._on_ready(seconds)
        if self._policy.client:
            self._start_client(now)

    def _start_client(self, now: float) -> None:
        self._client_started = now
        self._kills_before = self._kills()
        streams = {0: self._devnull} | ({1: self._capture.writer} if self._capture else {})
        child = self._spawn(self._policy.client, streams)
        if self._capture is not None:
            self._capture.started()
        if isinstance(child, SpawnFailure):
            self._end_client(None, child)
        else:
            self._client = child

    def _end_client(self, exit_: Exit | None, failure: SpawnFailure | None) -> None:
        self._client_end = ClientEnd(
            exit=exit_ if failure is None else None,
            duration_s=time.monotonic() - self._client_started,
            spawn_failure=failure,
            cancelled=self._cancelled,
            oom_kills=self._kills() - self._kills_before if self._place.leaf else None,
        )
        if not self._cancelled:
            self.wish = StopReason.CLIENT_DONE

    def _output_wants(self) -> tuple[int, int] | None:
        """Of the client; the program's own output is the supervisor's."""
        running = self.has_client and self._client_started > 0.0
        return self._capture.wants() if self._capture and running else None

    def _kills(self) -> int:
        try:
            return (self._place.leaf.events().oom_kill or 0) if self._place.leaf else 0
        except OSError:
            return 0  # somebody removes the cgroup under our feet

    def _spawn_quietly(self, command: Sequence[str]) -> Child | SpawnFailure:
        return self._spawn(command, dict.fromkeys((0, 1, 2), self._devnull))

    def _spawn(self, command: Sequence[str], streams: Mapping[int, int]) -> Child | SpawnFailure:
        start = Start(
            command,
            self._environment,
            join_path=self._place.leaf.join_path if self._place.leaf else None,
            oom_score_adj=self._oom_score_adj,
            streams=streams,
        )
        return spawn(start, self._signals)


def _capture() -> Capture:
    # Imported here: who measures nothing does without it.
    from oomproof.launch.rate import Capture  # noqa: PLC0415

    return Capture()


@contextlib.contextmanager
def running_beside(
    policy: SidecarPolicy,
    environment: Mapping[str, str],
    signals: Signals,
    *,
    oom_score_adj: int,
    use_leaf: bool,
    on_ready: Callable[[float], None],
    say: Callable[[str], None],
) -> Iterator[Sidecar]:
    """A sidecar for one attempt, and a place for its helpers; says what speaks against the target.

    Raises OomproofError when the name of a host cannot be resolved or no guardian can be forked.
    """
    if policy.ready is not None and answered_by_a_stranger(policy.ready):
        say(
            f"warning: something answers at {policy.ready} before the program was started:"
            " end it, or its readiness is taken for the program's"
        )
    with (
        place_for(policy, use_leaf=use_leaf, warn=say) as place,
        Sidecar(
            policy, place, environment, signals, oom_score_adj=oom_score_adj, on_ready=on_ready
        ) as sidecar,
    ):
        yield sidecar


def answered_by_a_stranger(target: Target) -> bool:
    """Whether somebody accepts at `target` although the program was not started yet."""
    if target.kind in (Kind.EXEC, Kind.NOTIFY):
        return False
    check = ConnectCheck(resolve(target))
    poller = select.poll()
    deadline = time.monotonic() + _STRANGER_PATIENCE_S
    check.begin()
    while (want := check.wants()) is not None and time.monotonic() < deadline:
        poller.register(*want)
        if poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            check.turn()
        poller.unregister(want[0])
    check.close()
    return bool(check.answer)
