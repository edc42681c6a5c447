"""One empty machine for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.limits.machines import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    root = tmp_path / "machine"
    root.mkdir()
    return Machine(root)
