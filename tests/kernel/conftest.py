"""Fixtures of the tests that make real cgroups and real kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.launching import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher whose every process is ended after the test, whatever happened."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.end()
