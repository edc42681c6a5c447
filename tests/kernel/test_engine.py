"""An engine that fills its container to 95 % by its own ledger, and is not killed.

The container is a real cgroup, the counter the kernel's. The same engine with the pool's idle buffers outside
the ledger is killed: these tests can fail.
"""

from __future__ import annotations

import json
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
SHORT_S = 30 if UNDER_EMULATION else 6
LONG_S = 60


@pytest.fixture
def container() -> Iterator[Leaf]:
    with make_leaf("test") as leaf:
        leaf.set_limit(LIMIT)
        yield leaf


def run_engine(container: Leaf, seconds: float, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ENGINE), str(LIMIT), str(seconds), *flags]
    entering = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(container.join_path), *command]
    return subprocess.run(entering, capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=False)


def check_that_it_lived(container: Leaf, seconds: float) -> None:
    done = run_engine(container, seconds)
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


def test_at_95_percent_of_its_limit_the_kernel_kills_nothing(container: Leaf) -> None:
    check_that_it_lived(container, SHORT_S)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_nor_in_a_longer_flood(container: Leaf) -> None:
    check_that_it_lived(container, LONG_S if not UNDER_EMULATION else SHORT_S)


def test_with_idle_buffers_outside_the_ledger_the_kernel_kills(container: Leaf) -> None:
    done = run_engine(container, 60, "--idle-outside-ledger")
    assert done.returncode == -9, done.stdout + done.stderr
    assert container.events().oom_kill == 1
