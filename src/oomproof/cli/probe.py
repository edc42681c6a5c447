"""``oomproof probe``: what can really be had, by allocating in a sacrificial child."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Self

from oomproof.cli import output
from oomproof.errors import UsageError
from oomproof.probe import ProbeRequest, ProbeResult, Shape, StopReason, run_probe
from oomproof.probe.decide import Progress
from oomproof.probe.mix import parse_mix
from oomproof.probe.model import DEFAULT_CHUNK_BYTES, PartResult
from oomproof.probe.readings import Reading
from oomproof.units import MIB, count, format_size, parse_size

_BAR_WIDTH = 20


_EXIT_CODES = (
    "Exit codes: 0: there is an answer, whatever ended the probe (see stop_reason); 130 or 143: Ctrl-C or"
    " SIGTERM ended it, and the answer is what was touched until then; 2: the arguments make no sense; 125:"
    " the probe could not be done."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``oomproof probe``."""
    parser.epilog = _EXIT_CODES
    parser.add_argument("--json", action="store_true", help="one JSON document, sizes in bytes")
    parser.add_argument(
        "--chunk",
        metavar="SIZE",
        help=f"first and largest step (default {DEFAULT_CHUNK_BYTES // MIB}MiB); not the precision",
    )
    parser.add_argument("--max", metavar="SIZE", help="touch no more than this")
    parser.add_argument(
        "--reserve", metavar="SIZE", help="headroom to leave untouched (default: from the limit)"
    )
    parser.add_argument("--deadline", metavar="SECONDS", help="stop after so long with what was touched")
    parser.add_argument(
        "--limit", metavar="SIZE", help="limit the probe's own leaf cgroup, as though a container had it"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--as",
        dest="shape",
        choices=[shape.value for shape in Shape],
        default=Shape.ANON.value,
        help="kind of memory: private, on huge pages, page-locked, of a mapped file, shared, or page-locked"
        " by CUDA (default: %(default)s)",
    )
    kind.add_argument(
        "--mix",
        metavar="PART,...",
        help="several kinds at once, in this order: KIND=SIZE or KIND=PERCENT%%, the last one without an"
        " amount for the rest, for example pinned=2GiB,file=25%%,anon",
    )
    parser.add_argument(
        "--file-dir",
        type=Path,
        metavar="DIR",
        help="where the file to map is made; it has no name and takes no disk (default: $TMPDIR, /var/tmp)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="touch 1/20 of what is left, at most 2GiB, and extrapolate with an error bar",
    )


def run(args: argparse.Namespace) -> int:
    """Probe and print; 0, or 128 + the signal that ended it early (what was found is printed)."""
    request = ProbeRequest(
        chunk_bytes=DEFAULT_CHUNK_BYTES if args.chunk is None else parse_size(args.chunk),
        max_bytes=_size(args.max),
        reserve_bytes=_size(args.reserve),
        deadline_s=_seconds(args.deadline),
        limit_bytes=_size(args.limit),
        shape=Shape(args.shape),
        mix=() if args.mix is None else parse_mix(args.mix),
        file_directory=args.file_dir,
        quick=args.quick,
    )
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        with _ProgressLine(request.max_bytes) as progress:
            result = run_probe(request, progress.on_step)
    except KeyboardInterrupt:
        return 128 + (received or [signal.SIGINT])[0]
    if args.json:
        output.print_json(result.as_json())
    else:
        _print_for_people(result)
    return 128 + received[0] if received else 0


class _ProgressLine:
    """One line on a terminal's stderr that is written over and over; nothing anywhere else."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._shown = sys.stderr.isatty()
        self._started_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def on_step(self, progress: Progress, reading: Reading) -> None:
        """Show how far it has come, at what rate, and how long it may still take."""
        if not self._shown:
            return
        now = time.monotonic()
        self._started_s = self._started_s or now
        to_max = None if self._max_bytes is None else self._max_bytes - progress.allocated_bytes
        bounds = (reading.headroom_bytes, reading.host_available_bytes, reading.high_headroom_bytes, to_max)
        left = min((size for size in bounds if size is not None), default=None)
        line = progress_line(progress.allocated_bytes, left, now - self._started_s)
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._started_s is not None:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def progress_line(touched: int, left: int | None, seconds: float) -> str:
    """``1.00 GiB of 4.00 GiB touched, 2.00 GiB/s, 2 s left``; sizes in bytes, `left` None: not known."""
    line = f"{format_size(touched)} touched"
    if left is not None:
        share = touched / (touched + left) if touched + left else 1.0
        bar = ("#" * round(share * _BAR_WIDTH)).ljust(_BAR_WIDTH, ".")
        line = f"[{bar}] {format_size(touched)} of {format_size(touched + left)} touched"
    if touched and seconds > 0:
        rate = touched / seconds
        line += f", {format_size(int(rate))}/s"
        if left is not None:
            line += f", {left / rate:.0f} s left"
    return line


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"--deadline {text} is no time: give seconds above 0, for example 30")
    return seconds


_STOPPED = {
    StopReason.RESERVE: "only the reserve was left",
    StopReason.MAXIMUM: "all that was asked for",
    StopReason.LIMIT: "the kernel refused more, or took it back",
    StopReason.MEMLOCK: "RLIMIT_MEMLOCK allows no more",
    StopReason.THROTTLED: "the cgroup is throttled above this",
    StopReason.SWAPPING: "memory began to be swapped out",
    StopReason.OOM_GROUP: "memory.oom.group is set: a kill would take the whole cgroup",
    StopReason.DEADLINE: "--deadline was reached",
    StopReason.KILLED: "the toucher was killed",
    StopReason.INTERRUPTED: "interrupted",
}


def _print_for_people(result: ProbeResult) -> None:
    seconds = max(result.duration_seconds, 1e-9)
    rows = [
        ("limit", _limit(result.cgroup_limit_bytes), ""),
        ("usage before", format_size(result.usage_before_bytes), ""),
        ("allocated", format_size(result.allocated_bytes), _STOPPED[result.stop_reason]),
        *_extrapolation(result),
        *_parts(result),
        ("usage at peak", format_size(result.usage_peak_bytes), ""),
        ("overhead", format_size(result.overhead_bytes), "all growth beside the allocation"),
        *(
            (f"  {cause.replace('_', ' ')}", format_size(size), "")
            for cause, size in result.overhead_by_cause.items()
            if size
        ),
        ("  others", format_size(result.others_bytes), ""),
        ("for the next", format_size(result.allocatable_bytes), "with what oomproof itself held meanwhile"),
    ]
    output.print_table(("", "SIZE", ""), rows, right=[1])
    touched = result.allocated_bytes if result.touched_bytes is None else result.touched_bytes
    print(
        f"\n{count(result.probe_chunks, 'step')} in {result.duration_seconds:.2f} s,"
        f" {format_size(int(touched / seconds))}/s"
    )
    for notice in result.notices:
        output.warning(notice)
    sys.stdout.flush()


def _parts(result: ProbeResult) -> list[tuple[str, str, str]]:
    """What a mix is made of."""
    if len(result.parts) < 2:
        return []
    return [(f"  {part.shape}", format_size(part.allocated_bytes), _asked(part)) for part in result.parts]


def _asked(part: PartResult) -> str:
    return (
        "of all that was left"
        if part.asked_bytes is None
        else f"of {format_size(part.asked_bytes)} asked for"
    )


def _extrapolation(result: ProbeResult) -> list[tuple[str, str, str]]:
    if not result.error_bytes:
        return []
    if not result.extrapolated:
        return [("  up to", format_size(result.error_bytes), "more, within the last step")]
    touched = format_size(result.touched_bytes)
    return [("  give or take", format_size(result.error_bytes), f"extrapolated from {touched}")]


def _limit(size: int | None) -> str:
    return "none" if size is None else format_size(size)
