"""The answer as a JSON document: a public contract, unknown is null."""

from __future__ import annotations

from oomproof.limits.files import printable
from oomproof.limits.model import Candidate, Kind, LimitReport, Notice

SCHEMA_VERSION = 1


def report_as_json(report: LimitReport) -> dict[str, object]:
    """What ``oomproof check --json`` prints; sizes in bytes, paths with odd bytes escaped."""
    return {
        "schema_version": SCHEMA_VERSION,
        "status": report.status.value,
        "limit_bytes": report.limit_bytes,
        "available_bytes": report.available_bytes,
        "limit_bound_by": report.limit_bound_by,
        "available_bound_by": report.available_bound_by,
        "host_total_bytes": report.host_total_bytes,
        "host_available_bytes": report.host_available_bytes,
        "soft_limit_bytes": report.soft_limit_bytes,
        "swap_limit_bytes": report.swap_limit_bytes,
        "pinned_limit_bytes": report.pinned_limit_bytes,
        "address_space_limit_bytes": _address_space_limit(report),
        "cgroup": _cgroup(report),
        "candidates": [_candidate(row) for row in report.candidates],
        "notices": [_notice(notice) for notice in report.notices],
        "hints": [_notice(hint) for hint in report.hints],
        "facts": dict(report.facts),
    }


def _address_space_limit(report: LimitReport) -> int | None:
    """RLIMIT_AS; RLIMIT_DATA counts other mappings and stays in the table."""
    limits = [row.limit_bytes for row in report.candidates if row.name == "RLIMIT_AS"]
    return limits[0] if limits else None


def _cgroup(report: LimitReport) -> dict[str, object] | None:
    if report.cgroup is None:
        return None
    return {
        "version": report.cgroup.version,
        "path": printable(report.cgroup.path),
        "directory": printable(str(report.cgroup.directory)),
    }


def _candidate(row: Candidate) -> dict[str, object]:
    return {
        "kind": row.kind.value,
        "name": row.name,
        "limit_bytes": row.limit_bytes,
        "usage_bytes": row.usage_bytes,
        "available_bytes": row.available_bytes,
        "available_optimistic_bytes": row.available_optimistic_bytes,
        "source": row.source,
        "verdict": row.verdict,
        "compared": row.kind in (Kind.HOST, Kind.NUMA, Kind.CGROUP, Kind.LEAF),
    }


def _notice(notice: Notice) -> dict[str, object]:
    document: dict[str, object] = {
        "code": notice.code,
        "message": notice.message,
        "source": None if notice.source is None else printable(notice.source),
    }
    if notice.value_bytes is not None:
        document["value_bytes"] = notice.value_bytes
    return document
