"""The demo, with a quarter of its memory and rows: a real program, killed and brought back."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rigs.own_cgroup import leaf_problem
from rigs.pytest_worlds import need

DEMO = Path(__file__).parents[2] / "demo" / "run.py"


def demo(*wrapper: str) -> subprocess.CompletedProcess[str]:
    command = [*wrapper, sys.executable, str(DEMO), "--share", "0.25"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.timeout(600)
def test_the_demo_is_killed_once_and_ends_with_the_right_answer() -> None:
    need(leaf_problem())
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    attempts = re.findall(r"attempt \d: budget (\d+) MiB, .*: (\w+)$", done.stdout, re.MULTILINE)
    assert attempts[0] == ("250", "oom_kill")
    assert attempts[-1][1] == "exited"
    assert int(attempts[-1][0]) < 250
    assert "the right answer: {'rows': 1750000" in done.stdout
    kills = [verdict for _, verdict in attempts].count("oom_kill")
    logged = done.stdout.count("Killed process")
    assert logged == kills or "the kernel's log cannot be read here" in done.stdout


@pytest.mark.timeout(600)
def test_without_the_right_to_make_cgroups_the_demo_says_so_and_works(
    read_only_cgroupfs: tuple[str, ...],
) -> None:
    done = demo(*read_only_cgroupfs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without a forced kill: no cgroup can be made" in done.stdout
    assert "attempt 1: budget 250 MiB" in done.stdout
    assert "the right answer: {'rows': 1750000" in done.stdout
