"""``oomproof need SIZE``: does it fit here, yes, no or unknown, as an exit code."""

from __future__ import annotations

import argparse

from oomproof.cli import output
from oomproof.limits import detect_limits
from oomproof.limits.fit import Fit, fits
from oomproof.units import parse_size

EPILOG = """\
exit codes: 0 it fits; 1 it does not; 2 that cannot be told (or wrong usage)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``need``."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("size", metavar="SIZE", help="for example 12GiB")
    parser.add_argument("--pinned", action="store_true", help="page-locked: RLIMIT_MEMLOCK counts too")
    parser.add_argument(
        "--workers", type=_count, default=1, metavar="N", help="SIZE for each of N processes (1)"
    )
    parser.add_argument(
        "--root", metavar="DIR", help="read a recorded machine: a directory or a captured bundle"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, sizes in bytes")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:7]) <= 999_999 or len(text) > 6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers from 1 to 999999")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """One line that says why; the exit code is the answer."""
    size = parse_size(args.size)
    if args.root is None:
        report = detect_limits()
    else:
        from oomproof.limits.bundle import open_root

        with open_root(args.root) as root:
            report = detect_limits(root)
    fit = fits(report, size, pinned=args.pinned, workers=args.workers)
    if args.json:
        output.print_json(_as_json(fit, size, args))
    else:
        print(fit.reason)
        if args.pinned:
            from oomproof.limits.explain import PINNED_BLIND_SPOTS

            output.say(PINNED_BLIND_SPOTS)
    return {True: 0, False: 1, None: 2}[fit.fits]


def _as_json(fit: Fit, size: int, args: argparse.Namespace) -> dict[str, object]:
    return {
        "schema_version": 1,
        "fits": fit.fits,
        "need_bytes": size,
        "workers": args.workers,
        "pinned": args.pinned,
        "have_bytes": fit.have_bytes,
        "reason": fit.reason,
    }
