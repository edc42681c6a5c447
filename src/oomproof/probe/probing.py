"""`run_probe`: read, decide, touch, until there is a reason to stop; then give all back.

The leaf and the child have an owner at every moment: this process, or, when it dies, the
guard in `toucher`. Killed in the instant between making the leaf and starting the guard, an
empty cgroup is left, which the next `make_leaf` sweeps up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from oomproof.errors import LeafUnavailable, ProbeError
from oomproof.leaf import Leaf, make_leaf
from oomproof.limits import detect_limits
from oomproof.limits.model import Status
from oomproof.probe.child import Outcome, Toucher, signals_held
from oomproof.probe.decide import Progress, Readings, Step, decide, reserves
from oomproof.probe.model import ProbeRequest, ProbeResult, StopReason
from oomproof.probe.overhead import split_overhead
from oomproof.probe.readings import Accounts, Reading, leaf_row, summarise, take_reading
from oomproof.units import format_size

OnStep = Callable[[Progress, Reading], None]
"""Called before each decision. A KeyboardInterrupt from it ends the probe with what it has."""


def run_probe(request: ProbeRequest | None = None, on_step: OnStep | None = None) -> ProbeResult:
    """Touch memory in a sacrificial child until the reserve is reached, and give it back.

    Ctrl-C (KeyboardInterrupt) ends it early: with the partial result, ``interrupted``, once the
    child is ready; before that there is none and the KeyboardInterrupt is passed on.
    Raises LeafUnavailable when `request` limits the leaf and none can be made, ProbeError
    when nothing tells how much may be touched or the child cannot be started.
    """
    request = request or ProbeRequest()
    started_s = time.monotonic()
    with ExitStack() as opened:
        with signals_held():  # so that what is made has an owner before anything can end us
            place = _open(request, opened)
        accounts = place.toucher.join(place.leaf)
        findings = _Findings(place, ready=place.read(accounts))
        try:
            findings.stop_reason = _probe(request, findings, on_step)
        except KeyboardInterrupt:
            findings.stop_reason = StopReason.INTERRUPTED
        duration_s = time.monotonic() - started_s
    return findings.result(duration_s)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the probe runs, and how it was before anything was started."""

    leaf: Leaf | None
    toucher: Toucher
    before: Reading
    notices: tuple[str, ...]

    def read(self, accounts: Accounts) -> Reading:
        """A new reading of the same level."""
        return take_reading(self.leaf, self.before.level, accounts)


def _open(request: ProbeRequest, opened: ExitStack) -> _Place:
    """Start the toucher, make its leaf, and leave to `opened` how both are ended."""
    report, at_s = detect_limits(), time.monotonic()
    toucher = Toucher(threads=len(os.sched_getaffinity(0)))
    opened.callback(toucher.finish)
    leaf, notices = _make_leaf(request)
    if leaf is not None:
        toucher.inherit(leaf)
        opened.callback(leaf.remove)
        if request.limit_bytes is not None:
            leaf.set_limit(request.limit_bytes)
    opened.callback(toucher.close)
    before = replace(summarise(report, leaf_row(leaf)), at_s=at_s)
    notices += _check_bounds(request, before)
    return _Place(leaf, toucher, before, tuple(notices))


def _make_leaf(request: ProbeRequest) -> tuple[Leaf | None, list[str]]:
    try:
        leaf = make_leaf("probe")
    except LeafUnavailable as error:
        if request.limit_bytes is not None:
            raise
        return None, [f"The probe ran in the own cgroup, so what others took is an estimate: {error}."]
    return leaf, []


def _check_bounds(request: ProbeRequest, before: Reading) -> list[str]:
    untold = before.headroom_bytes is None and before.host_available_bytes is None
    if untold and request.max_bytes is None:
        raise ProbeError(
            "neither a cgroup nor /proc/meminfo tells how much memory there is: say how far to go with --max"
        )
    if before.status is Status.UNKNOWN:
        return [
            "The limit here cannot be read, so only the host's memory bounds the probe: see oomproof check."
        ]
    return []


@dataclass(slots=True)
class _Findings:
    """How far a probe has come."""

    place: _Place
    ready: Reading
    previous: Reading = field(init=False)
    last: Reading = field(init=False)
    """Taken after everything that `allocated_bytes` counts."""
    allocated_bytes: int = 0
    chunks: int = 0
    peak_bytes: int = field(init=False)
    stop_reason: StopReason = StopReason.INTERRUPTED
    notices: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.previous = self.last = self.ready
        self.peak_bytes = max(self.place.before.usage_bytes, self.ready.usage_bytes)
        self.notices = list(self.place.notices)

    def add(self, size: int, reading: Reading) -> None:
        """Count one step that was touched, and the reading after it."""
        self.allocated_bytes += size
        self.chunks += 1
        self.previous, self.last = self.last, reading
        self.peak_bytes = max(self.peak_bytes, reading.usage_bytes)

    def result(self, duration_s: float) -> ProbeResult:
        """The answer."""
        before, last = self.place.before, self.last
        overhead = split_overhead(before, self.ready, last, self.peak_bytes, self.allocated_bytes)
        if last.limit_bytes != before.limit_bytes:
            self.notices.append(
                f"The limit changed from {format_size(before.limit_bytes)}"
                f" to {format_size(last.limit_bytes)} while the probe ran."
            )
        return ProbeResult(
            cgroup_limit_bytes=last.limit_bytes,
            usage_before_bytes=before.usage_bytes,
            allocated_bytes=self.allocated_bytes,
            usage_peak_bytes=self.peak_bytes,
            probe_chunks=self.chunks,
            stop_reason=self.stop_reason,
            duration_seconds=duration_s,
            kernel_overhead_bytes=overhead.kernel_bytes,
            others_bytes=overhead.others_bytes,
            overhead_by_cause=overhead.by_cause,
            notices=tuple(self.notices),
        )


def _probe(request: ProbeRequest, findings: _Findings, on_step: OnStep | None) -> StopReason:
    """Step until there is a reason to stop."""
    place = findings.place
    keep = reserves(request, place.before)
    deadline = None if request.deadline_s is None else place.before.at_s + request.deadline_s
    largest = request.chunk_bytes
    while True:
        progress = Progress(findings.allocated_bytes, largest)
        if on_step is not None:
            on_step(progress, findings.last)
        readings = Readings(place.before, findings.previous, findings.last)
        decision = decide(request, keep, progress, readings)
        if not isinstance(decision, Step):
            return decision.reason
        answer = place.toucher.touch(decision.bytes, deadline)
        if answer.outcome is Outcome.DIED:
            findings.notices.append(_obituary(place.leaf, decision.bytes, findings.allocated_bytes))
            return StopReason.KILLED
        if answer.outcome is Outcome.TIMED_OUT:
            return StopReason.DEADLINE
        if answer.outcome is Outcome.REFUSED:
            largest = decision.bytes // 2
            continue
        findings.add(decision.bytes, place.read(answer.accounts))


def _obituary(leaf: Leaf | None, step: int, allocated: int) -> str:
    by_kernel = leaf is not None and (leaf.events().oom_kill or 0) > 0
    killer = "The kernel's OOM killer" if by_kernel else "Something"
    return (
        f"{killer} killed the toucher in a step of {format_size(step)},"
        f" after it had touched {format_size(allocated)}."
    )
