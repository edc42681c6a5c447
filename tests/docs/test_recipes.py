"""Every recipe starts its program with a budget: the knob exists and takes what it is given."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
ROW = re.compile(r"^\| (?P<program>[^|]+?) \| `(?P<command>[^`]+)` \|", re.MULTILINE)
RECIPES = {match["program"]: shlex.split(match["command"]) for match in ROW.finditer(PAGE.read_text())}


def test_the_page_has_recipes() -> None:
    assert len(RECIPES) >= 5


@pytest.mark.parametrize("program", RECIPES)
def test_recipe(program: str) -> None:
    command = RECIPES[program]
    executable = next(word for word in command if "=" not in word and word != "env")
    if executable == "python3":
        command = [sys.executable if word == "python3" else word for word in command]
    elif shutil.which(executable) is None:
        pytest.skip(f"{executable} is not installed")
    settings = ["--budget", "256MiB", "--no-leaf", "--history", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "run", *settings, "--", *command],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
