"""``oomproof bench``: run a program until it succeeds, and report the budget that worked."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oomproof import config
from oomproof.cli import launching, output
from oomproof.cli.planning import Planned, plan_here
from oomproof.cli.settings import LAUNCHING, MEASURING
from oomproof.errors import ConfigError, UsageError
from oomproof.launch.attempts import Attempt, RunResult
from oomproof.launch.events import open_events
from oomproof.launch.model import Verdict
from oomproof.launch.restart import RestartMode
from oomproof.units import format_size

SCHEMA_VERSION = 1
SETTINGS = (
    *(row for row in LAUNCHING if row.name != "restart"),
    *MEASURING,
    *config.probe_settings(probe=False),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    config.add_flags(parser, SETTINGS)
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the report to FILE as JSON")
    parser.add_argument(
        "--sweep",
        metavar="N",
        type=_sweep_count,
        help="run it with N budgets and draw the rates",
    )
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write the drawing of --sweep to FILE")
    launching.add_command(parser, help="the benchmark, or with --client the daemon, and its arguments")
    launching.add_exit_codes(parser, launching.OF_BENCHMARKS)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark as `run` runs a program; returns its exit status."""
    settings = launching.resolve(SETTINGS, vars(args)) | {"restart": RestartMode.NEVER}
    command = launching.need_command(launching.command_of(args), "bench")
    launching.check_recipe(settings, command)
    if "ready" in settings["suggested"] and not settings["client"]:
        settings["ready"] = None  # what ends by itself is not the daemon that the recipe speaks of
    if settings["ready"] is not None and not settings["client"]:
        raise UsageError(
            "--ready without --client: nothing would end the daemon; give a client (true ends it once ready)"
        )
    if args.svg is not None and args.sweep is None:
        raise UsageError("--svg draws what --sweep has measured: give both")
    for flag, file in (("--report", args.report), ("--svg", args.svg)):
        if file is not None:
            _check_writable(flag, file)
    if args.sweep is not None:
        return _run_sweep(args, settings, command)
    with open_events(settings["events"], output.warning) as events:
        planned = plan_here(settings, args.signals.stop_requested)
        result = launching.launch("bench", command, settings, planned, events=events, signals=args.signals)
    lines = report_lines(result)
    for line in lines[-1:] if settings["quiet"] else lines:
        output.say(line)
    if args.report is not None:
        _write("--report", args.report, json.dumps(as_json(result), indent=2) + "\n")
    return result.exit_status


def _sweep_count(text: str) -> int:
    from oomproof.cli.sweep import FEWEST, MOST

    if not (text.isascii() and text.isdigit()) or not FEWEST <= int(text[:4]) <= MOST or len(text) > 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of budgets from {FEWEST} to {MOST}")
    return int(text)


def _run_sweep(args: argparse.Namespace, settings: dict[str, Any], command: Sequence[str]) -> int:
    """The drawing goes to stdout; 0 when any budget worked."""
    from oomproof.cli.sweep import budgets_of, sweep
    from oomproof.cli.sweep_chart import lines, svg

    if settings["budget"] is not None:
        raise UsageError("--sweep takes many budgets and --budget one: leave one of them out")
    with open_events(settings["events"], output.warning) as events:
        planned = plan_here(settings, args.signals.stop_requested)

        def launch(changed: dict[str, Any], with_budget: Planned) -> RunResult:
            return launching.launch(
                "bench", command, changed, with_budget, events=events, signals=args.signals
            )

        done = sweep(budgets_of(planned, args.sweep, settings), planned, settings, launch)
    for line in lines(done):
        print(line)
    if args.report is not None:
        _write("--report", args.report, json.dumps(done.as_json(), indent=2) + "\n")
    if args.svg is not None:
        _write("--svg", args.svg, svg(done, " ".join(command)))
    return done.exit_status


def report_lines(result: RunResult) -> list[str]:
    """The report for people: a line per attempt and one about the budget that worked."""
    lines = [_attempt_line(attempt) for attempt in result.attempts]
    if result.succeeded and result.attempts:
        rate = result.attempts[-1].evidence.rate
        at = "" if rate is None else f", rate {rate:g}"
        lines.append(f"bench: works with a budget of {format_size(result.budget_bytes)}{at}")
    else:
        lines.append(f"bench: {_why_not(result)}, exit status {result.exit_status}")
    return lines


def _why_not(result: RunResult) -> str:
    if not result.attempts or result.attempts[-1].judgement.verdict is Verdict.STOPPED:
        return "stopped before its end" + (f": {result.failure}" if result.failure else "")
    if result.gave_up is not None:
        return f"no budget worked: {result.gave_up}"
    budget = format_size(result.budget_bytes)
    if result.failure is not None:
        return f"failed with a budget of {budget}: {result.failure}"
    if result.attempts[-1].judgement.calls_for_less:
        return f"no budget worked, the last was {budget}"
    return f"failed with a budget of {budget}, and not for lack of memory"


def as_json(result: RunResult) -> dict[str, object]:
    """The report for programs. Sizes in bytes, durations in seconds; unknown is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_status": result.exit_status,
        "failure": result.failure or result.gave_up,
        "budget_bytes": result.budget_bytes if result.succeeded else None,
        "attempts": [
            {
                "attempt": attempt.number,
                "budget_bytes": attempt.budget_bytes,
                "verdict": attempt.judgement.verdict.value,
                "peak_bytes": attempt.evidence.peak_bytes,
                "peak_over_budget_bytes": _over_budget(attempt),
                "duration_seconds": round(attempt.evidence.duration_s, 3),
                "ready_seconds": _ready_seconds(attempt),
                "rate": attempt.evidence.rate,
            }
            for attempt in result.attempts
        ],
    }


def _attempt_line(attempt: Attempt) -> str:
    over, ready = _over_budget(attempt), _ready_seconds(attempt)
    return (
        f"bench: attempt {attempt.number}: {attempt.judgement.verdict.value},"
        f" budget {format_size(attempt.budget_bytes)},"
        f" peak {format_size(attempt.evidence.peak_bytes)}"
        + (f" ({format_size(abs(over))} {'above' if over > 0 else 'below'} it)" if over is not None else "")
        + f", {attempt.evidence.duration_s:.1f} s"
        + ("" if ready is None else f", ready after {ready:.1f} s")
        + ("" if attempt.evidence.rate is None else f", rate {attempt.evidence.rate:g}")
    )


def _ready_seconds(attempt: Attempt) -> float | None:
    ready = attempt.evidence.ready
    return round(ready.seconds, 3) if ready is not None and ready.seconds is not None else None


def _over_budget(attempt: Attempt) -> int | None:
    """What the program took beside its budget; a peak at death bounds it only from below."""
    peak = attempt.evidence.peak_bytes
    return None if peak is None else peak - attempt.budget_bytes


def _check_writable(flag: str, path: Path) -> None:
    """Raises ConfigError before the benchmark runs rather than after it."""
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a directory: give a file")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        reason = "cannot be written to" if target.exists() else "does not exist"
        raise ConfigError(f"{flag} {path}: {target} {reason}: give a file that can be written to")


def _write(flag: str, path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a report. Devices and pipes are written to directly."""
    is_file = not path.exists() or path.is_file()
    target = path.resolve() if is_file else path
    partial = target.with_name(f".{target.name}.{os.getpid()}") if is_file else target
    try:
        partial.write_text(text, encoding="utf-8")
        if is_file:
            partial.replace(target)
    except OSError as error:
        if is_file:
            partial.unlink(missing_ok=True)
        raise ConfigError(f"{flag} {path}: {error.strerror}: give a file that can be written to") from error
