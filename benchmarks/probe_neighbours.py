"""Does the probe hurt a neighbour? Many probes, each beside one that grows at 50 MiB/s in the same cgroup.

    python benchmarks/probe_neighbours.py [RUNS [LIMIT_MIB]]

Each run: a cgroup with a limit (as a container), in it a neighbour that grows from before the
probe starts, and `oomproof probe` beside it. Hurt means that the neighbour died. Prints how the
probes ended, and how far the growth of the neighbour moved ``kernel_overhead_bytes``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from oomproof.leaf import Leaf, make_leaf
from oomproof.units import MIB

NEIGHBOUR = Path(__file__).parents[1] / "tests/kernel/neighbour.py"
RATE = 50 * MIB


def in_cgroup(leaf: Leaf, *command: str) -> list[str]:
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(leaf.join_path), *command]


def probe(leaf: Leaf) -> dict[str, Any]:
    command = in_cgroup(leaf, sys.executable, "-m", "oomproof", "probe", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def one_run(limit: int) -> tuple[dict[str, Any], bool]:
    """The probe's answer, and whether the neighbour lived."""
    with make_leaf("bench") as leaf:
        leaf.set_limit(limit)
        # It grows to the half of the cgroup at most, so that it never fills it by itself.
        grow = [sys.executable, "-S", "-E", str(NEIGHBOUR), str(RATE), str(limit // 2)]
        command = in_cgroup(leaf, *grow)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as neighbour:
            assert neighbour.stdout is not None and neighbour.stdin is not None
            neighbour.stdout.readline()
            answer = probe(leaf)
            neighbour.stdin.close()
            return answer, neighbour.wait(30) == 0


def main(runs: int = 200, limit_mib: int = 512) -> int:
    limit = limit_mib * MIB
    with make_leaf("bench") as leaf:
        leaf.set_limit(limit)
        quiet = [probe(leaf) for _ in range(5)]
    per_byte = statistics.median(run["kernel_overhead_bytes"] / run["allocated_bytes"] for run in quiet)
    ends: Counter[str] = Counter()
    hurt = 0
    moved: list[float] = []
    others: list[float] = []
    for number in range(1, runs + 1):
        answer, lived = one_run(limit)
        hurt += not lived
        ends[answer["stop_reason"]] += 1
        moved.append(abs(answer["kernel_overhead_bytes"] / answer["allocated_bytes"] / per_byte - 1))
        others.append(answer["others_bytes"] / MIB)
        if not lived:
            print(f"run {number}: the neighbour died: {answer}", flush=True)
    print(f"{runs} probes in {limit_mib} MiB beside a neighbour that grows at {RATE // MIB} MiB/s")
    print(f"neighbours hurt: {hurt}")
    print(f"probes ended by: {dict(ends)}")
    print(f"growth of others seen: {min(others):.1f} to {max(others):.1f} MiB")
    print(f"kernel overhead per byte moved by at most {max(moved):.2%} (quiet: {per_byte:.4%})")
    return 1 if hurt else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
