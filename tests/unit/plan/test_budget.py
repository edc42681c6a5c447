from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import PlanError, UsageError
from oomproof.limits.margin import default_margin_floor
from oomproof.limits.model import LimitReport, Status
from oomproof.plan.budget import plan_budget
from oomproof.plan.model import LearnedOverhead, Plan, PlanRequest, ProgramOverhead, Term
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


def test_each_wish_is_a_term_of_its_own() -> None:
    request = PlanRequest(
        share_millionths=500_000,
        threads=16,
        pinned_bytes=512 * MIB,
        program=ProgramOverhead(
            (Term("code_cache", 240 * MIB, "recipe jvm"),), thread_bytes=MIB, mapped_bytes=GIB
        ),
        margin_floor_bytes=0,
    )
    assert terms(plan_budget(limits(10 * GIB), probe(10 * GIB, 10 * MIB), request)) == {
        "available": 10 * GIB,
        "share": -5 * GIB,
        "kernel_overhead": -10 * MIB,
        "pinned_page_tables": -2 * MIB,
        "mapped_page_tables": -2 * MIB,
        "thread_stacks": -16 * MIB,
        "code_cache": -240 * MIB,
    }


def test_the_smallest_margin_is_topped_up_to_not_added() -> None:
    request = PlanRequest(threads=4, program=ProgramOverhead(thread_bytes=MIB), margin_floor_bytes=10 * MIB)
    assert terms(plan_budget(limits(GIB), probe(GIB), request))["margin_floor"] == -6 * MIB


def test_what_attempts_have_shown_replaces_the_guess() -> None:
    guessed = plan_budget(limits(10 * GIB))
    learned = plan_budget(limits(10 * GIB), request=PlanRequest(learned=LearnedOverhead(100 * MIB, 3)))
    assert terms(learned)["program_overhead"] == -100 * MIB
    assert "3 that lived" in next(term.source for term in learned.terms if term.name == "program_overhead")
    assert guessed.budget_bytes < learned.budget_bytes < 10 * GIB - 100 * MIB


def test_what_attempts_have_shown_counts_what_is_known_already_once() -> None:
    request = PlanRequest(learned=LearnedOverhead(100 * MIB, 3), threads=320)
    assert terms(plan_budget(limits(10 * GIB), probe(10 * GIB, 30 * MIB), request)) | {"rounding": 0} == {
        "available": 10 * GIB,
        "kernel_overhead": -30 * MIB,
        "thread_stacks": -80 * MIB,
        "margin_floor": 110 * MIB - (100 * MIB + 10 * GIB // 100),
        "rounding": 0,
    }


def test_a_budget_is_rounded_down_to_a_step() -> None:
    request = PlanRequest(steps=(512 * MIB, GIB, 2 * GIB), margin_floor_bytes=MIB)
    assert plan_budget(limits(2 * GIB), request=request).budget_bytes == GIB
    assert "steps" in terms(plan_budget(limits(2 * GIB), request=request))


def test_steps_that_are_all_too_large_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--steps: the smallest, 2\.00 GiB, cannot be had"):
        plan_budget(limits(GIB), request=PlanRequest(steps=(2 * GIB, 3 * GIB)))


def test_a_budget_that_is_no_step_is_refused() -> None:
    with pytest.raises(UsageError, match="none of --steps"):
        plan_budget(limits(4 * GIB), request=PlanRequest(steps=(2 * GIB,), budget_bytes=GIB))


def test_more_pinned_memory_than_budget_is_refused() -> None:
    with pytest.raises(UsageError, match="--pinned"):
        plan_budget(limits(GIB), request=PlanRequest(pinned_bytes=GIB))


def test_more_pinned_memory_than_may_be_locked_is_said() -> None:
    report = replace(limits(GIB), pinned_limit_bytes=8 * MIB)
    plan = plan_budget(report, request=PlanRequest(pinned_bytes=9 * MIB))
    assert any("RLIMIT_MEMLOCK" in notice for notice in plan.notices)


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


SMALL = st.integers(0, 1 << 33)
WISHES = st.builds(
    PlanRequest,
    cap_bytes=st.none() | SIZES,
    margin_floor_bytes=st.none() | SMALL,
    steps=st.lists(st.integers(1, 1 << 45), max_size=4).map(lambda sizes: tuple(sorted(sizes))),
    share_millionths=st.none() | st.integers(1, 1_000_000),
    threads=st.integers(0, 10_000),
    pinned_bytes=SMALL,
    program=st.builds(
        ProgramOverhead,
        parts=st.lists(st.builds(Term, st.just("driver"), SMALL, st.just("recipe")), max_size=2).map(tuple),
        mapped_bytes=SMALL,
    ),
    learned=st.none() | st.builds(LearnedOverhead, SMALL, st.integers(1, 10)),
)


@given(SIZES, st.none() | SIZES, st.none() | st.builds(probe, SIZES, SMALL), WISHES)
def test_terms_add_up_whatever_is_wished(
    available: int, host: int | None, result: ProbeResult | None, wishes: PlanRequest
) -> None:
    try:
        plan = plan_budget(limits(available, host_available=host), result, wishes)
    except (PlanError, UsageError):
        return
    assert sum(term.bytes for term in plan.terms) == plan.budget_bytes > 0
    assert all(term.bytes < 0 for term in plan.terms[1:])
    assert plan.budget_bytes <= (wishes.cap_bytes if wishes.cap_bytes is not None else available)
    assert not wishes.steps or plan.budget_bytes in wishes.steps
    share = wishes.share_millionths or 1_000_000
    assert plan.allowed_bytes <= available * share // 1_000_000
    if wishes.learned is not None:
        assert plan.margin_bytes >= wishes.learned.bytes


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
