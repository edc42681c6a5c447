"""What the project promises about itself: no dependency, a light start, a complete lock, small modules."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "oomproof"
MODULES = sorted(PACKAGE.rglob("*.py"))
REQUIREMENTS = ROOT / "requirements"

# About 400: no one counts while writing.
MAX_LINES = 420
# Each would cost the launcher megabytes, beside the program whose memory it looks after.
HEAVY = {"asyncio", "concurrent.futures", "http", "multiprocessing", "subprocess", "urllib.request"}

# What needs an extra, and where alone it may be imported.
EXTRAS = {"psycopg": "src/oomproof/history/fleet.py"}


def imported_packages(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(), module)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            yield (node.module or "").partition(".")[0]


def test_the_package_imports_the_standard_library_only() -> None:
    foreign = {
        f"{module.relative_to(ROOT)} imports {package}"
        for module in MODULES
        for package in imported_packages(module)
        if package != "oomproof" and package not in sys.stdlib_module_names
        if EXTRAS.get(package) != str(module.relative_to(ROOT))
    }
    assert not foreign


def test_the_package_has_no_runtime_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []


@pytest.mark.parametrize("verb", ["run", "entrypoint", "check"])
def test_a_verb_that_may_be_pid_1_loads_nothing_heavy(verb: str) -> None:
    code = f"import json, sys; import oomproof.cli.{verb}; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert HEAVY.isdisjoint(json.loads(loaded))


def test_a_start_without_a_recipe_loads_nothing_of_recipes() -> None:
    code = (
        "import json, sys; from oomproof.cli import main;"
        "main(['run', '--no-leaf', '--history', 'none', '--quiet', '--', 'true']);"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    recipes = {name for name in json.loads(loaded) if name.startswith("oomproof.recipes")}
    assert recipes | {"fractions", "tomllib"} & set(json.loads(loaded)) == set()


def test_the_rooms_import_each_other_downwards_only() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint_imports, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_modules_stay_small() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("src", "tests", "demo", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := path.read_text().count("\n")) > MAX_LINES
    }
    assert not too_long


def pins(lock: Path) -> dict[str, str]:
    """What a lock pins: the lines of each requirement, hashes included, by normalised name."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", lock.read_text()):
        if match := re.match(r"([A-Za-z0-9._-]+)==", block):
            found[match[1].lower().replace("_", "-")] = block
    return found


@pytest.mark.parametrize("name", ["demo", "dev", "recipes"])
def test_the_lock_pins_every_requirement_with_hashes_and_names_no_registry(name: str) -> None:
    lock = REQUIREMENTS / f"{name}.txt"
    locked = pins(lock)
    asked_for = re.findall(r"^[a-z][a-z0-9-]*", (REQUIREMENTS / f"{name}.in").read_text(), re.MULTILINE)
    assert asked_for
    assert set(asked_for) <= set(locked)
    assert all("--hash=sha256:" in block for block in locked.values())
    assert "://" not in lock.read_text()


def test_the_demo_runs_with_what_the_tests_run_with() -> None:
    development = pins(REQUIREMENTS / "dev.txt")
    for package, block in pins(REQUIREMENTS / "demo.txt").items():
        assert development[package].splitlines()[0] == block.splitlines()[0]


def test_changelog_fragments_have_a_type_that_the_changelog_knows() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    types = "|".join(kind["directory"] for kind in settings["type"])
    names = [path.name for path in (ROOT / settings["directory"]).iterdir() if path.name != "README.md"]
    assert [name for name in names if not re.fullmatch(rf"\+[a-z0-9-]+\.({types})\.md", name)] == []
