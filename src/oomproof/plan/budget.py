"""The first budget: the more conservative of check and probe, less a margin.

    available             what check allows now
    - host_shortfall      the host's MemAvailable is less than that
    - probe_shortfall     the probe got less than that
    - share               what the caller leaves to others
    - kernel_overhead     what the kernel itself cost at full use, as the probe measured it
    - pinned_page_tables, mapped_page_tables, thread_stacks, and the recipe's own parts:
                          what the program adds that no ledger shows
    - program_overhead    what attempts before showed it to take, as far as it is more than all of that
    - margin_floor        what is missing to the smallest margin
    - cap, steps, rounding    the caller's wish; a size the program can use; whole MiB
    = budget

Not covered: what earlier runs say about budgets that live and die, see `adaptive`.
"""

from __future__ import annotations

from oomproof.errors import PlanError, UsageError
from oomproof.limits.margin import default_margin_floor
from oomproof.limits.model import LimitReport
from oomproof.plan.model import Plan, PlanRequest, Term
from oomproof.plan.steps import round_down
from oomproof.probe.model import ProbeResult, StopReason
from oomproof.units import MIB, format_size

_ENDED_EARLY = frozenset({StopReason.MAXIMUM, StopReason.DEADLINE, StopReason.KILLED, StopReason.INTERRUPTED})
"""Ends of a probe that tells only how much there is at least."""

LEARNED_FLOOR_PERCENT = 1
LEARNED_FLOOR_BYTES = 8 * MIB
"""Once attempts have shown what the program adds, the floor covers only how much that varies."""

PAGE_TABLE_SHARE = 512
"""One entry of 8 bytes for each page of 4096 bytes."""
_WHOLE = 1_000_000


def learned_margin_floor(allowed_bytes: int) -> int:
    """The smallest margin once attempts have shown what the program adds: 1 %, at least 8 MiB."""
    share = allowed_bytes * LEARNED_FLOOR_PERCENT // 100
    return max(share, min(LEARNED_FLOOR_BYTES, allowed_bytes // 4))


def plan_budget(
    limits: LimitReport, probe: ProbeResult | None = None, request: PlanRequest | None = None
) -> Plan:
    """One budget and the terms that add up to it.

    Raises UsageError when a wish cannot be granted (a budget above the limit, a floor that
    cannot be had) and PlanError when nothing is known, or nothing is left, to give.
    """
    request = request or PlanRequest()
    _check_wishes(request)
    allowed, notices = _allowed(limits, probe, request)
    if request.budget_bytes is None:
        terms = (*allowed, *_taken_off(sum(term.bytes for term in allowed), probe, request))
    else:
        terms = (*allowed, _requested(request.budget_bytes, allowed, limits, notices))
    lockable = limits.pinned_limit_bytes
    if lockable is not None and request.pinned_bytes > lockable:
        notices.append(
            f"--pinned {format_size(request.pinned_bytes)} is above the {format_size(lockable)} that mlock"
            " may have (RLIMIT_MEMLOCK); memory that a driver pins does not count there"
        )
    plan = Plan(terms, probed=probe is not None, notices=tuple(notices))
    _check_floor(plan, request)
    if request.pinned_bytes > plan.budget_bytes:
        raise UsageError(
            f"--pinned {format_size(request.pinned_bytes)} is above the budget of"
            f" {format_size(plan.budget_bytes)}: pin less, free memory or raise the limit"
        )
    return plan


def _allowed(
    limits: LimitReport, probe: ProbeResult | None, request: PlanRequest
) -> tuple[list[Term], list[str]]:
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
        notices.append(NOT_PROBED)
    if request.share_millionths is not None:
        share = sum(term.bytes for term in terms) * request.share_millionths // _WHOLE
        lower_to(share, "share", f"--share {request.share_millionths / 10_000:g}%")
    return terms, notices


MAX_INT = 1 << 63
NOT_PROBED = "no probe: the budget rests on what check allows alone"


def _taken_off(allowed: int, probe: ProbeResult | None, request: PlanRequest) -> list[Term]:
    """The margin and what makes a size of it that was wished for, as negative terms without zeros."""
    overhead = max(0, probe.kernel_overhead_bytes) if probe is not None else 0
    off = [
        Term("kernel_overhead", -overhead, "probe: page tables and the like at full use"),
        *_program_terms(request),
    ]
    margin = -sum(term.bytes for term in off)
    if request.learned is not None:
        more = max(0, request.learned.bytes - margin)
        source = f"history: peak less budget, {request.learned.samples} that lived"
        off.append(Term("program_overhead", -more, source))
        margin += more
    floor, floor_source = _margin_floor(allowed, request)
    off.append(Term("margin_floor", -max(0, floor - margin), floor_source))
    off.extend(_sized(allowed + sum(term.bytes for term in off), request))
    return [term for term in off if term.bytes]


def _program_terms(request: PlanRequest) -> list[Term]:
    """What the program adds that no ledger shows, as the caller and the recipe know it."""
    program = request.program
    # Twice: the processor's own tables, and the list of pages that a driver keeps for its device.
    pinned_tables = 2 * -(-request.pinned_bytes // PAGE_TABLE_SHARE)
    mapped_tables = -(-program.mapped_bytes // PAGE_TABLE_SHARE)
    per_thread = format_size(program.thread_bytes)
    return [
        Term(
            "pinned_page_tables",
            -pinned_tables,
            f"--pinned: 16 bytes for each page of {format_size(request.pinned_bytes)}",
        ),
        Term(
            "mapped_page_tables",
            -mapped_tables,
            f"recipe: 8 bytes for each page of {format_size(program.mapped_bytes)}",
        ),
        Term(
            "thread_stacks",
            -request.threads * program.thread_bytes,
            f"--threads: {request.threads} with {per_thread} each",
        ),
        *(Term(part.name, -abs(part.bytes), part.source) for part in program.parts),
    ]


def _margin_floor(allowed: int, request: PlanRequest) -> tuple[int, str]:
    if request.margin_floor_bytes is not None:
        return request.margin_floor_bytes, "--margin-floor"
    if request.learned is not None:
        return (
            request.learned.bytes + learned_margin_floor(allowed),
            "history: 1 % above what the program was seen to take, at least 8 MiB",
        )
    return default_margin_floor(allowed), "default: 3 %, at least 32 MiB"


def _sized(left: int, request: PlanRequest) -> list[Term]:
    """What is missing from `left` to a budget of a wished size."""
    off = []
    if request.cap_bytes is not None and left > request.cap_bytes:
        off.append(Term("cap", request.cap_bytes - left, "--cap"))
        left = request.cap_bytes
    if request.steps:
        step = round_down(left, request.steps)
        if step is None:
            raise UsageError(
                f"--steps: the smallest, {format_size(min(request.steps))}, cannot be had:"
                f" {format_size(left)} is left: give a smaller step, free memory or raise the limit"
            )
        off.append(Term("steps", step - left, "--steps: rounded down to one of them"))
    elif left >= MIB:
        off.append(Term("rounding", -(left % MIB), "whole MiB"))
    return off


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
    if budget is not None and request.steps and budget not in request.steps:
        raise UsageError(f"--budget {format_size(budget)} is none of --steps: leave one of them out")


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
