"""The budget from what the launcher passed, or from the limits: the numbers of `oomproof plan --no-probe`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oomproof.errors import ConfigError, PlanError
from oomproof.limits import detect_limits
from oomproof.limits.model import LimitReport, Status
from oomproof.memory import MemoryBudget
from oomproof.memory.environment import planned_bytes
from oomproof.plan.budget import plan_budget
from oomproof.units import GIB, MIB

MACHINES = sorted(path.parent for path in (Path(__file__).parents[2] / "fixtures/limits").glob("*/proc"))


@pytest.mark.parametrize(("passed", "total"), [("4096", 4096), ("229638144", 229638144), ("8GiB", 8 * GIB)])
def test_what_the_launcher_passed_is_the_total(passed: str, total: int) -> None:
    assert MemoryBudget.from_environment({"OOMPROOF_BUDGET_BYTES": passed}).total_bytes == total


@pytest.mark.parametrize("passed", ["much", "-1", "1e9"])
def test_a_broken_variable_is_named_and_not_passed_over(passed: str) -> None:
    with pytest.raises(ConfigError, match=r"OOMPROOF_BUDGET_BYTES: '.*' is not a size"):
        MemoryBudget.from_environment({"OOMPROOF_BUDGET_BYTES": passed})


@pytest.mark.parametrize("environ", [{}, {"OOMPROOF_BUDGET_BYTES": ""}])
def test_without_the_launcher_it_plans_by_itself(environ: dict[str, str]) -> None:
    budget = MemoryBudget.from_environment(environ, name="planned")
    limits = detect_limits()
    most = min(one for one in (limits.limit_bytes, limits.host_total_bytes) if one is not None)
    assert 0 < budget.total_bytes < most
    assert budget.name == "planned"


def test_there_are_machines() -> None:
    assert len(MACHINES) > 20


@pytest.mark.parametrize("machine", MACHINES, ids=lambda path: path.name)
def test_it_plans_what_the_launcher_would_plan(machine: Path) -> None:
    limits = detect_limits(machine)
    try:
        planned = plan_budget(limits).budget_bytes
    except PlanError:
        with pytest.raises(PlanError):
            planned_bytes(limits)
    else:
        assert planned_bytes(limits) == planned


def test_nothing_known_and_nothing_left_are_errors_that_say_what_to_do() -> None:
    unknown = LimitReport(Status.UNKNOWN, None, None, None, None, ())
    with pytest.raises(PlanError, match="state it with OOMPROOF_BUDGET_BYTES"):
        planned_bytes(unknown)
    with pytest.raises(PlanError, match="nothing is left"):
        planned_bytes(replace(unknown, limit_bytes=GIB, available_bytes=0))
    assert planned_bytes(replace(unknown, limit_bytes=GIB)) == GIB - 32 * MIB


def test_the_program_that_run_starts_gets_its_budget() -> None:
    program = "from oomproof.memory import MemoryBudget; print(MemoryBudget.from_environment().total_bytes)"
    run = ["-m", "oomproof", "run", "--budget", "64MiB", "--no-leaf", "--history", "none", "--"]
    command = [sys.executable, *run, sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(64 * MIB)), done.stderr


def test_the_limits_are_read_only_where_they_are_asked_for() -> None:
    program = (
        "import sys; from oomproof.memory import MemoryBudget\n"
        "MemoryBudget(100).reserve(50, owner='a').release()\n"
        "from oomproof.limits import detect\n"
        "print(detect._found, 'asyncio' in sys.modules)\n"
        "MemoryBudget.from_environment({}); print(len(detect._found))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "OOMPROOF_BUDGET_BYTES"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stdout.split("\n")[:2] == ["[] False", "1"]
