"""The examples of docs/memory.md run as they stand, one after another, and print what their comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import oomproof.memory

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


def test_the_examples_print_what_the_page_says() -> None:
    said = [words for block in BLOCKS for words in PRINTED.findall(block)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "".join(BLOCKS)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = done.stdout.splitlines()
    assert len(printed) == len(said) == "".join(BLOCKS).count("print(")
    for line, words in zip(printed, said, strict=True):
        expected, dots, _ = words.partition("...")
        assert line.startswith(expected) if dots else line == expected


def test_every_class_of_the_budget_has_a_section() -> None:
    for name in ("MemoryBudget", "Reservation", "Evictable", "BudgetStatistics"):
        assert hasattr(oomproof.memory, name)
        assert f"\n## {name}\n" in PAGE.read_text()


def test_the_example_of_the_readme() -> None:
    readme = PAGE.parents[1] / "README.md"
    (example,) = re.findall(r"^```python\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", example], timeout=100, check=True)
