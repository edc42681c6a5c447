"""The policies that compete: a budget for each attempt, from what they remember of earlier ones.

``adaptive`` is `oomproof.plan.adaptive` itself, not a copy. Those of the field forget (a script that
takes 10 % less each time, a margin that grows by half, halving) or remember as their papers and
sources say. All start from the same plan and have three retries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from oomproof.history.model import Observation
from oomproof.limits.margin import default_margin_floor
from oomproof.plan import adaptive
from oomproof.plan.budget import learned_margin_floor
from oomproof.plan.descent import next_budget, parse_policy
from oomproof.plan.first_allocation import Sample, first_allocation
from oomproof.plan.model import LearnedOverhead, Plan, Term
from policies.worlds import ALLOWED

RETRIES = 3
MIB = 1 << 20


def plan_of(learned: LearnedOverhead | None = None) -> Plan:
    """What `oomproof.plan.budget.plan_budget` makes of check alone."""
    allowed = ALLOWED * MIB
    margin = default_margin_floor(allowed)
    if learned is not None:
        margin = learned.bytes + learned_margin_floor(allowed)
    return Plan((Term("available", allowed, "check"), Term("margin", -margin, "plan")), probed=False)


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended."""

    died: Sequence[int]
    """Budgets, in order."""
    lived: int | None
    peak: int
    """Of the attempt that lived."""
    seconds: float


class Contestant(Protocol):
    """One policy and what it remembers of one program. Sizes are MiB."""

    def first(self) -> int:
        """The budget of a run's first attempt."""
        ...

    def after(self, died: Sequence[int]) -> int | None:
        """The budget after these died in this run; None: it gives up."""
        ...

    def ended(self, end: End) -> None:
        """How the run ended."""
        ...


class Adaptive:
    """oomproof's default."""

    def __init__(self) -> None:
        self._seen: list[Observation] = []
        self._hours = 0

    def first(self) -> int:
        self._now = [
            Observation(
                seen.budget_bytes,
                seen.lived,
                seen.peak_bytes,
                seen.duration_s,
                self._hours * 3600.0 - seen.age_s,
                seen.after_oom,
            )
            for seen in self._seen[-256:]
        ]
        self._plan = plan_of(adaptive.learned_overhead(ALLOWED * MIB, self._now))
        self._bounds = adaptive.bounds_of(self._plan)
        self._lessons = adaptive.lessons_of(self._plan, self._now)
        return (
            adaptive.first_budget(self._plan, self._bounds, self._lessons, retries=RETRIES).budget_bytes
            // MIB
        )

    def after(self, died: Sequence[int]) -> int | None:
        budget = adaptive.next_budget(
            self._plan,
            self._bounds,
            self._lessons,
            [size * MIB for size in died],
            retries_left=RETRIES - len(died) + 1,
        )
        return None if budget is None else budget // MIB

    def ended(self, end: End) -> None:
        # Their age is kept as the moment of their end, and made an age when it is asked for.
        moment = self._hours * 3600.0
        self._hours += 1
        for position, size in enumerate(end.died):
            self._seen.append(
                Observation(size * MIB, False, ALLOWED * MIB, end.seconds, moment, after_oom=position > 0)
            )
        if end.lived is not None:
            self._seen.append(
                Observation(
                    end.lived * MIB, True, end.peak * MIB, end.seconds, moment, after_oom=bool(end.died)
                )
            )


class Forgetful:
    """``shrink:10%``, ``margin:50%``, halving: each run for itself."""

    def __init__(self, policy: str) -> None:
        self._policy = parse_policy(policy)
        self._plan = plan_of()

    def first(self) -> int:
        return self._plan.budget_bytes // MIB

    def after(self, died: Sequence[int]) -> int | None:
        budget = next_budget(self._policy, self._plan, died[-1] * MIB)
        return None if budget is None else budget // MIB

    def ended(self, end: End) -> None:
        pass


class Bump:
    """Kubernetes' vertical pod autoscaler: what is reserved is a percentile of the decaying peaks plus
    15 %, and after an OOM the peak counts as 1.2 times what it was, at least 100 MiB more.

    The reservation is here the margin. Source: the autoscaler's recommender (OOMBumpUpRatio 1.2,
    OOMMinBumpUp 100 MiB, memory half-life 24 h, 95th percentile, safety margin 15 %).
    """

    def __init__(self) -> None:
        self._samples: list[int] = []

    def first(self) -> int:
        self._margin = default_margin_floor(ALLOWED * MIB) // MIB
        if self._samples:
            weights = [0.5 ** ((len(self._samples) - 1 - at) / 24) for at in range(len(self._samples))]
            left, total = 0.0, sum(weights)
            for size, weight in sorted(zip(self._samples, weights, strict=True)):
                left += weight
                if left >= 0.95 * total:
                    self._margin = round(size * 1.15)
                    break
        return max(ALLOWED // 4, ALLOWED - self._margin)

    def after(self, died: Sequence[int]) -> int | None:  # noqa: ARG002  it counts what it reserves
        self._margin = max(round(self._margin * 1.2), self._margin + 100)
        self._samples.append(self._margin)
        return max(ALLOWED // 4, ALLOWED - self._margin)

    def ended(self, end: End) -> None:
        if end.lived is not None:
            self._samples.append(max(0, end.peak - end.lived))
        del self._samples[:-200]


class FirstAllocation:
    """Tovar et al.: the margin that wastes least by all peaks so far; after a death all there is."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._floor = plan_of().budget_bytes // MIB // 4

    def first(self) -> int:
        if not self._samples:
            return plan_of().budget_bytes // MIB
        return max(self._floor, ALLOWED - first_allocation(self._samples, ALLOWED))

    def after(self, died: Sequence[int]) -> int | None:
        return self._floor if died[-1] > self._floor else None

    def ended(self, end: End) -> None:
        if end.lived is not None:
            self._samples.append(Sample(max(0, end.peak - end.lived), end.seconds))
        del self._samples[:-200]


CONTESTANTS: dict[str, Callable[[], Contestant]] = {
    "adaptive": Adaptive,
    "-10 % x3": lambda: Forgetful("shrink:10%"),
    "+50 % margin": lambda: Forgetful("margin:50%"),
    "halving": lambda: Forgetful("shrink:50%"),
    "x1.2 bump (VPA)": Bump,
    "first allocation": FirstAllocation,
}
