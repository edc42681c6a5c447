"""The first allocation that wastes least, from what earlier runs took.

After B. Tovar, R. Ferreira da Silva, G. Juve, E. Deelman, W. Allcock, D. Thain, M. Livny: "A Job
Sizing Strategy for High-Throughput Scientific Workflows", IEEE TPDS 29(2), 2018: minimise
``a1 * E[tau] + amax * E[tau * 1(peak > a1)]``. Here the allocation is the margin that is left to
the program beside its budget, a peak is what a run took of it, and amax is all there is: a run
that dies has held everything, for nothing.
Not covered: which runs are samples, see `adaptive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run took beside its budget."""

    bytes: int
    seconds: float
    """tau: how long it ran."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Need:
    """What is known of the margin that one run needed: more than `above_bytes`, at most `most_bytes`."""

    above_bytes: int
    most_bytes: int
    """The same: it was measured."""
    seconds: float
    weight: float = 1.0

    @property
    def is_measured(self) -> bool:
        """Not only bounds are known."""
        return self.above_bytes == self.most_bytes


TREND = 1.0
"""Below this ratio a series moves rather than scatters."""
SHORTEST_SERIES = 10


def samples_of(needs: Sequence[Need], varies_bytes: int) -> tuple[Sample, ...]:
    """What the next run may need, from what earlier ones did, oldest first.

    Where the series moves: its last value with each of its steps. Where it scatters: its values; one of
    which only bounds are known is shared among the measured ones between these bounds, one step of the
    estimator for interval-censored data (B. Turnbull, JRSS B 38, 1976). `varies_bytes` is how
    much a run needs at least beyond one that died.
    """
    series = [
        Sample(min(need.most_bytes, need.above_bytes + varies_bytes), need.seconds, need.weight)
        for need in needs
    ]
    if is_trend([sample.bytes for sample in series]):
        last = series[-1].bytes
        return tuple(
            Sample(max(0, last + after.bytes - before.bytes), after.seconds, after.weight)
            for before, after in pairwise(series)
        )
    measured = [Sample(need.most_bytes, need.seconds, need.weight) for need in needs if need.is_measured]
    bounded = [need for need in needs if not need.is_measured]
    return (*measured, *(part for need in bounded for part in _shared(need, measured)))


def is_trend(series: Sequence[int]) -> bool:
    """Whether each value says more about the next one than all of them together do.

    By the ratio of J. von Neumann ("Distribution of the Ratio of the Mean Square Successive
    Difference to the Variance", 1941): about 2 where values are independent, near 0 where they drift.
    """
    if len(series) < SHORTEST_SERIES:
        return False
    mean = sum(series) / len(series)
    variance = sum((value - mean) ** 2 for value in series) / len(series)
    steps = sum((after - before) ** 2 for before, after in pairwise(series)) / (len(series) - 1)
    return steps < TREND * variance


def _shared(need: Need, measured: Sequence[Sample]) -> list[Sample]:
    within = [other for other in measured if need.above_bytes < other.bytes <= need.most_bytes]
    if not within:
        return [Sample(need.most_bytes, need.seconds, need.weight)]
    part = need.weight / len(within)
    return [Sample(other.bytes, need.seconds, part) for other in within]


def first_allocation(samples: Sequence[Sample], largest_bytes: int) -> int:
    """The margin a1, one of the samples, with the least expected waste; of equals the largest.

    `samples` is not empty; `largest_bytes` is amax.
    """
    ordered = sorted(samples, key=lambda sample: sample.bytes)
    # Both expectations share their denominator, which changes no order.
    everything = sum(sample.weight * sample.seconds for sample in ordered)
    above = everything
    best, least = ordered[-1].bytes, float("inf")
    for position, sample in enumerate(ordered):
        above -= sample.weight * sample.seconds
        if position + 1 < len(ordered) and ordered[position + 1].bytes == sample.bytes:
            continue
        waste = sample.bytes * everything + largest_bytes * max(0.0, above)
        if waste <= least:
            best, least = sample.bytes, waste
    return best
