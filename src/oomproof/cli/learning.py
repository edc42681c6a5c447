"""What earlier runs say about the budget, put into the plan and into the choice after a death.

Not covered: how it is decided (`oomproof.plan.adaptive`), and where it is kept (`oomproof.history`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oomproof.cli import output
from oomproof.cli.planning import Planned
from oomproof.errors import PlanError, UsageError
from oomproof.history.model import Observation, Run, default_path, is_server, machine_kind
from oomproof.history.record import Record
from oomproof.plan import adaptive, descent
from oomproof.plan.budget import plan_budget
from oomproof.plan.model import Plan
from oomproof.plan.steps import round_down

NO_HISTORY = "none"


@dataclass(frozen=True, slots=True)
class Course:
    """The budget of the first attempt, and how it goes on."""

    plan: Plan
    learned: str
    """Why it is not the plan's own budget, in a few words; empty: it is."""
    after: Callable[[int], int | None]
    """The budget after this run's last attempt, with this one, ran out of memory; None: no smaller one."""
    below: Callable[[int], int | None]
    """The same for an attempt of another run."""


def target_of(setting: str | None) -> Path | str | None:
    """Where the history is: a file, a server's address; None: nowhere."""
    if setting == NO_HISTORY:
        return None
    if setting is None:
        return default_path(os.environ)
    if "://" in setting and not is_server(setting):
        scheme = setting.partition("://")[0]
        raise UsageError(
            f"--history {scheme}://...: no such server is known: give postgresql://..., a FILE or none"
        )
    return setting if is_server(setting) else Path(setting)


def record_of(settings: Mapping[str, Any]) -> Record:
    """What a launching verb writes through. A server that is away is no reason not to start."""
    target = target_of(settings["history"])
    return Record(
        target,
        output.warning,
        required=settings["history"] is not None and isinstance(target, Path),
        keep_days=settings["history_days"],
    )


def run_of(verb: str, command: Sequence[str], settings: Mapping[str, Any], planned: Planned) -> Run:
    """The run as the history knows it."""
    limits = planned.limits
    return Run(
        verb,
        tuple(command),
        limits.limit_bytes,
        planned.plan.budget_bytes,
        allowed_bytes=planned.plan.allowed_bytes,
        recipe=_recipe_of(settings),
        templates=tuple(f"{file.source}:{file.target}" for file in settings.get("render", ())),
        tag=settings["tag"],
        machine=settings["machine"] or machine_kind(limits.host_total_bytes),
    )


def _recipe_of(settings: Mapping[str, Any]) -> str | None:
    """The recipe with what was changed in it: another budget becomes of it."""
    recipe, changed = settings.get("recipe"), settings.get("recipe_values") or {}
    return (
        None
        if recipe is None
        else recipe.name + "".join(f" {name}={changed[name]}" for name in sorted(changed))
    )


def course_of(settings: Mapping[str, Any], planned: Planned, seen: Sequence[Observation]) -> Course:
    """The way of a run, given what earlier ones have shown (oldest first)."""
    if settings["on_oom"].rule is descent.Rule.ADAPTIVE:
        return _adaptive(settings, planned, seen if settings["learn"] else ())

    def smaller(budget_bytes: int) -> int | None:
        following = descent.next_budget(settings["on_oom"], planned.plan, budget_bytes, settings["floor"])
        step = None if following is None else round_down(following, settings["steps"])
        return None if step is None or step < (settings["floor"] or 0) else step

    return Course(planned.plan, "", smaller, smaller)


def _adaptive(settings: Mapping[str, Any], planned: Planned, seen: Sequence[Observation]) -> Course:
    seen = adaptive.brought_to(planned.plan.allowed_bytes, seen)
    plan = learned_plan(planned, seen)
    bounds = adaptive.bounds_of(
        plan,
        floor_bytes=settings["floor"],
        cap_bytes=settings["cap"],
        margin_floor_bytes=settings["margin_floor"],
        steps=settings["steps"],
    )
    lessons = adaptive.lessons_of(plan, seen)
    choice = adaptive.Choice(plan.budget_bytes)
    retries = settings["retries"]
    if settings["budget"] is None:
        choice = adaptive.first_budget(plan, bounds, lessons, retries=retries)
    died: list[int] = []

    def after(budget_bytes: int) -> int | None:
        died.append(budget_bytes)
        left = retries - len(died) + 1
        return adaptive.next_budget(plan, bounds, lessons, died, retries_left=left)

    def below(budget_bytes: int) -> int | None:
        return adaptive.next_budget(plan, bounds, lessons, [budget_bytes], retries_left=retries)

    return Course(adaptive.with_choice(plan, choice), choice.reason, after, below)


def learned_plan(planned: Planned, seen: Sequence[Observation]) -> Plan:
    """The plan with the margin that attempts before have shown to be needed."""
    overhead = adaptive.learned_overhead(planned.plan.allowed_bytes, seen)
    if overhead is None or planned.request is None or planned.request.budget_bytes is not None:
        return planned.plan
    try:
        plan = plan_budget(planned.limits, planned.probe, replace(planned.request, learned=overhead))
    except (PlanError, UsageError):
        return planned.plan  # what was learned is no reason not to start
    return replace(plan, notices=planned.plan.notices)
