"""``oomproof entrypoint``: check, probe, plan, an optional benchmark, then the program; made for PID 1."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from oomproof import config
from oomproof.cli import launching, output
from oomproof.cli.planning import plan_here
from oomproof.cli.settings import BENCH, COMMAND, LAUNCHING, MEASURING
from oomproof.errors import UsageError
from oomproof.launch.events import open_events
from oomproof.launch.restart import RestartMode

DEFAULT_CONFIG = Path("/etc/oomproof.toml")
SETTINGS = (*LAUNCHING, *MEASURING, *config.probe_settings(probe=True, quick=None), BENCH, COMMAND)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    config.add_flags(parser, [setting for setting in SETTINGS if setting is not COMMAND])
    launching.add_command(parser)
    launching.add_exit_codes(parser, launching.OF_BENCHMARKS)


def run(args: argparse.Namespace) -> int:
    """Returns the program's exit status, or the benchmark's when that failed."""
    flags = vars(args) | {"command": launching.command_of(args) or None}
    if flags["config"] is None and config.CONFIG_VARIABLE not in os.environ and DEFAULT_CONFIG.exists():
        flags["config"] = str(DEFAULT_CONFIG)
    settings = launching.resolve(SETTINGS, flags)
    command = launching.need_command(settings["command"] or (), "entrypoint")
    launching.check_recipe(settings, command)
    measured = settings["rate_json"] or settings["rate_regex"]
    if measured and settings["bench"] is None and not settings["client"]:
        raise UsageError("a rate is that of a benchmark: give --bench or --client")
    with open_events(settings["events"], output.warning) as events:
        planned = plan_here(settings, args.signals.stop_requested)
        bench = settings["bench"] or (command if settings["client"] else None)
        if bench is not None:
            once = settings | {"restart": RestartMode.NEVER}
            if not settings["client"]:
                once["ready"] = None  # a benchmark that ends by itself is no daemon
            benched = launching.launch("bench", bench, once, planned, events=events, signals=args.signals)
            if not benched.succeeded or benched.budget_bytes is None:
                status = benched.exit_status
                output.error(f"the benchmark ended with {status}, so the program is not started")
                return status
            plan = planned.plan.with_budget(benched.budget_bytes, "the benchmark before", "benchmark")
            planned = replace(planned, plan=plan, request=None)
        settings |= dict.fromkeys(("rate_json", "rate_regex", "min_rate")) | {"client": ()}
        return launching.launch(
            "entrypoint", command, settings, planned, events=events, signals=args.signals
        ).exit_status
