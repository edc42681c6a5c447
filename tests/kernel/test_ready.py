"""Programs that become ready, or do not: real servers of all kinds."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from kernel.launching import HOG_IN_SHELL, PATIENCE_S, UNDER_EMULATION, uptime, wait_until
from kernel.verbs import AT_ONCE_S, LIMIT, Oomproof, limits

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("kind", ["http", "tcp", "unix", "exec", "notify"])
def test_a_program_is_ready_when_it_says_so_and_not_before(oomproof: Oomproof, kind: str) -> None:
    path = oomproof.scratch / "socket"
    targets = {
        "http": f"http://localhost:{oomproof.port}/health",
        "tcp": f"tcp://127.0.0.1:{oomproof.port}",
        "unix": f"unix:{path}",
        "exec": f"exec:test -e {oomproof.scratch / 'go'}",
        "notify": "notify",
    }
    listen = {"http": f"http:{oomproof.port}", "tcp": f"tcp:{oomproof.port}", "unix": f"unix:{path}"}
    oomproof.verb("run", "--ready", targets[kind], *oomproof.daemon(listen.get(kind, kind)))
    wait_until(oomproof.started, "the start of the daemon")
    time.sleep(0.2)  # some questions are asked
    assert not oomproof.scenario.events("ready")
    (oomproof.scratch / "go").touch()
    wait_until(oomproof.happened("ready"), "readiness")
    (ready,) = oomproof.scenario.events("ready")
    assert (ready["attempt"], ready["target"]) == (1, targets[kind])
    assert ready["seconds"] > 0.2
    oomproof.process.send_signal(signal.SIGTERM)
    done = oomproof.finish()
    assert done.returncode == 0, done.stderr
    end = oomproof.scenario.only_end()
    assert (end["verdict"], end["ready_s"]) == ("stopped", ready["seconds"])
    assert f"ready after {ready['seconds']:.1f} s".encode() in done.stderr
    oomproof.assert_nothing_left()


def test_a_program_that_ends_before_it_is_ready_ends_the_wait(oomproof: Oomproof) -> None:
    done = oomproof.ended("run", "--ready", f"unix:{oomproof.scratch}/none", "--", "sh", "-c", "exit 5")
    assert done.returncode == 5, done.stderr
    end = oomproof.scenario.only_end()
    assert (end["verdict"], end["ready_s"]) == ("exited", None)
    assert any(
        "had not become ready" in sentence and "No such file" in sentence for sentence in end["evidence"]
    )
    assert not oomproof.scenario.events("ready")


@pytest.mark.parametrize("kind", ["nobody listens", "no answer", "503", "notify", "exec"])
def test_a_program_that_is_not_ready_in_time_is_ended_and_that_is_no_oom(
    oomproof: Oomproof, kind: str
) -> None:
    listen, target, words = {
        "nobody listens": ("-", f"tcp://127.0.0.1:{oomproof.port}", "Connection refused"),
        "no answer": (f"http:{oomproof.port}", f"http://127.0.0.1:{oomproof.port}/hang", ""),
        "503": (f"http:{oomproof.port}", f"http://127.0.0.1:{oomproof.port}/health", "HTTP 503"),
        "notify": ("notify", "notify", "its status: loading parameters"),
        "exec": ("-", "exec:sh -c 'exit 7'", "'sh' exited with 7"),
    }[kind]
    patience = "20" if UNDER_EMULATION else "2"
    done = oomproof.ended(
        "run", "--ready", target, "--ready-timeout", patience, "--retries", "2", *oomproof.daemon(listen)
    )
    assert done.returncode == 124, done.stderr
    end = oomproof.scenario.only_end()
    assert (end["verdict"], end["confidence"], end["exit_code"]) == ("not_ready", "certain", 0)
    assert any("had not become ready" in sentence and words in sentence for sentence in end["evidence"]), end
    assert b"not ready within" in done.stderr
    oomproof.assert_nothing_left()


def test_a_stop_is_passed_on_at_once_while_a_question_has_no_answer(oomproof: Oomproof) -> None:
    target = f"http://127.0.0.1:{oomproof.port}/hang"
    oomproof.verb("run", "--ready", target, *oomproof.daemon(f"http:{oomproof.port}"))
    wait_until(oomproof.started, "the start of the daemon")
    time.sleep(0.5)  # the question is put
    begun = time.monotonic()
    oomproof.process.send_signal(signal.SIGTERM)
    assert oomproof.finish().returncode == 0
    assert time.monotonic() - begun < AT_ONCE_S
    assert oomproof.scenario.only_end()["verdict"] == "stopped"


def test_a_kill_is_noticed_while_nobody_is_ready_yet(oomproof: Oomproof) -> None:
    script = f"{HOG_IN_SHELL} {2 * LIMIT}; sleep 600"
    oomproof.verb(
        "run",
        *limits(),
        "--retries",
        "0",
        "--ready",
        f"unix:{oomproof.scratch}/none",
        "--",
        "sh",
        "-c",
        script,
    )
    assert oomproof.finish().returncode == 137
    assert oomproof.scenario.only_end()["verdict"] == "oom_kill"


def test_systemd_notify_can_tell_readiness(oomproof: Oomproof) -> None:
    if shutil.which("systemd-notify") is None:
        pytest.skip("systemd-notify is not installed")
    script = "systemd-notify --status=soon --ready; sleep 600"
    oomproof.verb("run", "--ready", "notify", "--", "sh", "-c", script)
    wait_until(oomproof.happened("ready"), "readiness")
    assert oomproof.scenario.events("ready")
    oomproof.process.send_signal(signal.SIGTERM)
    oomproof.finish()


def test_readiness_said_by_a_stranger_is_not_heard(oomproof: Oomproof) -> None:
    script = f"echo $NOTIFY_SOCKET > {oomproof.scratch}/name; touch {oomproof.scratch}/started; sleep 600"
    oomproof.verb("run", "--ready", "notify", "--", "sh", "-c", script)
    wait_until(oomproof.started, "the name of the socket")
    name = (oomproof.scratch / "name").read_text().strip().replace("@", "\0", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for _ in range(30):  # more than the queue holds: the last ones are sent when the first were read
            stranger.sendto(b"READY=1", name)
    assert not oomproof.scenario.events("ready")
    oomproof.process.send_signal(signal.SIGTERM)
    oomproof.finish()
    assert oomproof.scenario.only_end()["ready_s"] is None


def test_who_supervises_oomproof_learns_of_readiness_too(
    oomproof: Oomproof, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outer:
        outer.bind(f"\0{oomproof.scratch}")
        outer.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{oomproof.scratch}")
        (oomproof.scratch / "go").touch()
        oomproof.verb("run", "--ready", "notify", *oomproof.daemon("notify"))
        assert outer.recv(1000) == b"STATUS=loading parameters"
        assert outer.recv(1000) == b"STATUS=done\nREADY=1", "without MAINPID"


def test_somebody_who_answers_already_is_told(oomproof: Oomproof) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        target = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        done = oomproof.ended("run", "--ready", target, "--", "true")
    assert b"answers at " + target.encode() + b" before the program was started" in done.stderr


def test_waiting_for_readiness_keeps_the_launcher_small_and_afterwards_it_sleeps(oomproof: Oomproof) -> None:
    (oomproof.scratch / "go").touch()
    oomproof.verb("run", *oomproof.health, *oomproof.daemon(f"http:{oomproof.port}"))
    wait_until(oomproof.happened("ready"), "readiness")
    before = oomproof.settled_switches()
    wait_until(lambda: uptime() > before[0] + 2, "two idle seconds")
    status = oomproof.proc_status()
    assert int(status["voluntary_ctxt_switches"]) == before[1]
    assert int(status["VmRSS"].split()[0]) < 18 * 1024, "KiB"


TO_ITSELF = """
import fcntl, socket, struct
from pathlib import Path
from oomproof.launch.readiness import parse_target
from oomproof.launch.sidecar import answered_by_a_stranger
SIOCSIFFLAGS, UP = 0x8914, 1
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", UP))
ports = Path("/proc/sys/net/ipv4/ip_local_port_range")
ports.write_text("40001 40001")
assert socket.create_connection(("127.0.0.1", 40001)), "the kernel connects a socket to itself"
ports.write_text("40003 40003")
print(answered_by_a_stranger(parse_target("tcp://127.0.0.1:40003")))
listener = socket.create_server(("127.0.0.1", 40005))
print(answered_by_a_stranger(parse_target("tcp://127.0.0.1:40005")))
"""


def test_a_question_that_the_kernel_connects_to_itself_is_answered_by_nobody() -> None:
    """Of the ports that it gives by itself, one in some thousands is the very one that is asked at."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", TO_ITSELF], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True"], done.stderr
