"""``oomproof entrypoint``: check, probe, plan, an optional benchmark, then the program; made for PID 1."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from oomproof import config
from oomproof.cli import launching, output
from oomproof.cli.planning import plan_here
from oomproof.cli.settings import LAUNCHING
from oomproof.config import Setting
from oomproof.launch.events import open_events
from oomproof.launch.signals import Signals

DEFAULT_CONFIG = Path("/etc/oomproof.toml")
SETTINGS = (
    *LAUNCHING,
    *config.probe_settings(probe=True, quick=None),
    Setting(
        "bench", config.parse_command, None, "run this first; the budget it needs is the program's", "COMMAND"
    ),
    Setting("command", config.parse_command, None, "the program, where none follows --", "COMMAND"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    config.add_flags(parser, [setting for setting in SETTINGS if setting.name != "command"])
    launching.add_command(parser)


def run(args: argparse.Namespace) -> int:
    """Returns the program's exit status, or the benchmark's when that failed."""
    flags = vars(args) | {"command": launching.command_of(args) or None}
    if flags["config"] is None and config.CONFIG_VARIABLE not in os.environ and DEFAULT_CONFIG.exists():
        flags["config"] = str(DEFAULT_CONFIG)
    settings = config.resolve(SETTINGS, flags, os.environ)
    command = launching.need_command(settings["command"] or (), "entrypoint")
    launching.warn_of_unknown_variables(SETTINGS)
    with open_events(settings["events"], output.warning) as events, Signals() as signals:
        planned = plan_here(settings, signals.stop_requested)
        if settings["bench"] is not None:
            launching.announce(planned.plan, events, settings["bench"])
            benched = launching.launch(
                "bench", settings["bench"], settings, planned, events=events, signals=signals
            )
            if not benched.succeeded or benched.budget_bytes is None:
                status = benched.exit_status
                output.error(f"the benchmark ended with {status}, so the program is not started")
                return status
            plan = planned.plan.with_budget(benched.budget_bytes, "the benchmark before")
            planned = replace(planned, plan=plan)
        launching.announce(planned.plan, events, command)
        return launching.launch(
            "entrypoint", command, settings, planned, events=events, signals=signals
        ).exit_status
