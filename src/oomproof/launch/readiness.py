"""What it means that a program is ready, as `--ready` says it. Pure: nothing is asked here.

``http://HOST:PORT/PATH`` (a status from 200 to 399), ``tcp://HOST:PORT`` and ``unix:PATH``
(somebody accepts), ``exec:COMMAND`` (exit code 0), ``notify`` (READY=1 as by sd_notify(3)).
Not covered: TLS, which a command such as ``exec:curl -fsk https://...`` can ask for.
See `ready_checks` for the asking.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import NamedTuple

_HOST = r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[A-Za-z0-9._-]+)"
_HTTP = re.compile(rf"{_HOST}(?::(?P<port>[0-9]+))?(?P<path>[/?][!-~]*)?")
_TCP = re.compile(rf"{_HOST}:(?P<port>[0-9]+)")
_LONGEST_SOCKET_PATH = 107
"""``sun_path`` of unix(7) without its final zero."""


class Kind(StrEnum):
    """How to find out."""

    HTTP = "http"
    TCP = "tcp"
    UNIX = "unix"
    EXEC = "exec"
    NOTIFY = "notify"


class Target(NamedTuple):
    """Whom to ask, and what."""

    kind: Kind
    text: str
    """As it was written."""
    host: str = ""
    """A name or an address, without brackets."""
    port: int = 0
    path: str = ""
    """Of the URL, or of the socket: there a leading zero byte stands for the abstract namespace."""
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


def parse_target(text: str) -> Target:
    """Raises ValueError, with the way out, when `text` is no such target."""
    word, _, rest = text.partition(":")
    if text == "notify":
        return Target(Kind.NOTIFY, text)
    if word == "exec":
        from oomproof.config import parse_command  # noqa: PLC0415 - few starts need it

        return Target(Kind.EXEC, text, command=parse_command(rest))
    if word == "unix":
        return Target(Kind.UNIX, text, path=_socket_path(rest))
    if word in ("http", "tcp") and rest.startswith("//"):
        return _network(Kind(word), text, rest[2:])
    if word == "https":
        raise ValueError("https is not spoken here: write exec:curl -fsk https://... instead")
    raise ValueError("write http://HOST:PORT/PATH, tcp://HOST:PORT, unix:PATH, exec:COMMAND or notify")


def _socket_path(path: str) -> str:
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path or path == "@":
        raise ValueError("write the socket's path after unix:, or @NAME for the abstract namespace")
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise ValueError(f"the kernel takes socket paths of at most {_LONGEST_SOCKET_PATH} bytes")
    if "\0" in path:
        raise ValueError("a socket's path holds no zero byte")
    return "\0" + path[1:] if path.startswith("@") else path


def _network(kind: Kind, text: str, rest: str) -> Target:
    match = (_HTTP if kind is Kind.HTTP else _TCP).fullmatch(rest)
    if match is None:
        form = "http://HOST:PORT/PATH" if kind is Kind.HTTP else "tcp://HOST:PORT"
        raise ValueError(f"write {form}, an IPv6 address in brackets")
    port = int(match["port"] or 80)
    if not 1 <= port <= 65535:
        raise ValueError("ports are 1 to 65535")
    path = ""
    if kind is Kind.HTTP:
        path = match["path"] or "/"
        path = path if path.startswith("/") else "/" + path
    return Target(kind, text, host=match["host"].strip("[]"), port=port, path=path)
