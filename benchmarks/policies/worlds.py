"""Workloads of the simulation: how much each run of a program takes beside its budget.

A run lives when ``budget + overhead <= allowed``. What a policy may know of a run is its budget,
whether it lived, and the peak of its cgroup. In three of ten programs page cache fills all that is
allowed, so that the peak tells nothing.
Sizes are MiB, times seconds. Not covered: the policies, see `contestants`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ALLOWED = 100_000
FULL_OF_CACHE = 0.3
"""Part of the programs whose page cache fills all that is allowed."""
EARLIEST_DEATH = 0.1
"""A death comes after a part of the run's time that is uniform from here to all of it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program, before anybody chose its budget."""

    overhead: int
    seconds: float
    death_at: float
    """After which part of its time it dies, if it does."""

    @property
    def best(self) -> int:
        """The largest budget that lives."""
        return ALLOWED - self.overhead


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is run again and again."""

    runs: tuple[Run, ...]
    full_of_cache: bool

    def peak(self, run: Run, budget: int) -> int:
        """Of the cgroup, had the run lived with `budget`."""
        return ALLOWED if self.full_of_cache else min(ALLOWED, budget + run.overhead)


Overheads = Iterator[float]
"""As parts of what is allowed."""


def narrow(rng: random.Random) -> Overheads:
    """Nearly the same each time."""
    usual = rng.uniform(0.02, 0.15)
    while True:
        yield rng.gauss(usual, 0.005)


def wide(rng: random.Random) -> Overheads:
    """Anything up to a third or a half."""
    most = rng.uniform(0.3, 0.6)
    while True:
        yield rng.uniform(0.02, most)


def discrete(rng: random.Random) -> Overheads:
    """One of three kinds of input, each with its own overhead."""
    levels = [rng.uniform(0.01, 0.5) for _ in range(3)]
    chances = [rng.uniform(0.1, 1.0) for _ in range(3)]
    while True:
        yield rng.choices(levels, chances)[0] + rng.gauss(0, 0.001)


def noisy(rng: random.Random) -> Overheads:
    """Scattered, and now and then a neighbour takes a piece."""
    usual = rng.uniform(0.02, 0.2)
    while True:
        neighbour = rng.uniform(0.05, 0.3) if rng.random() < 0.03 else 0.0
        yield rng.gauss(usual, 0.03) + neighbour


def drifting(rng: random.Random) -> Overheads:
    """More from version to version, and now and then much less after somebody cleaned up."""
    level = rng.uniform(0.02, 0.15)
    while True:
        level += rng.uniform(0.0, 0.004)
        if level > 0.45 or rng.random() < 0.01:
            level = rng.uniform(0.02, 0.15)
        yield level + rng.gauss(0, 0.005)


WORLDS: dict[str, Callable[[random.Random], Overheads]] = {
    "wide": wide,
    "narrow": narrow,
    "discrete": discrete,
    "noisy": noisy,
    "drifting": drifting,
}


def program(world: str, seed: int, runs: int, full_of_cache: float = FULL_OF_CACHE) -> Program:
    """The program number `seed` of a world; every policy meets the same ones."""
    rng = random.Random(f"{world}/{seed}")
    overheads = WORLDS[world](rng)
    return Program(
        tuple(
            Run(
                min(ALLOWED * 74 // 100, max(0, round(next(overheads) * ALLOWED))),
                rng.lognormvariate(6, 0.5),
                rng.uniform(EARLIEST_DEATH, 1.0),
            )
            for _ in range(runs)
        ),
        rng.random() < full_of_cache,
    )
