"""Runs a command by a recipe with a budget that its leaf does not have: `run` itself would refuse that.

Arguments: a JSON object with recipe, values, budget_bytes, limit_bytes, events and command.
"""

import json
import os
import sys

from oomproof.launch.attempts import RunPolicy, run_attempts
from oomproof.launch.events import open_events
from oomproof.recipes.load import BUNDLED, load, with_values
from oomproof.recipes.start import Starts


def say(line: str) -> None:
    print(line, file=sys.stderr)


order = json.loads(sys.argv[1])
recipe = with_values(load(order["recipe"], [BUNDLED]), order["values"])
with open_events(order["events"], say) as events:
    result = run_attempts(
        order["command"],
        order["budget_bytes"],
        next_budget=lambda _attempt, _budget: None,
        say=say,
        events=events,
        policy=RunPolicy(retries=0, limit_bytes=order["limit_bytes"]),
        prepare=Starts(order["command"], os.environ, recipe, (), say),
    )
sys.exit(result.exit_status)
