"""Every recorded machine: the answer is the one that its `expected.json` pins down."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from oomproof.limits import detect_limits
from oomproof.limits.capture import capture
from oomproof.limits.model import LimitReport, Status
from oomproof.limits.report import report_as_json
from oomproof.units import GIB

MACHINES = Path(__file__).parents[2] / "fixtures" / "limits"
NAMES = sorted(path.name for path in MACHINES.iterdir() if path.is_dir())


def expected(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((MACHINES / name / "expected.json").read_text())
    return document


def detect(name: str) -> LimitReport:
    pinned = expected(name)
    return detect_limits(
        MACHINES / name, environment=pinned.get("env", {}), rlimits=pinned.get("rlimits", {})
    )


def test_all_recorded_machines_are_here() -> None:
    assert len(NAMES) >= 36


@pytest.mark.parametrize("name", NAMES)
def test_limit_and_host_are_those_recorded(name: str) -> None:
    report, pinned = detect(name), expected(name)
    assert report.limit_bytes == pinned["limit"]
    assert report.host_total_bytes == pinned["host_total"]
    assert (report.status is Status.UNKNOWN) == (pinned["limit"] is None)
    assert (report.status is Status.UNLIMITED) == (report.limit_bytes == pinned["host_total"])


@pytest.mark.parametrize("name", [name for name in NAMES if "available" in expected(name)])
def test_headroom_is_the_one_recorded(name: str) -> None:
    assert detect(name).available_bytes == expected(name)["available"]


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_beside_the_limit_is_reported(name: str) -> None:
    report, pinned = detect(name), expected(name)
    document = report_as_json(report)
    for key, field in (
        ("soft_limit", "soft_limit_bytes"),
        ("swap_limit", "swap_limit_bytes"),
        ("address_space_limit", "address_space_limit_bytes"),
        ("lockable", "pinned_limit_bytes"),
    ):
        if key in pinned:
            assert document[field] == pinned[key], key
    if "available_if_all_clean_cache_dropped" in pinned:
        row = next(row for row in report.candidates if row.name == report.available_bound_by)
        assert row.available_optimistic_bytes == pinned["available_if_all_clean_cache_dropped"]


@pytest.mark.parametrize("name", NAMES)
def test_warnings_are_among_the_notices(name: str) -> None:
    assert set(expected(name).get("warnings", ())) <= {notice.code for notice in detect(name).notices}


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_machine_replays_to_the_same_answer(name: str, tmp_path: Path) -> None:
    bundled = capture(tmp_path / "machine.tar", MACHINES / name)
    straight = detect_limits(MACHINES / name)
    for field in ("status", "limit_bytes", "available_bytes", "soft_limit_bytes", "swap_limit_bytes"):
        assert getattr(bundled, field) == getattr(straight, field), field
    assert [n.code for n in bundled.notices] == [n.code for n in straight.notices]


def test_a_limit_raised_while_running_is_seen_on_the_next_call(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "resize_before", machine)
    assert detect_limits(machine).limit_bytes == GIB // 2
    (machine / "sys/fs/cgroup/memory.max").write_text(f"{GIB}\n")
    assert detect_limits(machine).limit_bytes == GIB
