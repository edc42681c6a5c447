"""Known good and known bad: what the attempts of earlier runs say about budgets.

The bracket is folded anew from the attempts at each start, so it can be explained, forgotten and
imported as they can. Not covered: which budget to take, see `adaptive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from oomproof.history.model import Observation

CLOSED_PERCENT = 105
"""bad / good below which nothing is left to find out."""

HALF_LIFE_S = 24 * 3600.0
"""As the histograms of Kubernetes' vertical pod autoscaler decay by default."""
KEPT_SAMPLES = 10
"""So many of the newest attempts count for at least half, however rarely the program runs."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """good < bad, always. Sizes are bytes; None: nothing of the kind is known."""

    good_bytes: int | None
    """The largest budget that lives."""
    bad_bytes: int | None
    """The smallest budget above it that dies."""
    confidence: float
    """The share of what was seen that agrees: 1 when no attempt contradicts another."""

    @property
    def is_closed(self) -> bool:
        """Nothing worth knowing lies between the two."""
        if self.good_bytes is None or self.bad_bytes is None:
            return False
        return self.bad_bytes * 100 < self.good_bytes * CLOSED_PERCENT


def weights(observations: Sequence[Observation]) -> list[float]:
    """How much each attempt still counts, the newest 1; oldest first, as `observations`."""
    if not observations:
        return []
    # By their ages, not by their order: clocks are set back, and old runs are imported after newer ones.
    ages = sorted(seen.age_s for seen in observations)
    newest, tenth = ages[0], ages[min(KEPT_SAMPLES, len(ages)) - 1]
    half_life = max(HALF_LIFE_S, tenth - newest)
    return [0.5 ** ((seen.age_s - newest) / half_life) for seen in observations]


def bracket_of(observations: Sequence[Observation]) -> Bracket:
    """The split of the budgets into living and dying ones that contradicts the least of what was seen.

    Among equals the safest. Two attempts that contradict each other thus cost confidence, and
    can move an end of the bracket, but not invert it.
    """
    if not observations:
        return Bracket(None, None, 1.0)
    lived: dict[int, float] = {}
    died: dict[int, float] = {}
    for seen, weight in zip(observations, weights(observations), strict=True):
        side = lived if seen.lived else died
        side[seen.budget_bytes] = side.get(seen.budget_bytes, 0.0) + weight
    budgets = sorted({*lived, *died})
    died_up_to = [0.0, *accumulate(died.get(budget, 0.0) for budget in budgets)]
    lived_up_to = [0.0, *accumulate(lived.get(budget, 0.0) for budget in budgets)]
    against = [
        deaths + lived_up_to[-1] - lives for deaths, lives in zip(died_up_to, lived_up_to, strict=True)
    ]
    least = min(against)
    # Sums in another order differ in their last digits: equals must stay equal.
    split = next(i for i, weight in enumerate(against) if weight <= least * (1 + 1e-9) + 1e-12)
    good = max((budget for budget in budgets[:split] if budget in lived), default=None)
    bad = min((budget for budget in budgets[split:] if budget in died), default=None)
    return Bracket(good, bad, 1.0 - least / (died_up_to[-1] + lived_up_to[-1]))
