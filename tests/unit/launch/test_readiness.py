"""What `--ready` takes, and what real servers of all manners are judged to be."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.launch import ready_checks
from oomproof.launch.model import SpawnFailure, SpawnStep
from oomproof.launch.readiness import Kind, Target, parse_target
from oomproof.launch.ready_checks import Check, check_for, resolve
from oomproof.launch.sidecar import LONGEST_PAUSE_S, Wait


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://localhost:80/a?b=c", Target(Kind.HTTP, "", "localhost", 80, "/a?b=c")),
        ("http://127.0.0.1", Target(Kind.HTTP, "", "127.0.0.1", 80, "/")),
        ("http://[::1]:8080?x", Target(Kind.HTTP, "", "::1", 8080, "/?x")),
        ("tcp://a-b.c:1", Target(Kind.TCP, "", "a-b.c", 1)),
        ("unix:/run/x.sock", Target(Kind.UNIX, "", path="/run/x.sock")),
        ("unix:///run/x.sock", Target(Kind.UNIX, "", path="/run/x.sock")),
        ("unix:relative", Target(Kind.UNIX, "", path="relative")),
        ("unix:@name", Target(Kind.UNIX, "", path="\0name")),
        (
            "exec:grep -q 'up and running' log",
            Target(Kind.EXEC, "", command=("grep", "-q", "up and running", "log")),
        ),
        ("notify", Target(Kind.NOTIFY, "")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    found = parse_target(text)
    assert (found.kind, found.host, found.port, found.path, found.command) == (
        *(target.kind, target.host, target.port, target.path, target.command),
    )
    assert str(found) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://localhost/", "exec:curl"),
        ("http://user@host/", "HOST:PORT"),
        ("http://host/ a", "HOST:PORT"),
        ("http://host:99999/", "1 to 65535"),
        ("http://host/\r\nX: y", "HOST:PORT"),
        ("tcp://host", "tcp://HOST:PORT"),
        ("tcp://host:0", "1 to 65535"),
        ("tcp:host:1", "exec:COMMAND"),
        ("unix:", "path"),
        ("unix:" + "x" * 108, "107 bytes"),
        ("exec:", "write a command"),
        ("exec:'", "quot"),
        ("ready", "notify"),
        ("", "notify"),
    ],
)
def test_what_is_no_target_is_refused_with_the_way_out(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_target(text)


@given(st.text() | st.text().map(lambda text: f"http://{text}") | st.text().map(lambda text: f"unix:{text}"))
def test_no_text_raises_anything_but_a_value_error(text: str) -> None:
    try:
        target = parse_target(text)
    except ValueError:
        return
    assert target.kind is Kind.UNIX or "\r" not in target.host + target.path


def no_helper(_command: object) -> SpawnFailure:
    return SpawnFailure(SpawnStep.FORK, 11)


def ask(check: Check, patience_s: float = 10.0) -> bool | None:
    """One question, to its end; None: it has none."""
    poller = select.poll()
    deadline = time.monotonic() + patience_s
    check.begin()
    while (want := check.wants()) is not None and time.monotonic() < deadline:
        poller.register(*want)
        if poller.poll(100):
            check.turn()
        poller.unregister(want[0])
    return check.answer


class Server:
    """Accepts once and answers with fixed bytes, piece by piece; None: with silence."""

    def __init__(self, family: int, address: object, answer: tuple[bytes, ...] | None) -> None:
        self._socket = socket.socket(family)
        self._socket.bind(address)  # type: ignore[arg-type]
        self._socket.listen()
        self.address = self._socket.getsockname()
        self.request = b""
        self._answer = answer
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            if self._answer is None:
                self._enough.wait()
                return
            self.request = connection.recv(4096)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # enough was read
                for piece in self._answer:
                    connection.sendall(piece)
                    time.sleep(0.01)

    def close(self) -> None:
        self._enough.set()
        self._thread.join()
        self._socket.close()


@pytest.mark.parametrize(
    ("answer", "ready", "trouble"),
    [
        ((b"HTTP/1.1 200 OK\r\n\r\nfine",), True, "HTTP 200"),
        ((b"HTTP/1.0 3", b"02 Found\r\n", b"\r\n"), True, "HTTP 302"),
        ((b"HTTP/1.1 503 Service Unavailable\r\n\r\n",), False, "HTTP 503"),
        ((b"HTTP/1.1 404 Not Found\r\n\r\n",), False, "HTTP 404"),
        ((b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * 3), True, "HTTP 200"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), False, "no HTTP"),
        ((b"HTTP/1.1 ",), False, "no HTTP"),
        ((b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n",), False, "no HTTP"),
        ((b"",), False, "no HTTP"),
        ((b"y" * 9000,), False, "no HTTP"),
    ],
)
def test_http_answers(answer: tuple[bytes, ...], ready: bool, trouble: str) -> None:
    server = Server(socket.AF_INET, ("127.0.0.1", 0), answer)
    target = parse_target(f"http://localhost:{server.address[1]}/health?deep=1")
    check = check_for(target, no_helper, None)
    try:
        assert ask(check) is ready
    finally:
        server.close()
    assert trouble in check.trouble
    assert server.request.startswith(b"GET /health?deep=1 HTTP/1.1\r\nHost: localhost:")


def test_a_question_without_an_answer_is_given_up() -> None:
    server = Server(socket.AF_INET, ("127.0.0.1", 0), None)
    check = check_for(parse_target(f"http://127.0.0.1:{server.address[1]}/"), no_helper, None)
    try:
        assert ask(check, patience_s=0.2) is None
        check.abandon()
        assert (check.answer, check.trouble, check.wants()) == (False, "connected, but no answer", None)
    finally:
        server.close()


def test_localhost_is_both_of_its_addresses() -> None:
    server = Server(socket.AF_INET6, ("::1", 0), None) if _has_ipv6() else pytest.skip("no IPv6 here")
    try:
        assert ask(check_for(parse_target(f"tcp://localhost:{server.address[1]}"), no_helper, None)) is True
    finally:
        server.close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def unix_path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "s"
    if len(str(path)) > 100:
        pytest.skip("the path of temporary files is too long for a socket")
    yield path


def test_a_socket_file_is_ready_when_somebody_listens(unix_path: Path) -> None:
    check = check_for(parse_target(f"unix:{unix_path}"), no_helper, None)
    assert (ask(check), check.trouble) == (False, "No such file or directory")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(unix_path))
        assert (ask(check), check.trouble) == (False, "Connection refused")
        server.listen()
        assert ask(check) is True
    assert (ask(check), check.trouble) == (False, "Connection refused"), "a file that nobody removed"


def test_a_socket_for_datagrams_has_a_living_owner(unix_path: Path) -> None:
    check = check_for(parse_target(f"unix:{unix_path}"), no_helper, None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(unix_path))
        assert ask(check) is True


def test_a_name_without_address_is_said_before_anything_starts() -> None:
    with pytest.raises(OomproofError, match=r"'no\.such\.host\.invalid' cannot be resolved"):
        resolve(parse_target("tcp://no.such.host.invalid:80"))


def test_a_name_is_resolved_once_and_not_before_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_target("tcp://127.0.0.1:81")
    addresses = resolve(target)
    monkeypatch.setattr(ready_checks, "socket", None)
    assert resolve(target) == addresses


def test_no_process_for_a_question_is_a_no() -> None:
    check = check_for(parse_target("exec:true"), no_helper, None)
    assert ask(check) is False
    assert "no process" in check.trouble


class Never:
    """A check that says no at once."""

    patience_s: float | None = 5.0
    trouble = "no"

    def __init__(self) -> None:
        self.answer: bool | None = None
        self.asked = 0

    def begin(self) -> None:
        self.asked += 1
        self.answer = False

    def wants(self) -> None:
        return None

    def turn(self) -> None:
        pass

    def child_ended(self, pid: int, exit_: object) -> None:
        pass

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_questions_come_with_growing_pauses() -> None:
    check, now = Never(), 1000.0
    wait = Wait(check)
    times = []
    for _ in range(12):
        due = wait.due()
        assert due is not None
        now = max(now, due)
        wait.turn(set(), now)
        times.append(now)
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(times)]
    assert pauses[:4] == [0.02, 0.04, 0.08, 0.16]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert check.asked == 12
    wait.stop()
    assert wait.due() is None
