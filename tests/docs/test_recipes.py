"""Every command of the page does what it says, where its program is installed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from oomproof.recipes.load import BUNDLED, read
from rigs.own_cgroup import leaf_problem
from rigs.pytest_worlds import need

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
ROW = re.compile(r"^\| `(?P<recipe>[a-z-]+)` \| `(?P<command>[^`]+)` \|", re.MULTILINE)
ROWS = {match["recipe"]: match["command"] for match in ROW.finditer(PAGE.read_text())}
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
LINES = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]
FILES = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "cuzk.toml").write_text("[memory]\ntotal_budget = 'auto'\n")
    # cat has no --config of its own.
    (folder / "cat").write_text('#!/bin/sh\n[ "$1" = --config ] && shift\nexec /bin/cat "$@"\n')
    (folder / "cat").chmod(0o755)
    return folder


def run(command: str, reader: Path) -> str:
    """As a reader would, in one folder for all commands; skips where the program is not installed."""
    need(leaf_problem())
    packages = Path(sys.prefix, "programs", "bin")  # of `make programs`
    search = f"{reader}:{Path(sys.executable).parent}:{os.environ['PATH']}:{packages}"
    program = shlex.split(command.partition(" -- ")[2])[:1]
    if program and shutil.which(program[0], path=search) is None:
        pytest.skip(f"{program[0]} is not installed")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=reader,
        env={"PATH": search, "HOME": str(reader)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_page_has_every_recipe() -> None:
    assert set(ROWS) == {path.stem for path in BUNDLED.glob("*.toml")}


@pytest.mark.parametrize("recipe", ROWS)
def test_recipe_of_the_page(recipe: str, reader: Path) -> None:
    said = run(ROWS[recipe], reader)
    if recipe == "cuzk":
        assert re.fullmatch(r'\[memory\]\ntotal_budget = "\d+MiB"\n', said)
    if recipe == "vllm":
        assert "VLLM_CPU_KVCACHE_SPACE=28" in said


@pytest.mark.parametrize("line", LINES)
def test_line_of_the_page(line: str, reader: Path) -> None:
    said = run(line, reader)
    if line.endswith("cat wrapper.conf"):
        assert re.fullmatch(r"wrapper.java.maxmemory=\d+\ncache=0.468g\n", said)


@pytest.mark.parametrize("content", FILES)
def test_a_file_of_the_page_is_a_recipe(content: str, tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(content)
    recipe = read(path)
    assert recipe.compute(4 << 30, 2)
    assert tomllib.loads(content)["summary"] == recipe.summary


def test_a_recipe_in_the_users_folder_is_found_and_used(reader: Path) -> None:
    folder = reader / ".config" / "oomproof" / "recipes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.toml").write_text(FILES[0].replace('"engine"', '"echo"'))
    said = run("oomproof run --limit 2GiB --history none --recipe engine -- echo done", reader)
    assert re.fullmatch(r"--cache \d+M done\n", said)
    assert "engine" in run("oomproof recipes", reader)
