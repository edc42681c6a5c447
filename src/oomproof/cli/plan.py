"""``oomproof plan``: the one number and every term it came from."""

from __future__ import annotations

import argparse
import os

from oomproof import config
from oomproof.cli import output
from oomproof.cli.planning import plan_here
from oomproof.units import format_size

SETTINGS = (*config.PLANNING, *config.probe_settings(probe=True))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    config.add_flags(parser, SETTINGS)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document")
    form.add_argument("--bytes", action="store_true", help="the number of bytes and nothing else")


def run(args: argparse.Namespace) -> int:
    """Print the plan; its notices go to stderr, except with ``--json``, where they are inside."""
    plan = plan_here(config.resolve(SETTINGS, vars(args), os.environ)).plan
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
