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
from dataclasses import dataclass, replace

from oomproof.errors import LeafUnavailable, ProbeError
from oomproof.leaf import Leaf, make_leaf
from oomproof.limits import detect_limits
from oomproof.limits.model import Status
from oomproof.probe.child import Outcome, Toucher, signals_held
from oomproof.probe.decide import (
    PAGE_BYTES,
    QUICK_STEPS,
    Progress,
    Reserves,
    Stop,
    abort,
    decide,
    quick_part,
    reserves,
    room_above,
)
from oomproof.probe.findings import Findings
from oomproof.probe.model import ProbeRequest, ProbeResult, StopReason
from oomproof.probe.readings import Accounts, Reading, leaf_row, summarise, take_reading
from oomproof.units import format_size

_LOOK_EVERY_S = 0.1
_CHARGE_BATCH_BYTES = 64 * PAGE_BYTES
"""What the kernel charges to a cgroup at once, for each processor (MEMCG_CHARGE_BATCH)."""

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
        findings = Findings(place.before, place.read(accounts), list(place.notices))
        keep = reserves(request, place.before)
        part = _part(request, keep, findings.ready)
        try:
            findings.stop_reason = _probe(part, keep, place, findings, on_step)
        except KeyboardInterrupt:
            findings.stop_reason = StopReason.INTERRUPTED
        duration_s = time.monotonic() - started_s
    is_part = part is not request and findings.stop_reason is StopReason.MAXIMUM
    if not is_part:
        return findings.result(duration_s)
    ahead = _CHARGE_BATCH_BYTES * len(os.sched_getaffinity(0))
    return findings.extrapolated_result(request, keep, ahead, duration_s)


def _part(request: ProbeRequest, keep: Reserves, ready: Reading) -> ProbeRequest:
    """What is really touched: for a quick probe a part, in steps that make enough points for a line."""
    room, _ = room_above(keep, ready)
    if not request.quick or room is None or room <= 0:
        return request
    size = quick_part(room)
    if request.max_bytes is not None and request.max_bytes <= size:
        return request
    chunk = max(size // QUICK_STEPS // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
    return replace(request, max_bytes=size, chunk_bytes=min(chunk, request.chunk_bytes))


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
    toucher = Toucher(request.shape, threads=len(os.sched_getaffinity(0)))
    opened.callback(toucher.finish)
    leaf, notices = _make_leaf(request)
    if leaf is not None:
        toucher.inherit(leaf)
        opened.callback(leaf.remove)
        if request.limit_bytes is not None:
            leaf.set_limit(request.limit_bytes)
    opened.callback(toucher.close)
    opened.callback(toucher.release)
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


def _probe(
    request: ProbeRequest, keep: Reserves, place: _Place, findings: Findings, on_step: OnStep | None
) -> StopReason:
    """Step until there is a reason to stop."""
    started_s = place.before.at_s
    progress = Progress(0, request.chunk_bytes)
    while True:
        if on_step is not None:
            on_step(progress, findings.last)
        decision = decide(request, keep, progress, findings.readings(started_s))
        if isinstance(decision, Stop):
            return decision.reason
        answer = place.toucher.touch(decision.bytes, _soon(request, started_s))
        while answer.outcome is Outcome.TIMED_OUT:
            now = place.read(findings.last.toucher)
            if (reason := abort(request, keep, findings.readings(started_s, now))) is not None:
                return reason
            answer = place.toucher.wait(_soon(request, started_s))
        match answer.outcome:
            case Outcome.DONE:
                findings.add(decision.bytes, place.read(answer.accounts))
                progress = replace(
                    progress,
                    allocated_bytes=findings.allocated_bytes,
                    last_step_bytes=decision.bytes,
                )
            case Outcome.REFUSED | Outcome.UNLOCKABLE:
                findings.add(0, place.read(findings.last.toucher))
                by = StopReason.LIMIT if answer.outcome is Outcome.REFUSED else StopReason.MEMLOCK
                progress = replace(
                    progress, largest_step_bytes=decision.bytes // 2, last_step_bytes=0, refused_by=by
                )
            case _:
                findings.notices.append(_obituary(place.leaf, decision.bytes, findings.allocated_bytes))
                return StopReason.KILLED


def _soon(request: ProbeRequest, started_s: float) -> float:
    """When to look again whether a step under way still does no harm, at the deadline at the latest."""
    soon = time.monotonic() + _LOOK_EVERY_S
    return soon if request.deadline_s is None else min(soon, started_s + request.deadline_s)


def _obituary(leaf: Leaf | None, step: int, allocated: int) -> str:
    by_kernel = leaf is not None and (leaf.events().oom_kill or 0) > 0
    killer = "The kernel's OOM killer" if by_kernel else "Something"
    return (
        f"{killer} killed the toucher in a step of {format_size(step)},"
        f" after it had touched {format_size(allocated)}."
    )
