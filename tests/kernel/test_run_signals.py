"""Signals to a launcher, at any moment: they reach the program, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel.launching import HOG, HOG_IN_SHELL, UNDER_EMULATION, Launcher, Scenario, wait_until
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LauncherOf = Callable[[Scenario], Launcher]

LIMIT = 64 * MIB
TOO_MUCH = 96 * MIB
FITS = 32 * MIB

MOMENTS, LONGEST_S = (2, 4.0) if UNDER_EMULATION else (20, 0.6)
"""From when a launcher catches signals through import, attempt, kill, restart and second attempt."""


def random_moments() -> Iterator[float]:
    """One in each stretch of the time, so that each is met; others in each run."""
    seed = random.randrange(1 << 32)  # noqa: S311  moments, not secrets
    print(f"seed {seed}")
    chosen = random.Random(seed)  # noqa: S311
    for number in range(MOMENTS):
        yield (number + chosen.random()) * LONGEST_S / MOMENTS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_reaches_the_program_and_ends_the_run(
    launcher_of: LauncherOf, number: signal.Signals
) -> None:
    launcher = launcher_of(Scenario([*HOG, "{budget}", "600"], budgets=[FITS, FITS // 2]))
    launcher.start()
    wait_until(launcher.programs, "the program")
    launcher.process.send_signal(number)
    assert launcher.finish().returncode == 128 + number
    end = launcher.scenario.only_end()
    assert (end["verdict"], end["signal"]) == ("stopped", number)
    launcher.assert_nothing_left()


@pytest.mark.parametrize(
    ("trapped", "sent", "verdict"),
    [("USR1", signal.SIGUSR1, "exited"), ("INT", signal.SIGTERM, "stopped")],
    ids=["as it is", "translated"],
)
def test_the_program_may_answer_with_an_exit_code_of_its_own(
    launcher_of: LauncherOf, trapped: str, sent: signal.Signals, verdict: str
) -> None:
    script = f"trap 'exit 9' {trapped}; : > SCRATCH/ready; while :; do sleep 0.05; done"
    launcher = launcher_of(Scenario(["sh", "-c", script], attempt={"signal_map": {"SIGTERM": "SIGINT"}}))
    launcher.start()
    wait_until((launcher.scenario.scratch / "ready").exists, "the program")
    launcher.process.send_signal(sent)
    assert launcher.finish().returncode == 9
    assert launcher.scenario.only_end()["verdict"] == verdict


def test_a_stop_while_a_kill_inside_is_being_answered_still_ends_the_run(launcher_of: LauncherOf) -> None:
    trap = "trap 'kills=$((kills + 1)); : > SCRATCH/term; [ $kills = 2 ] && exit 4' TERM"
    script = f"{trap}; {HOG_IN_SHELL} {TOO_MUCH}; while :; do sleep 0.05; done"
    launcher = launcher_of(
        Scenario(["sh", "-c", script], budgets=[TOO_MUCH, FITS], policy={"limit_bytes": LIMIT})
    )
    launcher.start()
    wait_until((launcher.scenario.scratch / "term").exists, "the answer to the kill")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.finish().returncode == 4
    assert launcher.scenario.only_end()["verdict"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_at_any_moment_leaves_no_process_and_no_cgroup(
    launcher_of: LauncherOf, number: signal.Signals
) -> None:
    for delay in random_moments():
        # A Python that still starts may lose a KeyboardInterrupt ("Failed checking if argv[0] is an import
        # path entry"), and what the program does with its signal is its own affair: it ends by itself.
        scenario = Scenario([*HOG, "{budget}", "60"], budgets=[TOO_MUCH, FITS], policy={"limit_bytes": LIMIT})
        launcher = launcher_of(scenario)
        launcher.start()
        # Until then it is an ordinary Python program, which may even lose a KeyboardInterrupt.
        wait_until(launcher.catches_signals, "the launcher to catch signals")
        time.sleep(delay)
        launcher.process.send_signal(number)
        status = launcher.finish().returncode
        # A program that was stopped ends as it likes (a Python that still starts: 1), or dies of its memory
        # in the very moment; that is our exit status, and it is not started again.
        last = scenario.events("attempt_ended")[-1:]
        own = {
            128 + end["signal"] if end["signal"] else end["exit_code"]
            for end in last
            if end["verdict"] == "stopped"
        }
        assert status in (own or {128 + number})
        launcher.assert_nothing_left()


@pytest.mark.parametrize("use_leaf", [True, False], ids=["leaf", "no leaf"])
def test_sigkill_of_the_launcher_at_any_moment_leaves_nothing_running(
    launcher_of: LauncherOf, use_leaf: bool
) -> None:
    hog = f"{HOG_IN_SHELL} {FITS} 600 SCRATCH"
    for delay in random_moments():
        launcher = launcher_of(
            Scenario(["sh", "-c", f"setsid {hog} & exec {hog}"], policy={"use_leaf": use_leaf})
        )
        launcher.start()
        time.sleep(delay)
        launcher.process.kill()
        launcher.finish()
        launcher.assert_nothing_left()


def test_as_pid_1_it_reaps_orphans_forwards_signals_and_needs_no_guardian(launcher_of: LauncherOf) -> None:
    orphans = "for i in 1 2 3; do (sleep 0.1 &) ; done; sleep 0.5"
    count = "cat /proc/[0-9]*/stat | grep -c ' Z ' > SCRATCH/zombies"
    ready = "ls -d /proc/[0-9]* | wc -w > SCRATCH/processes; : > SCRATCH/ready"
    script = f"trap 'exit 9' TERM; {orphans}; {count}; {ready}; while :; do sleep 0.05; done"
    launcher = launcher_of(Scenario(["sh", "-c", script]))
    launcher.start(prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    scratch = launcher.scenario.scratch
    wait_until((scratch / "ready").exists, "the program")
    assert (scratch / "zombies").read_text().strip() == "0"
    # The launcher, the shell, and the two commands that count.
    assert int((scratch / "processes").read_text()) <= 4
    os.kill(_child_of(launcher.process.pid), signal.SIGTERM)
    assert launcher.finish().returncode == 9
    assert launcher.scenario.only_end()["verdict"] == "stopped"
    launcher.assert_no_process_left()


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
