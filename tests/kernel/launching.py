"""Start a launcher for a test, look at what it tells, and at what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from oomproof.limits.discovery import find_memory_cgroup
from oomproof.units import MIB

HERE = Path(__file__).parent
PYTHON = [sys.executable, "-S", "-E"]
HOG = [*PYTHON, str(HERE / "hog.py")]
HOG_IN_SHELL = " ".join(HOG)
UNDER_EMULATION = "QEMU" in Path("/proc/cpuinfo").read_text()
"""Everything takes some twenty times longer, so long tests take fewer steps."""

PATIENCE_S = 400.0 if UNDER_EMULATION else 100.0
"""For what takes milliseconds on a machine of its own, or seconds in a guest on a busy one."""


def wait_until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


@dataclass(slots=True)
class Scenario:
    """One call of `run_attempts`. Its files are in `scratch`, whose path marks its processes."""

    command: list[str]
    scratch: Path = Path("/nowhere")
    budgets: list[int] = field(default_factory=lambda: [96 * MIB])
    policy: dict[str, object] = field(default_factory=dict)
    attempt: dict[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None
    join: Path | None = None
    oom_score_adj: int | None = None
    remember: bool = False

    def as_json(self) -> dict[str, object]:
        return {
            "command": [word.replace("SCRATCH", str(self.scratch)) for word in self.command],
            "budgets": self.budgets,
            "policy": self.policy,
            "attempt": self.attempt,
            "environment": self.environment,
            "join": str(self.join) if self.join else None,
            "oom_score_adj": self.oom_score_adj,
            "events": str(self.scratch / "events.jsonl"),
            "history": str(self.scratch / "history.sqlite3") if self.remember else None,
            "status": str(self.scratch / "status"),
        }

    @property
    def status(self) -> int:
        return int((self.scratch / "status").read_text())

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        file = self.scratch / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        documents: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [document for document in documents if name in (None, document["event"])]

    def only_end(self) -> dict[str, Any]:
        (end,) = self.events("attempt_ended")
        return end


def arguments(*scenarios: Scenario) -> list[str]:
    """The command line of a launcher that runs them one after another."""
    documents = [scenario.as_json() for scenario in scenarios]
    return [sys.executable, str(HERE / "launch_driver.py"), json.dumps(documents)]


def run_all(scenarios: Mapping[str, Scenario], scratch: Path) -> str:
    """Runs them in one launcher, each in a folder of its own; returns what was said."""
    for name, scenario in scenarios.items():
        scenario.scratch = scratch / name.replace(" ", "-")
        scenario.scratch.mkdir()
    done = subprocess.run(
        arguments(*scenarios.values()), check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.stderr


class Launcher:
    """One launcher as a process of its own."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, stdin: int | IO[bytes] = subprocess.DEVNULL, prefix: tuple[str, ...] = ()) -> None:
        self._process = subprocess.Popen(
            [*prefix, *arguments(self.scenario)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "started"
        return self._process

    def catches_signals(self) -> bool:
        """Whether it no longer dies of a signal that Python itself leaves alone."""
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{self.process.pid}/status").read_text(), re.M)
        assert caught is not None
        return bool(int(caught[1], 16) & 1 << signal.SIGRTMAX - 1)

    def finish(self, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        out, err = self.process.communicate(given, timeout=PATIENCE_S)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def programs(self) -> list[int]:
        """Processes in the leaf that execute the hog already."""
        started = self.scenario.events("attempt_started")
        try:
            pids = Path(started[-1]["leaf"], "cgroup.procs").read_text().split() if started else []
            return [int(pid) for pid in pids if b"hog.py\0" in Path("/proc", pid, "cmdline").read_bytes()]
        except OSError:
            return []  # an attempt that has just ended

    def processes(self) -> list[int]:
        """The launcher, its guardian, and all that have the scratch path among their arguments."""
        found = []
        needle = os.fsencode(self.scenario.scratch)
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
        wait_until(lambda: not self.processes(), "the end of all processes", patience_s=20)

    def assert_nothing_left(self) -> None:
        self.assert_no_process_left()
        wait_until(lambda: not self.leaves(), "the removal of the leaves", patience_s=20)

    def leaves(self) -> list[Path]:
        """Leaf cgroups that the launcher made and did not remove."""
        own = find_memory_cgroup()
        assert own is not None
        return [path for path in own.directory.glob(f"**/oomproof-*-{self.process.pid}-*") if path.is_dir()]

    def proc_status(self) -> dict[str, str]:
        """``/proc/PID/status`` of the launcher."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}

    def settled_switches(self) -> tuple[float, int]:
        """When it slept for a second already, and how often it had gone to sleep by then."""
        count, since = -1, uptime()

        def settled() -> bool:
            nonlocal count, since
            now = int(self.proc_status()["voluntary_ctxt_switches"])
            if now != count:
                count, since = now, uptime()
            return uptime() > since + 1

        wait_until(settled, "an idle second")
        return uptime(), count

    def end(self) -> None:
        """Whatever a failed test has left."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
