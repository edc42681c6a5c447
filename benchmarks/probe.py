"""The probe beside the C loop that people write for the same question, paired run by run.

    python benchmarks/probe.py [LIMIT ...]          (default: 1GiB 4GiB; 12GiB where there is room)

For each limit, in leaf cgroups that have it, in turn and several times over: the C loop with its chunks
of 1 GiB, and the probe: full, full on huge pages, quick. Prints medians of time and throughput, the
ratios to the C loop, and how far each answer is from the truth, which is a C loop that goes on, 64 KiB
at a time, until the kernel kills it. Needs cc, and the right to make cgroups.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from oomproof.leaf import Leaf, make_leaf
from oomproof.probe import ProbeRequest, ProbeResult, Shape, run_probe
from oomproof.units import GIB, KIB, MIB, format_size, parse_size

SOURCE = Path(__file__).with_name("probe_loop.c")
CHUNK, TRUTH_CHUNK = GIB, 64 * KIB
RUNS = 5
LARGE = 342 * GIB


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found, how much was touched for it, and the seconds until it was known and for touching."""

    found: int
    touched: int
    seconds: float
    touching: float
    processor: float
    """Seconds of processor time, to start, touch and give back: what a busy machine does not distort."""

    @property
    def rate(self) -> float:
        """Bytes touched a second, while touching."""
        return self.touched / self.touching


def loop(program: Path, limit: int, chunk: int) -> Answer:
    """Run the C loop in a leaf with `limit`; its answer is what its last line says, killed or not."""
    with make_leaf("bench") as leaf:
        leaf.set_limit(limit)
        started, used = time.perf_counter(), processor_time()
        lines = subprocess.run(
            in_leaf(leaf, str(program), str(limit), str(chunk)), capture_output=True, text=True, check=False
        ).stdout.splitlines()
        touched, touching = lines[-1].split()
        seconds = time.perf_counter() - started
        return Answer(int(touched), int(touched), seconds, float(touching), processor_time() - used)


def warm(program: Path, limit: int) -> None:
    """Touch as much once before: a virtual machine's host may have taken back what was free."""
    loop(program, limit - 16 * MIB, 16 * MIB)


def in_leaf(leaf: Leaf, *command: str) -> list[str]:
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(leaf.join_path), *command]


def probe(limit: int, shape: Shape = Shape.ANON, quick: bool = False) -> Answer:
    steps: list[float] = []
    used = processor_time()
    request = ProbeRequest(limit_bytes=limit, shape=shape, quick=quick)
    result: ProbeResult = run_probe(request, on_step=lambda *_: steps.append(time.perf_counter()))
    touched = result.allocated_bytes if result.touched_bytes is None else result.touched_bytes
    processor = processor_time() - used
    return Answer(result.allocated_bytes, touched, result.duration_seconds, steps[-1] - steps[0], processor)


def processor_time() -> float:
    """Seconds, of this process and all that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def compare(program: Path, limit: int) -> None:
    truth = loop(program, limit, TRUTH_CHUNK).found
    answers: defaultdict[str, list[Answer]] = defaultdict(list)
    for _ in range(RUNS):
        warm(program, limit)
        if limit > CHUNK:
            answers["C loop, 1 GiB chunks"].append(loop(program, limit - CHUNK, CHUNK))
        answers["C loop, 16 MiB chunks"].append(loop(program, limit - 16 * MIB, 16 * MIB))
        answers["probe"].append(probe(limit))
        answers["probe --quick"].append(probe(limit, quick=True))
    # Not in turn with the others: huge pages are made of other memory, and leave it to those who come next.
    for _ in range(RUNS):
        answers["probe --as hugepage"].append(probe(limit, Shape.HUGEPAGE))
    print(f"\n{format_size(limit)}: a process lives with up to {format_size(truth)} ({RUNS} runs, medians)")
    print(f"{'':24}{'answer':>12}{'off by':>12}{'seconds':>10}{'touching':>13}{'ratio':>8}{'CPU s/GiB':>11}")
    base = statistics.median(run.rate for run in next(iter(answers.values())))
    for name, runs in answers.items():
        found = round(statistics.median(run.found for run in runs))
        rate = statistics.median(run.rate for run in runs)
        print(
            f"{name:24}{format_size(found):>12}{format_size(truth - found):>12}"
            f"{statistics.median(run.seconds for run in runs):>10.2f}"
            f"{rate / GIB:>8.2f} G/s{rate / base:>8.2f}"
            f"{statistics.median(run.processor * GIB / run.touched for run in runs):>11.2f}"
        )
    for name in ("probe", "probe --as hugepage"):
        rate = statistics.median(run.rate for run in answers[name])
        print(f"{name}: {format_size(LARGE)} would take {LARGE / rate:.0f} s")
    quick, full = (
        statistics.median(run.found for run in answers[name]) for name in ("probe --quick", "probe")
    )
    print(f"quick differs from full by {abs(quick / full - 1):.3%}")


def main(limits: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "probe_loop")
        subprocess.run(["/usr/bin/cc", "-O2", "-o", str(program), str(SOURCE)], check=True)
        for limit in limits:
            compare(program, limit)


if __name__ == "__main__":
    main([parse_size(text) for text in sys.argv[1:]] or [GIB, 4 * GIB])
