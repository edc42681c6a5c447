"""``oomproof bench --sweep N``: the benchmark over budgets, so that one sees the knee and where memory ends.

Not covered: drawing, see `sweep_chart`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oomproof.cli.planning import Planned
from oomproof.errors import UsageError
from oomproof.launch.attempts import RunResult
from oomproof.launch.model import Verdict
from oomproof.plan.adaptive import FLOOR_DIVISOR
from oomproof.plan.steps import round_down
from oomproof.units import MIB

SCHEMA_VERSION = 1
KNEE_PERCENT = 95
"""The knee: from where on more memory brings less than the rest of the best rate."""
FEWEST, MOST = 2, 100


@dataclass(frozen=True, slots=True)
class Point:
    """The benchmark with one budget. Sizes in bytes, times in seconds; None: not known."""

    budget_bytes: int
    verdict: str
    succeeded: bool
    out_of_memory: bool
    rate: float | None
    """What the benchmark measured, else runs per second; None where it did not succeed."""
    is_measured: bool
    peak_bytes: int | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """All points, by budget."""

    points: tuple[Point, ...]
    exit_status: int
    is_complete: bool = True
    """Whether every budget had its turn; False after a stop."""

    @property
    def unit(self) -> str:
        """Of the rates."""
        return "as measured" if any(point.is_measured for point in self.points) else "runs per second"

    @property
    def knee(self) -> Point | None:
        """The smallest budget with nearly the best rate; None when none succeeded."""
        rates = [point.rate for point in self.points if point.rate is not None]
        if not rates:
            return None
        enough = max(rates) * KNEE_PERCENT / 100
        return next(point for point in self.points if point.rate is not None and point.rate >= enough)

    def as_json(self) -> dict[str, object]:
        """The report for programs."""
        return {
            "schema_version": SCHEMA_VERSION,
            "exit_status": self.exit_status,
            "complete": self.is_complete,
            "rate_unit": self.unit,
            "knee_bytes": self.knee.budget_bytes if self.knee else None,
            "sweep": [
                {
                    "budget_bytes": point.budget_bytes,
                    "verdict": point.verdict,
                    "out_of_memory": point.out_of_memory,
                    "rate": point.rate,
                    "peak_bytes": point.peak_bytes,
                    "duration_seconds": round(point.duration_s, 3),
                }
                for point in self.points
            ],
        }


def budgets_of(planned: Planned, count: int, settings: dict[str, Any]) -> list[int]:
    """`count` budgets from the floor, by default a quarter of the plan's, up to all that can be had.

    Evenly spaced, whole MiB where they are larger than that; with ``--steps`` those of the steps that are
    met. Beyond the plan's own budget memory may run out: the sweep shows where.
    """
    lowest = settings["floor"] or planned.plan.budget_bytes // FLOOR_DIVISOR
    highest = min(settings["cap"] or planned.plan.allowed_bytes, planned.plan.allowed_bytes)
    found = set()
    for number in range(count):
        size = lowest + (highest - lowest) * number // (count - 1)
        step = round_down(size if size < MIB else size - size % MIB, settings["steps"])
        if step:
            found.add(step)
    if not found:
        raise UsageError("--sweep: none of --steps can be had: give smaller ones")
    return sorted(found)


def sweep(
    budgets: Sequence[int],
    planned: Planned,
    settings: dict[str, Any],
    launch: Callable[[dict[str, Any], Planned], RunResult],
) -> Sweep:
    """Run the benchmark once with each of `budgets`; a stop ends the sweep."""
    points: list[Point] = []
    status = 0
    for budget in budgets:
        # Its own budget and no other: nothing learned, nothing smaller after it.
        plan = planned.plan.with_budget(budget, "--sweep", "sweep")
        result = launch(
            settings | {"budget": budget, "retries": 0}, replace(planned, plan=plan, request=None)
        )
        status = result.exit_status
        if not result.attempts or result.attempts[-1].judgement.verdict is Verdict.STOPPED:
            return Sweep(tuple(points), status, is_complete=False)
        points.append(point_of(result))
    return Sweep(tuple(points), 0 if any(point.succeeded for point in points) else status)


def point_of(result: RunResult) -> Point:
    """What a run with one attempt says."""
    attempt = result.attempts[-1]
    evidence = attempt.evidence
    rate = evidence.rate
    if rate is None and evidence.duration_s > 0:
        rate = 1 / evidence.duration_s
    return Point(
        budget_bytes=attempt.budget_bytes,
        verdict=attempt.judgement.verdict.value,
        succeeded=result.succeeded,
        out_of_memory=attempt.judgement.calls_for_less,
        rate=rate if result.succeeded else None,
        is_measured=evidence.rate is not None,
        peak_bytes=evidence.peak_bytes,
        duration_s=evidence.duration_s,
    )
