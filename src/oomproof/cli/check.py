"""``oomproof check``: what the kernel allows here, and what binds."""

from __future__ import annotations

import argparse
import signal
import sys

from oomproof.cli import output
from oomproof.errors import LimitsError, UsageError
from oomproof.limits import detect_limits
from oomproof.limits.model import Candidate, LimitReport, Status
from oomproof.units import format_size

EPILOG = """\
exit codes: 0 the limit is known; 2 wrong usage;
            125 no file tells the limit (the answer is printed all the same)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``check``; ``check capture FILE`` is the one sub-action."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("action", nargs="?", choices=("capture",), help="bundle what was read, anonymised")
    parser.add_argument("file", nargs="?", metavar="FILE", help="where capture writes its .tar or .tar.gz")
    parser.add_argument(
        "--root", metavar="DIR", help="read a recorded machine: a directory or a captured bundle"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, sizes in bytes")
    parser.add_argument("--explain", action="store_true", help="say what each row and notice means")
    parser.add_argument("--watch", action="store_true", help="print again whenever the limit changes")
    parser.add_argument(
        "--interval", type=_seconds, default=5.0, metavar="S", help="--watch looks at least this often (5)"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0.01 and 86400")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Print the answer; raises LimitsError (125) after it when the limit is unknown."""
    if args.action == "capture":
        return _capture(args)
    if args.file is not None:
        raise UsageError(f"{args.file!r} is one argument too many: check takes no file, check capture does")
    if args.root is None:
        return _answer(args, None)
    from oomproof.limits.bundle import open_root

    with open_root(args.root) as root:
        return _answer(args, str(root))


def _answer(args: argparse.Namespace, root: str | None) -> int:
    if args.watch:
        return _watch(args, root)
    report = detect_limits(root or "/")
    show(report, as_json=args.json, explained=args.explain)
    if report.status is Status.UNKNOWN:
        raise LimitsError(why_unknown(report))
    return 0


def why_unknown(report: LimitReport) -> str:
    """The first notice that explains it, and the way out."""
    telling = (
        "limit_unreadable",
        "cgroup_not_visible",
        "outside_namespace",
        "meminfo_unreadable",
        "no_cgroupfs",
        "no_proc",
    )
    found = {notice.code: notice.message for notice in reversed(report.notices)}
    cause = next((found[code] for code in telling if code in found), "No file tells the limit.")
    return f"the memory limit is unknown: {cause} Give one with --limit SIZE to run, or mount /proc and /sys."


def show(report: LimitReport, *, as_json: bool, explained: bool) -> None:
    """The answer on stdout: JSON, or a table with the notices and hints below it."""
    if as_json:
        from oomproof.limits.report import report_as_json

        document = report_as_json(report)
        if explained:
            from oomproof.limits.explain import explain

            document["explanation"] = list(explain(report))
        output.print_json(document)
        return
    output.print_table(
        ("CANDIDATE", "LIMIT", "IN USE", "HEADROOM", "IF CACHE DROPS", "VERDICT", "FILE"),
        [_cells(row) for row in report.candidates],
        right=(1, 2, 3, 4),
        elastic=(0, 6),
    )
    print()
    print(f"status     {report.status.value}")
    print(f"limit      {_bound(report.limit_bytes, report.limit_bound_by)}")
    print(f"available  {_bound(report.available_bytes, report.available_bound_by)}")
    if report.host_available_bytes is not None:
        print(f"host       {format_size(report.host_available_bytes)} available of", end=" ")
        print(format_size(report.host_total_bytes))
    for notice in report.notices:
        print(f"notice     {notice.code}: {notice.message}")
    for hint in report.hints:
        print(f"hint       {hint.code}: {hint.message} Not enforced here.")
    if explained:
        from oomproof.limits.explain import explain

        print()
        for line in explain(report):
            print(line)


def _cells(row: Candidate) -> tuple[str, ...]:
    sizes = (row.limit_bytes, row.usage_bytes, row.available_bytes, row.available_optimistic_bytes)
    return (
        row.name,
        *("-" if size is None else format_size(size) for size in sizes),
        row.verdict,
        row.source,
    )


def _bound(size: int | None, by: str | None) -> str:
    return f"{format_size(size)} ({by})" if by else format_size(size)


def _watch(args: argparse.Namespace, root: str | None) -> int:
    from oomproof.limits.watch import LimitWatch

    def changed(_: LimitReport, report: LimitReport) -> None:
        tell(report)

    def tell(report: LimitReport) -> None:
        if args.json:
            import json

            from oomproof.limits.report import report_as_json

            print(json.dumps(report_as_json(report)), flush=True)
        elif args.explain:
            show(report, as_json=False, explained=True)
            print(flush=True)
        else:
            limit = _bound(report.limit_bytes, report.limit_bound_by)
            print(f"{report.status.value}: limit {limit}, available", end=" ")
            print(format_size(report.available_bytes), flush=True)

    # Ended by a signal, the watch still takes away what it unpacked; nohup stays in force.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    with LimitWatch(changed, root=root or "/", interval_seconds=args.interval) as watch:
        tell(watch.report)
        watch.run()
    return 0


def _capture(args: argparse.Namespace) -> int:
    if args.file is None:
        raise UsageError("capture needs a file to write: oomproof check capture FILE.tar.gz")
    if args.watch:
        raise UsageError("capture takes one picture: leave --watch out")
    from oomproof.limits.bundle import open_root
    from oomproof.limits.capture import capture

    with open_root(args.root or "/") as root:
        report = capture(args.file, root)
    if args.json or args.explain:
        show(report, as_json=args.json, explained=args.explain)
    output.say(f"wrote {args.file}: replay it with oomproof check --root {args.file}")
    return 0
