"""``oomproof plan``: the one number and every term it came from."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oomproof import config
from oomproof.cli import learning, output
from oomproof.cli.launching import add_command, command_of, recipe_of, suggestions
from oomproof.cli.planning import Planned, plan_here
from oomproof.cli.settings import ON_OOM, RECIPES, RETRIES
from oomproof.errors import HistoryError
from oomproof.history.record import learned
from oomproof.plan.model import Plan
from oomproof.units import format_size

SETTINGS = (*config.PLANNING, *RECIPES, ON_OOM, RETRIES, *config.probe_settings(probe=True))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    config.add_flags(parser, SETTINGS)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--explain", action="store_true", help="every term as a table (the default)")
    form.add_argument("--json", action="store_true", help="one JSON document")
    form.add_argument("--bytes", action="store_true", help="the number of bytes and nothing else")
    add_command(parser, "plan with what was learned from this program's runs")


def _learned(planned: Planned, command: Sequence[str], settings: dict[str, Any]) -> Plan:
    """The plan that `run` would start `command` with, attempts without an end apart; nothing is written down.

    As there, a history that nobody named is no reason to fail. Raises HistoryError for a file that was.
    """
    target = learning.target_of(settings["history"])
    if target is None:
        return planned.plan
    try:
        seen = learned(target, learning.run_of("plan", command, settings, planned))
    except HistoryError as error:
        if settings["history"] is not None and isinstance(target, Path):
            raise
        output.warning(str(error))
        return planned.plan
    return learning.course_of(settings, planned, seen).plan


def run(args: argparse.Namespace) -> int:
    """Print the plan; its notices go to stderr, except with ``--json``, where they are inside."""
    settings = config.resolve(SETTINGS, vars(args), os.environ)
    settings["recipe"] = recipe = recipe_of(settings)
    if recipe is not None:
        settings = config.resolve(SETTINGS, vars(args), os.environ, suggestions(recipe)) | {"recipe": recipe}
    planned = plan_here(settings)
    command = command_of(args)
    plan = _learned(planned, command, settings) if command else planned.plan
    if args.json:
        output.print_json(plan.as_json())
        return 0
    for notice in plan.notices:
        output.say(f"notice: {notice}")
    if args.bytes:
        print(plan.budget_bytes)
        return 0
    rows = [(term.name, format_size(term.bytes), str(term.bytes), term.source) for term in plan.terms]
    rows.append(("= budget", format_size(plan.budget_bytes), str(plan.budget_bytes), ""))
    output.print_table(("term", "size", "bytes", "from"), rows, right=(1, 2))
    return 0
