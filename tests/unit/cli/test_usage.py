"""What a user gets who asks for something that makes no sense: one line, and the documented exit code."""

import contextlib
import json
import os
import queue
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oomproof.cli import VERBS, main

# name: arguments, words of the message
REFUSED = {
    "unknown unit": (["run", "--limit", "5 parsecs", "--", "true"], "'5 parsecs' is not a size"),
    "negative size": (["run", "--limit", "-5", "--", "true"], "'-5' is not a size"),
    "negative size in plan": (["plan", "--no-probe", "--cap=-1GiB"], "--cap: '-1GiB' is not a size"),
    "negative size in probe": (["probe", "--max=-1"], "'-1' is not a size"),
    "huge size": (["run", "--limit", "99EiB", "--", "true"], "larger than any memory"),
    "budget above the limit": (
        ["run", "--limit", "64MiB", "--budget", "65MiB", "--history", "none", "--", "true"],
        "--budget 65.00 MiB is above the limit of 64.00 MiB",
    ),
    "no size at all": (["run", "--limit", "0", "--", "true"], "'0' leaves nothing"),
    "no budget at all": (["run", "--budget", "0B", "--", "true"], "'0B' leaves nothing"),
    "budget above the cap": (
        ["run", "--budget", "2MiB", "--cap", "1MiB", "--history", "none", "--", "true"],
        "--budget 2.00 MiB is above --cap 1.00 MiB",
    ),
    "limit without a leaf": (["run", "--limit", "1GiB", "--no-leaf", "--", "true"], "--no-leaf"),
    "unknown flag": (["check", "--frobnicate"], "unrecognized arguments: --frobnicate"),
    "unknown verb": (["frobnicate"], "'frobnicate'"),
    "no verb": ([], "see oomproof --help"),
    "report is a directory": (["bench", "--report", "/usr", "--", "true"], "is a directory"),
    "report nowhere": (["bench", "--report", "/nowhere/r.json", "--", "true"], "/nowhere does not exist"),
    "restarts of a benchmark": (["bench", "--restart", "always", "--", "true"], "--restart"),
    "share of everything": (["plan", "--no-probe", "--share", "inf%"], "--share: 'inf%' cannot be used"),
    "share of words": (["plan", "--no-probe", "--share", "half%"], "such as 50% or 12.5%"),
    "unknown server": (["run", "--history", "mysql://u:secret@h/d", "--", "true"], "give postgresql://..."),
    "values of no recipe": (["run", "--recipe-values", "heap=1GiB", "--", "true"], "add --recipe"),
    "budget of a recipe": (["recipes", "jvm", "--budget", "much"], "--budget: 'much' is not a size"),
    "no command": (["run"], "no command"),
    "no command after the dashes": (["run", "--limit", "1GiB", "--"], "no command"),
    "unknown policy": (["run", "--on-oom", "pray:10%", "--", "true"], "--on-oom: 'pray:10%' is not a policy"),
    "retries": (["run", "--retries", "-1", "--", "true"], "--retries: '-1' cannot be used"),
    "signal map": (["run", "--signal-map", "TERM:NOPE", "--", "true"], "'NOPE' is no signal"),
    "exit code": (["run", "--oom-exit-code", "256", "--", "true"], "0 to 255"),
    "restart": (["run", "--restart", "sometimes", "--", "true"], "never, on-failure, always"),
    "pattern": (["run", "--oom-pattern", "(", "--", "true"], "--oom-pattern: '(' cannot be used"),
    "oom codes": (["run", "--oom-codes", "3,x", "--", "true"], "--oom-codes: '3,x' cannot be used"),
    "success as a lack of memory": (["run", "--oom-codes", "0", "--", "true"], "0 says that all went well"),
    "oom score": (["run", "--oom-score-adj", "2000", "--", "true"], "-1000 to 1000"),
    "events descriptor": (["run", "--events", "fd:987", "--", "true"], "not open for writing"),
    "events file": (["run", "--events", "/nowhere/events", "--", "true"], "No such file or directory"),
    "no such configuration": (["entrypoint", "--config", "/nowhere.toml", "--", "true"], "/nowhere.toml"),
    "probe result": (["plan", "--probe-result", "/etc/hostname"], "is no result of a probe"),
    "no time at all": (["run", "--timeout", "0", "--", "true"], "above 0, or none for no limit"),
    "time with a unit": (["run", "--grace", "2s", "--", "true"], "such as 10 or 0.5"),
    "a limit that nothing can start in": (["run", "--limit", "100KiB", "--", "true"], "at least 1.00 MiB"),
    "no target": (["run", "--ready", "https://localhost/", "--", "true"], "exec:curl"),
    "readiness of a benchmark": (["bench", "--ready", "notify", "--", "true"], "--client"),
    "two rates": (["bench", "--rate-json", ".a", "--rate-regex", "a", "--", "true"], "leave one of them out"),
    "least of no rate": (["bench", "--min-rate", "5", "--", "true"], "--rate-json or --rate-regex"),
    "rate": (["bench", "--rate-regex", "x", "--min-rate", "fast", "--", "true"], "write a number from 0 up"),
    "rate path": (["bench", "--rate-json", "rate", "--", "true"], "write a path"),
    "rate of no benchmark": (["entrypoint", "--rate-json", ".a", "--", "true"], "--bench or --client"),
    "quotes of a benchmark": (
        ["entrypoint", "--bench", '"', "--", "true"],
        "--bench: '\"' cannot be used: No closing",
    ),
    "empty benchmark": (["entrypoint", "--bench", "", "--", "true"], "write a command"),
}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OOMPROOF_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("oomproof: error: ")
    assert words in err


def test_a_misspelt_variable_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OOMPROOF_LIMITT", "1GiB")
    main(["run", "--budget", "99TiB", "--", "true"])
    assert "warning: OOMPROOF_LIMITT is no setting" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert f"oomproof {verb}" in capsys.readouterr().out


def test_a_history_that_was_asked_for_and_cannot_be_kept_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    history = tmp_path / "file" / "history"
    assert main(["run", "--history", str(history), "--no-leaf", "--", "true"]) == 125
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert str(history) in line
    assert "--history none" in line


QUIETLY = ["--no-leaf", "--history", "none", "--quiet"]


def test_quiet_says_how_it_ended_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUIETLY, "--", "sh", "-c", "exit 3"]) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("oomproof: attempt 1: exited (certain) after ")
    assert "the main process exited with 3" in line


def test_who_asked_for_no_probe_is_not_told_that_there_was_none(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--no-leaf", "--history", "none", "--", "true"])
    assert "no probe" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "flag"),
    [
        (["--on-oom-exec", "no-such-hook now"], "--on-oom-exec"),
        (["--ready", "exec:no-such-hook"], "--ready exec"),
    ],
)
def test_a_command_that_is_needed_later_is_looked_for_at_the_start(
    setting: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", *QUIETLY, *setting, "--", "true"])
    assert f"warning: {flag}: command 'no-such-hook' was not found in PATH" in capsys.readouterr().err


def test_a_question_under_way_leaves_no_descriptor_open(capsys: pytest.CaptureFixture[str]) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    main(["run", *QUIETLY, "--ready", "exec:sleep 60", "--", "sleep", "0.3"])
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_client_is_looked_for_before_its_daemon_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = tmp_path / "started"
    assert main(["bench", *QUIETLY, "--client", "/etc/passwd", "--", "touch", str(started)]) == 126
    assert "--client: '/etc/passwd' cannot be executed" in capsys.readouterr().err
    assert not started.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["false"], "bench: failed with a budget of 64.00 MiB, and not for lack of memory, exit status 1"),
        (["sh", "-c", "exit 0"], "bench: works with a budget of 64.00 MiB"),
    ],
)
def test_a_benchmark_says_why_it_failed(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", *QUIETLY, "--budget", "64MiB", "--", *command])
    assert capsys.readouterr().err.splitlines()[-1] == f"oomproof: {words}"


def test_a_run_spares_what_other_threads_of_its_process_had_started() -> None:
    """The kernel lists each thread's children apart; a caller's helpers are none of the attempt's."""
    started: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    over = threading.Event()

    def start_and_stay() -> None:
        started.put(subprocess.Popen(["sleep", "600"]))
        over.wait()

    thread = threading.Thread(target=start_and_stay)
    thread.start()
    helper = started.get()
    try:
        assert main(["run", *QUIETLY, "--", "sh", "-c", "sleep 600 & exit 0"]) == 0
        assert helper.poll() is None
    finally:
        helper.kill()
        helper.wait()
        over.set()
        thread.join()


@pytest.mark.parametrize("verb", ["run", "bench", "entrypoint"])
def test_the_help_lists_the_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {code} ", out, re.MULTILINE) for code in (137, 124, 125, 126, 127, 2))
    assert ("--min-rate\n" in out) is (verb != "run")


OOMPROOF = [sys.executable, "-m", "oomproof"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    # A buffered stdout, as users have it, whatever the surroundings of the tests.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [*OOMPROOF, "check"], stdout=writer, stderr=subprocess.PIPE, env=environ, check=False
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 141


RUN_ECHO = [*OOMPROOF, "run", "--no-leaf", "--history", "none", "--", "sh", "-c", "echo started; exit 3"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--config", "/dev/zero", "--", "true"],
        ["run", "--recipe", "/dev/zero", "--", "true"],
        ["run", "--history", "none", "--no-leaf", "--render", "/dev/zero:{tmp}/out", "--", "true"],
        ["plan", "--probe-result", "/dev/zero"],
    ],
    ids=lambda arguments: arguments[-3] if arguments[-1] == "true" else arguments[-1],
)
def test_a_file_without_an_end_is_refused_before_it_fills_the_memory(
    arguments: list[str], tmp_path: Path
) -> None:
    # Should it be read whole all the same, the test ends and the machine lives.
    limited = ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", *OOMPROOF]
    command = [*limited, *(word.replace("{tmp}", str(tmp_path)) for word in arguments)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "/dev/zero: File too large: " in done.stderr) == (2, True), done.stderr


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A device without room."""
    device = Path("/dev/full")
    if not device.is_char_device():
        device = tmp_path / "full"
        try:
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        except PermissionError:
            pytest.skip("there is no /dev/full, and only root can make one")
    return device


@pytest.mark.parametrize("closed", [True, False])
def test_a_stderr_that_takes_nothing_costs_lines_and_not_the_program(full: Path, closed: bool) -> None:
    script = 'exec "$@" 2>&-' if closed else f'exec "$@" 2>"{full}"'
    done = subprocess.run(["sh", "-c", script, "sh", *RUN_ECHO], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (3, b"started\n")


def test_a_reader_of_stderr_that_sleeps_does_not_hold_up_the_run() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    done = subprocess.run(RUN_ECHO, stdout=subprocess.PIPE, stderr=writer, check=False, timeout=100)
    os.close(reader)
    os.close(writer)
    assert (done.returncode, done.stdout) == (3, b"started\n")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_stay_closed_and_are_mistaken_for_none_of_ours(closed: str, tmp_path: Path) -> None:
    """The two bytes, read as signals, would be SIGTERM and no signal at all."""
    look = "for n in 0 1 2; do [ ! -e /proc/$$/fd/$n ] || found=$found$n; done"
    program = f"{look}; echo $found > {tmp_path}/open; printf '\\017A' >&2; exit 5"
    settings = ["--no-leaf", "--history", "none", "--oom-pattern", "x"]
    run = [*OOMPROOF, "run", *settings, "--", "sh", "-c", program]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *run], capture_output=True, check=False)
    assert done.returncode == 5
    left_open = ("" if "<&-" in closed else "0") + ("" if " >&-" in closed else "1") + "2"
    assert (tmp_path / "open").read_text().strip() == left_open


def test_what_the_kernel_refuses_is_one_line(full: Path) -> None:
    check = ["sh", "-c", f'exec "$@" >"{full}"', "sh", *OOMPROOF, "check"]
    done = subprocess.run(check, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 125
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("verb", ["check", "plan --no-probe"])
def test_a_closed_stdout_costs_the_answer_and_no_traceback(verb: str) -> None:
    command = ["sh", "-c", f'exec "$@" {verb} >&-', "sh", *OOMPROOF]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_an_empty_variable_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LIMIT", "RETRIES", "PROBE", "BENCH"):
        monkeypatch.setenv(f"OOMPROOF_{name}", "")
    assert main(["run", "--no-leaf", "--history", "none", "--", "true"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_report_goes_through_links_and_into_devices_without_replacing_them(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link", "pipe"):
        bench = ["bench", "--no-leaf", "--history", "none", "--report", str(tmp_path / name), "--", "true"]
        assert main(bench) == 0
    assert (tmp_path / "link").is_symlink()
    assert b"exit_status" in (tmp_path / "target").read_bytes()
    assert (tmp_path / "pipe").is_fifo()
    assert b"exit_status" in os.read(reader, 65536)
    os.close(reader)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "pipe", "target"]


def test_what_a_recipe_says_of_its_program_is_part_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "engine.toml"
    recipe.write_text(
        'summary = "an engine"\n[environment]\nENGINE_MEMORY = "{budget}"\n'
        '[overhead]\ndriver = "300MiB"\n[settings]\nthreads = "4"\n'
    )
    plan = ["plan", "--no-probe", "--limit", "1GiB", "--json", "--recipe", str(recipe)]
    assert main(plan) == 0
    terms = {term["name"]: term for term in json.loads(capsys.readouterr().out)["terms"]}
    assert (terms["driver"]["bytes"], terms["driver"]["source"]) == (-300 << 20, "recipe engine")
    assert terms["thread_stacks"]["bytes"] == -1 << 20
    recipe.write_text(recipe.read_text().replace("300MiB", "much"))
    assert main(plan) == 2
    assert "overhead.driver: 'much' is not a size" in capsys.readouterr().err
