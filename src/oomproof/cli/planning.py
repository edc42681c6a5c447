"""check -> probe -> plan, as every launching verb takes it.

Not covered: what the steps do (`oomproof.limits`, `oomproof.probe`, `oomproof.plan`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.config import read_whole
from oomproof.errors import ConfigError, OomproofError, ProbeError
from oomproof.limits import detect_limits, with_leaf_limit
from oomproof.limits.model import LimitReport
from oomproof.plan.budget import plan_budget
from oomproof.plan.model import Plan, PlanRequest, ProgramOverhead, Term
from oomproof.probe.model import ProbeResult, StopReason
from oomproof.units import GIB

if TYPE_CHECKING:
    from oomproof.recipes.model import Recipe

QUICK_ABOVE_BYTES = 8 * GIB
"""From this limit, or without one this much memory, on a full probe takes longer than a start should."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what it was made from."""

    limits: LimitReport
    probe: ProbeResult | None
    plan: Plan
    request: PlanRequest | None
    """The caller's wishes, to plan again with what was learned; None: the plan is settled."""


def plan_here(settings: Mapping[str, Any], stop_requested: Callable[[], object] = lambda: None) -> Planned:
    """Check, probe if that is wished, and plan, by the settings of `oomproof.config.PLANNING`.

    A probe that fails is a notice of the plan; one under way ends soon after `stop_requested`
    answers with anything but None. Raises what `plan_budget` raises.
    """
    limits = detect_limits()
    if settings["limit"] is not None:
        limits = with_leaf_limit(limits, settings["limit"])
    probe, notice = _probe(settings, limits, stop_requested)
    request = PlanRequest(
        budget_bytes=settings["budget"],
        cap_bytes=settings["cap"],
        floor_bytes=settings["floor"],
        margin_floor_bytes=settings["margin_floor"],
        steps=settings["steps"],
        share_millionths=settings["share"],
        threads=settings["threads"],
        pinned_bytes=settings["pinned"],
        program=_overhead(settings.get("recipe")),
    )
    plan = plan_budget(limits, probe, request)
    if notice:
        plan = replace(plan, notices=(notice, *plan.notices))
    return Planned(limits, probe, plan, request)


def _overhead(recipe: Recipe | None) -> ProgramOverhead:
    """What the program takes beside any budget, as its recipe knows it."""
    if recipe is None:
        return ProgramOverhead()
    source = f"recipe {recipe.name}"
    return ProgramOverhead(tuple(Term(name, size, source) for name, size in recipe.overhead.items()))


def _probe(
    settings: Mapping[str, Any], limits: LimitReport, stop_requested: Callable[[], object]
) -> tuple[ProbeResult | None, str | None]:
    """The probe's result, or None and, where a probe was wished for, why there is none."""
    if settings["probe_result"] is not None:
        return _read_result(settings["probe_result"]), None
    if not settings["probe"]:
        return None, None
    # Imported here: a start without a probe does without it.
    from oomproof.probe import ProbeRequest, run_probe

    def stop_on_request(*_: object) -> None:
        if stop_requested() is not None:
            raise KeyboardInterrupt

    try:
        quick = settings["quick"]
        if quick is None:
            quick = (limits.limit_bytes or limits.host_total_bytes or 0) > QUICK_ABOVE_BYTES
        result = run_probe(ProbeRequest(limit_bytes=settings["limit"], quick=quick), stop_on_request)
    except (OomproofError, OSError) as error:
        return None, f"the probe failed: {error}"
    if result.stop_reason is StopReason.INTERRUPTED:
        return None, "the probe was interrupted"
    return result, None


def _read_result(path: Path) -> ProbeResult:
    try:
        return ProbeResult.from_json(json.loads(read_whole(path)))
    except OSError as error:
        raise ConfigError(
            f"--probe-result {path}: {error.strerror}: make it with oomproof probe --json"
        ) from error
    except (ValueError, ProbeError) as error:
        raise ConfigError(
            f"--probe-result {path} is no result of a probe ({error}): make it with oomproof probe --json"
        ) from error
