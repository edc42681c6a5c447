"""Every command of the README and of docs/readiness.md is run, in the order of the page, as by a reader.

The two that set up the project (``make demo``, ``make test``) cannot run inside themselves:
the demo has a test of its own, and this file is run by the other.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rigs.own_cgroup import leaf_problem
from rigs.pytest_worlds import need

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "readiness.md")
SET_UP = ("make demo", "make test")
PORT = "8391"
"""The port in the examples; the tests take one that is free."""


def commands(page: Path = README) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines), "a console block holds commands and nothing else"
    return [line.removeprefix("$ ") for line in lines]


RUNNABLE = [command for command in commands() if command not in SET_UP]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which one command finds what the one before has written."""
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.parametrize(
    "command", [command for page in PAGES for command in commands(page) if command not in SET_UP]
)
def test_command_of_the_pages(command: str, reader: Path, port: str) -> None:
    need(leaf_problem())
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(reader)}
    done = subprocess.run(
        ["bash", "-c", command.replace(PORT, port)],
        cwd=reader,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_program_that_the_readme_says_is_killed_is_killed_once(tmp_path: Path) -> None:
    need(leaf_problem())
    [command] = [command for command in RUNNABLE if "fits now" in command]
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, check=False)
    assert "attempt 1: oom_kill (certain)" in done.stderr
    assert "attempt 2: exited" in done.stderr
    assert done.stdout.startswith("fits now: ")


def test_the_readme_shows_every_verb() -> None:
    from oomproof.cli import VERBS

    shown = {word for command in commands() for word in re.findall(r"oomproof ([a-z]+)", command)}
    assert set(VERBS) <= shown


def test_the_commands_that_set_up_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in SET_UP:
        assert command in commands()
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
