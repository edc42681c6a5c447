"""An engine that fills its container to 95 % by its own ledger, and is not killed.

The container is a real cgroup, the counter the kernel's. The same engine with the pool's idle buffers outside
the ledger is killed: these tests can fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.launching import PATIENCE_S, UNDER_EMULATION
from oomproof.leaf import Leaf, make_leaf
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

ENGINE = Path(__file__).with_name("engine.py")
LIMIT = 512 * MIB
SECONDS = float(os.environ.get("OOMPROOF_SOAK_SECONDS", "30" if UNDER_EMULATION else "6"))
"""How long the flood lasts; ten minutes of an engine's life are about sixty here."""


@pytest.fixture
def container() -> Iterator[Leaf]:
    with make_leaf("test") as leaf:
        leaf.set_limit(LIMIT)
        yield leaf


def run_engine(container: Leaf, seconds: float, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ENGINE), str(LIMIT), str(seconds), *flags]
    entering = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(container.join_path), *command]
    return subprocess.run(entering, capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=False)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_at_95_percent_of_its_limit_the_kernel_kills_nothing(container: Leaf) -> None:
    done = run_engine(container, SECONDS)
    assert container.events().oom_kill == 0
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    print(told, "kernel's peak:", container.peak_bytes())
    assert told["failures"] == []
    assert all(told["jobs"]), "nobody starved"
    assert told["total_bytes"] == LIMIT * 95 // 100
    assert told["peak_bytes"] > 0.9 * told["total_bytes"], "it used what it had"
    assert told["waited"] > 0
    assert told["evictions"] > 0
    assert told["reused"] > 0
    assert told["left_bytes"] == 0
    assert told["drift"] == {}


def test_with_idle_buffers_outside_the_ledger_the_kernel_kills(container: Leaf) -> None:
    done = run_engine(container, 60, "--idle-outside-ledger")
    assert done.returncode == -9, done.stdout + done.stderr
    assert container.events().oom_kill == 1
