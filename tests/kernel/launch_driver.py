"""Calls `run_attempts` as a launching verb does; argument 1 is JSON options, the rest the command.

Its own process, because a launcher is the subreaper of all its descendants and ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.history.record import open_record
from oomproof.history.store import Run
from oomproof.launch.attempts import RunPolicy, run_attempts
from oomproof.launch.events import open_events
from oomproof.launch.model import AttemptPolicy


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main() -> int:
    options = json.loads(sys.argv[1])
    command = sys.argv[2:]
    budgets: list[int] = options["budgets"]
    if "join" in options:
        Path(options["join"]).write_text("0")
    if "oom_score_adj" in options:
        Path("/proc/self/oom_score_adj").write_text(str(options["oom_score_adj"]))
    if "environment" in options:
        os.environ.clear()
        os.environ.update(options["environment"])
    policy = RunPolicy(
        **{"retries": len(budgets) - 1, **options.get("policy", {})},
        attempt=AttemptPolicy(
            signal_map={
                signal.Signals[f"SIG{old}"]: signal.Signals[f"SIG{new}"]
                for old, new in options.get("signal_map", {}).items()
            },
            **options.get("attempt", {}),
        ),
    )
    with open_events(options["events"], say) as events:
        record = open_record(Path(options["history"]), say, required=True)
        record.run_started(Run("run", tuple(command), policy.limit_bytes, budgets[0]))
        with contextlib.closing(record):
            result = run_attempts(
                command,
                budgets[0],
                next_budget=lambda attempt, _budget: budgets[attempt] if attempt < len(budgets) else None,
                say=say,
                recorder=record,
                events=events,
                policy=policy,
            )
    return result.exit_status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OomproofError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
