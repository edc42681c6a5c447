"""``oomproof history``: what earlier runs showed, and what is known by it.

Not covered: what is done with it, see `oomproof.plan.adaptive`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from oomproof import config
from oomproof.cli import output
from oomproof.cli.learning import target_of
from oomproof.errors import HistoryError, UsageError
from oomproof.history.model import Summary, printable_target
from oomproof.history.record import REMEDY, is_database_error, opened
from oomproof.plan.bracket import Bracket, bracket_of
from oomproof.units import count, format_size

if TYPE_CHECKING:
    from oomproof.history.store import History

SCHEMA_VERSION = 1
SETTINGS = (config.HISTORY,)
STANDARD = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    config.add_flags(parser, SETTINGS)
    parser.add_argument("--json", action="store_true", help="one JSON document (show, forget, import)")
    parser.add_argument("--all", action="store_true", help="forget everything")
    parser.add_argument("action", nargs="?", choices=sorted(ACTIONS), default="show")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="KEY|FILE",
        help="show, forget: keys as shown, or their beginnings; export, import: a file (default: -)",
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0; a history that is not there is an empty one."""
    target = target_of(config.resolve(SETTINGS, vars(args), os.environ)["history"])
    if target is None:
        raise UsageError("--history none: there is no history to work on: name one, or leave it out")
    if args.all and args.action != "forget":
        raise UsageError(f"--all is for forget, not for {args.action}")
    is_new = isinstance(target, Path) and not target.exists()
    if is_new and args.action != "import":
        if args.names and args.action != "export":
            raise UsageError(f"no key begins with {args.names[0]!r}: nothing is remembered in {target}")
        ACTIONS[args.action](None, args)
        return 0
    with _open(target) as history:
        ACTIONS[args.action](history, args)
    return 0


@contextlib.contextmanager
def _open(target: Path | str) -> Iterator[History]:
    """Raises HistoryError for whatever keeps it from being used."""
    try:
        history = opened(target, output.warning, replace_any=False)
    except OSError as error:
        raise _unusable(target, error.strerror or str(error)) from error
    except Exception as error:
        if not isinstance(error, HistoryError) and not is_database_error(error):
            raise
        raise _unusable(target, str(error)) from error
    # An OSError from here on is of what is read or written beside it, such as stdout.
    try:
        with history:
            yield history
    except Exception as error:
        if not is_database_error(error):
            raise
        raise _unusable(target, str(error)) from error


def _unusable(target: Path | str, why: str) -> HistoryError:
    reason = " ".join(why.split())
    return HistoryError(f"the history {printable_target(target)} cannot be used ({reason}): {REMEDY}")


# -- show -----------------------------------------------------------------------------------


def _show(history: History | None, args: argparse.Namespace) -> None:
    summaries = _chosen(history, args.names) if history is not None else []
    known = [(each, _bracket(history, each)) for each in summaries]
    if args.json:
        output.print_json(
            {"schema_version": SCHEMA_VERSION, "keys": [_as_json(each, bracket) for each, bracket in known]}
        )
        return
    if not known:
        print("nothing is remembered")
        return
    header = ("key", "runs", "attempts", "out of memory", "good", "bad", "sure", "limit", "last", "command")
    output.print_table(header, [_row(*each) for each in known], right=range(1, 8), elastic=(9,))


def _bracket(history: History | None, summary: Summary) -> Bracket:
    seen = history.observations(summary.key) if history is not None and summary.key is not None else []
    return bracket_of(seen)


def _row(summary: Summary, bracket: Bracket) -> tuple[str, ...]:
    def size(number: int | None) -> str:
        return "-" if number is None else format_size(number)

    extras = [f"--recipe {summary.recipe}"] if summary.recipe else []
    if summary.tag:
        extras.append(f"--tag {summary.tag}")
    return (
        summary.key or "-",
        str(summary.runs),
        str(summary.attempts),
        str(summary.out_of_memory),
        size(bracket.good_bytes),
        size(bracket.bad_bytes),
        f"{100 * bracket.confidence:.0f} %",
        size(summary.limit_bytes),
        summary.last_started_at[:19].replace("T", " "),
        " ".join([*extras, *summary.command]) if summary.key else "(runs of an older oomproof)",
    )


def _as_json(summary: Summary, bracket: Bracket) -> dict[str, object]:
    return {
        "key": summary.key,
        "command": list(summary.command),
        "recipe": summary.recipe,
        "tag": summary.tag,
        "limit_bytes": summary.limit_bytes,
        "machine": summary.machine,
        "runs": summary.runs,
        "attempts": summary.attempts,
        "out_of_memory": summary.out_of_memory,
        "last_started_at": summary.last_started_at,
        "known_good_bytes": bracket.good_bytes,
        "known_bad_bytes": bracket.bad_bytes,
        "confidence": round(bracket.confidence, 3),
    }


# -- forget -----------------------------------------------------------------------------------


def _forget(history: History | None, args: argparse.Namespace) -> None:
    if args.all == bool(args.names):
        raise UsageError("say what to forget: keys as oomproof history shows them, or --all")
    if history is None:
        forgotten = 0
    elif args.all:
        forgotten = history.forget_all()
    else:
        keys = [each.key for each in _chosen(history, args.names) if each.key is not None]
        forgotten = history.forget(keys)
    if args.json:
        output.print_json({"schema_version": SCHEMA_VERSION, "forgotten_runs": forgotten})
    else:
        print(f"{count(forgotten, 'run')} forgotten")


def _chosen(history: History, names: list[str]) -> list[Summary]:
    """The keys that begin with one of `names`; all without any. Raises UsageError for one that fits none."""
    summaries = history.summaries()
    for name in names:
        if not name or not any((each.key or "").startswith(name) for each in summaries):
            raise UsageError(f"no key begins with {name!r}: oomproof history shows those that there are")
    return [each for each in summaries if not names or (each.key or "").startswith(tuple(names))]


# -- export, import -----------------------------------------------------------------------------


def _export(history: History | None, args: argparse.Namespace) -> None:
    """One run with its attempts a line."""
    with _file(args.names, "w") as file:
        for document in history.export() if history is not None else ():
            file.write(json.dumps({"schema_version": SCHEMA_VERSION, **document}) + "\n")


def _import(history: History | None, args: argparse.Namespace) -> None:
    assert history is not None  # noqa: S101 - opened, or made
    taken = known = 0
    with _file(args.names, "r") as file:
        try:
            for line in file:
                is_new = history.import_run(_run_in(line))
                taken, known = taken + is_new, known + (not is_new)
        except (ValueError, RecursionError, HistoryError) as error:  # no text, no JSON or no run
            raise UsageError(
                f"{args.names[0] if args.names else STANDARD}, line {taken + known + 1}: {error}:"
                f" give what oomproof history export wrote; {taken} runs before it were taken in"
            ) from error
    if args.json:
        output.print_json(
            {"schema_version": SCHEMA_VERSION, "imported_runs": taken, "runs_known_before": known}
        )
    else:
        print(f"{count(taken, 'run')} taken in, {known} here already")


def _run_in(line: str) -> dict[str, Any]:
    document: Any = json.loads(line)
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise HistoryError(f"it is no run of schema_version {SCHEMA_VERSION}")
    return document


@contextlib.contextmanager
def _file(names: list[str], mode: str) -> Iterator[IO[str]]:
    if len(names) > 1:
        raise UsageError(f"one file, not {len(names)}: give {STANDARD} for standard input and output")
    name = names[0] if names else STANDARD
    if name == STANDARD:
        yield sys.stdin if mode == "r" else sys.stdout
        return
    try:
        with Path(name).open(mode, encoding="utf-8") as file:
            yield file
    except OSError as error:  # a disk without room shows as late as that
        raise UsageError(f"{name}: {error.strerror}: give another file, or {STANDARD}") from error


ACTIONS: dict[str, Callable[[History | None, argparse.Namespace], None]] = {
    "show": _show,
    "forget": _forget,
    "export": _export,
    "import": _import,
}
