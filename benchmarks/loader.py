"""How fast a file comes into memory, and how much memory that takes at most, beside other ways, in one run.

    python benchmarks/loader.py [--size 4GiB] [--rounds N] [--directory DIR] [--peak-only]

Throughput: each round runs every way once in random order, in a process of its own, cold (the file's page
cache dropped before) and warm (read through before). Only the loading is timed, into memory new to the
process; ``pooled`` loads into a buffer used before, as an engine does that changes parameters. Medians and
the ratio to ``cat FILE > /dev/null``, which puts the bytes nowhere. What is not installed is left out:
numpy, safetensors and fastsafetensors (with torch) read the same bytes, wrapped as one tensor.

Peak: the kernel's own counter of a new cgroup, for oomproof and for mapping the file and copying it.
Needs room on disk and in memory for the size, and a cgroup that can be made for the peak.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from oomproof.leaf import make_leaf
from oomproof.units import MIB, format_size, parse_size

WAYS = {
    "cat FILE > /dev/null": """
import subprocess
def run():
    with open(path) as file: subprocess.run(["cat"], stdin=file, stdout=subprocess.DEVNULL, check=True)
""",
    "oomproof.memory.load": """
from oomproof.memory import MemoryBudget, PinnedPool, load
pool = PinnedPool(MemoryBudget(1 << 40), backend="heap")
def run(): return load(path, pool)
""",
    "the same, mlock": """
from oomproof.memory import MemoryBudget, PinnedPool, load
pool = PinnedPool(MemoryBudget(1 << 40), backend="mlock")
def run(): return load(path, pool)
""",
    "the same, pooled": """
from oomproof.memory import MemoryBudget, PinnedPool, load
pool = PinnedPool(MemoryBudget(1 << 40), backend="mlock")
pool.take(os.path.getsize(path)).release()
def run(): return load(path, pool)
""",
    "the same, keep_cache": """
from oomproof.memory import MemoryBudget, PinnedPool, load
pool = PinnedPool(MemoryBudget(1 << 40), backend="heap")
def run(): return load(path, pool, keep_cache=True)
""",
    "the same, blake2b": """
from oomproof.memory import MemoryBudget, PinnedPool, load
pool = PinnedPool(MemoryBudget(1 << 40), backend="heap")
def run(): return load(path, pool, checksum="blake2b")
""",
    "the same, xxh3_128": """
import xxhash
from oomproof.memory import MemoryBudget, PinnedPool, load
pool = PinnedPool(MemoryBudget(1 << 40), backend="heap")
def run(): return load(path, pool, checksum="xxh3_128")
""",
    "numpy.fromfile": """
import numpy
def run(): return numpy.fromfile(path, dtype="u1")
""",
    "safetensors.numpy": """
import numpy, safetensors.numpy
def run(): return safetensors.numpy.load_file(path)
""",
    "fastsafetensors": """
import torch
from fastsafetensors import SafeTensorsFileLoader, SingleGroup
def run():
    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
    loader.add_filenames({0: [path]})
    buffer = loader.copy_files_to_device()
    return loader, buffer, buffer.get_tensor("parameters")
""",
}
"""Each defines `run`, which is timed; `path` is the file. Its result is kept until the time is taken."""

TIMED = """
import os, sys, time
path = sys.argv[1]
{way}
begun = time.perf_counter()
result = run()
print(time.perf_counter() - begun)
sys.stdout.flush()
os._exit(0)
"""

NAIVE = """
import mmap, os, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    copy = mmap.mmap(-1, len(mapped), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for begin in range(0, len(mapped), 1 << 20):
        copy[begin : begin + (1 << 20)] = mapped[begin : begin + (1 << 20)]
"""
ALLOWANCE = 64 * MIB


def main() -> int:
    """Print the tables; exit code 1 when the promise about the peak is broken."""
    parser = argparse.ArgumentParser(description="Time loading beside other ways, and show its peak.")
    parser.add_argument("--size", type=parse_size, default=parse_size("4GiB"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where the file is made: a disk whose speed matters")
    parser.add_argument("--peak-only", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        path = Path(scratch, "parameters.safetensors")
        make_file(path, arguments.size)
        kept = show_peaks(path)
        if not arguments.peak_only:
            for temperature in ("cold", "warm"):
                show_throughput(path, temperature, arguments.rounds)
    return 0 if kept else 1


def make_file(path: Path, size: int) -> None:
    """A safetensors file with one tensor of bytes, `size` in all."""
    header = {"parameters": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    length = len(json.dumps(header).encode()) // 8 * 8 + 16
    header["parameters"].update(shape=[size - length - 8], data_offsets=[0, size - length - 8])
    block = os.urandom(16 * MIB)
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little") + json.dumps(header).encode().ljust(length))
        while (left := size - file.tell()) > 0:
            file.write(block[:left])
        file.flush()
        os.fsync(file.fileno())


def make_cold(path: Path) -> None:
    """Drop the file's page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_warm(path: Path) -> None:
    """Read the file through the page cache."""
    with path.open("rb") as file:
        subprocess.run(["/bin/cat"], stdin=file, stdout=subprocess.DEVNULL, check=True)


def show_peaks(path: Path) -> bool:
    """The kernel's peak of each way; whether the promise is kept."""
    size = path.stat().st_size
    ways = {"oomproof.memory.load": WAYS["the same, mlock"] + "run()", "mmap, then copy": NAIVE}
    kept = True
    print(f"peak of the cgroup while {format_size(size)} are loaded, cold, by the kernel's counter")
    for name, code in ways.items():
        make_cold(path)
        with make_leaf("benchmark") as leaf:
            command = [sys.executable, "-c", f"import os, sys; path = sys.argv[1]\n{code}\nos._exit(0)"]
            entering = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(leaf.join_path), *command, str(path)]
            subprocess.run(entering, check=True)
            peak = leaf.peak_bytes() or 0
        over = peak - size
        print(
            f"  {name:24} {format_size(peak):>11}   size + {over / MIB:8.1f} MiB   {peak / size:5.2f} x size"
        )
        kept &= name != "oomproof.memory.load" or over <= ALLOWANCE
    print(f"  promise: at most size + {ALLOWANCE // MIB} MiB: {'kept' if kept else 'broken'}")
    return kept


def show_throughput(path: Path, temperature: str, rounds: int) -> None:
    """Medians in GB/s, and the ratio to cat."""
    speeds: dict[str, list[float]] = {}
    missing = set()
    for _ in range(rounds):
        for name in random.sample(sorted(WAYS.keys() - missing), len(WAYS) - len(missing)):
            (make_cold if temperature == "cold" else make_warm)(path)
            seconds = timed(name, path)
            if seconds is None:
                missing.add(name)
            else:
                speeds.setdefault(name, []).append(path.stat().st_size / seconds / 1e9)
    base = statistics.median(speeds["cat FILE > /dev/null"])
    print(f"{temperature}, {format_size(path.stat().st_size)}, medians of {rounds} rounds")
    for name in WAYS:
        if name in missing:
            print(f"  {name:24} not installed here")
            continue
        median = statistics.median(speeds[name])
        low, high = min(speeds[name]), max(speeds[name])
        print(f"  {name:24} {median:6.2f} GB/s ({low:.2f} to {high:.2f})   {median / base:5.2f} x cat")


def timed(name: str, path: Path) -> float | None:
    """Seconds that one way takes in a process of its own; None where something is not installed."""
    code = TIMED.format(way=WAYS[name])
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    time.sleep(0.05)  # its memory goes back meanwhile
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
