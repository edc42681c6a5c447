"""What run, bench and entrypoint share: their settings, and a program started with a planned budget.

Not covered: the attempts themselves, see `oomproof.launch`.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oomproof import config
from oomproof.cli import output
from oomproof.cli.planning import Planned
from oomproof.config import Setting
from oomproof.errors import UsageError
from oomproof.history.model import Run, default_path
from oomproof.history.record import Record
from oomproof.launch.attempts import OOM_EXIT_STATUS, RunPolicy, RunResult, run_attempts
from oomproof.launch.events import EventWriter
from oomproof.launch.model import AttemptPolicy
from oomproof.launch.signals import Signals
from oomproof.plan.descent import next_budget, parse_policy
from oomproof.plan.model import Plan
from oomproof.units import format_size

NO_HISTORY = "none"


def parse_oom_score_adj(text: str) -> int:
    """-1000 to 1000; raises ValueError."""
    value = int(text)
    if not -1000 <= value <= 1000:
        raise ValueError("write a number from -1000 to 1000")
    return value


def parse_exit_code(text: str) -> int:
    """0 to 255; raises ValueError."""
    code = config.parse_count(text)
    if code > 255:
        raise ValueError("write a number from 0 to 255")
    return code


def parse_signal_map(text: str) -> dict[int, int]:
    """``TERM:INT,HUP:USR1`` -> numbers; raises ValueError."""
    pairs = {}
    for pair in text.split(","):
        received, colon, sent = pair.partition(":")
        if not colon:
            raise ValueError("write pairs such as TERM:INT, with commas between them")
        pairs[_signal_number(received)] = _signal_number(sent)
    return pairs


def _signal_number(text: str) -> int:
    name = text.strip().upper()
    try:
        number = (
            signal.Signals(int(name)) if name.isdigit() else signal.Signals["SIG" + name.removeprefix("SIG")]
        )
    except (KeyError, ValueError):
        raise ValueError(f"{text.strip()!r} is no signal") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"{number.name} cannot be caught or is final: map another one")
    return number


SETTINGS: tuple[Setting, ...] = (
    *config.PLANNING,
    Setting(
        "on_oom",
        parse_policy,
        parse_policy("shrink:10%"),
        "after an OOM kill: shrink:P%% of the budget, or margin:P%% more margin (default: shrink:10%%)",
        "POLICY",
    ),
    Setting("retries", config.parse_count, 3, "smaller starts after the first one (default: 3)", "N"),
    Setting("events", str, None, "write one JSON object a line to FILE or fd:N", "TARGET"),
    Setting("history", str, None, f"keep the history in FILE; {NO_HISTORY}: remember nothing", "FILE"),
    Setting("leaf", config.parse_switch, True, "a cgroup for each attempt where possible (on by default)"),
    Setting("grace", config.parse_seconds, 10.0, "from SIGTERM to SIGKILL (default: 10)", "SECONDS"),
    Setting("timeout", config.parse_seconds, None, "end an attempt after this long", "SECONDS"),
    Setting(
        "stop_on_kill",
        config.parse_switch,
        True,
        "end an attempt when one of its processes was OOM-killed and the main one runs on (on by default)",
    ),
    Setting(
        "ok_with_kills",
        config.parse_switch,
        False,
        "exit 0 is a success even if processes of the attempt were OOM-killed",
    ),
    Setting(
        "oom_exit_code",
        parse_exit_code,
        OOM_EXIT_STATUS,
        f"exit code when the last attempt ran out of memory (default: {OOM_EXIT_STATUS})",
        "CODE",
    ),
    Setting(
        "oom_score_adj",
        parse_oom_score_adj,
        AttemptPolicy().oom_score_adj,
        f"of the program (default: {AttemptPolicy().oom_score_adj}, or oomproof's own if higher)",
        "N",
    ),
    Setting("signal_map", parse_signal_map, {}, "pass signals on as others: TERM:INT,...", "FROM:TO"),
)
"""Settings of every launching verb, beside whether to probe."""


def add_command(parser: argparse.ArgumentParser, help: str = "the program and its arguments") -> None:
    """The command line of the program, after ``--`` or from the first word that is no flag."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help=help)


def command_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The program's command line; empty when none was given."""
    words = tuple(args.command)
    return words[1:] if words[:1] == ("--",) else words


def need_command(command: Sequence[str], verb: str) -> tuple[str, ...]:
    """`command`; raises UsageError when it is empty."""
    if not command:
        raise UsageError(f"no command: write oomproof {verb} [settings] -- COMMAND ARGUMENTS")
    return tuple(command)


def warn_of_unknown_variables(settings: Sequence[Setting]) -> None:
    """A misspelt variable would otherwise be believed to work."""
    for name in config.unknown_variables(settings, os.environ):
        output.warning(f"{name} is no setting of oomproof and changes nothing")


def announce(plan: Plan, events: EventWriter, command: Sequence[str]) -> None:
    """The plan on stderr and as an event."""
    for notice in plan.notices:
        output.say(f"notice: {notice}")
    output.say(
        f"plan: budget {format_size(plan.budget_bytes)} of {format_size(plan.allowed_bytes)}"
        f" ({plan.terms[0].source}), margin {format_size(plan.margin_bytes)}"
    )
    document = plan.as_json()
    del document["schema_version"]
    events.emit("planned", command=list(command), **document)


def launch(
    verb: str,
    command: Sequence[str],
    settings: dict[str, Any],
    planned: Planned,
    *,
    events: EventWriter,
    signals: Signals,
) -> RunResult:
    """Run `command` with the planned budget, and a smaller one after each OOM kill."""
    plan = planned.plan
    record = Record(_history_path(settings["history"]), output.warning)
    record.run_started(
        Run(verb, tuple(command), planned.limits.limit_bytes, plan.budget_bytes),
        required=settings["history"] is not None,
    )

    def smaller(_attempt: int, budget_bytes: int) -> int | None:
        return next_budget(settings["on_oom"], plan, budget_bytes, settings["floor"])

    return run_attempts(
        command,
        plan.budget_bytes,
        next_budget=smaller,
        say=output.say,
        recorder=record,
        events=events,
        signals=signals,
        policy=_policy(settings),
    )


def _policy(settings: dict[str, Any]) -> RunPolicy:
    return RunPolicy(
        retries=settings["retries"],
        limit_bytes=settings["limit"],
        use_leaf=settings["leaf"],
        ok_with_kills=settings["ok_with_kills"],
        oom_exit_status=settings["oom_exit_code"],
        attempt=AttemptPolicy(
            grace_s=settings["grace"],
            timeout_s=settings["timeout"],
            stop_on_kill_inside=settings["stop_on_kill"],
            oom_score_adj=settings["oom_score_adj"],
            signal_map=settings["signal_map"],
        ),
    )


def _history_path(setting: str | None) -> Path | None:
    if setting == NO_HISTORY:
        return None
    return default_path(os.environ) if setting is None else Path(setting)
