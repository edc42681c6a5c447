"""The probe beside the C loop that people write for the same question, paired run by run.

    python benchmarks/probe.py [--undisturbed] [--runs N] [LIMIT ...]   (default: 5 runs of 1GiB and 4GiB)

For each limit, in leaf cgroups that have it, in turn and several times over: the C loop with its chunks
of 1 GiB, and the probe: full, quick, and full on huge pages. Before each, all of it is touched once, so
that nobody pays for memory that a virtual machine's host has to find first; and before that it waits, for
4 s at most, until the rest of the machine is quiet. Prints medians of time and throughput, the ratio to
the C loop (median of the rounds, and of the best runs, which others disturbed least), what the rest of the
machine used meanwhile, and how far each answer is from the truth, which is a C loop that goes on, 64 KiB
at a time, until the kernel kills it. Needs cc, and the right to make cgroups. With --undisturbed what is
measured, loop and probe alike, has a real-time priority, for machines on which others never rest.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from oomproof.leaf import Leaf, make_leaf
from oomproof.probe import ProbeRequest, ProbeResult, Shape, run_probe
from oomproof.units import GIB, KIB, MIB, format_size, parse_size
from probe_simulation import LARGE, simulate

SOURCE = Path(__file__).with_name("probe_loop.c")
CHUNK, TRUTH_CHUNK = GIB, 64 * KIB
QUIET = 0.1
"""Processors that others may use while something is measured."""
PATIENCE_S = 4.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found, how much was touched for it, and the seconds until it was known and for touching."""

    found: int
    touched: int
    seconds: float
    touching: float
    processor: float
    """Seconds of processor time, to start, touch and give back: what a busy machine distorts least."""
    others: float
    """Processors that the rest of the machine used meanwhile."""

    @property
    def rate(self) -> float:
        """Bytes touched a second, while touching."""
        return self.touched / self.touching


def loop(program: Path, limit: int, up_to: int, chunk: int) -> Answer:
    """Run the C loop in a leaf with `limit`; its answer is what its last line says, killed or not."""
    with make_leaf("bench") as leaf:
        leaf.set_limit(limit)
        machine = Machine()
        lines = subprocess.run(
            in_leaf(leaf, str(program), str(up_to), str(chunk)), capture_output=True, text=True, check=False
        ).stdout.splitlines()
        touched, touching = lines[-1].split()
        return Answer(int(touched), int(touched), machine.seconds(), float(touching), *machine.usage())


def warm(program: Path, limit: int) -> None:
    """Touch as much once before: a virtual machine's host takes back, within seconds, what is free."""
    loop(program, limit, limit - 16 * MIB, 16 * MIB)


def in_leaf(leaf: Leaf, *command: str) -> list[str]:
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(leaf.join_path), *command]


def probe(limit: int, shape: Shape = Shape.ANON, quick: bool = False) -> Answer:
    steps: list[float] = []
    machine = Machine()
    request = ProbeRequest(limit_bytes=limit, shape=shape, quick=quick)
    result: ProbeResult = run_probe(request, on_step=lambda *_: steps.append(time.perf_counter()))
    touched = result.allocated_bytes if result.touched_bytes is None else result.touched_bytes
    return Answer(
        result.allocated_bytes, touched, result.duration_seconds, steps[-1] - steps[0], *machine.usage()
    )


class Machine:
    """What processors did since it was made."""

    def __init__(self) -> None:
        self._started, self._own, self._all = time.perf_counter(), own_time(), all_time()

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def usage(self) -> tuple[float, float]:
        """Our seconds of processor time, and the processors that all others used."""
        own = own_time() - self._own
        return own, max(all_time() - self._all - own, 0.0) / self.seconds()


def wait_until_quiet() -> None:
    """Until the rest of the machine uses nearly nothing, or it is no use to wait."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        machine = Machine()
        time.sleep(0.2)
        if machine.usage()[1] <= QUIET:
            return


@contextmanager
def undisturbed() -> Iterator[None]:
    """A real-time priority for all that is started meanwhile."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def own_time() -> float:
    """Seconds of processor time, of this process and all that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def all_time() -> float:
    """The same of the whole machine, and what its host took from it."""
    user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    ticks = sum(map(int, (user, nice, system, irq, softirq, steal)))
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(program: Path, limit: int, rounds: int, first: bool) -> None:
    truth = loop(program, limit, limit, TRUTH_CHUNK).found
    answers: defaultdict[str, list[Answer]] = defaultdict(list)
    contenders: dict[str, Callable[[], Answer]] = {
        "C loop, 1 GiB chunks": lambda: loop(program, limit, limit - CHUNK, CHUNK),
        "C loop, 16 MiB chunks": lambda: loop(program, limit, limit - 16 * MIB, 16 * MIB),
        "probe": lambda: probe(limit),
        "probe --quick": lambda: probe(limit, quick=True),
        "probe --as hugepage": lambda: probe(limit, Shape.HUGEPAGE),
    }
    if limit <= CHUNK:
        del contenders["C loop, 1 GiB chunks"]
    for _ in range(rounds):
        for name, run in contenders.items():
            wait_until_quiet()
            warm(program, limit)
            with undisturbed() if first else nullcontext():
                answers[name].append(run())
    print(f"\n{format_size(limit)}: a process lives with up to {format_size(truth)} ({rounds} runs, medians)")
    print(
        f"{'':24}{'answer':>12}{'off by':>12}{'seconds':>10}{'touching':>13}{'ratio':>8}{'of best':>9}"
        f"{'CPU s/GiB':>11}{'others':>8}"
    )
    base = next(iter(answers.values()))
    best = max(run.rate for run in base)
    for name, runs in answers.items():
        found = round(statistics.median(run.found for run in runs))
        rate = statistics.median(run.rate for run in runs)
        ratio = statistics.median(run.rate / loop.rate for run, loop in zip(runs, base, strict=True))
        print(
            f"{name:24}{format_size(found):>12}{format_size(truth - found):>12}"
            f"{statistics.median(run.seconds for run in runs):>10.2f}"
            f"{rate / GIB:>8.2f} G/s{ratio:>8.2f}{max(run.rate for run in runs) / best:>9.2f}"
            f"{statistics.median(run.processor * GIB / run.touched for run in runs):>11.2f}"
            f"{statistics.median(run.others for run in runs):>8.2f}"
        )
    for name in ("probe", "probe --as hugepage"):
        rate = statistics.median(run.rate for run in answers[name])
        simulated = simulate(LARGE, rate)
        print(
            f"{name}: {format_size(LARGE)} would take {LARGE / rate:.0f} s on paper,"
            f" {simulated.seconds:.0f} s in {simulated.steps} steps by simulation"
        )
    quick, full = (
        statistics.median(run.found for run in answers[name]) for name in ("probe --quick", "probe")
    )
    print(f"quick differs from full by {abs(quick / full - 1):.3%}")


def main(limits: list[int], rounds: int, first: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "probe_loop")
        subprocess.run(["/usr/bin/cc", "-O2", "-o", str(program), str(SOURCE)], check=True)
        for limit in limits:
            compare(program, limit, rounds, first)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("limits", nargs="*", type=parse_size, metavar="LIMIT", default=[GIB, 4 * GIB])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--undisturbed", action="store_true")
    args = parser.parse_args()
    main(args.limits, args.runs, args.undisturbed)
