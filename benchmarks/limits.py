"""How long the answer takes, beside proclimits in one run.

    python benchmarks/limits.py [--rounds N]

Warm: a further call in one process, values read anew. Cold: the first call of a process, where the
files are found too, without imports. Start: a whole process from nothing. Both tools take turns in
random order; medians are printed, and 95th percentiles. proclimits answers less in its call (limit and
headroom; no table, no host, NUMA, swap, resource limits, history), so a ratio above 1 is expected.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import proclimits

from oomproof.limits import detect_limits

COLD = {
    "oomproof": "from oomproof.limits import detect_limits as ask",
    "proclimits": "from proclimits import get_memory_budget as ask",
}
TIMED = "import time; begun = time.perf_counter(); ask(); print(time.perf_counter() - begun)"
STARTS = {
    "python3 -c pass": ["-c", "pass"],
    "oomproof check": ["-m", "oomproof", "check"],
    "proclimits, imported and asked": ["-c", f"{COLD['proclimits']}; ask()"],
}
PROMISES_MS = {"warm": 1.0, "cold": 10.0}


def main() -> int:
    """Print the table; exit code 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description="Time the answer beside proclimits.")
    parser.add_argument("--rounds", type=int, default=2000)
    rounds: int = parser.parse_args().rounds
    calls: dict[str, Callable[[], object]] = {
        "oomproof": detect_limits,
        "proclimits": proclimits.get_memory_budget,
    }
    for call in calls.values():
        call()
    warm = take_turns({name: timed_call(call) for name, call in calls.items()}, rounds)
    cold = take_turns({name: timed_first_call(name) for name in COLD}, max(rounds // 100, 5))
    start = take_turns({name: timed_process(words) for name, words in STARTS.items()}, max(rounds // 100, 5))
    broken = False
    for title, samples in (("warm", warm), ("cold", cold)):
        show(title, samples, "proclimits")
        broken |= statistics.median(samples["oomproof"]) * 1000 > PROMISES_MS[title]
    show("start", start, "python3 -c pass")
    for title, most in PROMISES_MS.items():
        print(f"promise: {title} under {most:g} ms")
    print("broken" if broken else "kept")
    return int(broken)


def take_turns(tasks: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each task, `rounds` times, in an order that is random in each round."""
    samples: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name in random.sample(sorted(tasks), len(tasks)):
            samples[name].append(tasks[name]())
    return samples


def timed_call(call: Callable[[], object]) -> Callable[[], float]:
    """A task that times one call in this process."""

    def task() -> float:
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    return task


def timed_first_call(name: str) -> Callable[[], float]:
    """A task that times the first call in a new process, as that process sees it."""
    command = [sys.executable, "-c", f"{COLD[name]}; {TIMED}"]
    return lambda: float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def timed_process(words: list[str]) -> Callable[[], float]:
    """A task that times a whole process."""
    command = [sys.executable, *words]
    return timed_call(lambda: subprocess.run(command, capture_output=True, check=True))


def show(title: str, samples: dict[str, list[float]], base: str) -> None:
    """One line for each tool, with the ratio of its median to that of `base`."""
    reference = statistics.median(samples[base])
    for name, times in samples.items():
        median, late = statistics.median(times), sorted(times)[int(len(times) * 0.95)]
        print(
            f"{title:6} {name:31} median {median * 1000:8.3f} ms   p95 {late * 1000:8.3f} ms"
            f"   {median / reference:5.2f} x {base}"
        )


if __name__ == "__main__":
    sys.exit(main())
