"""Real programs in real leaf cgroups, killed by the real OOM killer: verdicts and recovery."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernel.launching import HOG, HOG_IN_SHELL, PYTHON, Launcher, leaves_of, wait_until
from oomproof.history.store import History
from oomproof.leaf import make_leaf
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LIMIT = 64 * MIB
TOO_MUCH = 96 * MIB
FITS = 32 * MIB

OOM_STATUS = 137


@pytest.fixture
def limited(launcher: Launcher) -> Launcher:
    """One attempt in a leaf with a limit that the hog does not fit in."""
    launcher.policy = {"limit_bytes": LIMIT}
    launcher.budgets = [TOO_MUCH]
    return launcher


def test_a_killed_program_comes_back_with_the_smaller_budget(limited: Launcher) -> None:
    limited.budgets = [TOO_MUCH, FITS]
    run = limited.run([*HOG, "{budget}"])
    assert run.returncode == 0, run.stderr
    first, second = limited.events("attempt_ended")
    assert (first["verdict"], first["confidence"], first["oom_kills"]) == ("oom_kill", "certain", 1)
    assert (first["signal"], first["exit_code"]) == (signal.SIGKILL, None)
    assert (first["budget_bytes"], first["next_budget_bytes"]) == (TOO_MUCH, FITS)
    assert any("oom_kill rose from 0 to 1" in sentence for sentence in first["evidence"])
    assert any("leaf's own limit of 64.00 MiB" in sentence for sentence in first["evidence"])
    assert (second["verdict"], second["exit_code"], second["oom_kills"]) == ("exited", 0, 0)
    assert (second["budget_bytes"], second["next_budget_bytes"]) == (FITS, None)
    assert [event["event"] for event in limited.events()] == [
        *("attempt_started", "attempt_ended") * 2,
        "finished",
    ]
    limited.assert_nothing_left()


def test_every_attempt_is_in_the_history(limited: Launcher) -> None:
    limited.budgets = [TOO_MUCH, FITS]
    limited.run([*HOG, "{budget}"])
    history = History.open(limited.scratch / "history.sqlite3")
    rows = [(row["attempt"], row["verdict"], row["budget_bytes"]) for row in history.attempts()]
    history.close()
    assert rows == [(1, "oom_kill", TOO_MUCH), (2, "exited", FITS)]


def test_when_retries_are_used_up_the_run_gives_up_with_137(limited: Launcher) -> None:
    limited.budgets = [TOO_MUCH, TOO_MUCH - MIB]
    run = limited.run([*HOG, "{budget}"])
    assert run.returncode == OOM_STATUS
    (gave_up,) = limited.events("gave_up")
    assert gave_up["attempts"] == 2
    assert limited.events("finished")[0]["exit_status"] == OOM_STATUS


HOG_DIES = f"{HOG_IN_SHELL} {TOO_MUCH}"


@pytest.mark.parametrize(
    ("script", "code", "killed_by"),
    [
        (f"{HOG_DIES}; exit $?", OOM_STATUS, None),
        (f"{HOG_DIES}; exit 0", 0, None),
        (f"{HOG_DIES} | cat", 0, None),
        (f"{HOG_DIES} || exit 247", 247, None),
        (f"{HOG_DIES} || exit 1", 1, None),
        (f"{HOG_DIES}; kill $$", None, signal.SIGTERM),
        (f"{HOG_DIES}; kill -9 $$", None, signal.SIGKILL),
    ],
    ids=["sh -c", "exit 0", "pipe", "exit 247", "exit 1", "self-SIGTERM", "self-SIGKILL"],
)
def test_a_kill_inside_is_seen_whatever_the_main_process_makes_of_it(
    limited: Launcher, script: str, code: int | None, killed_by: int | None
) -> None:
    run = limited.run(["sh", "-c", script])
    end = limited.only_end()
    assert (end["verdict"], end["confidence"], end["oom_kills"]) == ("oom_kill", "certain", 1)
    assert (end["exit_code"], end["signal"]) == (code, killed_by)
    assert run.returncode == OOM_STATUS


def test_ok_with_kills_lets_exit_0_count(limited: Launcher) -> None:
    limited.policy["ok_with_kills"] = True
    run = limited.run(["sh", "-c", f"{HOG_DIES}; exit 0"])
    assert run.returncode == 0
    assert limited.only_end()["verdict"] == "oom_kill"


def test_a_main_process_that_hangs_after_a_kill_inside_is_ended_soon(limited: Launcher) -> None:
    program = f"{HOG_DIES}; touch {limited.scratch}/killed; sleep 600"
    limited.start(["sh", "-c", program])
    assert limited.process is not None
    wait_until((limited.scratch / "killed").exists, "the kill")
    killed = time.monotonic()
    run = limited.finish(limited.process)
    assert time.monotonic() - killed < (1 if sys.gettrace() is None and _is_fast() else 10)
    assert run.returncode == OOM_STATUS
    end = limited.only_end()
    assert (end["verdict"], end["signal"]) == ("oom_kill", signal.SIGTERM)
    limited.assert_nothing_left()


def _is_fast() -> bool:
    """False in a guest under emulation."""
    return "QEMU" not in Path("/proc/cpuinfo").read_text()


def test_sigkill_without_oom_is_unknown_and_not_tried_again(limited: Launcher) -> None:
    limited.budgets = [FITS, FITS // 2]
    run = limited.run(["sh", "-c", "kill -9 $$"])
    assert run.returncode == 128 + signal.SIGKILL
    end = limited.only_end()
    assert (end["verdict"], end["oom_kills"], end["next_budget_bytes"]) == ("killed_unknown", 0, None)
    assert not limited.events("gave_up")


def test_an_oom_kill_in_another_cgroup_is_not_taken_for_ours(limited: Launcher) -> None:
    ready = limited.scratch / "ready"
    limited.start(["sh", "-c", f"echo $$ > {ready}.new; mv {ready}.new {ready}; exec sleep 600"])
    assert limited.process is not None
    wait_until(ready.exists, "the program")
    with make_leaf("test") as other:
        other.set_limit(LIMIT)
        subprocess.run(
            ["sh", "-c", f"echo 0 > {other.join_path}; {HOG_DIES}"], check=False, capture_output=True
        )
        assert other.events().oom_kill == 1
    os.kill(int(ready.read_text()), signal.SIGKILL)
    run = limited.finish(limited.process)
    assert run.returncode == 128 + signal.SIGKILL
    assert limited.only_end()["verdict"] == "killed_unknown"


def test_a_limit_above_the_leaf_is_told_from_the_leafs_own(launcher: Launcher) -> None:
    with make_leaf("test") as parent:
        parent.set_limit(LIMIT)
        launcher.options["join"] = str(parent.join_path)
        run = launcher.run([*HOG, "{budget}"])
        assert run.returncode == OOM_STATUS, run.stderr
    end = launcher.only_end()
    assert (end["verdict"], end["confidence"]) == ("oom_kill", "certain")
    assert any("not the leaf's own limit" in sentence for sentence in end["evidence"])


@pytest.mark.parametrize(
    ("script", "verdict", "confidence"),
    [
        (f"exec {HOG_DIES}", "oom_kill", "high"),
        (f"{HOG_DIES}; exit 0", "oom_kill", "high"),
        ("kill -9 $$", "killed_unknown", "certain"),
    ],
    ids=["direct", "exit 0", "kill -9"],
)
def test_without_a_leaf_the_own_cgroup_counts(
    launcher: Launcher, script: str, verdict: str, confidence: str
) -> None:
    launcher.policy["use_leaf"] = False
    with make_leaf("test") as own:
        own.set_limit(LIMIT)
        launcher.options["join"] = str(own.join_path)
        launcher.run(["sh", "-c", script])
    end = launcher.only_end()
    assert (end["verdict"], end["confidence"]) == (verdict, confidence), end


def test_without_a_leaf_other_victims_make_it_a_suspicion_only(launcher: Launcher) -> None:
    launcher.policy["use_leaf"] = False
    with make_leaf("test") as own:
        own.set_limit(LIMIT)
        launcher.options["join"] = str(own.join_path)
        stranger = subprocess.Popen(["sh", "-c", f"echo 0 > {own.join_path}; exec sleep 600"])
        wait_until(lambda: stranger.pid in own.processes(), "the stranger")
        launcher.run(["sh", "-c", f"{HOG_DIES}; exit 3"])
        stranger.kill()
        stranger.wait()
    end = launcher.only_end()
    assert (end["verdict"], end["confidence"]) == ("oom_suspected", "medium"), end


def test_deaths_within_milliseconds_are_all_counted_once(launcher: Launcher) -> None:
    attempts = 100 if _is_fast() else 5
    launcher.policy = {"limit_bytes": 1 * MIB}
    launcher.budgets = list(range(attempts, 0, -1))
    run = launcher.run([*HOG, "{budget}"])
    assert run.returncode == OOM_STATUS
    ends = launcher.events("attempt_ended")
    assert [end["verdict"] for end in ends] == ["oom_kill"] * attempts
    assert {end["oom_kills"] for end in ends} == {1}
    launcher.assert_nothing_left()


@pytest.mark.parametrize("use_leaf", [True, False], ids=["leaf", "no leaf"])
def test_a_grandchild_in_a_session_of_its_own_ends_with_the_attempt(
    launcher: Launcher, use_leaf: bool
) -> None:
    launcher.policy["use_leaf"] = use_leaf
    sleeper = f"setsid {' '.join(PYTHON)} -c 'import time; time.sleep(600)' {launcher.scratch} &"
    run = launcher.run(["sh", "-c", f"{sleeper} exit 5"])
    assert run.returncode == 5
    launcher.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_launcher_reaches_the_program_and_ends_the_run(
    limited: Launcher, number: signal.Signals
) -> None:
    limited.budgets = [FITS, FITS // 2]
    limited.start([*HOG, "{budget}", "600"])
    assert limited.process is not None
    wait_until(lambda: _running_hogs(limited), "the program")
    limited.process.send_signal(number)
    run = limited.finish(limited.process)
    assert run.returncode == 128 + number
    end = limited.only_end()
    assert (end["verdict"], end["signal"]) == ("stopped", number)
    limited.assert_nothing_left()


def _running_hogs(launcher: Launcher) -> list[int]:
    """Programs that were executed, not the launcher's own copies."""
    leaf = [event["leaf"] for event in launcher.events("attempt_started")]
    if not leaf:
        return []
    try:
        pids = Path(leaf[-1], "cgroup.procs").read_text().split()
        return [int(pid) for pid in pids if b"hog.py\0" in Path("/proc", pid, "cmdline").read_bytes()]
    except OSError:
        return []


def test_the_program_may_answer_a_signal_with_an_exit_code_of_its_own(limited: Launcher) -> None:
    ready = limited.scratch / "ready"
    limited.start(["sh", "-c", f"trap 'exit 7' USR1; : > {ready}; while :; do sleep 0.05; done"])
    assert limited.process is not None
    wait_until(ready.exists, "the program")
    limited.process.send_signal(signal.SIGUSR1)
    assert limited.finish(limited.process).returncode == 7
    assert limited.only_end()["verdict"] == "exited"


def test_signals_can_be_translated(limited: Launcher) -> None:
    limited.options["signal_map"] = {"TERM": "INT"}
    ready = limited.scratch / "ready"
    limited.start(["sh", "-c", f"trap 'exit 9' INT; : > {ready}; while :; do sleep 0.05; done"])
    assert limited.process is not None
    wait_until(ready.exists, "the program")
    limited.process.send_signal(signal.SIGTERM)
    assert limited.finish(limited.process).returncode == 9
    assert limited.only_end()["verdict"] == "stopped"


def _moments() -> list[float]:
    """Delays after the start of a launcher, in seconds: through import, start, kill, restart and end."""
    return [0.02 * step for step in range(1, 26)] if _is_fast() else [0.5, 1.5, 3.0, 5.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_at_any_moment_leaves_no_process_and_no_cgroup(tmp_path: Path, number: int) -> None:
    for index, delay in enumerate(_moments()):
        scratch = tmp_path / str(index)
        scratch.mkdir()
        launcher = Launcher(scratch, budgets=[TOO_MUCH, FITS], policy={"limit_bytes": LIMIT})
        try:
            process = launcher.start([*HOG, "{budget}", "600"])
            time.sleep(delay)
            process.send_signal(number)
            run = launcher.finish(process)
            assert run.returncode in (128 + number, -number, 1 if number == signal.SIGINT else None), run
            launcher.assert_nothing_left()
        finally:
            launcher.end()


@pytest.mark.parametrize("use_leaf", [True, False], ids=["leaf", "no leaf"])
def test_sigkill_of_the_launcher_at_any_moment_leaves_nothing_running(tmp_path: Path, use_leaf: bool) -> None:
    grandchild = (
        f"setsid {HOG_IN_SHELL} {FITS} 600 {tmp_path}/INDEX & exec {HOG_IN_SHELL} {FITS} 600 {tmp_path}/INDEX"
    )
    for index, delay in enumerate(_moments()):
        scratch = tmp_path / str(index)
        scratch.mkdir()
        launcher = Launcher(scratch, policy={"use_leaf": use_leaf})
        try:
            process = launcher.start(["sh", "-c", grandchild.replace("INDEX", str(index))])
            time.sleep(delay)
            process.kill()
            launcher.finish(process)
            launcher.assert_no_process_left()
            # The cgroup may stay when the kill came right after its mkdir; empty, the next run sweeps it up.
            for leaf in leaves_of(process.pid):
                assert not (leaf / "cgroup.procs").read_text()
                leaf.rmdir()
        finally:
            launcher.end()


def test_stdin_and_stdout_pass_through(limited: Launcher) -> None:
    process = limited.start(["cat"], stdin=subprocess.PIPE)
    out, _ = process.communicate(b"through and through\n", timeout=60)
    assert out == b"through and through\n"


def test_the_budget_is_in_the_environment_and_in_the_arguments(limited: Launcher) -> None:
    limited.budgets = [FITS]
    run = limited.run(["sh", "-c", 'echo "$OOMPROOF_BUDGET_BYTES $OOMPROOF_ATTEMPT $0"', "{budget_mib}"])
    assert run.stdout.decode().split() == [str(FITS), "1", "32"]


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (["no-such-command-anywhere"], 127, "not found in PATH"),
        (["/no/such/file"], 127, "does not exist"),
        (["/etc/passwd"], 126, "chmod +x"),
        (["/"], 126, "cannot be executed"),
        (["SCRATCH/no-interpreter"], 127, "interpreter"),
        (["SCRATCH/no-program"], 126, "#! line"),
    ],
)
def test_what_cannot_be_executed_is_said_in_one_line(
    limited: Launcher, command: list[str], status: int, words: str
) -> None:
    for name, content in (("no-interpreter", "#!/no/such/shell\n"), ("no-program", "echo\n")):
        (limited.scratch / name).write_text(content)
        (limited.scratch / name).chmod(0o755)
    command = [word.replace("SCRATCH", str(limited.scratch)) for word in command]
    run = limited.run(command)
    assert run.returncode == status
    last_line = run.stderr.decode().splitlines()[-1]
    assert words in last_line
    assert command[0] in last_line
    assert limited.only_end()["verdict"] == "not_started"
    limited.assert_nothing_left()


def test_without_path_the_system_directories_are_searched(limited: Launcher) -> None:
    limited.options["environment"] = {"A": "b"}
    run = limited.run(["env"])
    assert run.returncode == 0
    assert b"A=b" in run.stdout.splitlines()


def test_the_program_starts_with_a_clean_slate(limited: Launcher) -> None:
    limited.options["oom_score_adj"] = 7
    run = limited.run(
        ["sh", "-c", "grep Sig /proc/self/status; cat /proc/self/oom_score_adj; ls -l /proc/self/fd"]
    )
    lines = run.stdout.decode().splitlines()
    masks = {
        key: int(value, 16)
        for key, value in (line.split(":\t") for line in lines if line.startswith("Sig"))
        if key in ("SigBlk", "SigIgn", "SigCgt")
    }
    assert (masks["SigBlk"], masks["SigIgn"]) == (0, 0)
    assert "300" in lines
    assert not [line for line in lines if "events.jsonl" in line or "history" in line]


def test_the_launcher_is_small_and_sleeps(limited: Launcher) -> None:
    limited.start([*HOG, str(FITS), "600"])
    assert limited.process is not None
    wait_until(lambda: _running_hogs(limited), "the program")
    time.sleep(0.5)
    before = _status(limited.process.pid)
    time.sleep(2)
    after = _status(limited.process.pid)
    assert after["VmRSS"] < 18 * 1024, "KiB"
    assert after["voluntary_ctxt_switches"] == before["voluntary_ctxt_switches"]


def _status(pid: int) -> dict[str, int]:
    """The numbers in ``/proc/PID/status``; sizes in KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+)(?: kB)?$", text, re.MULTILINE)}
