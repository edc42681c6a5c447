"""How much to touch next, decided on readings alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomproof.limits.model import Status
from oomproof.probe.decide import (
    SMALLEST_STEP_BYTES,
    Progress,
    Readings,
    Reserves,
    Step,
    Stop,
    abort,
    decide,
    reserves,
)
from oomproof.probe.model import ProbeRequest, StopReason
from oomproof.probe.readings import Accounts, Reading
from oomproof.units import GIB, MIB

KEEP = Reserves(cgroup_bytes=8 * MIB, host_bytes=512 * MIB)


def reading(headroom: int | None = GIB, host_available: int | None = 64 * GIB) -> Reading:
    return Reading(
        status=Status.LIMITED,
        level="cgroup v2 /a",
        limit_bytes=4 * GIB,
        usage_bytes=0,
        headroom_bytes=headroom,
        host_total_bytes=64 * GIB,
        host_available_bytes=host_available,
    )


def decided(
    now: Reading, request: ProbeRequest | None = None, *, first: Reading | None = None, allocated: int = 0
) -> Step | Stop:
    request = request or ProbeRequest()
    readings = Readings(first or now, first or now, now, first or now)
    return decide(request, KEEP, Progress(allocated, request.chunk_bytes), readings)


def test_the_first_step_is_an_eighth_of_the_room_because_the_rate_is_not_known() -> None:
    assert decided(reading(GIB + 8 * MIB)) == Step(128 * MIB)


def after_a_step(last_step: int, seconds: float, now: Reading) -> Step | Stop:
    first = replace(now, at_s=0.0)
    now = replace(now, at_s=seconds)
    progress = Progress(last_step, 256 * MIB, last_step)
    return decide(ProbeRequest(), KEEP, progress, Readings(first, first, now, first))


def test_far_from_the_limit_a_step_is_a_chunk() -> None:
    assert after_a_step(128 * MIB, 0.1, reading(GIB)) == Step(256 * MIB)


def test_near_the_limit_a_step_is_half_of_what_is_left_above_the_reserve() -> None:
    assert after_a_step(128 * MIB, 0.1, reading(108 * MIB)) == Step(50 * MIB)


def test_where_touching_is_slow_a_step_is_short() -> None:
    assert after_a_step(64 * MIB, 1.0, reading(GIB)) == Step(16 * MIB)


def test_a_neighbour_that_grows_is_left_what_it_takes_in_a_second() -> None:
    first = replace(reading(), leaf_usage_bytes=0)
    now = replace(first, at_s=0.5, usage_bytes=26 * MIB, headroom_bytes=58 * MIB)
    assert decided(now, first=first) == Stop(StopReason.RESERVE)
    assert isinstance(decided(replace(now, headroom_bytes=59 * MIB), first=first), Step)


def test_growth_of_the_leaf_is_not_growth_of_others() -> None:
    first = replace(reading(), leaf_usage_bytes=0)
    now = replace(first, at_s=0.5, usage_bytes=500 * MIB, leaf_usage_bytes=500 * MIB, headroom_bytes=9 * MIB)
    assert isinstance(decided(now, first=first), Step)


def test_a_chunk_below_a_page_is_a_page() -> None:
    assert decided(reading(), ProbeRequest(chunk_bytes=1)) == Step(4096)


def test_the_reserve_ends_the_probe() -> None:
    assert decided(reading(8 * MIB + SMALLEST_STEP_BYTES - 1)) == Stop(StopReason.RESERVE)


def test_the_host_bounds_the_probe_where_no_cgroup_does() -> None:
    assert decided(reading(None, 512 * MIB + 80 * MIB)) == Step(10 * MIB)
    assert decided(reading(None, 512 * MIB)) == Stop(StopReason.RESERVE)


def test_a_reserve_that_is_larger_for_oom_group_names_it_as_the_reason() -> None:
    keep = replace(KEEP, for_oom_group=True)
    now = reading(8 * MIB)
    progress = Progress(0, 256 * MIB)
    assert decide(ProbeRequest(), keep, progress, Readings(now, now, now, now)) == Stop(StopReason.OOM_GROUP)


def test_max_is_reached_exactly_and_then_ends_the_probe() -> None:
    request = ProbeRequest(max_bytes=300 * MIB + 1)
    assert decided(reading(), request, allocated=256 * MIB) == Step(44 * MIB + 1)
    assert decided(reading(), request, allocated=300 * MIB + 1) == Stop(StopReason.MAXIMUM)


def test_memory_high_is_a_wall_before_it_throttles() -> None:
    assert decided(replace(reading(), high_headroom_bytes=8 * MIB)) == Stop(StopReason.THROTTLED)


def test_an_event_of_memory_high_during_the_probe_ends_it() -> None:
    first = replace(reading(), high_events=3)
    assert decided(replace(first, high_events=4), first=first) == Stop(StopReason.THROTTLED)
    assert isinstance(decided(first, first=first), Step)


def test_standing_still_for_a_fifth_of_a_step_is_being_throttled() -> None:
    first = replace(reading(), at_s=10.0)
    assert decided(replace(first, at_s=11.0, stalled_us=210_000), first=first) == Stop(StopReason.THROTTLED)
    assert isinstance(decided(replace(first, at_s=11.0, stalled_us=190_000), first=first), Step)


def test_swap_use_ends_the_probe() -> None:
    assert decided(replace(reading(), toucher=Accounts(swapped=4096))) == Stop(StopReason.SWAPPING)
    first = replace(reading(), swap_bytes=MIB)
    assert decided(replace(first, swap_bytes=2 * MIB), first=first) == Stop(StopReason.SWAPPING)


def test_the_deadline_ends_the_probe() -> None:
    first = replace(reading(), at_s=100.0)
    request = ProbeRequest(deadline_s=5)
    assert decided(replace(first, at_s=105.0), request, first=first) == Stop(StopReason.DEADLINE)


def test_steps_that_the_kernel_refuses_down_to_the_smallest_end_at_its_limit() -> None:
    now = reading()
    progress = Progress(0, SMALLEST_STEP_BYTES // 2)
    assert decide(ProbeRequest(), KEEP, progress, Readings(now, now, now, now)) == Stop(StopReason.LIMIT)


def test_a_limit_lowered_meanwhile_is_obeyed() -> None:
    assert decided(reading(0), first=reading(GIB)) == Stop(StopReason.RESERVE)


def test_pages_of_a_file_that_are_taken_back_end_the_probe() -> None:
    first = replace(reading(), toucher=Accounts(file=5 * MIB))
    progress = Progress(64 * MIB, 256 * MIB, shared_bytes=64 * MIB)

    def with_resident(size: int) -> Step | Stop:
        now = replace(first, toucher=Accounts(file=size))
        return decide(ProbeRequest(), KEEP, progress, Readings(first, now, now, first))

    assert isinstance(with_resident(69 * MIB), Step)
    assert with_resident(69 * MIB - SMALLEST_STEP_BYTES) == Stop(StopReason.LIMIT)


def aborted(now: Reading, first: Reading | None = None) -> StopReason | None:
    return abort(ProbeRequest(), KEEP, Readings(first or now, first or now, now, first or now))


def test_a_step_goes_on_while_a_neighbour_takes_of_the_reserve() -> None:
    assert aborted(reading(KEEP.cgroup_bytes // 2)) is None


def test_a_step_is_broken_off_when_half_of_the_reserve_is_gone() -> None:
    assert aborted(reading(KEEP.cgroup_bytes // 2 - 1)) is StopReason.RESERVE
    assert aborted(reading(host_available=KEEP.host_bytes // 2 - 1)) is StopReason.RESERVE


def test_a_step_that_is_throttled_is_broken_off() -> None:
    first = reading()
    assert aborted(replace(first, high_events=1), first) is StopReason.THROTTLED


@given(limit=st.integers(64 * MIB, 1 << 50))
def test_the_default_reserve_is_within_one_percent_or_16_mib(limit: int) -> None:
    first = replace(reading(), limit_bytes=limit)
    kept = reserves(ProbeRequest(), first).cgroup_bytes + SMALLEST_STEP_BYTES
    assert kept <= max(limit // 100, 16 * MIB)


def test_a_reserve_asked_for_is_kept_everywhere() -> None:
    assert reserves(ProbeRequest(reserve_bytes=5), reading()) == Reserves(5, 5)


@given(
    limit=st.integers(0, 64 * GIB),
    used=st.integers(0, 64 * GIB),
    host=st.integers(0, 64 * GIB),
    chunk=st.integers(64 * MIB, 8 * GIB),
    neighbour_share=st.floats(0, 0.9),
)
def test_a_growing_neighbour_never_finds_the_cgroup_full(
    limit: int, used: int, host: int, chunk: int, neighbour_share: float
) -> None:
    """Simulated to the end: while it takes less than the probe does, something is left at every step."""
    request = ProbeRequest(chunk_bytes=chunk)
    allocated = 0
    first = replace(reading(max(limit - used, 0), host), limit_bytes=limit)
    keep = reserves(request, first)
    now = first
    while isinstance(
        decision := decide(request, keep, Progress(allocated, chunk), Readings(first, now, now, first)), Step
    ):
        assert now.headroom_bytes is not None and now.host_available_bytes is not None
        assert decision.bytes <= chunk
        taken = decision.bytes + int(decision.bytes * neighbour_share)
        allocated += decision.bytes
        now = replace(
            now,
            headroom_bytes=now.headroom_bytes - taken,
            host_available_bytes=now.host_available_bytes - taken,
        )
        assert now.headroom_bytes is not None and now.headroom_bytes > 0
        assert now.host_available_bytes is not None and now.host_available_bytes > 0
    assert allocated + keep.cgroup_bytes <= max(limit - used, keep.cgroup_bytes)
