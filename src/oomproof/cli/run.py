"""``oomproof run``: start a program with a budget; after an OOM kill, again with a smaller one."""

from __future__ import annotations

import argparse

from oomproof import config
from oomproof.cli import launching, output
from oomproof.cli.planning import plan_here
from oomproof.cli.settings import LAUNCHING
from oomproof.launch.events import open_events

SETTINGS = (*LAUNCHING, *config.probe_settings(probe=False))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    config.add_flags(parser, SETTINGS)
    launching.add_command(parser)
    launching.add_exit_codes(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, start, judge, and start again; returns the program's exit status."""
    settings = launching.resolve(SETTINGS, vars(args))
    command = launching.need_command(launching.command_of(args), "run")
    launching.check_recipe(settings, command)
    with open_events(settings["events"], output.warning) as events:
        planned = plan_here(settings, args.signals.stop_requested)
        return launching.launch(
            "run", command, settings, planned, events=events, signals=args.signals
        ).exit_status
