"""The examples of the page run as they stand, one after another, and print what their comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "pinned-memory.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "".join(BLOCKS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["67108864"] * 3
    drift = re.fullmatch(r"Drift\(name='unaccounted_heap', bytes=(\d+)\)", lines[-1])
    assert drift is not None
    assert abs(int(drift[1]) - (96 << 20)) < 16 << 20


def test_every_class_has_an_example() -> None:
    examples = "".join(BLOCKS)
    for name in ("PinnedPool(", "load(", "Reconciler("):
        assert name in examples
