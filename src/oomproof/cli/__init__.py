"""The command line: one module per verb, imported only when that verb is called.

A verb module has ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code). Verbs that
start a program find the caught signals in ``args.signals``: they are caught before anything
else is imported, since the kernel drops signals that PID 1 does not catch.
Exit codes common to all verbs are those of `oomproof.errors`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from oomproof.errors import OomproofError, UsageError
from oomproof.launch.signals import Signals

if TYPE_CHECKING:
    import argparse

VERBS = {
    "check": "what the kernel allows here, and what binds",
    "need": "whether a size fits here, as an exit code",
    "probe": "what can really be had, by allocating in a sacrificial child",
    "plan": "one explained budget from check and probe",
    "run": "start a program with the budget; on an OOM kill, again with a smaller one",
    "bench": "run a program until it succeeds and report the budget that worked",
    "history": "what earlier runs showed: show, forget, export, import",
    "entrypoint": "check, probe, plan, bench and run as PID 1 of a container",
    "recipes": "the knobs of known programs, and what they leave out",
}


LAUNCHING_VERBS = frozenset({"run", "bench", "entrypoint"})


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser, with the arguments of `verb` alone filled in: the others stay unimported.

    It raises UsageError, in one line, where argparse would print two and exit.
    """
    import argparse
    import importlib

    from oomproof import __version__

    class Formatter(argparse.RawDescriptionHelpFormatter):
        # With its width: to find that, argparse imports shutil whether help is wanted or not, and a
        # supervisor would be half a MiB larger for it.
        def __init__(self, prog: str) -> None:
            super().__init__(prog, width=_columns() - 2)

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}: see {self.prog} --help")

    parser = Parser(
        prog="oomproof",
        description="Programs that live in the memory they really have.",
        formatter_class=Formatter,
    )
    parser.add_argument("--version", action="version", version=f"oomproof {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        verb_parser = verbs.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        if name == verb:
            module = importlib.import_module(f"oomproof.cli.{name}")
            module.add_arguments(verb_parser)
            verb_parser.set_defaults(run=module.run)
    return parser


def _columns() -> int:
    """Width of the terminal that help is written to."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno() if sys.stdout is not None else 1).columns or 80
    except (OSError, ValueError):
        return 80  # no terminal, or no stdout with a descriptor


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``oomproof`` command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in arguments if not word.startswith("-")), None)
    _occupy_standard_streams()
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals()) if verb in LAUNCHING_VERBS else None
        return _run(verb, arguments, signals)


def _occupy_standard_streams() -> None:
    """Where stdin, stdout or stderr is closed, nothing that we open may take its number: what is written
    to stderr would end up in our own pipe of signals. Programs that we start find it closed all the same."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # takes the lowest number that is free: this one


def _run(verb: str | None, arguments: Sequence[str], signals: Signals | None) -> int:
    try:
        args = build_parser(verb).parse_args(arguments)
        args.signals = signals
        code = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except OomproofError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away (`oomproof check | head -1`): end as others do.
        _give_up_stdout()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        # The kernel refused us something that every program may expect: descriptors, a disk with room.
        _give_up_stdout()
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}: give oomproof what it lacks, or report it as a fault")
        return OomproofError.exit_code
    return code


def _give_up_stdout() -> None:
    """What could not be written is lost; the interpreter must not try again and replace our exit code."""
    sys.stdout = None


def _complain(message: str) -> None:
    from oomproof.cli import output

    output.error(message)
