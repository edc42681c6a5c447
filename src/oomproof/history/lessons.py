"""Which attempts teach something: those that ended well, and those that surely ran out of memory.

A stop by a user, a time-out, a crash and a kill by nobody knows whom say nothing about the budget.
Not covered: what follows from it, see `oomproof.plan.adaptive`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from oomproof.history.model import Observation

TEACHING_COLUMNS = (
    *("run_id", "attempts.attempt", "budget_bytes", "verdict", "confidence", "exit_code"),
    *("peak_bytes", "peak_of_cgroup", "duration_s", "ended_at", "allowed_bytes"),
)

LACK = ("oom_kill", "oom_suspected", "in_process_oom")
"""Verdicts that say that memory ran out."""
CLIENT_DONE = "client_done"
"""The verdict on a daemon whose client came to a good end."""
_UNSURE = "low"


def observations(rows: Sequence[Mapping[str, Any]]) -> list[Observation]:
    """The attempts among `rows` (by TEACHING_COLUMNS, oldest first) that teach something."""
    now = datetime.now(UTC)
    out_of_memory: set[int] = set()
    found = []
    for row in rows:
        lived = row["verdict"] == CLIENT_DONE or (row["verdict"] == "exited" and row["exit_code"] == 0)
        died = row["verdict"] in LACK and row["confidence"] != _UNSURE
        if (lived or died) and row["ended_at"] is not None:
            found.append(
                Observation(
                    budget_bytes=row["budget_bytes"],
                    lived=lived,
                    peak_bytes=row["peak_bytes"] if row["peak_of_cgroup"] else None,
                    duration_s=row["duration_s"] or 0.0,
                    age_s=max(0.0, (now - _moment(row["ended_at"])).total_seconds()),
                    after_oom=row["run_id"] in out_of_memory,
                    allowed_bytes=row["allowed_bytes"],
                )
            )
        if died:
            out_of_memory.add(row["run_id"])
    return found


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
