"""The request and the public document of the result."""

from __future__ import annotations

import pytest

from oomproof.errors import UsageError
from oomproof.probe import ProbeRequest, ProbeResult, StopReason
from oomproof.units import GIB

FIRST_FIELDS = (
    "cgroup_limit_bytes",
    "usage_before_bytes",
    "allocated_bytes",
    "allocated_gib",
    "usage_peak_bytes",
    "overhead_bytes",
    "overhead_gib",
    "probe_chunks",
)
ADDED_FIELDS = (
    "schema_version",
    "stop_reason",
    "duration_seconds",
    "bytes_per_second",
    "kernel_overhead_bytes",
    "overhead_by_cause",
    "others_bytes",
    "extrapolated",
    "error_bytes",
)
RESULT = ProbeResult(
    cgroup_limit_bytes=4 * GIB,
    usage_before_bytes=1000,
    allocated_bytes=2 * GIB,
    usage_peak_bytes=2 * GIB + 5000,
    probe_chunks=7,
    stop_reason=StopReason.RESERVE,
    duration_seconds=0.5,
    kernel_overhead_bytes=3000,
    others_bytes=1000,
    overhead_by_cause={"page_tables": 3000},
)


def test_the_document_has_the_promised_fields() -> None:
    document = RESULT.as_json()
    assert set(FIRST_FIELDS + ADDED_FIELDS) <= set(document)
    assert document["overhead_bytes"] == 4000
    assert document["allocated_gib"] == 2.0
    assert document["bytes_per_second"] == 4 * GIB


def test_the_rate_of_an_extrapolation_is_that_of_what_was_touched() -> None:
    values = {**vars_of(RESULT), "extrapolated": True, "touched_bytes": GIB // 2}
    assert ProbeResult(**values).as_json()["bytes_per_second"] == GIB  # type: ignore[arg-type]


def vars_of(result: ProbeResult) -> dict[str, object]:
    return {name: getattr(result, name) for name in result.__dataclass_fields__}


@pytest.mark.parametrize("field", ["chunk_bytes", "max_bytes", "deadline_s", "limit_bytes"])
@pytest.mark.parametrize("value", [0, -1])
def test_nothing_to_probe_is_an_error_of_usage(field: str, value: int) -> None:
    with pytest.raises(UsageError, match="leaves nothing to probe"):
        ProbeRequest(**{field: value})  # type: ignore[arg-type]


def test_no_reserve_is_a_wish_and_a_negative_one_an_error() -> None:
    assert ProbeRequest(reserve_bytes=0).reserve_bytes == 0
    with pytest.raises(UsageError):
        ProbeRequest(reserve_bytes=-1)
