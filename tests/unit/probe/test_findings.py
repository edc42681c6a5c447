"""What is kept of the readings, and the answer of a quick probe."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomproof.limits.model import Status
from oomproof.probe import ProbeRequest, StopReason
from oomproof.probe.decide import GROWTH_WINDOW_S, Reserves
from oomproof.probe.findings import Findings
from oomproof.probe.readings import Accounts, Reading
from oomproof.units import GIB, MIB

READY = Reading(
    status=Status.LIMITED,
    level="cgroup v2 /a",
    limit_bytes=4 * GIB,
    usage_bytes=10 * MIB,
    headroom_bytes=4 * GIB - 10 * MIB,
    host_total_bytes=None,
    host_available_bytes=None,
    leaf_usage_bytes=0,
)
KEEP = Reserves(cgroup_bytes=8 * MIB, host_bytes=0)


def after(touched: int, at_s: float) -> Reading:
    """The reading when `touched` bytes were touched at a cost of 1/512."""
    grown = touched + touched // 512
    return replace(
        READY,
        at_s=at_s,
        usage_bytes=10 * MIB + grown,
        headroom_bytes=4 * GIB - 10 * MIB - grown,
        leaf_usage_bytes=grown,
        toucher=Accounts(page_tables=touched // 512, anonymous=touched),
    )


def touched_in_steps(size: int, steps: int = 8) -> Findings:
    findings = Findings(READY, READY, [])
    for number in range(1, steps + 1):
        findings.add(size // steps, after(size // steps * number, number * 0.05))
    findings.stop_reason = StopReason.MAXIMUM
    return findings


def test_a_quick_answer_leaves_exactly_the_reserve() -> None:
    result = touched_in_steps(200 * MIB).extrapolated_result(ProbeRequest(), KEEP, 0, 1.0)
    room = 4 * GIB - 10 * MIB - KEEP.cgroup_bytes
    assert abs(result.allocated_bytes * (1 + 1 / 512) - room) < 64 * 1024
    assert (result.extrapolated, result.touched_bytes) == (True, 200 * MIB)
    assert result.stop_reason is StopReason.RESERVE
    assert result.overhead_bytes == sum(result.overhead_by_cause.values()) + result.others_bytes
    assert abs(result.kernel_overhead_bytes - result.allocated_bytes // 512) < 64 * 1024


def test_a_quick_answer_is_never_above_max() -> None:
    request = ProbeRequest(max_bytes=GIB)
    result = touched_in_steps(200 * MIB).extrapolated_result(request, KEEP, 0, 1.0)
    assert (result.allocated_bytes, result.stop_reason) == (GIB, StopReason.MAXIMUM)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=60))
def test_what_is_kept_does_not_grow_and_reaches_back_far_enough(pauses: list[float]) -> None:
    findings = Findings(READY, READY, [])
    seen, at_s = [READY], 0.0
    for pause in pauses:
        at_s += pause
        seen.append(after(0, at_s))
        findings.add(0, seen[-1])
    readings = findings.readings(0.0)
    old = [reading for reading in seen if at_s - reading.at_s >= GROWTH_WINDOW_S]
    assert readings.earlier == (old[-1] if old else READY)
    assert (readings.previous, readings.now) == (seen[-2], seen[-1])
    assert len(findings.recent) <= 2 + sum(at_s - reading.at_s < GROWTH_WINDOW_S for reading in seen)
