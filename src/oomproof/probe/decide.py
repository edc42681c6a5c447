"""How much to touch next, or why to stop: pure functions over frozen readings.

A step is at most half of what is left above the reserve, and short, so that a neighbour that
grows meanwhile finds at least as much as the probe takes. The reserve grows with the rate at
which others do: they must find room until the probe has noticed and given all back.
Not covered: reading and touching.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomproof.probe.model import ProbeRequest, StopReason
from oomproof.probe.readings import Reading
from oomproof.units import GIB, MIB

SMALLEST_STEP_BYTES = MIB // 4
PAGE_BYTES = 4096
_SMALLEST_RESERVE, _LARGEST_RESERVE = 4 * MIB, 64 * MIB
_RESERVE_SHARE = 512
_OOM_GROUP_SHARE, _SMALLEST_OOM_GROUP_RESERVE = 32, 32 * MIB
_HOST_SHARE, _SMALLEST_HOST_RESERVE, _LARGEST_HOST_RESERVE = 16, 128 * MIB, 8 * GIB
QUICK_STEPS = 8
_QUICK_SHARE, _SMALLEST_QUICK_PART, _LARGEST_QUICK_PART = 20, 64 * MIB, 2 * GIB
_STALLED_SHARE = 0.2
"""Standing still for a fifth of a step's time is being throttled, not being busy."""
_SHORTEST_STALL_S = 0.05
_LONGEST_STEP_S = 0.25
_REACTION_S = 1.0
"""From a reading to memory given back, on a machine with more to do than processors."""
_OTHERS_NOISE_BYTES = MIB
"""What the kernel charges ahead and this process itself grows by."""
GROWTH_WINDOW_S = 0.25
"""Growth of others is looked at over at least so long."""


@dataclass(frozen=True, slots=True)
class Reserves:
    """Headroom that stays untouched, in bytes."""

    cgroup_bytes: int
    host_bytes: int
    for_oom_group: bool = False
    """The reserve is larger because a kill would take the whole cgroup."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the probe has come; sizes in bytes."""

    allocated_bytes: int
    largest_step_bytes: int
    """The chunk; less after the kernel refused a step."""
    last_step_bytes: int = 0
    """What the last step touched."""
    shared_bytes: int = 0
    """How much of `allocated_bytes` is of a file or shared memory, which the kernel may take back."""
    refused_by: StopReason = StopReason.LIMIT
    """Why the kernel refused the last step that it refused."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What a decision looks at."""

    first: Reading
    """Taken before the first step; its time is that of the start."""
    previous: Reading
    """The one before `now`."""
    now: Reading
    earlier: Reading
    """The latest that is `GROWTH_WINDOW_S` older than `now`, or else the first."""


@dataclass(frozen=True, slots=True)
class Step:
    """Touch so many bytes next."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Touch no more."""

    reason: StopReason


def reserves(request: ProbeRequest, first: Reading) -> Reserves:
    """What to leave untouched, from the request and the first reading.

    By default 1/512 of the limit, at least 4 MiB and at most 64 MiB: enough for what a
    neighbour takes between two readings, and well within 1 % of the limit. With
    memory.oom.group 1/32. Of the host 1/16, between 128 MiB and 8 GiB.
    """
    if request.reserve_bytes is not None:
        return Reserves(request.reserve_bytes, request.reserve_bytes)
    limit = first.limit_bytes or 0
    cgroup = _within(limit // _RESERVE_SHARE, _SMALLEST_RESERVE, _LARGEST_RESERVE)
    if first.oom_group:
        cgroup = max(cgroup, limit // _OOM_GROUP_SHARE, _SMALLEST_OOM_GROUP_RESERVE)
    host = _within(
        (first.host_total_bytes or 0) // _HOST_SHARE, _SMALLEST_HOST_RESERVE, _LARGEST_HOST_RESERVE
    )
    return Reserves(cgroup, host, first.oom_group)


def _within(size: int, smallest: int, largest: int) -> int:
    return min(max(size, smallest), largest)


def others_growth(readings: Readings) -> float:
    """Bytes a second by which others in the cgroup grow; the larger of lately and altogether."""
    return max(_growth(readings.earlier, readings.now), _growth(readings.first, readings.now))


def _growth(since: Reading, now: Reading) -> float:
    growth = now.others_bytes - since.others_bytes - _OTHERS_NOISE_BYTES
    seconds = now.at_s - since.at_s
    return max(growth, 0) / seconds if seconds > 0 else 0.0


def with_room_for_others(keep: Reserves, readings: Readings) -> Reserves:
    """`keep`, and what others take until the probe has reacted."""
    more = round(others_growth(readings) * _REACTION_S)
    return replace(keep, cgroup_bytes=keep.cgroup_bytes + more, host_bytes=keep.host_bytes + more)


def quick_part(room_bytes: int) -> int:
    """How much of `room_bytes` a quick probe touches, in bytes."""
    return min(max(room_bytes // _QUICK_SHARE, _SMALLEST_QUICK_PART), _LARGEST_QUICK_PART, room_bytes)


def decide(request: ProbeRequest, keep: Reserves, progress: Progress, readings: Readings) -> Step | Stop:
    """The next step."""
    if (trouble := _trouble(request, readings)) is not None:
        return Stop(trouble)
    if progress.largest_step_bytes < min(SMALLEST_STEP_BYTES, request.chunk_bytes):
        return Stop(progress.refused_by)
    first, now = readings.first.toucher, readings.now.toucher
    resident = now.file + now.shared - first.file - first.shared
    if progress.shared_bytes - resident >= SMALLEST_STEP_BYTES:
        return Stop(StopReason.LIMIT)
    room, reason = room_above(with_room_for_others(keep, readings), readings.now)
    if room is not None and room < SMALLEST_STEP_BYTES:
        return Stop(reason)
    step = min(progress.largest_step_bytes, _short_step(progress, readings, room))
    if room is not None:
        step = min(step, max(room // 2, SMALLEST_STEP_BYTES))
    step = max(step // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)
    if request.max_bytes is not None:
        step = min(step, request.max_bytes - progress.allocated_bytes)
    return Step(step) if step > 0 else Stop(StopReason.MAXIMUM)


def _short_step(progress: Progress, readings: Readings, room: int | None) -> int:
    """As much as can be touched in a short time, going by the last step; at first, an eighth of the room."""
    seconds = readings.now.at_s - readings.previous.at_s
    if progress.last_step_bytes and seconds > 0:
        return max(round(progress.last_step_bytes / seconds * _LONGEST_STEP_S), SMALLEST_STEP_BYTES)
    return progress.largest_step_bytes if room is None else max(room // 8, SMALLEST_STEP_BYTES)


def abort(request: ProbeRequest, keep: Reserves, readings: Readings) -> StopReason | None:
    """Why to break off a step under way, by killing the toucher; None: let it go on.

    The reserve has room for what a neighbour takes during a step, so half of it is left
    only when something else has gone wrong: a limit lowered, a leap of the neighbour, or
    processes that stand still at the limit because the OOM killer is switched off.
    """
    if (trouble := _trouble(request, readings)) is not None:
        return trouble
    halved = Reserves(keep.cgroup_bytes // 2, keep.host_bytes // 2, keep.for_oom_group)
    room, reason = room_above(halved, readings.now)
    return reason if room is not None and room < 0 else None


def _trouble(request: ProbeRequest, readings: Readings) -> StopReason | None:
    first, previous, now = readings.first, readings.previous, readings.now
    if request.deadline_s is not None and now.at_s - first.at_s >= request.deadline_s:
        return StopReason.DEADLINE
    if now.toucher.swapped > 0 or now.swap_bytes > first.swap_bytes:
        return StopReason.SWAPPING
    stalled_s = (now.stalled_us - previous.stalled_us) / 1e6
    is_stalled = stalled_s > max(_STALLED_SHARE * (now.at_s - previous.at_s), _SHORTEST_STALL_S)
    if now.high_events > first.high_events or is_stalled:
        return StopReason.THROTTLED
    return None


def room_above(keep: Reserves, now: Reading) -> tuple[int | None, StopReason]:
    """Bytes above the reserve at the tightest place (None: nowhere told), and why to stop there."""
    at_reserve = StopReason.OOM_GROUP if keep.for_oom_group else StopReason.RESERVE
    rooms = [
        (headroom - reserve, reason)
        for headroom, reserve, reason in (
            (now.headroom_bytes, keep.cgroup_bytes, at_reserve),
            (now.host_available_bytes, keep.host_bytes, StopReason.RESERVE),
            (now.high_headroom_bytes, keep.cgroup_bytes, StopReason.THROTTLED),
        )
        if headroom is not None
    ]
    return min(rooms, key=lambda pair: pair[0]) if rooms else (None, at_reserve)
