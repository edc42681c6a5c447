"""Asking whether a program is ready, one question at a time, without ever blocking.

A check is begun, polled for what it `wants`, turned when that is there, and answers in the end.
When to ask again is `Readiness`'s business in `sidecar`. Plain sockets: http.client and asyncio would cost a
supervisor megabytes. Not covered: what a target means, see `readiness`.
"""

from __future__ import annotations

import _socket as socket  # what `socket` wraps: the wrapper alone costs a supervisor 0.2 MiB
import errno
import functools
import os
import select
import signal
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from oomproof.errors import OomproofError
from oomproof.launch import process_control
from oomproof.launch.model import Exit, SpawnFailure
from oomproof.launch.readiness import Kind, Target
from oomproof.launch.spawn import Child, read_report

_MOST_BYTES = 1 << 16
"""Of an HTTP answer; what comes after it is nobody's business here."""
_CREDENTIALS = struct.Struct("iII")
"""``struct ucred`` of unix(7): pid, uid, gid."""
_STATUS_LINE = b"HTTP/1."


Address = tuple[int, tuple[Any, ...] | str]
"""Family and address of a socket."""


class Check(Protocol):
    """One way to ask."""

    patience_s: float | None
    """How long one question may take; None: it is no question, the program itself tells."""
    trouble: str
    """Why the latest answer was no, for people."""
    answer: bool | None
    """None: the question is under way, or none was put yet."""

    def begin(self) -> None:
        """Put the question."""

    def wants(self) -> tuple[int, int] | None:
        """What to poll for before the next `turn`; None: nothing."""

    def turn(self) -> None:
        """Go on, when that is there."""

    def child_ended(self, pid: int, exit_: Exit) -> None:
        """A child of ours, maybe this check's, has ended."""

    def abandon(self) -> None:
        """Give up the question that is under way."""

    def close(self) -> None:
        """Give back what is held: nothing will be asked any more."""


SpawnHelper = Callable[[Sequence[str]], Child | SpawnFailure]


def check_for(target: Target, spawn_helper: SpawnHelper, outer_socket: str | None) -> Check:
    """Raises OomproofError when a host's name cannot be resolved: before there is a program to wait for.

    `outer_socket` is NOTIFY_SOCKET as oomproof itself was given it.
    """
    if target.kind is Kind.NOTIFY:
        return NotifyCheck(outer_socket)
    if target.kind is Kind.EXEC:
        return ExecCheck(target.command, spawn_helper)
    addresses = resolve(target)
    if target.kind is not Kind.HTTP:
        return ConnectCheck(addresses)
    host = f"[{target.host}]" if ":" in target.host else target.host
    request = (
        f"GET {target.path} HTTP/1.1\r\nHost: {host}:{target.port}\r\nUser-Agent: oomproof\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n"
    )
    return ConnectCheck(addresses, request.encode())


@functools.cache
def resolve(target: Target) -> list[Address]:
    """Of a socket that can be connected to: once a run, so that a resolver that fails later or hangs holds up
    no further start. Raises OomproofError when its host's name has no address."""
    if target.kind is Kind.UNIX:
        return [(socket.AF_UNIX, target.path)]
    if target.host == "localhost":  # also where nobody wrote it into /etc/hosts
        return [(socket.AF_INET, ("127.0.0.1", target.port)), (socket.AF_INET6, ("::1", target.port))]
    try:
        # As bytes: the codec for names beyond ASCII would cost a megabyte.
        found = socket.getaddrinfo(target.host.encode(), target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OomproofError(
            f"--ready {target}: {target.host!r} cannot be resolved ({error.strerror}): give an address"
        ) from error
    return [(family, address) for family, _, _, _, address in found]


class ConnectCheck:
    """Connects to one of several addresses, and reads an HTTP status if there is a `request`."""

    patience_s: float | None = 5.0

    def __init__(self, addresses: list[Address], request: bytes = b"") -> None:
        self.answer: bool | None = None
        self.trouble = "not asked yet"
        self._addresses = addresses
        self._request = request
        self._rest: list[Address] = []
        self._socket: socket.socket | None = None
        self._unsent = b""
        self._received = 0
        self._line = b""
        self._connected = False

    def begin(self) -> None:
        """See `Check`."""
        self.answer = None
        self._rest = list(self._addresses)
        self._next_address()

    def wants(self) -> tuple[int, int] | None:
        """See `Check`."""
        if self._socket is None:
            return None
        waits_for_room = not self._connected or self._unsent
        return self._socket.fileno(), select.POLLOUT if waits_for_room else select.POLLIN

    def turn(self) -> None:
        """See `Check`."""
        if self._socket is None:
            return
        try:
            if not self._connected:
                self._see_connection(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            elif self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            else:
                self._read()
        except BlockingIOError:
            pass  # not quite yet
        except OSError as error:
            self._refused(error.errno or 0)

    def child_ended(self, pid: int, exit_: Exit) -> None:
        """See `Check`: it has no children."""

    def abandon(self) -> None:
        """See `Check`."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.answer is None:
            self.answer = False
            self.trouble = "connected, but no answer" if self._connected else "no connection"

    def close(self) -> None:
        """See `Check`."""
        self.abandon()

    def _next_address(self) -> None:
        family, address = self._rest.pop(0)
        self._connected, self._received, self._line, self._unsent = False, 0, b"", self._request
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            number = self._socket.connect_ex(address)
        except OSError as error:
            number = error.errno or errno.EINVAL
        if number != errno.EINPROGRESS:
            self._see_connection(number)

    def _see_connection(self, number: int) -> None:
        # EPROTOTYPE: a socket of another type is bound there, and its owner lives.
        if number not in (0, errno.EPROTOTYPE):
            self._refused(number)
        elif number == 0 and self._talks_to_itself():
            self._refused(errno.ECONNREFUSED)
        elif self._request:
            self._connected = True
        else:
            self._said(True, "")
            self._close()

    def _talks_to_itself(self) -> bool:
        """The kernel may give us the port that we ask at for our own: where nobody listens, that connects."""
        if self._socket is None or self._socket.family == socket.AF_UNIX:
            return False
        return bool(self._socket.getsockname() == self._socket.getpeername())

    def _refused(self, number: int) -> None:
        self._close()
        if self.answer is None and self._rest:
            self._next_address()
        elif self.answer is None:
            self._said(False, os.strerror(number))

    def _read(self) -> None:
        assert self._socket is not None  # noqa: S101  turn checked it
        data = self._socket.recv(4096)
        self._received += len(data)
        if self.answer is None:
            self._line += data
            self._judge_status(ended=not data)
        # Read to the end, as polite clients do: a server that cannot get rid of its answer complains.
        if not data or self._received > _MOST_BYTES or self.answer is False:
            self._close()

    def _judge_status(self, *, ended: bool) -> None:
        line, newline, _ = self._line.partition(b"\n")
        words = line.split(None, 2)
        if len(words) > 1 and newline and line.startswith(_STATUS_LINE) and words[1].isdigit():
            self._said(200 <= int(words[1]) < 400, f"HTTP {int(words[1])}")
        elif ended or newline or len(line) > 4096:
            self._said(False, "an answer that is no HTTP")

    def _said(self, answer: bool, trouble: str) -> None:
        self.answer, self.trouble = answer, trouble

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class ExecCheck:
    """Runs a command; 0 is yes. Its output is nobody's: asked many times, it would flood a log."""

    patience_s: float | None = 30.0

    def __init__(self, command: Sequence[str], spawn_helper: SpawnHelper) -> None:
        self.answer: bool | None = None
        self.trouble = "not asked yet"
        self._command = command
        self._spawn = spawn_helper
        self._child: Child | None = None

    def begin(self) -> None:
        """See `Check`."""
        if self._child is not None:
            return  # killed, but not gone yet: two at once would pile up
        self.answer = None
        child = self._spawn(self._command)
        if isinstance(child, SpawnFailure):
            self._said(False, f"no process for it: {os.strerror(child.errno)}")
        else:
            self._child = child

    def wants(self) -> tuple[int, int] | None:
        """See `Check`: its end is told by SIGCHLD."""
        return None

    def turn(self) -> None:
        """See `Check`."""

    def child_ended(self, pid: int, exit_: Exit) -> None:
        """See `Check`."""
        if self._child is None or pid != self._child.pid:
            return
        child, self._child = self._child, None
        process_control.send(-child.pid, signal.SIGKILL)  # what it may have left behind
        failure = read_report(child)
        if failure is not None:
            self._said(False, f"{self._command[0]!r} cannot be executed: {os.strerror(failure.errno)}")
        elif self.answer is None:
            self._said(exit_.status == 0, f"{self._command[0]!r} {exit_}")

    def abandon(self) -> None:
        """See `Check`. Its end, which must be waited for, comes later."""
        if self._child is not None:
            process_control.send(-self._child.pid, signal.SIGKILL)
            self._said(False, f"{self._command[0]!r} took longer than {self.patience_s:.0f} s")

    def close(self) -> None:
        """See `Check`. The process itself has been ended with all others."""
        if self._child is not None:
            os.close(self._child.report_fd)
            self._child = None

    def _said(self, answer: bool, trouble: str) -> None:
        self.answer, self.trouble = answer, trouble


class NotifyCheck:
    """A socket on which the program says READY=1, as sd_notify(3) describes it.

    In the abstract namespace: nothing can be left behind on a disk, no directory needs to be
    writable, and a program that gave up its rights still reaches it. Anybody in the network
    namespace could, so only the attempt's own processes are heard. If oomproof was given such a
    socket itself, all is passed on to it, but for MAINPID, which is us.
    """

    patience_s: float | None = None

    def __init__(self, outer_socket: str | None = None) -> None:
        self.answer: bool | None = None
        self.trouble = "READY=1 was not sent to NOTIFY_SOCKET"
        self._outer = outer_socket.replace("@", "\0", 1) if outer_socket else None
        name = f"oomproof-notify-{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("\0" + name)
        self.environment = {"NOTIFY_SOCKET": "@" + name}
        """What the program must be told."""

    def begin(self) -> None:
        """See `Check`: there is nothing to ask."""

    def wants(self) -> tuple[int, int] | None:
        """See `Check`. Also later: a program blocks when nobody reads what it says (STATUS, WATCHDOG)."""
        return None if self._socket.fileno() < 0 else (self._socket.fileno(), select.POLLIN)

    def turn(self) -> None:
        """See `Check`: one message, the next ones at the next turns."""
        # No room for descriptors (BARRIER=1 brings one): the kernel closes them, as their senders wait for.
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            message, ancillary, _, _ = self._socket.recvmsg(1 << 16, room)
        except BlockingIOError:
            return
        told_already = self.answer and self._outer is None
        if not told_already and self._is_of_attempt(ancillary):
            self._heard(message.splitlines())

    def child_ended(self, pid: int, exit_: Exit) -> None:
        """See `Check`: it has no children."""

    def abandon(self) -> None:
        """See `Check`: there is nothing under way."""

    def close(self) -> None:
        """See `Check`."""
        self._socket.close()

    def _is_of_attempt(self, ancillary: list[tuple[int, int, bytes]]) -> bool:
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid, uid, _ = _CREDENTIALS.unpack_from(data)
                if pid in process_control.descendants(os.getpid()):
                    return True
                # A helper such as systemd-notify may be gone already; then its user must be ours.
                return uid == os.getuid() and not process_control.exists(pid)
        return False

    def _heard(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == b"READY=1":
                self.answer = True
            elif line.startswith(b"STATUS="):
                status = line.removeprefix(b"STATUS=").decode(errors="replace")
                self.trouble = f"READY=1 was not sent to NOTIFY_SOCKET; its status: {status}"
        if self._outer is not None:
            message = b"\n".join(line for line in lines if not line.startswith(b"MAINPID="))
            try:
                self._socket.sendto(message, self._outer)
            except OSError:
                pass  # its listener is gone or full: the program would not learn it either
