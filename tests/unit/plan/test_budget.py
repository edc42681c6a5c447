from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import PlanError, UsageError
from oomproof.limits.margin import default_margin_floor
from oomproof.limits.model import LimitReport, Status
from oomproof.plan.budget import plan_budget
from oomproof.plan.model import Plan, PlanRequest
from oomproof.probe.model import ProbeResult, StopReason
from oomproof.units import GIB, MIB

SIZES = st.integers(0, 1 << 45)


def limits(available: int | None, limit: int | None = None, host_available: int | None = None) -> LimitReport:
    limit = available if limit is None else limit
    return LimitReport(
        status=Status.UNKNOWN if limit is None else Status.LIMITED,
        limit_bytes=limit,
        available_bytes=available,
        limit_bound_by=None if limit is None else "cgroup v2 /job",
        available_bound_by=None if available is None else "cgroup v2 /job",
        candidates=(),
        host_available_bytes=host_available,
    )


def probe(allocated: int, kernel_overhead: int = 0) -> ProbeResult:
    return ProbeResult(
        cgroup_limit_bytes=None,
        usage_before_bytes=0,
        allocated_bytes=allocated,
        usage_peak_bytes=allocated + kernel_overhead,
        probe_chunks=1,
        stop_reason=StopReason.RESERVE,
        duration_seconds=1.0,
        kernel_overhead_bytes=kernel_overhead,
    )


def terms(plan: Plan) -> dict[str, int]:
    return {term.name: term.bytes for term in plan.terms}


def test_check_alone_gives_what_is_available_less_the_smallest_margin() -> None:
    plan = plan_budget(limits(10 * GIB), request=PlanRequest(margin_floor_bytes=GIB))
    assert terms(plan) == {"available": 10 * GIB, "margin_floor": -GIB}
    assert plan.budget_bytes == 9 * GIB
    assert any("no probe" in notice for notice in plan.notices)


def test_a_probe_that_got_less_than_check_allows_wins() -> None:
    plan = plan_budget(limits(10 * GIB), probe(8 * GIB), PlanRequest(margin_floor_bytes=0))
    assert terms(plan) == {"available": 10 * GIB, "probe_shortfall": -2 * GIB}
    assert plan.budget_bytes == 8 * GIB


def test_a_probe_that_was_ended_early_tells_only_how_much_there_is_at_least() -> None:
    early = replace(probe(2 * GIB), stop_reason=StopReason.MAXIMUM)
    [notice] = plan_budget(limits(10 * GIB), early).notices
    assert notice.startswith("the probe ended early (maximum), so more may be there than the 2.00 GiB")
    assert plan_budget(limits(10 * GIB), probe(2 * GIB)).notices == ()
    assert plan_budget(limits(GIB), early).notices == ()


def test_a_probe_that_got_more_than_check_allows_does_not_raise_the_budget() -> None:
    plan = plan_budget(limits(10 * GIB), probe(12 * GIB), PlanRequest(margin_floor_bytes=0))
    assert plan.budget_bytes == 10 * GIB


def test_measured_overhead_above_the_floor_is_the_margin() -> None:
    plan = plan_budget(limits(10 * GIB), probe(10 * GIB, GIB), PlanRequest(margin_floor_bytes=100 * MIB))
    assert terms(plan) == {"available": 10 * GIB, "kernel_overhead": -GIB}


def test_measured_overhead_below_the_floor_is_topped_up_to_it() -> None:
    request = PlanRequest(margin_floor_bytes=100 * MIB)
    plan = plan_budget(limits(10 * GIB), probe(10 * GIB, 30 * MIB), request)
    assert terms(plan) == {"available": 10 * GIB, "kernel_overhead": -30 * MIB, "margin_floor": -70 * MIB}


def test_a_host_that_can_give_less_than_the_cgroup_allows_is_respected() -> None:
    report = limits(10 * GIB, host_available=4 * GIB)
    plan = plan_budget(report, request=PlanRequest(margin_floor_bytes=0))
    assert terms(plan) == {"available": 10 * GIB, "host_shortfall": -6 * GIB}


def test_unknown_usage_counts_the_whole_limit_and_says_so() -> None:
    plan = plan_budget(limits(None, limit=2 * GIB), request=PlanRequest(margin_floor_bytes=0))
    assert plan.budget_bytes == 2 * GIB
    assert any("usage" in notice for notice in plan.notices)


def test_without_any_limit_the_probe_decides() -> None:
    plan = plan_budget(limits(None), probe(3 * GIB), PlanRequest(margin_floor_bytes=0))
    assert plan.budget_bytes == 3 * GIB


def test_nothing_known_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(PlanError, match="--budget"):
        plan_budget(limits(None))


def test_cap_takes_off_the_rest() -> None:
    plan = plan_budget(limits(10 * GIB), request=PlanRequest(cap_bytes=GIB))
    assert plan.budget_bytes == GIB
    assert "cap" in terms(plan)


def test_budget_is_rounded_down_to_whole_mib() -> None:
    plan = plan_budget(limits(GIB + 12345), request=PlanRequest(margin_floor_bytes=0))
    assert terms(plan) == {"available": GIB + 12345, "rounding": -12345}


def test_a_requested_budget_is_taken_as_it_is() -> None:
    plan = plan_budget(limits(GIB), request=PlanRequest(budget_bytes=GIB - 1))
    assert plan.budget_bytes == GIB - 1
    assert terms(plan) == {"available": GIB, "requested": -1}


def test_a_requested_budget_above_the_limit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"above the limit of 1\.00 GiB \(cgroup v2 /job\)"):
        plan_budget(limits(GIB), request=PlanRequest(budget_bytes=GIB + 1))


def test_a_requested_budget_above_what_is_left_is_taken_with_a_notice() -> None:
    plan = plan_budget(limits(GIB, limit=2 * GIB), request=PlanRequest(budget_bytes=3 * GIB // 2))
    assert plan.budget_bytes == 3 * GIB // 2
    assert any("512.00 MiB above what can be had now" in notice for notice in plan.notices)


def test_a_floor_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(UsageError, match="--floor"):
        plan_budget(limits(GIB), request=PlanRequest(floor_bytes=GIB))


@pytest.mark.parametrize("available", [0, 1])
def test_nothing_left_is_an_error(available: int) -> None:
    with pytest.raises(PlanError, match="nothing is left"):
        plan_budget(limits(available), request=PlanRequest(margin_floor_bytes=1))


@given(
    SIZES, st.none() | SIZES, st.none() | st.builds(probe, SIZES, SIZES), st.none() | SIZES, st.none() | SIZES
)
def test_terms_always_add_up_and_never_promise_more_than_anyone_allows(
    available: int, host: int | None, result: ProbeResult | None, cap: int | None, floor: int | None
) -> None:
    report = limits(available, host_available=host)
    try:
        plan = plan_budget(report, result, PlanRequest(cap_bytes=cap, margin_floor_bytes=floor))
    except PlanError:
        return
    assert sum(term.bytes for term in plan.terms) == plan.budget_bytes > 0
    ceilings = [available, host, result.allocated_bytes if result else None, cap]
    assert plan.budget_bytes <= min(ceiling for ceiling in ceilings if ceiling is not None)
    assert plan.as_json()["budget_bytes"] == plan.budget_bytes
    assert plan.probed == (result is not None)


@given(SIZES, SIZES)
def test_more_available_never_means_a_smaller_budget(available: int, more: int) -> None:
    def budget(size: int) -> int:
        try:
            return plan_budget(limits(size)).budget_bytes
        except PlanError:
            return 0

    assert budget(available) <= budget(available + more)


@given(SIZES)
def test_default_floor_leaves_at_least_three_quarters(allowed: int) -> None:
    assert 0 <= default_margin_floor(allowed) <= max(allowed // 4, allowed * 3 // 100)


def test_a_report_without_host_memory_still_plans() -> None:
    assert plan_budget(replace(limits(GIB), host_available_bytes=None)).budget_bytes > 0
