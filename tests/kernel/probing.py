"""What the tests of the probe share: a container to probe in, a probe under way, and its leaf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oomproof.leaf import Leaf, known_leaf, make_leaf
from oomproof.leaf.v2 import SUPERVISOR_NAME
from oomproof.limits import find_memory_cgroup
from oomproof.units import MIB

LIMIT = 96 * MIB
SETTLE_S, SETTLE_BYTES = 2.0, 8 * MIB
PROBE = (sys.executable, "-m", "oomproof", "probe", "--json")
SLOWLY = ("--limit", str(LIMIT), "--chunk", "64KiB")
"""Steps so small that there is time to interfere."""


@contextmanager
def a_container() -> Iterator[Leaf]:
    """A cgroup with a limit, as a container would be."""
    with make_leaf("test") as leaf:
        leaf.set_limit(LIMIT)
        yield leaf


def in_cgroup(leaf: Leaf, *command: str) -> list[str]:
    """`command`, to be run in `leaf`."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(leaf.join_path), *command]


def probe_in(leaf: Leaf, *arguments: str, wrapped_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the probe answers as the only program in `leaf`."""
    command = in_cgroup(leaf, *wrapped_by, *PROBE, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def probe_leaves() -> set[Path]:
    own = find_memory_cgroup()
    assert own is not None
    parent = own.directory.parent if own.directory.name == SUPERVISOR_NAME else own.directory
    return set(parent.glob("oomproof-probe-*"))


def leaf_of(pid: int) -> Path | None:
    return next((path for path in probe_leaves() if path.name.startswith(f"oomproof-probe-{pid}-")), None)


def wait_until(condition: Callable[[], object], timeout_s: float = 100.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.03)


def exists(pid: int) -> bool:
    """Whether the process lives; a zombie that nobody reaps holds no memory and counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Running:
    """A probe under way that has touched something: oomproof, its guard, its toucher and its leaf."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROBE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: self._usage() > 4 * MIB)
        leaf = leaf_of(self.process.pid)
        assert leaf is not None
        self.leaf = leaf
        self.toucher = int((leaf / "cgroup.procs").read_text())
        self.guard = parent_of(self.toucher)

    def _usage(self) -> int:
        assert self.process.poll() is None, "it ended before anything could be done to it"
        leaf = leaf_of(self.process.pid)
        name = "memory.current" if leaf and (leaf / "memory.current").exists() else "memory.usage_in_bytes"
        return int((leaf / name).read_text()) if leaf else 0

    def assert_nothing_is_left(self) -> None:
        wait_until(lambda: not exists(self.toucher) and not exists(self.guard), SETTLE_S * slowness())
        wait_until(lambda: not self.leaf.exists(), SETTLE_S * slowness())


def slowness() -> float:
    """How much slower than usual this machine runs Python, for time limits in emulated guests."""
    started = time.perf_counter()
    sum(range(300_000))
    return max((time.perf_counter() - started) / 0.01, 1.0)


def own_leaf() -> Leaf:
    """The leaf of the probe that runs in this very process."""
    directory = leaf_of(os.getpid())
    assert directory is not None
    own = find_memory_cgroup()
    assert own is not None
    return known_leaf(own.version, directory)


def with_v2_file(leaf: Leaf, name: str) -> Path:
    if not (leaf.directory / name).exists():
        pytest.skip(f"this kernel has no {name} in its cgroups")
    return leaf.directory / name
