"""All these tests are one process, which would hold the lock of every run that it ever began."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.history import alive


@pytest.fixture(autouse=True)
def locks_end_with_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    held: list[int] = []
    hold = alive.hold

    def hold_for_now(history: Path, run_id: int) -> int:
        held.append(hold(history, run_id))
        return held[-1]

    monkeypatch.setattr(alive, "hold", hold_for_now)
    yield
    for fd in held:
        os.close(fd)
