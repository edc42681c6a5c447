"""``make demo``: a real program, a budget that is too optimistic, a real kill, a real recovery.

DuckDB sorts 1.2 GB of Parquet in a cgroup of 1 GiB. Told to take nearly all of it, it is
killed by the kernel, because what DuckDB calls its memory is not all that it uses. oomproof
sees the kill in the kernel's own counter and starts it again with a smaller budget.
``--share 0.25`` is the same with a quarter of everything.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from oomproof.errors import LeafUnavailable
from oomproof.leaf import make_leaf
from oomproof.units import MIB, format_size
from workload import ROWS, expected

LIMIT_BYTES = 1024 * MIB
OPTIMISTIC_BUDGET_BYTES = 1000 * MIB
NEEDED_DISK_BYTES = 4096 * MIB
_HERE = Path(__file__).parent
_WORKLOAD = [sys.executable, str(_HERE / "workload.py")]


def main() -> int:
    """Exit code 0 only when the right answer came out in the end."""
    parser = argparse.ArgumentParser(description="A real OOM kill and the recovery from it.")
    parser.add_argument("--share", type=float, default=1.0, help="of the memory and the rows (default 1)")
    share = parser.parse_args().share
    limit, budget = int(LIMIT_BYTES * share), int(OPTIMISTIC_BUDGET_BYTES * share)
    rows, needed = int(ROWS * share), int(NEEDED_DISK_BYTES * share)
    with tempfile.TemporaryDirectory(prefix="oomproof-demo-") as name:
        directory = Path(name)
        free = shutil.disk_usage(directory).free
        if free < needed:
            print(
                f"demo: {directory} has {format_size(free)} free and {format_size(needed)} are needed:"
                " set TMPDIR to a larger disk",
                file=sys.stderr,
            )
            return 1
        step(f"making {rows} rows of Parquet")
        subprocess.run([*_WORKLOAD, "generate", str(directory), "--rows", str(rows)], check=True)
        sizes = f"{format_size((directory / 'orders.parquet').stat().st_size)} of Parquet"
        reason = why_no_leaf()
        if reason is None:
            settings = ["--limit", str(limit), "--budget", str(budget)]
            step(
                f"sorting {sizes} in a cgroup of {format_size(limit)}, with a budget of {format_size(budget)}"
            )
        else:
            settings = ["--cap", str(budget)]
            step(f"sorting {sizes} without a forced kill: {reason}")
        return launch(directory, rows, settings)


def launch(directory: Path, rows: int, settings: list[str]) -> int:
    """Run the workload under oomproof and tell what happened."""
    events, answer = directory / "events.jsonl", directory / "answer.json"
    command = [
        *(sys.executable, "-m", "oomproof", "run", *settings, "--events", str(events), "--history", "none"),
        *("--", *_WORKLOAD, "work", str(directory), "--rows", str(rows), "--memory-limit", "{budget}"),
    ]
    with answer.open("wb") as stdout:
        status = subprocess.run(command, stdout=stdout, check=False).returncode
    step("what happened")
    tell_attempts(events)
    tell_kernel_log(events)
    return tell_answer(answer, status, expected(rows))


def tell_attempts(events: Path) -> None:
    """One line per attempt, from the event stream."""
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] != "attempt_ended":
            continue
        peak = format_size(event["peak_bytes"])
        print(
            f"  attempt {event['attempt']}: budget {event['budget_bytes'] // MIB} MiB, peak {peak},"
            f" {event['duration_s']:.1f} s: {event['verdict']}"
        )
        for evidence in event["evidence"]:
            print(f"             {evidence}")


def tell_kernel_log(events: Path) -> None:
    """The kernel's own lines about the processes that it killed in the attempts' cgroups."""
    done = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        print("  the kernel's log cannot be read here")
        return
    started = (json.loads(line) for line in events.read_text().splitlines())
    leaves = [Path(event["leaf"]).name for event in started if event.get("leaf")]
    log = done.stdout.splitlines()
    # The line of the decision names the cgroup and the victim, the line of the kill only the latter.
    decisions = [line for line in log if "oom-kill:" in line and any(f"/{leaf}," in line for leaf in leaves)]
    victims = re.findall(r",pid=(\d+),", "\n".join(decisions))
    for line in log:
        if any(f"Killed process {pid} " in line for pid in victims):
            print(f"  kernel: {line}")


def tell_answer(answer: Path, status: int, right: dict[str, int]) -> int:
    """Compare the answer with arithmetic; returns the demo's exit code."""
    lines = answer.read_text().splitlines()
    got = json.loads(lines[-1]) if status == 0 and lines else None
    if got != right:
        print(f"  no right answer: exit status {status}, answer {got}, expected {right}")
        return 1
    print(f"  the right answer: {got}")
    return 0


def why_no_leaf() -> str | None:
    """None when a cgroup with a limit can be made here, else the reason."""
    try:
        make_leaf("demo").remove()
    except LeafUnavailable as error:
        return str(error)
    return None


def step(words: str) -> None:
    """A heading with the time, so that one sees where it goes."""
    print(f"[{time.strftime('%H:%M:%S')}] {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
