from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oomproof.history.lessons import TEACHING_COLUMNS, observations


def row(run_id: int, verdict: str | None, **facts: Any) -> dict[str, Any]:
    ended = (datetime.now(UTC) - timedelta(seconds=facts.pop("age_s", 60))).isoformat()
    known = {"run_id": run_id, "verdict": verdict, "ended_at": ended, "confidence": "certain"}
    return {**dict.fromkeys(TEACHING_COLUMNS), "budget_bytes": 100, "duration_s": 1.5, **known, **facts}


def test_a_good_end_and_a_sure_lack_of_memory_teach() -> None:
    died = row(1, "oom_kill", budget_bytes=200, peak_bytes=300, peak_of_cgroup=1)
    lived = row(1, "exited", exit_code=0, peak_bytes=130, peak_of_cgroup=1, age_s=3600)
    first, second = observations([died, lived])
    assert (first.lived, first.budget_bytes, first.peak_bytes, first.after_oom) == (False, 200, 300, False)
    assert (second.lived, second.peak_bytes, second.after_oom) == (True, 130, True)
    assert second.age_s == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("verdict", "facts"),
    [
        ("stopped", {"signal": 15}),
        ("stopped", {"exit_code": 0}),
        ("killed_unknown", {"signal": 9}),
        ("signalled", {"signal": 11}),
        ("exited", {"exit_code": 1}),
        ("not_started", {}),
        ("oom_suspected", {"confidence": "low"}),
        (None, {"ended_at": None}),
    ],
)
def test_user_kills_unknown_deaths_and_failures_teach_nothing(verdict: str, facts: dict[str, Any]) -> None:
    assert observations([row(1, verdict, **facts)]) == []


def test_the_peak_of_a_process_is_not_the_peak_of_the_cgroup() -> None:
    [seen] = observations([row(1, "exited", exit_code=0, peak_bytes=130, peak_of_cgroup=0)])
    assert seen.peak_bytes is None


def test_a_run_after_one_that_ran_out_of_memory_begins_anew() -> None:
    rows = [row(1, "oom_kill"), row(2, "exited", exit_code=0)]
    assert [seen.after_oom for seen in observations(rows)] == [False, False]
