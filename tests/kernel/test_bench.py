"""Benchmarks with a client: real daemons in real leaf cgroups, killed, stopped and measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from kernel.launching import HOG_IN_SHELL, PATIENCE_S, wait_until
from kernel.verbs import AT_ONCE_S, FITS, LIMIT, TOO_MUCH, Oomproof, limits
from oomproof.history.store import History
from oomproof.leaf import make_leaf

pytestmark = pytest.mark.kernel


def test_the_oom_kill_of_a_compute_child_cancels_the_client_and_the_next_budget_works(
    oomproof: Oomproof,
) -> None:
    """/health answers on and on, and the client would wait for ever."""
    client = oomproof.client(f"{oomproof.request('/work')} && echo rate: $((OOMPROOF_BUDGET_BYTES / 1000))")
    rate = ["--rate-regex", r"rate: ([0-9]+)"]
    report = oomproof.scratch / "report.json"
    done = oomproof.ended(
        "bench", *limits(), *oomproof.health, *client, *rate, "--report", str(report), *oomproof.http_daemon()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"rate: {FITS // 1000}\n".encode(), "passed through"
    first, second = oomproof.scenario.events("attempt_ended")
    assert (first["verdict"], first["oom_kills"], first["next_budget_bytes"]) == ("oom_kill", 1, FITS)
    assert first["client"]["cancelled"]
    (noticed,) = (
        float(found[1]) for text in first["evidence"] if (found := re.search(r"noticed at ([0-9.]+)", text))
    )
    assert first["ready_s"] + first["client"]["duration_s"] - noticed < AT_ONCE_S / 2
    assert (second["verdict"], second["client"]["exit_code"], second["rate"]) == (
        "client_done",
        0,
        FITS // 1000,
    )
    assert [event["attempt"] for event in oomproof.scenario.events("ready")] == [1, 2]
    told = json.loads(report.read_text())
    assert told["budget_bytes"] == FITS
    assert [attempt["rate"] for attempt in told["attempts"]] == [None, FITS // 1000]
    with History.open(oomproof.history) as history:
        rows = [(row["budget_bytes"], row["verdict"], row["rate"]) for row in history.attempts()]
    assert rows == [(TOO_MUCH, "oom_kill", None), (FITS, "client_done", FITS // 1000)]
    oomproof.assert_nothing_left()


def test_a_daemon_that_is_killed_itself_takes_its_client_along(oomproof: Oomproof) -> None:
    script = f"touch {oomproof.scratch}/started; sleep 0.5; exec {HOG_IN_SHELL} {{budget}}"
    client = oomproof.client("sleep 600")
    ready = ["--ready", f"exec:test -e {oomproof.scratch}/started"]
    done = oomproof.ended("bench", *limits(), "--retries", "0", *ready, *client, "--", "sh", "-c", script)
    assert done.returncode == 137, done.stderr
    end = oomproof.scenario.only_end()
    assert (end["verdict"], end["client"]["cancelled"]) == ("oom_kill", True)
    assert b"no budget worked" in done.stderr


@pytest.mark.parametrize(("min_rate", "status"), [("100", 0), ("101", 1)])
def test_a_rate_below_the_least_fails(oomproof: Oomproof, min_rate: str, status: int) -> None:
    output = r'printf "%s\n" "warming up" "{\"result\": {\"rps\": [1, 100.0]}}"'
    (oomproof.scratch / "client.sh").write_text(output)
    rate = ["--rate-json", ".result.rps[1]", "--min-rate", min_rate]
    done = oomproof.ended(
        "bench",
        *rate,
        "--client",
        f"sh {oomproof.scratch}/client.sh",
        *oomproof.health,
        *oomproof.http_daemon(),
    )
    assert done.returncode == status, done.stderr
    (finished,) = oomproof.scenario.events("finished")
    assert finished["exit_status"] == status
    assert oomproof.scenario.only_end()["rate"] == 100.0
    assert (b"the rate of 100 is below --min-rate 101" in done.stderr) is bool(status)


def test_a_rate_that_is_not_there_fails(oomproof: Oomproof) -> None:
    done = oomproof.ended(
        "bench",
        "--rate-regex",
        "rps: (.*)",
        "--client",
        "echo rps: fast",
        *oomproof.health,
        *oomproof.http_daemon(),
    )
    assert done.returncode == 1
    assert b"'fast' is no number" in done.stderr


def test_the_rate_of_a_benchmark_without_client_is_in_its_own_output(oomproof: Oomproof) -> None:
    done = oomproof.ended("bench", "--rate-json", ".rate", "--", "echo", '{"rate": 5}')
    assert (done.returncode, done.stdout) == (0, b'{"rate": 5}\n')
    assert oomproof.scenario.only_end()["rate"] == 5


def test_the_failure_of_a_client_is_its_own(oomproof: Oomproof) -> None:
    done = oomproof.ended("bench", *oomproof.client("exit 9"), *oomproof.health, *oomproof.http_daemon())
    assert done.returncode == 9, done.stderr
    assert oomproof.scenario.only_end()["verdict"] == "client_failed"
    assert b"the client failed: it exited with 9" in done.stderr
    assert b"no budget worked" not in done.stderr


def test_a_client_that_does_not_exist_is_told(oomproof: Oomproof) -> None:
    done = oomproof.ended("bench", "--client", "no-such-client", "--", "sleep", "600")
    assert done.returncode == 127
    assert b"'no-such-client'" in done.stderr


def test_a_client_that_is_oom_killed_is_not_the_daemons_fault(oomproof: Oomproof) -> None:
    with make_leaf("test") as container:
        container.set_limit(LIMIT)
        client = ["--client", f"{HOG_IN_SHELL} {2 * LIMIT} 600"]
        settings = ["--budget", str(FITS), *oomproof.health, *client]
        done = oomproof.ended("bench", *settings, *oomproof.http_daemon(), inside=container.join_path)
    assert done.returncode == 137, done.stderr
    end = oomproof.scenario.only_end()
    assert (end["verdict"], end["client"]["oom_kills"], end["oom_kills"]) == ("client_failed", 1, 0), end
    assert b"the client failed: the OOM killer killed processes of it" in done.stderr
    assert end["next_budget_bytes"] is None


def test_without_its_daemon_no_client_is_started(oomproof: Oomproof) -> None:
    client = oomproof.client(f"touch {oomproof.scratch}/client")
    done = oomproof.ended("bench", *client, "--", "no-such-daemon")
    assert done.returncode == 127, done.stderr
    assert not (oomproof.scratch / "client").exists()


AS_PID_1 = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed")
@pytest.mark.parametrize("victim", ["client", "daemon"])
def test_in_the_usual_container_client_and_daemon_share_a_counter_and_are_told_apart(
    oomproof: Oomproof, victim: str
) -> None:
    """PID 1, and no cgroup can be made."""
    with make_leaf("test") as container:
        container.set_limit(LIMIT)
        client = f"{HOG_IN_SHELL} {2 * LIMIT} 600" if victim == "client" else oomproof.request("/work")
        settings = [
            "--no-leaf",
            "--retries",
            "0",
            "--budget",
            str(LIMIT),
            *oomproof.health,
            "--client",
            client,
        ]
        done = oomproof.ended(
            "bench", *settings, *oomproof.http_daemon(), inside=container.join_path, prefix=AS_PID_1
        )
        assert container.events().oom_kill == 1
    assert done.returncode == 137, done.stderr
    end = oomproof.scenario.only_end()
    if victim == "client":
        assert (end["verdict"], end["client"]["cancelled"]) == ("client_failed", False), end
    else:
        assert (end["verdict"], end["client"]["cancelled"]) == ("oom_suspected", True), end
        assert end["duration_s"] < end["ready_s"] + PATIENCE_S / 10, "the client would wait for ten minutes"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed")
def test_pid_1_measures_its_program_and_then_runs_it(oomproof: Oomproof) -> None:
    client = ["--client", oomproof.request("/work")]
    oomproof.verb(
        "entrypoint",
        "--no-probe",
        *limits(),
        *oomproof.health,
        *client,
        *oomproof.http_daemon(),
        prefix=AS_PID_1,
    )
    wait_until(lambda: len(oomproof.scenario.events("ready")) == 3, "the program after its benchmark")
    [pid_1] = Path(f"/proc/{oomproof.process.pid}/task/{oomproof.process.pid}/children").read_text().split()
    os.kill(int(pid_1), signal.SIGTERM)
    assert oomproof.finish().returncode == 0
    assert [end["verdict"] for end in oomproof.scenario.events("attempt_ended")] == [
        *("oom_kill", "client_done", "stopped"),
    ]


def test_a_daemon_that_ends_before_its_client_is_a_failure(oomproof: Oomproof) -> None:
    ready = ["--ready", f"exec:test -e {oomproof.scratch}/started"]
    script = f"touch {oomproof.scratch}/started; sleep 0.3; exit 0"
    done = oomproof.ended("bench", *ready, *oomproof.client("sleep 600"), "--", "sh", "-c", script)
    assert done.returncode == 1, done.stderr
    assert b"the daemon ended before its client was done" in done.stderr


def test_a_daemon_that_ignores_sigterm_is_killed_when_its_client_is_done(oomproof: Oomproof) -> None:
    script = f'trap "" TERM; touch {oomproof.scratch}/started; while :; do sleep 0.1; done'
    ready = ["--ready", f"exec:test -e {oomproof.scratch}/started"]
    done = oomproof.ended("bench", "--grace", "0.3", *ready, "--client", "true", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    end = oomproof.scenario.only_end()
    assert (end["verdict"], end["signal"]) == ("client_done", signal.SIGKILL)


def test_what_a_client_leaves_running_ends_with_it(oomproof: Oomproof) -> None:
    client = oomproof.client(f"setsid sleep 600 {oomproof.scratch} & setsid sleep 601 & exit 0")
    done = oomproof.ended("bench", *client, *oomproof.health, *oomproof.http_daemon())
    assert done.returncode == 0, done.stderr
    oomproof.assert_nothing_left()


def test_entrypoint_measures_the_program_itself_with_a_client(oomproof: Oomproof) -> None:
    client = ["--client", oomproof.request("/work")]
    oomproof.verb("entrypoint", "--no-probe", *limits(), *oomproof.health, *client, *oomproof.http_daemon())
    wait_until(lambda: len(oomproof.scenario.events("ready")) == 3, "the program after its benchmark")
    oomproof.process.send_signal(signal.SIGTERM)
    done = oomproof.finish()
    assert done.returncode == 0, done.stderr
    verdicts = [(end["verdict"], end["budget_bytes"]) for end in oomproof.scenario.events("attempt_ended")]
    assert verdicts == [("oom_kill", TOO_MUCH), ("client_done", FITS), ("stopped", FITS)]


# -- stopped and killed at any moment ---------------------------------------------------------

MOMENTS = ["attempt_started", "daemon", "ready", "client", "grace"]


def _at(oomproof: Oomproof, moment: str, leaf: bool) -> None:
    """A benchmark that has come to `moment`."""
    go = oomproof.scratch / "go"
    target = f"exec:test -e {go} -a -e {oomproof.scratch}/started"
    client = oomproof.client(
        f"touch {oomproof.scratch}/client; {'exit 0' if moment == 'grace' else 'sleep 600'}"
    )
    script = f"trap '' TERM; touch {oomproof.scratch}/started; while :; do sleep 0.1; done"
    daemon = ["--", "sh", "-c", script, str(oomproof.scratch)]
    no_leaf = [] if leaf else ["--no-leaf"]
    oomproof.verb("bench", *no_leaf, "--grace", "1", "--ready", target, *client, *daemon)
    wait_until(oomproof.happened("attempt_started"), "the start")
    if moment == "attempt_started":
        return
    wait_until(oomproof.started, "the daemon")
    if moment == "daemon":
        return
    go.touch()
    wait_until(oomproof.happened("ready"), "readiness")
    if moment != "ready":
        wait_until((oomproof.scratch / "client").exists, "the client")
    if moment == "grace":
        time.sleep(0.1)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_benchmark_that_is_stopped_leaves_nothing(oomproof: Oomproof, moment: str) -> None:
    _at(oomproof, moment, leaf=True)
    oomproof.process.send_signal(signal.SIGTERM)
    done = oomproof.finish()
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert oomproof.scenario.only_end()["verdict"] == "stopped"
    assert b"stopped before its end" in done.stderr
    oomproof.assert_nothing_left()


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_benchmark_whose_oomproof_is_killed_leaves_nothing(
    oomproof: Oomproof, moment: str, leaf: bool
) -> None:
    _at(oomproof, moment, leaf)
    oomproof.process.kill()
    oomproof.finish()
    oomproof.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_whatever_signal_asks_a_benchmark_to_end_it_is_a_stop(
    oomproof: Oomproof, number: signal.Signals
) -> None:
    _at(oomproof, "client", leaf=True)
    oomproof.process.send_signal(number)
    assert oomproof.finish().returncode == 128 + number
    assert oomproof.scenario.only_end()["verdict"] == "stopped"
