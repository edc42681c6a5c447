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
from oomproof.probe.backing import default_directory, open_backing_file
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
from oomproof.probe.mix import in_bytes, next_turn
from oomproof.probe.model import Part, ProbeRequest, ProbeResult, Shape, StopReason
from oomproof.probe.readings import (
    LEAF_NAME,
    Accounts,
    Reading,
    leaf_row,
    own_memory,
    summarise,
    take_reading,
)
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
    when nothing tells how much may be touched, the child cannot be started, or there is no
    such memory as `request` asks for.
    """
    request = request or ProbeRequest()
    started_s = time.monotonic()
    with ExitStack() as opened:
        with signals_held():  # so that what is made has an owner before anything can end us
            place = _open(request, opened)
        ready = place.read(_make_ready(request, place))
        keep = reserves(request, place.before)
        room, at_room = room_above(keep, ready)
        parts = in_bytes(request.parts, _smaller(room, request.max_bytes) or 0)
        findings = Findings(place.before, ready, list(place.notices), parts)
        whole = _bounded(request, parts, room)
        part = _part(whole, room)
        try:
            findings.stop_reason = _probe(part, keep, place, findings, on_step)
        except KeyboardInterrupt:
            findings.stop_reason = StopReason.INTERRUPTED
        duration_s = time.monotonic() - started_s
        own_bytes = own_memory() if place.includes_us else 0
    if part is not whole and findings.stop_reason is StopReason.MAXIMUM:
        ahead = _CHARGE_BATCH_BYTES * len(os.sched_getaffinity(0))
        result = findings.extrapolated_result(whole, keep, ahead, duration_s)
    else:
        result = findings.result(duration_s)
    if result.stop_reason is StopReason.MAXIMUM and _asks_for(request, Shape.CUDA_PINNED):
        wished = _smaller(request.max_bytes, _total(parts))
        if wished is None or result.allocated_bytes < wished:
            result = replace(result, stop_reason=at_room)
    return replace(
        result,
        own_bytes=own_bytes + result.overhead_by_cause.get("toucher", 0),
        notices=(*result.notices, *_remarks(result, keep, ready), *_on_the_file(request, findings)),
    )


def _make_ready(request: ProbeRequest, place: _Place) -> Accounts:
    accounts = place.toucher.join(place.leaf)
    return place.toucher.load_cuda() if _asks_for(request, Shape.CUDA_PINNED) else accounts


def _asks_for(request: ProbeRequest, shape: Shape) -> bool:
    return any(part.shape is shape for part in request.parts)


def _smaller(first: int | None, second: int | None) -> int | None:
    return min((size for size in (first, second) if size is not None), default=None)


def _bounded(request: ProbeRequest, parts: tuple[Part, ...], room: int | None) -> ProbeRequest:
    """`request` with the most that may be touched, where more than ``--max`` bounds it.

    Not every driver has its memory charged to the cgroup, so usage need not show that there is
    an end: then the room at the start is the end.
    """
    most = _smaller(request.max_bytes, _total(parts))
    if room is not None and _asks_for(request, Shape.CUDA_PINNED):
        most = _smaller(most, max(room, 0))
    return replace(request, max_bytes=most or None)  # nothing: then no room is left, which is found next


def _total(parts: tuple[Part, ...]) -> int | None:
    """What all parts ask for; None: all that is left."""
    sizes = [part.asked_bytes for part in parts if part.asked_bytes is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def _part(request: ProbeRequest, room: int | None) -> ProbeRequest:
    """What is really touched: for a quick probe a part, in steps that make enough points for a line."""
    if not request.quick or room is None or room <= 0:
        return request
    size = quick_part(room)
    if request.max_bytes is not None and request.max_bytes <= size:
        return request
    chunk = max(size // QUICK_STEPS // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
    return replace(request, max_bytes=size, chunk_bytes=min(chunk, request.chunk_bytes))


def _remarks(result: ProbeResult, keep: Reserves, ready: Reading) -> list[str]:
    """What the reader should know about an answer that looks odd."""
    if result.allocated_bytes or result.stop_reason not in (StopReason.RESERVE, StopReason.OOM_GROUP):
        return []
    free = min(size for size in (ready.headroom_bytes, ready.host_available_bytes) if size is not None)
    return [
        f"Nothing was touched: {format_size(free)} are free, and the reserve is"
        f" {format_size(keep.cgroup_bytes)} of the cgroup and {format_size(keep.host_bytes)} of the host:"
        " free memory, or lower --reserve."
    ]


def _on_the_file(request: ProbeRequest, findings: Findings) -> list[str]:
    if not findings.file_is_shared_memory:
        return []
    directory = request.file_directory or default_directory()
    return [f"{directory} is in memory (tmpfs): a file there is shared memory, as --as shmem has it."]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the probe runs, and how it was before anything was started."""

    leaf: Leaf | None
    toucher: Toucher
    before: Reading
    notices: tuple[str, ...]

    @property
    def includes_us(self) -> bool:
        """Whether this process is in what is measured, and not the toucher alone."""
        return self.before.level != LEAF_NAME

    def read(self, accounts: Accounts, mapped_bytes: int = 0) -> Reading:
        """A new reading of the same level."""
        return take_reading(self.leaf, self.before.level, accounts, mapped_bytes)


def _open(request: ProbeRequest, opened: ExitStack) -> _Place:
    """Start the toucher, make its leaf, and leave to `opened` how both are ended."""
    report, at_s = detect_limits(), time.monotonic()
    file = None
    if _asks_for(request, Shape.FILE):
        file = open_backing_file(request.file_directory or default_directory())
    try:
        toucher = Toucher(len(os.sched_getaffinity(0)), file, _asks_for(request, Shape.CUDA_PINNED))
    finally:
        if file is not None:
            os.close(file)  # the toucher alone keeps it: its pages must be gone with it
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
        turn = next_turn(findings.parts, findings.allocated_by_part)
        if turn is None:
            return StopReason.MAXIMUM
        size = decision.bytes if turn.left_bytes is None else min(decision.bytes, turn.left_bytes)
        answer = place.toucher.touch(size, turn.shape, _soon(request, started_s))
        while answer.outcome is Outcome.TIMED_OUT:
            now = place.read(findings.last.toucher, findings.of_file(findings.last.toucher))
            if (reason := abort(request, keep, findings.readings(started_s, now))) is not None:
                return reason
            answer = place.toucher.wait(_soon(request, started_s))
        match answer.outcome:
            case Outcome.DONE:
                reading = place.read(answer.accounts, findings.of_file(answer.accounts))
                findings.add(size, reading, turn.number)
                progress = replace(
                    progress,
                    allocated_bytes=findings.allocated_bytes,
                    shared_bytes=findings.shared_bytes,
                    last_step_bytes=size,
                )
            case Outcome.REFUSED | Outcome.UNLOCKABLE:
                accounts = findings.last.toucher
                findings.add(0, place.read(accounts, findings.of_file(accounts)), turn.number)
                if turn.shape is Shape.CUDA_PINNED:
                    # The driver may be unusable from now on, so there is no second, smaller try.
                    findings.error_bytes = size
                    findings.notices.append(
                        f"CUDA's driver refused {format_size(size)} more ({answer.reason}),"
                        " so the answer is exact to that step only."
                    )
                    return StopReason.LIMIT
                by = StopReason.LIMIT if answer.outcome is Outcome.REFUSED else StopReason.MEMLOCK
                progress = replace(progress, largest_step_bytes=size // 2, last_step_bytes=0, refused_by=by)
            case _:
                findings.notices.append(_obituary(place.leaf, size, findings.allocated_bytes))
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
