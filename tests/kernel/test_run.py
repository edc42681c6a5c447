"""Real programs in real leaf cgroups, killed by the real OOM killer: verdicts and recovery."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernel.launching import (
    HOG,
    HOG_IN_SHELL,
    UNDER_EMULATION,
    Launcher,
    Scenario,
    run_all,
    uptime,
    wait_until,
)
from oomproof.history.store import History
from oomproof.leaf import make_leaf
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LauncherOf = Callable[[Scenario], Launcher]

LIMIT = 64 * MIB
TOO_MUCH = 96 * MIB
FITS = 32 * MIB
OOM_STATUS = 137
SLOWLY_S = 20.0 if UNDER_EMULATION else 1.0
"""Long enough for a shell to come to its next command."""
DYING_HOG = f"{HOG_IN_SHELL} {TOO_MUCH}"


def limited(*command: str, budgets: tuple[int, ...] = (TOO_MUCH,), **policy: int) -> Scenario:
    """In a leaf with a limit below TOO_MUCH."""
    return Scenario(
        list(command),
        budgets=list(budgets),
        policy={"limit_bytes": LIMIT, **policy},
        attempt={"settle_s": SLOWLY_S},
    )


def shell(script: str, *, ok_with_kills: bool = False) -> Scenario:
    return limited("sh", "-c", script, ok_with_kills=ok_with_kills)


# name: scenario, exit code and signal of the main process
KILLS_INSIDE = {
    "direct": (limited(*HOG, "{budget}"), None, signal.SIGKILL),
    "sh": (shell(f"{DYING_HOG}; exit $?"), OOM_STATUS, None),
    "exit 0": (shell(f"{DYING_HOG}; exit 0"), 0, None),
    "pipe": (shell(f"{DYING_HOG} | cat"), 0, None),
    "exit 247": (shell(f"{DYING_HOG} || exit 247"), 247, None),
    "exit 1": (shell(f"{DYING_HOG} || exit 1"), 1, None),
    "self SIGTERM": (shell(f"{DYING_HOG}; kill $$"), None, signal.SIGTERM),
    "self SIGKILL": (shell(f"{DYING_HOG}; kill -9 $$"), None, signal.SIGKILL),
    "hangs": (
        Scenario(["sh", "-c", f"{DYING_HOG}; sleep 600"], policy={"limit_bytes": LIMIT}),
        None,
        signal.SIGTERM,
    ),
}

# name: command, exit status, words of the message
CANNOT_START = {
    "not in PATH": (["no-such-command-anywhere"], 127, "not found in PATH"),
    "no such file": (["/no/such/file"], 127, "does not exist"),
    "empty name": ([""], 127, "not found"),
    "no permission": (["/etc/passwd"], 126, "chmod +x"),
    "directory": (["/"], 126, "cannot be executed"),
    "no interpreter": (["INTERPRETER"], 127, "interpreter"),
    "no program": (["PROGRAM"], 126, "#! line"),
}

OTHERS = {
    "recovery": replace(limited(*HOG, "{budget}", budgets=(TOO_MUCH, FITS)), remember=True),
    "gives up": limited(*HOG, "{budget}", budgets=(TOO_MUCH, TOO_MUCH - MIB)),
    "nothing smaller": limited(*HOG, "{budget}", retries=3),
    "ok with kills": shell(f"{DYING_HOG}; exit 0", ok_with_kills=True),
    "ok with kills waits": shell(f"{DYING_HOG}; sleep 0.5; exit 3", ok_with_kills=True),
    "kill -9": limited("sh", "-c", "kill -9 $$", budgets=(TOO_MUCH, FITS)),
    "session of its own": shell("setsid sleep 600 & echo $! > SCRATCH/pid; exit 5"),
    "session without leaf": Scenario(
        ["sh", "-c", "setsid sleep 600 & echo $! > SCRATCH/pid; exit 5"], policy={"use_leaf": False}
    ),
    "time-out": Scenario(["sleep", "600"], attempt={"timeout_s": 0.2}),
    "stubborn": Scenario(
        ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"],
        attempt={"timeout_s": SLOWLY_S / 2, "grace_s": 0.3},
    ),
    "arguments": Scenario(
        ["sh", "-c", 'echo "$OOMPROOF_BUDGET_BYTES $OOMPROOF_ATTEMPT $0" > SCRATCH/out', "{budget_mib}"],
        budgets=[FITS],
    ),
    "no PATH": Scenario(["sh", "-c", "env > SCRATCH/out"], environment={"A": "b"}),
    "clean slate": Scenario(
        [
            "sh",
            "-c",
            "{ cat /proc/self/status /proc/self/oom_score_adj; ls -l /proc/self/fd; } > SCRATCH/out",
        ],
        oom_score_adj=7,
    ),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scenario]:
    """All scenarios that need nobody to act from outside, run to their end."""
    scratch = tmp_path_factory.mktemp("run")
    for name, content in (("interpreter", "#!/no/such/shell\n"), ("program", "echo\n")):
        (scratch / name).write_text(content)
        (scratch / name).chmod(0o755)
    scenarios = {name: scenario for name, (scenario, _, _) in KILLS_INSIDE.items()}
    for name, (command, _, _) in CANNOT_START.items():
        scenarios[name] = limited(
            *(str(scratch / word.lower()) if word.isupper() else word for word in command)
        )
    scenarios |= OTHERS
    (scratch / "said").write_text(run_all(scenarios, scratch))
    return scenarios


@pytest.mark.parametrize("name", KILLS_INSIDE)
def test_a_kill_inside_is_seen_whatever_the_main_process_makes_of_it(
    done: dict[str, Scenario], name: str
) -> None:
    _, code, number = KILLS_INSIDE[name]
    end = done[name].only_end()
    assert (end["verdict"], end["confidence"], end["oom_kills"]) == ("oom_kill", "certain", 1), end
    assert (end["exit_code"], end["signal"]) == (code, number)
    assert done[name].status == OOM_STATUS
    assert any("oom_kill rose from 0 to 1" in sentence for sentence in end["evidence"])
    assert any("leaf's own limit of 64.00 MiB" in sentence for sentence in end["evidence"])


def test_a_main_process_that_runs_on_after_a_kill_is_ended_within_a_second(done: dict[str, Scenario]) -> None:
    end = done["hangs"].only_end()
    (noticed,) = (
        float(found[1]) for text in end["evidence"] if (found := re.search(r"noticed at ([0-9.]+)", text))
    )
    assert end["duration_s"] - noticed < (10 if UNDER_EMULATION else 1)


def test_a_killed_program_comes_back_with_the_smaller_budget(done: dict[str, Scenario]) -> None:
    recovery = done["recovery"]
    assert recovery.status == 0
    first, second = recovery.events("attempt_ended")
    assert (first["verdict"], first["budget_bytes"], first["next_budget_bytes"]) == (
        "oom_kill",
        TOO_MUCH,
        FITS,
    )
    assert (second["verdict"], second["exit_code"], second["oom_kills"]) == ("exited", 0, 0)
    assert (second["budget_bytes"], second["next_budget_bytes"]) == (FITS, None)
    expected = [*("attempt_started", "attempt_ended") * 2, "finished"]
    assert [event["event"] for event in recovery.events()] == expected


def test_every_attempt_is_in_the_history(done: dict[str, Scenario]) -> None:
    with History.open(done["recovery"].scratch / "history.sqlite3") as history:
        rows = [(row["attempt"], row["verdict"], row["budget_bytes"]) for row in history.attempts()]
    assert rows == [(1, "oom_kill", TOO_MUCH), (2, "exited", FITS)]


@pytest.mark.parametrize(("name", "attempts"), [("gives up", 2), ("nothing smaller", 1)])
def test_a_run_that_cannot_be_saved_says_so_and_exits_137(
    done: dict[str, Scenario], name: str, attempts: int
) -> None:
    (gave_up,) = done[name].events("gave_up")
    assert gave_up["attempts"] == attempts
    assert done[name].status == OOM_STATUS
    assert done[name].events("finished")[0]["exit_status"] == OOM_STATUS


@pytest.mark.parametrize(("name", "code"), [("ok with kills", 0), ("ok with kills waits", 3)])
def test_where_kills_are_fine_the_main_process_ends_when_it_likes(
    done: dict[str, Scenario], name: str, code: int
) -> None:
    end = done[name].only_end()
    assert (end["verdict"], end["exit_code"]) == ("oom_kill", code)
    assert done[name].status == (0 if code == 0 else OOM_STATUS)


def test_sigkill_without_oom_is_unknown_and_not_tried_again(done: dict[str, Scenario]) -> None:
    end = done["kill -9"].only_end()
    assert (end["verdict"], end["oom_kills"], end["next_budget_bytes"]) == ("killed_unknown", 0, None)
    assert done["kill -9"].status == 128 + signal.SIGKILL
    assert not done["kill -9"].events("gave_up")


@pytest.mark.parametrize("name", ["session of its own", "session without leaf"])
def test_a_grandchild_in_a_session_of_its_own_ends_with_the_attempt(
    done: dict[str, Scenario], name: str
) -> None:
    assert done[name].status == 5
    pid = int((done[name].scratch / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(("name", "number"), [("time-out", signal.SIGTERM), ("stubborn", signal.SIGKILL)])
def test_a_program_whose_time_is_up_is_stopped(
    done: dict[str, Scenario], name: str, number: signal.Signals
) -> None:
    end = done[name].only_end()
    assert (end["verdict"], end["signal"]) == ("stopped", number)


@pytest.mark.parametrize("name", CANNOT_START)
def test_what_cannot_be_started_is_said_in_one_line(done: dict[str, Scenario], name: str) -> None:
    command, status, words = CANNOT_START[name]
    assert done[name].status == status
    assert done[name].only_end()["verdict"] == "not_started"
    said = (done[name].scratch.parent / "said").read_text().splitlines()
    name_in_message = repr(command[0]).lower()[1:-1]
    assert [line for line in said if line.startswith("error: ") and words in line and name_in_message in line]


def test_the_budget_is_in_the_environment_and_in_the_arguments(done: dict[str, Scenario]) -> None:
    assert (done["arguments"].scratch / "out").read_text().split() == [str(FITS), "1", "32"]


def test_without_path_the_system_directories_are_searched(done: dict[str, Scenario]) -> None:
    assert "A=b" in (done["no PATH"].scratch / "out").read_text().splitlines()


def test_the_program_starts_with_a_clean_slate(done: dict[str, Scenario]) -> None:
    out = (done["clean slate"].scratch / "out").read_text()
    assert re.search(r"^SigBlk:\t0+$", out, re.MULTILINE)
    # 32 and 33 are glibc's own; they come ignored from a parent that used posix_spawn, as make does.
    assert re.search(r"^SigIgn:\t0{7}[01][08]0{7}$", out, re.MULTILINE)
    assert "\n300\n" in out, "oom_score_adj"
    assert "events.jsonl" not in out, "no descriptor of ours"
    assert "history" not in out


def test_deaths_within_milliseconds_are_all_counted_once(launcher_of: LauncherOf) -> None:
    attempts = 10 if UNDER_EMULATION else 200
    # Never halved, or the run would find that the budget has no effect.
    budgets = list(range(2 * attempts, attempts, -1))
    launcher = launcher_of(Scenario([*HOG, "{budget}"], budgets=budgets, policy={"limit_bytes": 1 * MIB}))
    launcher.start()
    assert launcher.finish().returncode == OOM_STATUS
    ends = launcher.scenario.events("attempt_ended")
    assert [end["verdict"] for end in ends] == ["oom_kill"] * attempts
    assert {end["oom_kills"] for end in ends} == {1}
    launcher.assert_nothing_left()


def test_an_oom_kill_in_another_cgroup_is_not_taken_for_ours(launcher_of: LauncherOf) -> None:
    launcher = launcher_of(limited(*HOG, str(FITS), "600"))
    launcher.start()
    wait_until(launcher.programs, "the program")
    with make_leaf("test") as other:
        other.set_limit(LIMIT)
        script = f"echo 0 > {other.join_path}; {DYING_HOG}"
        subprocess.run(["sh", "-c", script], check=False, capture_output=True)
        assert other.events().oom_kill == 1
    os.kill(launcher.programs()[0], signal.SIGKILL)
    assert launcher.finish().returncode == 128 + signal.SIGKILL
    assert launcher.scenario.only_end()["verdict"] == "killed_unknown"


def test_a_limit_above_the_leaf_is_told_from_the_leafs_own(launcher_of: LauncherOf) -> None:
    with make_leaf("test") as parent:
        parent.set_limit(LIMIT)
        launcher = launcher_of(Scenario([*HOG, "{budget}"], join=parent.join_path))
        launcher.start()
        assert launcher.finish().returncode == OOM_STATUS
    end = launcher.scenario.only_end()
    assert (end["verdict"], end["confidence"]) == ("oom_kill", "certain")
    assert any("not the leaf's own limit" in sentence for sentence in end["evidence"])


@pytest.mark.parametrize(
    ("script", "verdict", "confidence"),
    [
        (f"exec {DYING_HOG}", "oom_kill", "certain"),  # the kernel log names it
        (f"{DYING_HOG}; exit 0", "oom_suspected", "medium"),
        ("kill -9 $$", "killed_unknown", "certain"),
    ],
    ids=["direct", "exit 0", "kill -9"],
)
def test_without_a_leaf_the_own_cgroup_counts(
    launcher_of: LauncherOf, script: str, verdict: str, confidence: str
) -> None:
    with make_leaf("test") as own:
        own.set_limit(LIMIT)
        launcher = launcher_of(Scenario(["sh", "-c", script], policy={"use_leaf": False}, join=own.join_path))
        launcher.start()
        launcher.finish()
    end = launcher.scenario.only_end()
    assert (end["verdict"], end["confidence"]) == (verdict, confidence), end


@pytest.mark.parametrize(
    ("program", "confidence"),
    [(f"{DYING_HOG}; exit 3", "medium"), ("while ! [ -e SCRATCH/enough ]; do sleep 0.1; done", "low")],
    ids=["own victim", "innocent"],
)
def test_without_a_leaf_a_kill_among_others_is_a_suspicion_and_no_reason_to_end_the_program(
    launcher_of: LauncherOf, program: str, confidence: str
) -> None:
    with make_leaf("test") as own:
        own.set_limit(LIMIT)
        scenario = Scenario(["sh", "-c", program], policy={"use_leaf": False}, join=own.join_path)
        launcher = launcher_of(scenario)
        go = scenario.scratch / "go"
        victim = "" if confidence == "medium" else f"while ! [ -e {go} ]; do sleep 0.1; done; {DYING_HOG};"
        stranger = subprocess.Popen(["sh", "-c", f"echo 0 > {own.join_path}; {victim} sleep 600"])
        try:
            wait_until(lambda: stranger.pid in own.processes(), "the stranger")
            launcher.start()
            wait_until(lambda: scenario.events("attempt_started"), "the start")
            time.sleep(SLOWLY_S / 2)
            go.touch()
            wait_until(lambda: own.events().oom_kill, "the kill")
            time.sleep(1)
            (scenario.scratch / "enough").touch()
            launcher.finish()
        finally:
            stranger.kill()
            stranger.wait()
    end = scenario.only_end()
    assert (end["verdict"], end["confidence"]) == ("oom_suspected", confidence), end
    assert end["exit_code"] == (3 if confidence == "medium" else 0)


def test_without_a_leaf_the_kill_of_a_stranger_who_came_late_ends_no_program(launcher_of: LauncherOf) -> None:
    with make_leaf("test") as own:
        own.set_limit(LIMIT)
        wait = "while ! [ -e SCRATCH/enough ]; do sleep 0.1; done"
        scenario = Scenario(["sh", "-c", wait], policy={"use_leaf": False}, join=own.join_path)
        launcher = launcher_of(scenario)
        launcher.start()
        wait_until(lambda: scenario.events("attempt_started"), "the start")
        subprocess.run(["sh", "-c", f"echo 0 > {own.join_path}; exec {DYING_HOG}"], check=False)
        assert own.events().oom_kill == 1
        time.sleep(1)
        (scenario.scratch / "enough").touch()
        launcher.finish()
    end = scenario.only_end()
    assert (end["exit_code"], end["signal"]) == (0, None), end
    assert end["verdict"] != "oom_kill", end


def test_stdin_and_stdout_pass_through(launcher_of: LauncherOf) -> None:
    launcher = launcher_of(limited("cat"))
    launcher.start(stdin=subprocess.PIPE)
    assert launcher.finish(b"through and through\n").stdout == b"through and through\n"


def test_the_launcher_is_small_and_sleeps(launcher_of: LauncherOf) -> None:
    launcher = launcher_of(limited(*HOG, str(FITS), "600"))
    launcher.start()
    wait_until(launcher.programs, "the program")
    before = launcher.settled_switches()
    wait_until(lambda: uptime() > before[0] + 2, "two idle seconds")
    status = launcher.proc_status()
    assert int(status["voluntary_ctxt_switches"]) == before[1]
    assert int(status["VmRSS"].split()[0]) < 18 * 1024, "KiB"
