"""The simulation of `benchmarks/policies`, shortened: the promise of the default policy holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from policies.charts import chart
from policies.contestants import CONTESTANTS, Adaptive, Forgetful
from policies.simulate import Score, best, front, on_front, play, simulate, table
from policies.worlds import WORLDS, Program, Run, program


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Score]]:
    return simulate(programs=12, runs=100)


def test_adaptive_is_on_the_pareto_front_everywhere_and_best_mostly(
    results: dict[str, dict[str, Score]],
) -> None:
    assert {world: "adaptive" in front(scores) for world, scores in results.items()} == dict.fromkeys(
        WORLDS, True
    ), table(results)
    assert sum(best(scores) == "adaptive" for scores in results.values()) >= 3, table(results)


def test_adaptive_loses_hardly_any_run(results: dict[str, dict[str, Score]]) -> None:
    for scores in results.values():
        assert scores["adaptive"].success_rate > 0.999, table(results)


def test_every_policy_meets_the_same_runs(results: dict[str, dict[str, Score]]) -> None:
    for scores in results.values():
        assert {score.runs for score in scores.values()} == {1200}
        assert len({score.possible for score in scores.values()}) == 1
    assert program("wide", 7, 5) == program("wide", 7, 5) != program("wide", 8, 5)


def test_the_score_of_a_run_is_what_the_yardstick_says() -> None:
    run = Run(overhead=20_000, seconds=10.0, death_at=0.5)
    start = Forgetful("shrink:10%").first()
    score = play(Forgetful("shrink:10%"), Program((run,), full_of_cache=True))
    second, third = start * 9 // 10, start * 81 // 100
    assert (score.runs, score.lived, score.ooms) == (1, 1, 2)
    assert score.wasted == pytest.approx((start + second) * 5.0 + (80_000 - third) * 10.0, rel=1e-4)
    assert score.possible == 80_000 * 10.0
    given_up = play(Forgetful("margin:50%"), Program((run,), full_of_cache=True))
    assert (given_up.lived, given_up.ooms) == (0, 4)
    assert given_up.wasted > 80_000 * 10.0


def test_a_program_that_never_changes_is_learned_by_heart() -> None:
    score = play(Adaptive(), Program((Run(9_000, 60.0, 1.0),) * 100, full_of_cache=True))
    assert score.lived == 100
    assert score.ooms <= 4
    assert score.budget_ratio > 0.95


def test_nobody_is_on_the_front_who_is_worse_in_everything() -> None:
    good = Score(runs=10, lived=10, ooms=1, ratios=9.5, wasted=1.0, possible=10.0)
    poor = Score(runs=10, lived=9, ooms=2, ratios=8.0, wasted=2.0, possible=10.0)
    other = Score(runs=10, lived=9, ooms=0, ratios=8.0, wasted=3.0, possible=10.0)
    scores = {"good": good, "poor": poor, "other": other}
    assert [on_front(name, scores) for name in scores] == [True, False, True]
    assert best(scores) == "good"


def test_a_chart_names_every_policy(results: dict[str, dict[str, Score]]) -> None:
    drawing = ET.fromstring(chart("wide", results["wide"], front(results["wide"])))  # noqa: S314
    texts = {element.text for element in drawing.iter() if element.text}
    assert set(CONTESTANTS) <= texts
