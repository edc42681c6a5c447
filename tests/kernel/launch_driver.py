"""Calls `run_attempts` as a launching verb does; argument 1 is a JSON list of scenarios.

Its own process, because a launcher is the subreaper of all its descendants and ends them;
several scenarios in one, because the interpreter starts slowly in a guest under emulation.
As on the command line, signals are caught before anything else is imported: a KeyboardInterrupt
in a callback of the import machinery is printed and forgotten.
"""

from __future__ import annotations

from oomproof.launch.signals import Signals

caught = Signals()
caught.__enter__()

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from oomproof.errors import OomproofError  # noqa: E402
from oomproof.history.model import Run  # noqa: E402
from oomproof.history.record import Record  # noqa: E402
from oomproof.launch.attempts import RunPolicy, run_attempts  # noqa: E402
from oomproof.launch.events import open_events  # noqa: E402
from oomproof.launch.model import AttemptPolicy, OwnWords  # noqa: E402


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run(scenario: dict[str, Any]) -> int:
    budgets: list[int] = scenario["budgets"]
    attempt = dict(scenario["attempt"])
    attempt["signal_map"] = {
        signal.Signals[old]: signal.Signals[new] for old, new in attempt.get("signal_map", {}).items()
    }
    words = attempt.get("own_words", {})
    attempt["own_words"] = OwnWords(
        exit_codes=frozenset(words.get("exit_codes", ())),
        patterns=tuple(words.get("patterns", ())),
        full_tmpfs=words.get("full_tmpfs", False),
    )
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
            signals=caught,
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
