"""The command line: one module per verb, imported only when that verb is called.

A verb module has ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code).
Exit codes common to all verbs are those of `oomproof.errors`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from oomproof import __version__
from oomproof.cli import output
from oomproof.errors import OomproofError

VERBS = {
    "check": "what the kernel allows here, and what binds",
    "need": "whether a size fits here, as an exit code",
    "probe": "what can really be had, by allocating in a sacrificial child",
    "plan": "one explained budget from check and probe",
    "run": "start a program with the budget; on an OOM kill, again with a smaller one",
    "bench": "run a program until it succeeds and report the budget that worked",
    "entrypoint": "check, probe, plan, bench and run as PID 1 of a container",
}


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser, with the arguments of `verb` alone filled in: the others stay unimported."""
    parser = argparse.ArgumentParser(
        prog="oomproof", description="Programs that live in the memory they really have."
    )
    parser.add_argument("--version", action="version", version=f"oomproof {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        verb_parser = verbs.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
        )
        if name == verb:
            module = importlib.import_module(f"oomproof.cli.{name}")
            module.add_arguments(verb_parser)
            verb_parser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``oomproof`` command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in arguments if not word.startswith("-")), None)
    args = build_parser(verb).parse_args(arguments)
    try:
        return int(args.run(args))
    except OomproofError as error:
        output.error(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away (`oomproof check | head -1`): die as others do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
