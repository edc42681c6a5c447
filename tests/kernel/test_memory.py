"""The pool, the loader and the reconciler in the kernel's own accounts, each alone in a cgroup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.launching import PATIENCE_S, UNDER_EMULATION
from oomproof.leaf import Leaf, make_leaf
from oomproof.memory.streaming import SourceFile
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

FILE_BYTES = (64 if UNDER_EMULATION else 384) * MIB + 12345
ALLOWANCE = 64 * MIB


@pytest.fixture
def container() -> Iterator[Leaf]:
    with make_leaf("test") as leaf:
        yield leaf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """On a disk: what a tmpfs holds is memory already."""
    path = tmp_path_factory.mktemp("loader") / "parameters.bin"
    block = os.urandom(MIB)
    with path.open("wb") as opened:
        for _ in range(FILE_BYTES // MIB):
            opened.write(block)
        opened.write(block[: FILE_BYTES % MIB])
        opened.flush()
        os.fsync(opened.fileno())
    yield path
    path.unlink()


def has_page_cache_that_comes_and_goes(file: Path) -> bool:
    """As on a disk; not so on a tmpfs, whose content is the page cache, and on a host's files in a guest."""
    with SourceFile(file) as source:
        make_cold(file)
        cold = source.is_cached(0)
        os.pread(source.buffered, 1, 0)
        return source.is_cached(0) and not cold


def make_cold(file: Path) -> None:
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_in(container: Leaf, code: str, *arguments: str) -> dict[str, Any]:
    """What `code` prints as JSON."""
    command = [sys.executable, "-c", code, *arguments]
    entering = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(container.join_path), *command]
    done = subprocess.run(entering, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def peak(container: Leaf) -> int:
    bytes_ = container.peak_bytes()
    if bytes_ is None:
        pytest.skip("this kernel keeps no peak (v2 before 5.19)")
    return bytes_


LOAD = """
import json, sys
from oomproof.memory import MemoryBudget, PinnedPool, load
budget = MemoryBudget(1 << 40)
file, backend, checksum = sys.argv[1:]
with PinnedPool(budget, backend=backend) as pool, load(file, pool, checksum=checksum or None) as loaded:
    print(json.dumps({"size": loaded.size_bytes, "held": budget.used_bytes}))
"""

NAIVE = """
import json, mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    copy = mmap.mmap(-1, len(mapped), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    step = 1 << 20
    for begin in range(0, len(mapped), step):
        copy[begin : begin + step] = mapped[begin : begin + step]
    print(json.dumps({"size": len(copy)}))
"""


@pytest.mark.parametrize("checksum", ["", "blake2b"])
def test_loading_a_cold_file_peaks_at_its_size_and_a_little(
    container: Leaf, file: Path, checksum: str
) -> None:
    make_cold(file)
    told = run_in(container, LOAD, str(file), "mlock", checksum)
    assert told["size"] == FILE_BYTES
    assert FILE_BYTES <= told["held"] <= FILE_BYTES + 2 * MIB
    assert FILE_BYTES < peak(container) <= FILE_BYTES + ALLOWANCE
    assert container.stat().get("cache", container.stat().get("file", 0)) < 16 * MIB, "no page cache is left"


LOAD_BUFFERED = """
import json, os, sys
from oomproof.memory import load
memory = bytearray(os.path.getsize(sys.argv[1]) + 1)
loaded = load(sys.argv[1], memoryview(memory)[1:])  # no alignment that direct reads would bear
print(json.dumps({"size": loaded.size_bytes, "direct": loaded.direct_bytes}))
"""


def test_so_does_loading_through_the_page_cache(container: Leaf, file: Path) -> None:
    make_cold(file)
    told = run_in(container, LOAD_BUFFERED, str(file))
    assert told == {"size": FILE_BYTES, "direct": 0}
    assert FILE_BYTES < peak(container) <= FILE_BYTES + ALLOWANCE


def test_so_does_loading_under_a_limit_of_so_much(container: Leaf, file: Path) -> None:
    make_cold(file)
    container.set_limit(FILE_BYTES + ALLOWANCE)
    told = run_in(container, LOAD, str(file), "heap", "")
    assert told["size"] == FILE_BYTES
    assert container.events().oom_kill == 0


def test_mapping_and_copying_peaks_at_twice_the_size(container: Leaf, file: Path) -> None:
    """What the loader is for; this also shows that the peak would tell."""
    if not has_page_cache_that_comes_and_goes(file):
        pytest.skip("the file is on no disk here, so that its pages are not charged to the reader")
    make_cold(file)
    run_in(container, NAIVE, str(file))
    assert peak(container) > 1.9 * FILE_BYTES


POOL = """
import json, sys
from oomproof.limits.accounts import read_process_accounts
from oomproof.limits.files import Tree
from oomproof.memory import MemoryBudget, PinnedPool
def charged():
    accounts = read_process_accounts(Tree(), exact=True)
    return {"locked": accounts.locked, "anonymous": accounts.anonymous, "ledger": budget.used_bytes}
budget = MemoryBudget(1 << 30)
told = {"before": charged()}
with PinnedPool(budget, backend="mlock") as pool:
    buffers = [pool.take(size << 20) for size in (1, 8, 16, 24)]
    told["in use"] = charged()
    for buffer in buffers:
        buffer.release()
    told["idle"] = charged()
    pool.trim(30 << 20)
    told["trimmed"] = charged()
told["closed"] = charged()
print(json.dumps(told))
"""


def test_the_ledger_is_what_the_kernel_has_locked_at_every_stage(container: Leaf) -> None:
    told = run_in(container, POOL)
    locked = {stage: accounts["locked"] for stage, accounts in told.items()}
    assert locked == {stage: accounts["ledger"] for stage, accounts in told.items()}
    assert locked == {
        "before": 0, "in use": 49 * MIB, "idle": 49 * MIB, "trimmed": 9 * MIB, "closed": 0
    }  # fmt: skip
    for stage, accounts in told.items():
        grown = accounts["anonymous"] - told["before"]["anonymous"]
        assert abs(grown - accounts["ledger"]) < 8 * MIB, stage


RECONCILE = """
import json, mmap, subprocess, sys, time
from oomproof.memory import MemoryBudget, Reconciler
budget = MemoryBudget(1 << 30)
def touched(size):
    memory = mmap.mmap(-1, size, flags=mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, size, mmap.PAGESIZE): memory[page] = 1
    return memory
told = {}
for kind, size in {"unaccounted_heap": 256, "shared_memory": 96, "other_processes": 96}.items():
    size <<= 20
    shared = kind == "shared_memory"
    begun = time.monotonic()
    with Reconciler(budget) as reconciler:
        if kind == "other_processes":
            hold = "x = bytearray(int(%d)); input()" % size
            child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE)
        else:
            memory = touched(size)
        begun = time.monotonic()
        while not reconciler.named and time.monotonic() < begun + 60: time.sleep(0.01)
        told[kind] = {"seconds": time.monotonic() - begun, "named": reconciler.named}
    if kind == "other_processes": child.communicate(b"\\n")
    else: memory.close()
print(json.dumps(told))
"""


def test_drift_is_named_for_what_it_is_within_five_seconds(container: Leaf) -> None:
    told = run_in(container, RECONCILE)
    for kind, size in (("unaccounted_heap", 256), ("shared_memory", 96), ("other_processes", 96)):
        assert told[kind]["named"].keys() == {kind}
        assert abs(told[kind]["named"][kind] - size * MIB) < 24 * MIB
        if not UNDER_EMULATION:
            assert told[kind]["seconds"] < 5
