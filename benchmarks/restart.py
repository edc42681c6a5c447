"""From an OOM kill to the next start: oomproof beside the supervisors that people use, in turn.

    python benchmarks/restart.py [ROUNDS]          (default: 3)

Each of them supervises the same small program in a cgroup of 64 MiB: it lives for a good second (some
supervisors hold back whoever dies earlier), takes too much memory and is killed by the kernel. What is
measured is the time from its last touched page to the first line of its next life: the kernel's own
work on the kill, the supervisor's, fork and exec. Prints the medians in milliseconds and the ratio to
oomproof. Supervisors that are not installed are left out (Debian: runit s6 daemontools supervisor
tini). oomproof is measured as it is used, with its history on disk, and without one. Needs cc.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oomproof.leaf import Leaf, make_leaf
from oomproof.units import MIB

SOURCE = Path(__file__).with_name("restart_hog.c")
LIMIT = 64 * MIB
LIFE_MS = 1200
DEATHS = 6
PATIENCE_S = 60.0

OOMPROOF = [
    *(sys.executable, "-m", "oomproof", "run", "--limit", str(LIMIT), "--budget", str(LIMIT)),
    *("--retries", "1000", "--on-oom", "shrink:0.1%", "--oom-score-adj", "1000"),
]

Supervise = Callable[[Path, Sequence[str]], list[str]]


def with_oomproof(history: bool) -> Supervise:
    def command(scratch: Path, program: Sequence[str]) -> list[str]:
        where = str(scratch / "history.sqlite3") if history else "none"
        return [*OOMPROOF, "--history", where, "--", *program]

    return command


def with_loop(_scratch: Path, program: Sequence[str]) -> list[str]:
    return ["sh", "-c", 'while :; do "$@"; done', "sh", *program]


def with_tini_in_loop(scratch: Path, program: Sequence[str]) -> list[str]:
    return with_loop(scratch, ["tini", "-s", "--", *program])


def with_supervisord(scratch: Path, program: Sequence[str]) -> list[str]:
    config = scratch / "supervisord.conf"
    config.write_text(
        f"[supervisord]\nnodaemon=true\nlogfile=/dev/null\nlogfile_maxbytes=0\npidfile={scratch}/pid\n"
        f"[program:hog]\ncommand={' '.join(program)}\nautorestart=true\nstartsecs=0\nstartretries=1000\n"
    )
    return ["supervisord", "-c", str(config)]


def with_service_directory(supervisor: str) -> Supervise:
    def command(scratch: Path, program: Sequence[str]) -> list[str]:
        service = scratch / "service"
        service.mkdir()
        (service / "run").write_text(f"#!/bin/sh\nexec {' '.join(program)}\n")
        (service / "run").chmod(0o755)
        return [supervisor, str(service)]

    return command


SUPERVISORS: Mapping[str, tuple[str, Supervise]] = {
    "oomproof": (sys.executable, with_oomproof(history=True)),
    "oomproof, no history": (sys.executable, with_oomproof(history=False)),
    "a loop in sh": ("sh", with_loop),
    "tini in a loop": ("tini", with_tini_in_loop),
    "supervisord": ("supervisord", with_supervisord),
    "runit's runsv": ("runsv", with_service_directory("runsv")),
    "s6-supervise": ("s6-supervise", with_service_directory("s6-supervise")),
    "daemontools' supervise": ("supervise", with_service_directory("supervise")),
}


def deaths(command: Supervise, hog: Path) -> list[float]:
    """Milliseconds from each death to the next start."""
    with tempfile.TemporaryDirectory() as name, make_leaf("bench") as leaf:
        scratch = Path(name)
        log = scratch / "log"
        program = [str(hog), str(log), str(scratch / "stamp"), str(LIFE_MS), str(2 * LIMIT)]
        arguments = command(scratch, program)
        own_limit = arguments[: len(OOMPROOF)] == OOMPROOF
        if not own_limit:
            leaf.set_limit(LIMIT)
        process = _start_in(leaf, arguments)
        try:
            _wait_for_lines(log, DEATHS + 1, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            leaf.kill_all()
            process.wait()
        lines = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
        return [(started - died) / 1e6 for started, died in lines[1:] if died]


def _start_in(leaf: Leaf, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    inside = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(leaf.join_path), *arguments]
    return subprocess.Popen(
        inside, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _wait_for_lines(log: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{process.args} does not start it again"
        time.sleep(0.05)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found = {name: supervise for name, (needs, supervise) in SUPERVISORS.items() if shutil.which(needs)}
    times: dict[str, list[float]] = {name: [] for name in found}
    with tempfile.TemporaryDirectory() as name:
        hog = Path(name) / "hog"
        subprocess.run(["cc", "-O2", "-o", str(hog), str(SOURCE)], check=True)  # noqa: S607
        for _ in range(rounds):
            for supervisor, supervise in found.items():
                times[supervisor] += deaths(supervise, hog)
    ours = statistics.median(times["oomproof"])
    print(f"{'supervisor':24} {'kills':>5} {'median ms':>10} {'worst ms':>9} {'to oomproof':>12}")
    for supervisor, measured in times.items():
        median = statistics.median(measured)
        print(f"{supervisor:24} {len(measured):5} {median:10.1f} {max(measured):9.1f} {median / ours:12.2f}")


if __name__ == "__main__":
    main()
