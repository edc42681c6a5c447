"""How far the probe's answers are from what the kernel really lets a process have.

    python benchmarks/probe_precision.py [LIMIT ...]          (default: 64MiB 256MiB 1GiB 4GiB)

The truth of each limit is found by dying of it: the C loop goes on, 64 KiB at a time, in a throw-away
cgroup until the kernel kills it. Beside it, in such cgroups: the probe in a leaf that has the limit
(``--limit``), full and quick; and the probe inside, as in a container, where oomproof itself is within the
limit: ``allocated_bytes`` is for a program beside oomproof, ``allocatable_bytes`` for one that is started
when oomproof has ended. Needs cc, and the right to make cgroups.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from oomproof.leaf import Leaf, make_leaf
from oomproof.probe import ProbeRequest, run_probe
from oomproof.units import GIB, KIB, MIB, format_size, parse_size

SOURCE = Path(__file__).with_name("probe_loop.c")
PROMISED_SHARE, PROMISED_BYTES = 0.01, 16 * MIB


def in_cgroup(leaf: Leaf, *command: str) -> list[str]:
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(leaf.join_path), *command]


def truth(program: Path, limit: int) -> int:
    with make_leaf("bench") as leaf:
        leaf.set_limit(limit)
        command = in_cgroup(leaf, str(program), str(limit), str(64 * KIB))
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        assert leaf.events().oom_kill, "it was not killed: is there swap?"
        return int(lines[-1].split()[0])


def probe_inside(limit: int) -> dict[str, Any]:
    with make_leaf("bench") as leaf:
        leaf.set_limit(limit)
        command = in_cgroup(leaf, sys.executable, "-m", "oomproof", "probe", "--json")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        document: dict[str, Any] = json.loads(done.stdout)
        return document


def compare(program: Path, limit: int) -> None:
    found = truth(program, limit)
    inside = probe_inside(limit)
    answers = {
        "--limit": run_probe(ProbeRequest(limit_bytes=limit)).allocated_bytes,
        "--limit --quick": run_probe(ProbeRequest(limit_bytes=limit, quick=True)).allocated_bytes,
        "inside: allocated": inside["allocated_bytes"],
        "inside: allocatable": inside["allocatable_bytes"],
    }
    for name, answer in answers.items():
        kept = abs(found - answer) <= max(found * PROMISED_SHARE, PROMISED_BYTES)
        print(
            f"{format_size(limit):>12}{format_size(found):>12}  {name:20}{format_size(answer):>12}"
            f"{format_size(found - answer):>12}{(found - answer) / found:>9.2%}  {'yes' if kept else 'no'}",
            flush=True,
        )


def main(limits: list[int]) -> None:
    print(f"{'limit':>12}{'truth':>12}  {'probe':20}{'answer':>12}{'off by':>12}{'':9}  within 1 % or 16 MiB")
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "probe_loop")
        subprocess.run(["/usr/bin/cc", "-O2", "-o", str(program), str(SOURCE)], check=True)
        for limit in limits:
            compare(program, limit)


if __name__ == "__main__":
    main([parse_size(text) for text in sys.argv[1:]] or [64 * MIB, 256 * MIB, GIB, 4 * GIB])
