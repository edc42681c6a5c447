"""A million runs for each policy, and what became of them.

Waste, by which "best" is judged, was fixed before the first result: of the byte-seconds that
somebody who knows each run's overhead would have put to use (its largest living budget times its
time), those that the policy did not, and all that its failed attempts held:

    waste = sum over failed attempts of  budget * time until death
          + sum over runs that lived of  (best - budget) * time
          + sum over runs given up of    best * time

as a part of ``sum over runs of best * time``. A policy is on the Pareto front where no other is at
least as good in success rate, OOM kills, budget and waste, and better in one.

    python -m policies.simulate [--programs 1000] [--runs 200] [--full-of-cache 0.3] [--out DIR]

in `benchmarks`. Simulations of a hundredth of the size were used to improve ``adaptive``, with other
programs than those here (other seeds).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from policies.charts import chart
from policies.contestants import CONTESTANTS, RETRIES, Contestant, End
from policies.worlds import FULL_OF_CACHE, WORLDS, Program, program

FIRST_SEED = 100_000


@dataclass(slots=True)
class Score:
    """Sums over runs; sizes in MiB, times in seconds."""

    runs: int = 0
    lived: int = 0
    ooms: int = 0
    ratios: float = 0.0
    """final / best budget, over the runs that lived."""
    wasted: float = 0.0
    possible: float = 0.0

    def add(self, other: Score) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def success_rate(self) -> float:
        return self.lived / self.runs

    @property
    def ooms_per_run(self) -> float:
        return self.ooms / self.runs

    @property
    def budget_ratio(self) -> float:
        return self.ratios / self.lived if self.lived else 0.0

    @property
    def waste(self) -> float:
        return self.wasted / self.possible

    def measures(self) -> tuple[float, float, float, float]:
        """More is better in each."""
        return (self.success_rate, -self.ooms_per_run, self.budget_ratio, -self.waste)


def play(contestant: Contestant, world: Program) -> Score:
    """All runs of one program, one after another."""
    score = Score()
    for run in world.runs:
        score.runs += 1
        score.possible += run.best * run.seconds
        died: list[int] = []
        budget: int | None = contestant.first()
        while budget is not None and budget > run.best:
            score.wasted += budget * run.seconds * run.death_at
            died.append(budget)
            budget = contestant.after(died) if len(died) <= RETRIES else None
        score.ooms += len(died)
        if budget is None:
            score.wasted += run.best * run.seconds
        else:
            score.lived += 1
            score.ratios += budget / run.best
            score.wasted += (run.best - budget) * run.seconds
        contestant.ended(End(died, budget, world.peak(run, budget or 0), run.seconds))
    return score


def play_all(task: tuple[str, int, int, int, float]) -> dict[str, Score]:
    """Every contestant in the programs ``first`` to ``last`` of a world."""
    world, first, last, runs, full_of_cache = task
    scores = {name: Score() for name in CONTESTANTS}
    for seed in range(first, last):
        played = program(world, seed, runs, full_of_cache)
        for name, contestant in CONTESTANTS.items():
            scores[name].add(play(contestant(), played))
    return scores


def simulate(
    programs: int, runs: int, *, full_of_cache: float = FULL_OF_CACHE, processes: int = 1
) -> dict[str, dict[str, Score]]:
    """Scores by world and contestant; `programs` of each world, each run `runs` times."""
    step = max(1, programs // 20)
    tasks = [
        (world, first, min(first + step, FIRST_SEED + programs), runs, full_of_cache)
        for world in WORLDS
        for first in range(FIRST_SEED, FIRST_SEED + programs, step)
    ]
    results = {world: {name: Score() for name in CONTESTANTS} for world in WORLDS}
    with multiprocessing.Pool(processes) as pool:
        for task, scores in zip(tasks, pool.imap(play_all, tasks), strict=True):
            for name, score in scores.items():
                results[task[0]][name].add(score)
    return results


def on_front(name: str, scores: dict[str, Score]) -> bool:
    """Whether no other is at least as good in everything, and better in something."""
    own = scores[name].measures()
    return not any(
        all(theirs >= ours for theirs, ours in zip(other.measures(), own, strict=True))
        and other.measures() != own
        for other in scores.values()
    )


def front(scores: dict[str, Score]) -> frozenset[str]:
    """Who is on it."""
    return frozenset(name for name in scores if on_front(name, scores))


def best(scores: dict[str, Score]) -> str:
    """The contestant that wastes least."""
    return min(scores, key=lambda name: scores[name].waste)


def table(results: dict[str, dict[str, Score]]) -> str:
    """For people."""
    lines = []
    for world, scores in results.items():
        lines.append(f"{world:10} {'success':>9} {'OOM/run':>8} {'budget/best':>12} {'waste':>8}  front")
        for name, score in sorted(scores.items(), key=lambda item: item[1].waste):
            lines.append(
                f"  {name:17}{score.success_rate:7.2%} {score.ooms_per_run:8.3f} {score.budget_ratio:12.1%}"
                f" {score.waste:8.1%}  {'yes' if on_front(name, scores) else '-'}"
            )
    return "\n".join(lines)


def as_json(results: dict[str, dict[str, Score]]) -> dict[str, object]:
    """For programs."""
    return {
        world: {
            name: {
                "runs": score.runs,
                "success_rate": score.success_rate,
                "ooms": score.ooms,
                "budget_ratio": score.budget_ratio,
                "waste": score.waste,
                "on_front": on_front(name, scores),
                "best": best(scores) == name,
            }
            for name, score in scores.items()
        }
        for world, scores in results.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="A million runs for each policy.")
    parser.add_argument("--programs", type=int, default=1000, help="of each world (default: 1000)")
    parser.add_argument("--runs", type=int, default=200, help="of each program (default: 200)")
    parser.add_argument(
        "--full-of-cache",
        type=float,
        default=FULL_OF_CACHE,
        help="part of the programs whose peak tells nothing",
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write results.json and a chart of each world here")
    args = parser.parse_args()
    results = simulate(args.programs, args.runs, full_of_cache=args.full_of_cache, processes=args.processes)
    print(table(results))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "results.json").write_text(json.dumps(as_json(results), indent=2) + "\n")
        for world, scores in results.items():
            (args.out / f"{world}.svg").write_text(chart(world, scores, front(scores)))
    wins = sum(best(scores) == "adaptive" for scores in results.values())
    everywhere = all(on_front("adaptive", scores) for scores in results.values())
    where = "everywhere" if everywhere else "not everywhere"
    print(f"adaptive: best in {wins} of {len(results)}, on the front {where}")
    return 0 if everywhere and wins >= 3 else 1


if __name__ == "__main__":
    sys.exit(main())
