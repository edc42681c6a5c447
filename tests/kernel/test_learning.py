"""What a program needs is learned from run to run, by real kills in real cgroups."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kernel.launching import HOG
from kernel.test_verbs import OOMPROOF, document, environ, oomproof
from oomproof.units import MIB

__all__ = ["environ"]

pytestmark = pytest.mark.kernel

LIMIT = 96 * MIB
RUN = ["run", "--limit", str(LIMIT)]


def greedy(beside: int) -> list[str]:
    """Fills its budget and takes `beside` more, as no ledger shows."""
    return ["sh", "-c", f'exec "$0" "$@" $(({{budget}} + {beside}))', *HOG]


def start(
    environ: dict[str, str], *settings: str, beside: int = 40 * MIB
) -> subprocess.CompletedProcess[str]:
    return oomproof(*RUN, *settings, "--", *greedy(beside), environ=environ)


def kills(done: subprocess.CompletedProcess[str]) -> int:
    return done.stderr.count(": oom_kill (certain)")


def test_runs_close_in_on_the_largest_budget_that_lives(environ: dict[str, str]) -> None:
    first = start(environ)
    assert (first.returncode, kills(first)) == (0, 2), first.stderr
    assert "learned:" not in first.stderr
    later = [start(environ) for _ in range(5)]
    assert [done.returncode for done in later] == [0] * 5
    assert all("learned: start with" in done.stderr for done in later)
    assert kills(later[-1]) == 0, later[-1].stderr
    assert max(kills(done) for done in later) <= 1, "a trial costs one attempt"
    [key] = document(oomproof("history", "--json", environ=environ))["keys"]
    assert key["known_good_bytes"] < key["known_bad_bytes"]
    # The hog itself takes a few MiB beside what it is told.
    assert 40 * MIB <= key["known_good_bytes"] <= LIMIT - 40 * MIB
    planned = oomproof(
        "plan", "--no-probe", "--limit", str(LIMIT), "--bytes", "--", *greedy(40 * MIB), environ=environ
    )
    assert f"budget {int(planned.stdout) / MIB:.2f} MiB of" in start(environ).stderr


def test_what_one_tag_learned_is_nothing_to_another(environ: dict[str, str]) -> None:
    start(environ, "--tag", "large")
    assert "learned:" in start(environ, "--tag", "large").stderr
    assert "learned:" not in start(environ, "--tag", "small").stderr
    assert "learned:" not in start(environ, "--tag", "large", "--no-learn").stderr
    assert "learned:" not in start(environ, "--tag", "large", "--history", "none").stderr
    assert "learned:" not in start(environ, "--tag", "large", "--on-oom", "shrink:50%").stderr


def test_a_stop_and_a_kill_by_hand_teach_nothing(environ: dict[str, str]) -> None:
    stopped = ["--", "sh", "-c", "kill -KILL $$ # {budget}"]
    assert oomproof(*RUN, *stopped, environ=environ).returncode == 128 + 9
    again = oomproof(*RUN, *stopped, environ=environ)
    assert "learned:" not in again.stderr
    timed_out = ["--timeout", "0.2", "--", "sleep", "60"]
    oomproof(*RUN, *timed_out, environ=environ)
    assert "learned:" not in oomproof(*RUN, *timed_out, environ=environ).stderr


def test_a_disk_that_is_read_only_is_said_once_and_the_program_runs(
    environ: dict[str, str], tmp_path: Path
) -> None:
    start(environ)
    state = environ["OOMPROOF_STATE_DIR"]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to make a disk read-only")
    hide = f'mount --bind "{state}" "{state}" && mount -o remount,bind,ro "{state}" && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", *OOMPROOF, *RUN, "--", *greedy(40 * MIB)],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be used") == 1
    assert "learned:" not in done.stderr
    assert "learned:" in start(environ).stderr


def test_what_was_learned_is_no_reason_not_to_start(environ: dict[str, str]) -> None:
    start(environ)
    start(environ)
    floor = LIMIT - 33 * MIB
    done = start(environ, "--floor", str(floor), beside=1)
    assert "cannot be had" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_steps_are_all_that_is_ever_tried(environ: dict[str, str]) -> None:
    steps = ["--steps", "16MiB,32MiB,48MiB,64MiB"]
    done = start(environ, *steps)
    assert done.returncode == 0, done.stderr
    assert "budget 64.00 MiB -> 48.00 MiB" in done.stderr
    for _ in range(3):
        last = start(environ, *steps)
    assert "budget 48.00 MiB" in last.stderr
    assert kills(last) == 0, last.stderr


def test_a_sweep_shows_the_rates_and_where_memory_ends(environ: dict[str, str], tmp_path: Path) -> None:
    report, drawing = tmp_path / "sweep.json", tmp_path / "sweep.svg"
    settings = ["--limit", str(LIMIT), "--sweep", "4", "--report", str(report), "--svg", str(drawing)]
    done = oomproof("bench", *settings, "--", *HOG, "{budget}", environ=environ)
    assert done.returncode == 0, done.stderr
    points = json.loads(report.read_text())["sweep"]
    assert [point["verdict"] for point in points] == ["exited", "exited", "exited", "oom_kill"]
    assert [point["rate"] is None for point in points] == [False, False, False, True]
    assert points[-1]["budget_bytes"] == LIMIT
    table = done.stdout.splitlines()
    assert table[-2].split() == ["96.00", "MiB", "OOM", "x"]
    assert table[-1].startswith("from ")
    assert ET.parse(drawing).getroot().tag.endswith("svg")  # noqa: S314


def test_an_interrupted_sweep_ends(environ: dict[str, str]) -> None:
    done = oomproof(
        "bench",
        "--limit",
        str(LIMIT),
        "--sweep",
        "5",
        "--",
        "sh",
        "-c",
        "kill -TERM $PPID; sleep 60",
        environ=environ,
    )
    assert done.returncode == 128 + 15, done.stderr
    assert done.stdout.splitlines()[1:] == ["stopped before its end"]
