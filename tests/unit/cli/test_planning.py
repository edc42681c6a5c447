"""Whether a start probes in full or touches a part only."""

from __future__ import annotations

import pytest

from oomproof import probe
from oomproof.cli import planning
from oomproof.errors import ProbeError
from oomproof.limits.model import LimitReport, Status
from oomproof.probe import ProbeRequest, ProbeResult
from oomproof.units import GIB


@pytest.mark.parametrize(
    ("wish", "limit", "host", "quick"),
    [
        (None, 8 * GIB, 64 * GIB, False),
        (None, 8 * GIB + 1, 64 * GIB, True),
        (None, None, 342 * GIB, True),
        (None, None, 8 * GIB, False),
        (None, None, None, False),
        (False, 342 * GIB, 342 * GIB, False),
        (True, GIB, 64 * GIB, True),
    ],
)
def test_a_start_probes_quickly_where_there_is_much(
    monkeypatch: pytest.MonkeyPatch, wish: bool | None, limit: int | None, host: int | None, quick: bool
) -> None:
    asked: list[ProbeRequest] = []

    def run_probe(request: ProbeRequest, _: object) -> ProbeResult:
        asked.append(request)
        raise ProbeError("enough is known")

    monkeypatch.setattr(probe, "run_probe", run_probe, raising=False)
    limits = LimitReport(
        status=Status.UNLIMITED if limit is None else Status.LIMITED,
        limit_bytes=limit,
        available_bytes=limit,
        limit_bound_by=None,
        available_bound_by=None,
        candidates=(),
        host_total_bytes=host,
    )
    settings = {"probe_result": None, "probe": True, "quick": wish, "limit": None}
    assert planning._probe(settings, limits, lambda: None) == (None, "the probe failed: enough is known")
    assert [request.quick for request in asked] == [quick]
