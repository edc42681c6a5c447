"""Calls `run_attempts` as a launching verb does; argument 1 is a JSON list of scenarios.

Its own process, because a launcher is the subreaper of all its descendants and ends them;
several scenarios in one, because the interpreter starts slowly in a guest under emulation.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.history.model import Run
from oomproof.history.record import Record
from oomproof.launch.attempts import RunPolicy, run_attempts
from oomproof.launch.events import open_events
from oomproof.launch.model import AttemptPolicy


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run(scenario: dict[str, Any]) -> int:
    budgets: list[int] = scenario["budgets"]
    attempt = dict(scenario["attempt"])
    attempt["signal_map"] = {
        signal.Signals[old]: signal.Signals[new] for old, new in attempt.get("signal_map", {}).items()
    }
    policy = RunPolicy(
        **{"retries": len(budgets) - 1, **scenario["policy"]}, attempt=AttemptPolicy(**attempt)
    )
    with open_events(scenario["events"], say) as events:
        history = Path(scenario["history"]) if scenario["history"] else None
        record = Record(history, say, required=True)
        record.run_started(Run("run", tuple(scenario["command"]), policy.limit_bytes, budgets[0]))
        return run_attempts(
            scenario["command"],
            budgets[0],
            next_budget=lambda attempt, _budget: budgets[attempt] if attempt < len(budgets) else None,
            say=say,
            recorder=record,
            events=events,
            environment=scenario["environment"],
            policy=policy,
        ).exit_status


def main() -> int:
    status = 0
    for scenario in json.loads(sys.argv[1]):
        if scenario["join"]:
            Path(scenario["join"]).write_text("0")
        if scenario["oom_score_adj"] is not None:
            Path("/proc/self/oom_score_adj").write_text(str(scenario["oom_score_adj"]))
        try:
            status = run(scenario)
        except OomproofError as error:
            say(f"error: {error}")
            status = error.exit_code
        Path(scenario["status"]).write_text(str(status))
    return status


if __name__ == "__main__":
    # Not sys.exit: no atexit work of the interpreter belongs to what is measured here.
    status = main()
    sys.stdout.flush()
    os._exit(status)
