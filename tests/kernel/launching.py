"""Start a launcher for a test, look at what it tells, and at what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from oomproof.limits.discovery import find_memory_cgroup
from oomproof.units import MIB

HERE = Path(__file__).parent
PYTHON = [sys.executable, "-S", "-E"]
HOG = [*PYTHON, str(HERE / "hog.py")]
HOG_IN_SHELL = " ".join(HOG)
PATIENCE_S = 60.0
"""For what takes milliseconds on a machine of its own; a guest under emulation is slower."""


def wait_until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)


@dataclass(slots=True)
class Launcher:
    """One launcher to be started, with its files in `scratch`, whose path marks its processes."""

    scratch: Path
    budgets: list[int] = field(default_factory=lambda: [96 * MIB])
    policy: dict[str, object] = field(default_factory=dict)
    attempt: dict[str, object] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def events_file(self) -> Path:
        return self.scratch / "events.jsonl"

    def arguments(self, command: list[str]) -> list[str]:
        options = {
            "budgets": self.budgets,
            "policy": self.policy,
            "attempt": self.attempt,
            "events": str(self.events_file),
            "history": str(self.scratch / "history.sqlite3"),
            **self.options,
        }
        return [sys.executable, str(HERE / "launch_driver.py"), json.dumps(options), *command]

    def start(
        self, command: list[str], stdin: int | IO[bytes] = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            self.arguments(command), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return self.process

    def run(self, command: list[str], **patience: float) -> subprocess.CompletedProcess[bytes]:
        process = self.start(command)
        return self.finish(process, **patience)

    def finish(
        self, process: subprocess.Popen[bytes], patience_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[bytes]:
        out, err = process.communicate(timeout=patience_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        if not self.events_file.exists():
            return []
        lines = self.events_file.read_text().splitlines()
        documents: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [document for document in documents if name in (None, document["event"])]

    def only_end(self) -> dict[str, Any]:
        ends = self.events("attempt_ended")
        assert len(ends) == 1
        return ends[0]

    def processes(self) -> list[int]:
        """The launcher, its guardian, and all that were started with the scratch path among the arguments."""
        found = []
        needle = os.fsencode(self.scratch)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    cmdline = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if needle in cmdline:
                    found.append(int(entry.name))
        return found

    def assert_no_process_left(self) -> None:
        wait_until(lambda: not self.processes(), f"the end of {self.scratch}'s processes", patience_s=20)

    def assert_nothing_left(self) -> None:
        assert self.process is not None
        pid = self.process.pid
        self.assert_no_process_left()
        wait_until(lambda: not leaves_of(pid), f"the removal of {pid}'s leaves", patience_s=20)

    def end(self) -> None:
        """Whatever a failed test has left."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


def leaves_of(pid: int) -> list[Path]:
    """Leaf cgroups that the launcher with this pid made and did not remove."""
    own = find_memory_cgroup()
    assert own is not None
    return [path for path in own.directory.glob(f"**/oomproof-*-{pid}-*") if path.is_dir()]
