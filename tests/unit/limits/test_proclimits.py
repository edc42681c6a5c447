"""An independent opinion: proclimits on the same recorded machines, where both have an answer.

proclimits reads fixed paths, so it runs in a child that takes the machine for its root.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oomproof.limits import detect_limits
from oomproof.limits.model import Status
from unit.limits.test_recorded_machines import MACHINES, NAMES

proclimits = pytest.importorskip(
    "proclimits", reason="proclimits is not installed (a development dependency)"
)

DIFFERENCES = {
    "proc_not_mounted": "proclimits does not look for cgroups without /proc/self/cgroup and mountinfo",
    "v2_no_memory_current": "proclimits gives no limit where the usage beside it cannot be read",
}
"""Machines on which the two differ, and why ours stands."""


def opinion(machine: Path) -> tuple[int | None, int | None]:
    """Limit and headroom by proclimits; None where it sees nothing that limits."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chroot(machine)
            budget = proclimits.get_memory_budget()
            answer = (None, None) if budget is None else (budget.limit, budget.available)
            os.write(write_end, json.dumps(answer).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"proclimits failed on {machine.name}"
    limit, available = json.loads(text)
    return limit, available


needs_chroot = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


@needs_chroot
@pytest.mark.parametrize("name", [name for name in NAMES if name not in DIFFERENCES])
def test_both_give_the_same_answer(name: str) -> None:
    report = detect_limits(MACHINES / name)
    limit, available = opinion(MACHINES / name)
    if limit is None:
        assert report.status is Status.UNLIMITED
    else:
        assert (limit, available) == (report.limit_bytes, report.available_bytes)


@needs_chroot
@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_listed_difference_still_is_one(name: str) -> None:
    assert opinion(MACHINES / name)[0] is None
    assert detect_limits(MACHINES / name).limit_bytes is not None


def test_both_agree_on_this_machine() -> None:
    report, budget = detect_limits(), proclimits.get_memory_budget()
    if report.status is Status.LIMITED and budget is not None:
        assert report.limit_bytes == budget.limit
    else:
        assert report.status is not Status.LIMITED or "NUMA" in str(report.limit_bound_by)
        assert budget is None
