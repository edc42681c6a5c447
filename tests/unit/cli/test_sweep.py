"""Which budgets a sweep takes, where the knee is, and what is drawn of it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from oomproof.cli import main
from oomproof.cli.planning import Planned
from oomproof.cli.sweep import Point, Sweep, budgets_of
from oomproof.cli.sweep_chart import lines, shortened, svg
from oomproof.errors import UsageError
from oomproof.limits.model import LimitReport, Status
from oomproof.plan.model import Plan, Term
from oomproof.units import GIB, MIB

NO_WISH: dict[str, Any] = {"floor": None, "cap": None, "steps": ()}


def planned(allowed: int, budget: int) -> Planned:
    terms = (Term("available", allowed, "test"), Term("margin_floor", budget - allowed, "test"))
    limits = LimitReport(Status.UNKNOWN, None, None, None, None, ())
    return Planned(limits, None, Plan(terms, probed=False), None)


def point(budget: int, rate: float | None, *, out_of_memory: bool = False) -> Point:
    verdict = "exited" if rate is not None else "oom_kill" if out_of_memory else "signalled"
    return Point(budget, verdict, rate is not None, out_of_memory, rate, True, budget, 1.0)


SWEEP = Sweep(
    (
        point(256 * MIB, None),
        point(512 * MIB, 10.0),
        point(768 * MIB, 19.5),
        point(1024 * MIB, 20.0),
        point(1280 * MIB, None, out_of_memory=True),
    ),
    0,
)


def test_budgets_go_from_a_quarter_of_the_plan_to_all_there_is() -> None:
    assert budgets_of(planned(1000 * MIB, 800 * MIB), 5, NO_WISH) == [
        n * MIB for n in (200, 400, 600, 800, 1000)
    ]


def test_floor_cap_and_steps_bound_them() -> None:
    wishes = {"floor": 500 * MIB, "cap": 700 * MIB, "steps": ()}
    assert budgets_of(planned(GIB, GIB), 3, wishes) == [500 * MIB, 600 * MIB, 700 * MIB]
    steps = {**NO_WISH, "steps": (512 * MIB, GIB, 2 * GIB)}
    assert budgets_of(planned(3 * GIB, 2 * GIB), 9, steps) == [512 * MIB, GIB, 2 * GIB]
    with pytest.raises(UsageError, match="none of --steps"):
        budgets_of(planned(GIB, GIB), 2, {**NO_WISH, "steps": (2 * GIB,)})


def test_the_knee_is_the_smallest_budget_with_nearly_the_best_rate() -> None:
    assert SWEEP.knee == SWEEP.points[2]
    assert Sweep((point(MIB, None),), 137).knee is None
    assert SWEEP.as_json()["knee_bytes"] == 768 * MIB


def test_a_terminal_sees_bars_and_where_memory_ends() -> None:
    assert lines(SWEEP) == [
        "rate (as measured) by budget:",
        "256.00 MiB  signalled  x",
        "512.00 MiB         10  " + "#" * 20,
        "768.00 MiB       19.5  " + "#" * 39,
        "  1.00 GiB         20  " + "#" * 40,
        "  1.25 GiB        OOM  x",
        "from 768.00 MiB on, 95 % or more of the best rate (19.5)",
    ]
    assert lines(Sweep((point(MIB, None),), 137))[-1] == "no budget worked"


def test_a_sweep_that_was_stopped_says_so_and_blames_no_budget() -> None:
    before_the_first = Sweep((), 130, is_complete=False)
    assert lines(before_the_first)[1:] == ["stopped before its end"]
    later = Sweep(SWEEP.points[:2], 130, is_complete=False)
    assert lines(later)[-2:] == [
        "from 512.00 MiB on, 95 % or more of the best rate (10)",
        "stopped before its end",
    ]
    assert later.as_json()["complete"] is False
    assert SWEEP.as_json()["complete"] is True


def test_the_drawing_has_a_mark_for_each_budget() -> None:
    drawing = ET.fromstring(svg(SWEEP, "engine <&> {budget}"))  # noqa: S314
    texts = [element.text for element in drawing.iter() if element.text and element.text.strip()]
    assert "engine <&> {budget}" in texts
    assert "1.25 GiB" in texts
    name = "{http://www.w3.org/2000/svg}"
    circles = drawing.findall(f"{name}circle")
    crosses = [path for path in drawing.findall(f"{name}path") if path.get("stroke") == "#D55E00"]
    assert (len(circles), len(crosses)) == (4, 1)


def test_a_long_command_is_cut() -> None:
    assert shortened("x" * 80) == "x" * 80
    assert shortened("x" * 81) == "x" * 77 + "..."


def test_a_command_that_is_no_text_can_be_drawn() -> None:
    drawing = svg(SWEEP, "engine \x1b[0m \n \udcff")
    assert ET.fromstring(drawing.encode()) is not None  # noqa: S314


def test_a_sweep_in_which_nothing_worked_can_be_drawn() -> None:
    assert ET.fromstring(svg(Sweep((point(MIB, None),), 137), "x")) is not None  # noqa: S314
    assert ET.fromstring(svg(Sweep((), 130), "x")) is not None  # noqa: S314


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sweep", "1"], "not a number of budgets from 2 to 100"),
        (["--sweep", "x"], "not a number of budgets"),
        (["--sweep", "5", "--budget", "1GiB"], "--sweep takes many budgets and --budget one"),
        (["--svg", "x.svg"], "--svg draws what --sweep has measured"),
        (["--sweep", "2", "--svg", "/nowhere/x.svg"], "--svg /nowhere/x.svg"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--history", "none", *arguments, "--", "true"]) == 2
    assert complaint in capsys.readouterr().err
