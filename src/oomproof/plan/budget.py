"""The first budget: the more conservative of check and probe, less a margin.

    available             what check allows now
    - host_shortfall      the host's MemAvailable is less than that
    - probe_shortfall     the probe got less than that
    - kernel_overhead     what the kernel itself cost at full use, as the probe measured it
    - margin_floor        what is missing to the smallest margin
    - cap, rounding       the caller's wish; whole MiB
    = budget

Not covered: a budget after a death, see `descent`.
"""

from __future__ import annotations

from oomproof.errors import PlanError, UsageError
from oomproof.limits.margin import default_margin_floor
from oomproof.limits.model import LimitReport
from oomproof.plan.model import Plan, PlanRequest, Term
from oomproof.probe.model import ProbeResult, StopReason
from oomproof.units import MIB, format_size

_ENDED_EARLY = frozenset({StopReason.MAXIMUM, StopReason.DEADLINE, StopReason.KILLED, StopReason.INTERRUPTED})
"""Ends of a probe that tells only how much there is at least."""


def plan_budget(
    limits: LimitReport, probe: ProbeResult | None = None, request: PlanRequest | None = None
) -> Plan:
    """One budget and the terms that add up to it.

    Raises UsageError when a wish cannot be granted (a budget above the limit, a floor that
    cannot be had) and PlanError when nothing is known, or nothing is left, to give.
    """
    request = request or PlanRequest()
    _check_wishes(request)
    allowed, notices = _allowed(limits, probe)
    if request.budget_bytes is None:
        terms = (*allowed, *_taken_off(sum(term.bytes for term in allowed), probe, request))
    else:
        terms = (*allowed, _requested(request.budget_bytes, allowed, limits, notices))
    plan = Plan(terms, probed=probe is not None, notices=tuple(notices))
    _check_floor(plan, request)
    return plan


def _allowed(limits: LimitReport, probe: ProbeResult | None) -> tuple[list[Term], list[str]]:
    """The terms that say what can be had, and what the reader should know about them."""
    notices: list[str] = []
    if limits.available_bytes is not None:
        terms = [Term("available", limits.available_bytes, f"check: {limits.available_bound_by}")]
    elif limits.limit_bytes is not None:
        terms = [Term("available", limits.limit_bytes, f"check: {limits.limit_bound_by}, usage unknown")]
        notices.append("usage cannot be read, so the whole limit counts as available")
    elif probe is not None:
        terms = [Term("available", probe.allocated_bytes, "probe: the limit itself is unknown")]
    else:
        raise PlanError("no file tells how much memory is allowed here: state it with --budget or --limit")

    def lower_to(ceiling: int | None, name: str, source: str) -> None:
        excess = sum(term.bytes for term in terms) - (ceiling if ceiling is not None else MAX_INT)
        if excess > 0:
            terms.append(Term(name, -excess, source))

    lower_to(limits.host_available_bytes, "host_shortfall", "/proc/meminfo MemAvailable")
    if probe is not None:
        lower_to(probe.allocated_bytes, "probe_shortfall", f"probe: stopped by {probe.stop_reason.value}")
        if terms[-1].name == "probe_shortfall" and probe.stop_reason in _ENDED_EARLY:
            notices.append(
                f"the probe ended early ({probe.stop_reason.value}), so more may be there than the"
                f" {format_size(probe.allocated_bytes)} that it got: probe without that bound to know"
            )
    else:
        notices.append("no probe: the budget rests on what check allows alone")
    return terms, notices


MAX_INT = 1 << 63


def _taken_off(allowed: int, probe: ProbeResult | None, request: PlanRequest) -> list[Term]:
    """The margin, the cap and the rounding, as negative terms; zero ones are left out."""
    overhead = max(0, probe.kernel_overhead_bytes) if probe is not None else 0
    if request.margin_floor_bytes is None:
        floor, floor_source = default_margin_floor(allowed), "default: 3 %, at least 32 MiB"
    else:
        floor, floor_source = request.margin_floor_bytes, "--margin-floor"
    off = [
        Term("kernel_overhead", -overhead, "probe: page tables and the like at full use"),
        Term("margin_floor", -max(0, floor - overhead), floor_source),
    ]
    left = allowed + sum(term.bytes for term in off)
    if request.cap_bytes is not None and left > request.cap_bytes:
        off.append(Term("cap", request.cap_bytes - left, "--cap"))
        left = request.cap_bytes
    if left >= MIB:
        off.append(Term("rounding", -(left % MIB), "whole MiB"))
    return [term for term in off if term.bytes]


def _requested(budget: int, allowed: list[Term], limits: LimitReport, notices: list[str]) -> Term:
    """The difference that makes the sum what the caller asked for."""
    if limits.limit_bytes is not None and budget > limits.limit_bytes:
        raise UsageError(
            f"--budget {format_size(budget)} is above the limit of {format_size(limits.limit_bytes)}"
            f" ({limits.limit_bound_by}): ask for less, or raise that limit"
        )
    can_be_had = sum(term.bytes for term in allowed)
    if budget > can_be_had:
        notices.append(
            f"--budget {format_size(budget)} is {format_size(budget - can_be_had)} above what can be had now"
        )
    return Term("requested", budget - can_be_had, "--budget")


def _check_wishes(request: PlanRequest) -> None:
    budget, cap = request.budget_bytes, request.cap_bytes
    if budget is not None and cap is not None and budget > cap:
        raise UsageError(
            f"--budget {format_size(budget)} is above --cap {format_size(cap)}: leave one of them out"
        )


def _check_floor(plan: Plan, request: PlanRequest) -> None:
    budget = plan.budget_bytes
    if budget <= 0:
        raise PlanError(
            f"nothing is left: {format_size(plan.allowed_bytes)} can be had and the margin is"
            f" {format_size(plan.margin_bytes)}: free memory, raise the limit or lower --margin-floor"
        )
    if request.floor_bytes is not None and budget < request.floor_bytes:
        raise UsageError(
            f"--floor {format_size(request.floor_bytes)} cannot be had: the budget is {format_size(budget)}:"
            " raise the limit, free memory or lower the floor"
        )
