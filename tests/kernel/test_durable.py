"""What outlives everybody: attempts that died with their oomproof, and the next start of the same command."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernel.launching import HOG_IN_SHELL, PATIENCE_S, UNDER_EMULATION, wait_until
from oomproof.history.model import default_path
from oomproof.history.store import History
from oomproof.leaf import Leaf, make_leaf
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

OOMPROOF = [sys.executable, "-m", "oomproof"]
BUDGET = 40 * MIB
SMALLER = BUDGET * 9 // 10

SETTINGS = ["--budget", str(BUDGET), "--on-oom", "shrink:10%"]
"""The same for all, so that it is one command under one limit."""


@dataclass
class Place:
    """Where a command is started again and again: containers, one history, one list of starts."""

    scratch: Path
    containers: list[Leaf] = field(default_factory=list)
    """Their cgroups. An engine uses none twice: on v2 a process cannot join one that was handed down."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def container(self) -> Leaf:
        return self.containers[-1]

    def another_container(self) -> None:
        self.containers.append(make_leaf("test"))

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "OOMPROOF_STATE_DIR": str(self.scratch / "state")}

    def start(self, program: str, verb: str = "run", *settings: str) -> subprocess.Popen[str]:
        inside = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(self.container.join_path)]
        command = [*OOMPROOF, verb, *settings, *SETTINGS, "--", "sh", "-c", program]
        self.started.append(
            subprocess.Popen(
                [*inside, *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=self.environ,
            )
        )
        return self.started[-1]

    def said(self, process: subprocess.Popen[str]) -> str:
        said = process.communicate(timeout=PATIENCE_S)[1]
        self.started.remove(process)
        return said

    def die(self) -> None:
        """Everything at once, as with memory.oom.group=1: no oomproof outlives its program for a moment."""
        for process in self.started:
            process.kill()
        self.remove()
        self.another_container()

    def remove(self) -> None:
        while self.containers:
            self.containers[-1].remove()
            self.containers.pop()

    @property
    def listed(self) -> Path:
        return self.scratch / "starts"

    def budgets(self) -> list[int]:
        """Of every start of the program, in its own words."""
        return [int(line) for line in self.listed.read_text().split()] if self.listed.exists() else []

    def rows(self) -> list[dict[str, object]]:
        with History.open(default_path(self.environ)) as history:
            return history.attempts()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.another_container()
    try:
        yield made
    finally:
        made.die()
        made.remove()
        for process in list(made.started):
            made.said(process)


def program(place: Place, lives: int = 1, then: str = "exit 0") -> str:
    """Lists its start, and lives on in its first `lives` starts."""
    note = f"echo $OOMPROOF_BUDGET_BYTES >> {place.listed}"
    return f"{note}; [ $(wc -l < {place.listed}) -le {lives} ] && exec sleep 600; {then}"


@pytest.mark.parametrize("verb", ["run", "bench", "entrypoint"])
def test_after_a_container_that_died_whole_the_next_start_plans_smaller_and_says_so(
    place: Place, verb: str
) -> None:
    no_probe = ("--no-probe",) if verb == "entrypoint" else ()
    command = program(place)
    dead = place.start(command, verb, *no_probe)
    wait_until(place.budgets, "the program")
    place.die()
    place.said(dead)
    again = place.start(command, verb, *no_probe)
    said = place.said(again)
    assert again.returncode == 0, said
    assert place.budgets() == [BUDGET, SMALLER]
    assert "found an attempt without an end: oom_suspected (medium)" in said
    first, second = place.rows()
    assert (first["verdict"], first["confidence"], first["next_budget_bytes"]) == (
        "oom_suspected",
        "medium",
        SMALLER,
    )
    assert (second["verdict"], second["budget_bytes"]) == ("exited", SMALLER)


def test_each_death_of_a_whole_container_shrinks_once(place: Place) -> None:
    command = program(place, lives=3)
    for count in (1, 2, 3):
        dead = place.start(command)
        wait_until(lambda: len(place.budgets()) == count, "the program")  # noqa: B023
        place.die()
        place.said(dead)
    assert place.start(command).wait(PATIENCE_S) == 0
    expected = [BUDGET]
    for _ in range(3):
        expected.append(expected[-1] * 9 // 10)
    assert place.budgets() == expected
    assert [row["verdict"] for row in place.rows()] == [*["oom_suspected"] * 3, "exited"]


def test_an_attempt_of_an_oomproof_that_lives_is_nobodys_death(place: Place) -> None:
    command = program(place)
    living = place.start(command)
    wait_until(place.budgets, "the program")
    place.another_container()
    assert place.start(command).wait(PATIENCE_S) == 0
    assert place.budgets() == [BUDGET, BUDGET]
    living.terminate()
    assert living.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert [row["verdict"] for row in place.rows()] == ["stopped", "exited"]


def test_a_stop_by_the_engine_that_lost_its_patience_is_no_oom(place: Place) -> None:
    stubborn = "while :; do sleep 0.1; done"
    note = f"echo $OOMPROOF_BUDGET_BYTES >> {place.listed}"
    command = f"trap '' TERM; {note}; [ $(wc -l < {place.listed}) = 2 ] || {{ {stubborn}; }}"
    stopped = place.start(command)
    wait_until(place.budgets, "the program")
    stopped.terminate()
    wait_until(lambda: place.rows()[0]["signal"], "the mark in the history")
    place.die()
    place.said(stopped)
    said = place.said(place.start(command))
    assert "found an attempt without an end: stopped (high)" in said
    assert place.budgets() == [BUDGET, BUDGET]
    assert place.rows()[0]["next_budget_bytes"] is None


def test_the_kernel_kills_a_whole_container_and_the_next_start_plans_smaller(place: Place) -> None:
    """The real thing: a limit above oomproof, and memory.oom.group."""
    if not (place.container.directory / "memory.oom.group").exists():
        pytest.skip("memory.oom.group came with cgroup v2 and Linux 4.19")
    _dies_whole(place.container, 96 * MIB)
    command = program(
        place, lives=0, then=f"[ $(wc -l < {place.listed}) = 2 ] || exec {HOG_IN_SHELL} {256 * MIB}"
    )
    dead = place.start(command)
    assert dead.wait(PATIENCE_S) == -signal.SIGKILL, place.said(dead)
    assert place.container.events().oom_group_kill
    place.die()
    _dies_whole(place.container, 96 * MIB)
    assert place.start(command).wait(PATIENCE_S) == 0
    assert place.budgets() == [BUDGET, SMALLER]
    assert place.rows()[0]["verdict"] == "oom_suspected"


def _dies_whole(container: Leaf, limit: int) -> None:
    container.set_limit(limit)
    (container.directory / "memory.oom.group").write_text("1")


# -- SIGKILL of oomproof at random moments --------------------------------------------------

MOMENTS = int(os.environ.get("OOMPROOF_SOAK_MOMENTS", "4" if UNDER_EMULATION else "40"))
LONGEST_S = 30.0 if UNDER_EMULATION else 1.2
"""From the start of the interpreter well into the second attempt."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_oomproof_killed_at_random_moments_loses_no_attempt_and_counts_none_twice(place: Place) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311  moments, not secrets
    print(f"seed {seed}")
    moments = random.Random(seed)  # noqa: S311
    # Lists its start with the pid of its oomproof, dies of memory at first and lives on after that.
    note = f"echo $PPID $OOMPROOF_ATTEMPT $OOMPROOF_BUDGET_BYTES >> {place.listed}"
    command = f"{note}; [ $OOMPROOF_ATTEMPT = 1 ] && {HOG_IN_SHELL} {128 * MIB} && exit 9; exec sleep 600"
    for _ in range(MOMENTS):
        process = place.start(command, "run", "--limit", str(64 * MIB), "--floor", "1")
        time.sleep(moments.uniform(0, LONGEST_S))
        process.kill()
        place.said(process)
        wait_until(lambda: not _others(place.container), "the guardian's work")
        _integrity(place)
    # The last word: a start that closes what is open and ends by itself.
    last = place.start(command, "run", "--limit", str(64 * MIB), "--floor", "1", "--timeout", "2")
    said = place.said(last)
    rows = place.rows()
    starts = [tuple(map(int, line.split())) for line in place.listed.read_text().splitlines()]
    known = _supervisors(place)
    by_start = {(known[row["run_id"]], row["attempt"], row["budget_bytes"]): row for row in rows}
    assert len(by_start) == len(rows), "no attempt is counted twice"
    assert len(set(starts)) == len(starts)
    assert set(starts) <= set(by_start), "no attempt is lost"
    assert all(row["ended_at"] for row in rows), said
    assert _leaves(place.container) == [], "and nothing is left"
    print(f"{MOMENTS} moments, {len(rows)} attempts, {len(starts)} programs, verdicts:", _verdicts(rows))
    _assert_each_end_was_learned_from_once(rows)


def _assert_each_end_was_learned_from_once(rows: list[dict[str, object]]) -> None:
    """A first attempt has the full budget, or what the attempt that was found open just before it left it."""
    for before, row in zip([None, *rows], rows, strict=False):
        if row["attempt"] != 1:
            continue
        was_open = before is not None and before["verdict"] == "oom_suspected"
        assert row["budget_bytes"] == (before["next_budget_bytes"] if was_open and before else BUDGET)


def _verdicts(rows: list[dict[str, object]]) -> dict[object, int]:
    verdicts = [row["verdict"] for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in verdicts}


def _others(container: Leaf) -> list[int]:
    return container.processes()


def _leaves(container: Leaf) -> list[Path]:
    return [path for path in container.directory.iterdir() if path.is_dir()]


def _integrity(place: Place) -> None:
    path = default_path(place.environ)
    if path.exists():
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def _supervisors(place: Place) -> dict[object, int]:
    with closing(sqlite3.connect(default_path(place.environ))) as connection:
        return dict(connection.execute("SELECT id, supervisor_pid FROM runs").fetchall())
