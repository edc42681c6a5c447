"""The probe on the running kernel: real leaf cgroups, real touching, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.errors import LeafUnavailable
from oomproof.leaf import Leaf, make_leaf
from oomproof.limits import find_memory_cgroup
from oomproof.probe import ProbeRequest, StopReason, run_probe
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LIMIT = 96 * MIB
SETTLE_S, SETTLE_BYTES = 2.0, 8 * MIB


@pytest.fixture
def container() -> Iterator[Leaf]:
    """A cgroup with a limit, as a container would be."""
    with make_leaf("test") as leaf:
        leaf.set_limit(LIMIT)
        yield leaf


def probe_leaves() -> list[Path]:
    own = find_memory_cgroup()
    assert own is not None
    return [path for path in own.directory.rglob("oomproof-probe-*") if path.is_dir()]


def leaves_of(pid: int) -> list[Path]:
    return [path for path in probe_leaves() if f"-{pid}-" in path.name]


def start_probe(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "oomproof", "probe", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition: object, timeout_s: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.01)


def test_the_probe_ends_at_the_reserve_within_16_mib_of_the_limit() -> None:
    result = run_probe(ProbeRequest(limit_bytes=LIMIT))
    assert result.stop_reason is StopReason.RESERVE
    assert result.cgroup_limit_bytes == LIMIT
    assert LIMIT - 16 * MIB < result.allocated_bytes < LIMIT
    assert result.usage_peak_bytes < LIMIT
