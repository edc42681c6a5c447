"""A launching verb of the command line as a process of its own, with daemons and clients for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kernel.launching import HERE, PYTHON, UNDER_EMULATION, Launcher, Scenario
from oomproof.units import MIB

LIMIT = 96 * MIB
TOO_MUCH = LIMIT
FITS = LIMIT // 4
AT_ONCE_S = 20.0 if UNDER_EMULATION else 2.0


def limits(budget: int = TOO_MUCH) -> list[str]:
    return ["--limit", str(LIMIT), "--budget", str(budget), "--on-oom", "shrink:75%"]


class Oomproof(Launcher):
    """A launching verb of the command line, with its events and its history in a folder of its own."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(Scenario([], scratch=scratch))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def scratch(self) -> Path:
        return self.scenario.scratch

    @property
    def history(self) -> Path:
        return self.scratch / "history.sqlite3"

    def daemon(self, listen: str, *more: str) -> list[str]:
        return ["--", *PYTHON, str(HERE / "daemon.py"), str(self.scratch), listen, *more]

    def http_daemon(self) -> list[str]:
        """Its requests for /work take the budget."""
        (self.scratch / "go").touch()
        return self.daemon(f"http:{self.port}", "{budget}")

    @property
    def health(self) -> list[str]:
        return ["--ready", f"http://127.0.0.1:{self.port}/health"]

    def client(self, script: str) -> list[str]:
        """A client in the shell; its last argument marks it as ours."""
        return ["--client", f"sh -c '{script}' {self.scratch}"]

    def request(self, path: str) -> str:
        return f"{' '.join(PYTHON)} {HERE / 'request.py'} {self.port} {path}"

    def verb(self, *words: str, inside: Path | None = None, prefix: Sequence[str] = ()) -> None:
        settings = [
            "--events",
            str(self.scratch / "events.jsonl"),
            "--history",
            str(self.history),
            "--grace",
            "5",
        ]
        command = [sys.executable, "-m", "oomproof", words[0], *settings, *words[1:]]
        if inside is not None:
            # After the prefix, whose own process stays outside, as a container engine does.
            command = ["sh", "-c", f'echo 0 > "{inside}" && exec "$@"', "sh", *command]
        command = [*prefix, *command]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OOMPROOF_")}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )

    def ended(
        self, *words: str, inside: Path | None = None, prefix: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        self.verb(*words, inside=inside, prefix=prefix)
        return self.finish()

    def happened(self, event: str) -> Callable[[], bool]:
        return lambda: bool(self.scenario.events(event)) or self.process.poll() is not None

    def started(self) -> bool:
        return (self.scratch / "started").exists() or self.process.poll() is not None
