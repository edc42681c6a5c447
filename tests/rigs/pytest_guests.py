"""pytest plugin: runs the kernel tests in guests too, each of them a test line of its own.

For every test marked ``kernel`` and every guest in `GUESTS`, an item ``test_name@guest`` is
added; guests that are there for the kernel's sake get the tests that face the kernel, unless
``OOMPROOF_GUEST_TESTS=all`` asks for the rest too. One boot per guest runs all of its tests with
this very environment; a test that is missing in the guest's report has failed. One guest at a
time runs beside the tests of the host; their results are looked up last, and what is left then
has all processors.

The same plugin writes the report when it finds itself in a guest.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from rigs.guest import Guest, GuestError, RunningGuest
from rigs.pytest_worlds import need, set_world, skip_reason

_EVERYTHING = re.compile("")
_WHAT_FACES_THE_KERNEL = re.compile(r"/test_(leaf|limits|verbs)\.py::")

GUESTS = {
    Guest("6.12", "v2"): _EVERYTHING,
    Guest("6.1", "v1"): _WHAT_FACES_THE_KERNEL,
    Guest("6.1", "v2"): _WHAT_FACES_THE_KERNEL,
}
"""The guests, and which tests they run when not asked for all."""

_REPORT_VARIABLE = "OOMPROOF_TEST_REPORT"
_TIMEOUT_S = 2400
# For one test, where the host allows 120 s: everything takes some twenty times longer.
_TEST_TIMEOUT_S = 900


class GuestTestFailed(Exception):
    """Raised on the host for a test that failed in a guest, or did not come to its end there."""

    def __init__(self, detail: str, cause: str) -> None:
        super().__init__(cause)
        self.detail = detail


@dataclass(eq=False)
class _GuestFailure(TerminalRepr):
    """How the failure in a guest looks here: as it looked there, and its cause in the short summary."""

    detail: str
    reprcrash: ReprFileLocation

    def toterminal(self, tw: TerminalWriter) -> None:
        tw.line(self.detail)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How one test ended in a guest: ``passed``, ``failed``, ``skipped`` or ``xfailed``, and why."""

    kind: str
    detail: str
    cause: str = ""
    seconds: float = 0.0


class GuestSession:
    """All tests of one guest: one boot, one run of pytest."""

    def __init__(self, guest: Guest, root: Path, tests: list[str]) -> None:
        self._guest = guest
        self._root = root
        self._tests = tests
        self._done = threading.Event()
        self._running: RunningGuest | None = None
        self._outcomes: dict[str, _Outcome] = {}
        self._ending = ""

    def run(self) -> None:
        """Boots the guest and gathers what it reports; never raises, `outcome` tells."""
        try:
            with tempfile.TemporaryDirectory(prefix="oomproof-guest-tests-") as scratch:
                shared = Path(scratch)
                self._ending = self._run_in_guest(shared)
                self._outcomes = dict(_read_report(shared / "report"))
        except Exception as error:  # noqa: BLE001 - told by each test that waits for it
            self._ending = f"the guest could not be run: {error!r}"
        finally:
            self._done.set()

    def _run_in_guest(self, shared: Path) -> str:
        (shared / "tests").write_text("\n".join(self._tests))
        # Hypothesis' plugin is left out for its slow start; it serves statistics and the like only.
        options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--quiet"]
        options += [f"--timeout={_TEST_TIMEOUT_S}"]
        command = [sys.executable, "-m", "pytest", *options, f"@{shared / 'tests'}"]
        path = f"{Path(sys.executable).parent}:{os.defpath}:/usr/sbin:/sbin"
        environment = {_REPORT_VARIABLE: str(shared / "report"), "PATH": path}
        with self._guest.start(
            shlex.join(command), environment=environment, working_directory=self._root, shared=shared
        ) as self._running:
            try:
                run = self._running.wait(_TIMEOUT_S)
            except GuestError as error:
                return f"{error}\n{error.output}"
            return f"pytest in the guest ended with exit code {run.exit_code}\n{run.output}"

    def outcome(self, test: str) -> _Outcome:
        """Waits for the end of the guest; then how `test` ended in it."""
        self._done.wait()
        missing = _Outcome("failed", self._ending, cause="the guest reported no end of this test")
        return self._outcomes.get(test, missing)

    def stop(self) -> None:
        if self._running is not None:
            self._running.switch_off()


class GuestItem(pytest.Item):
    """The result that one test of the host had in a guest."""

    def __init__(self, *, guest: Guest, test: str, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.guest = guest
        self.test = test
        self.session_in_guest: GuestSession | None = None
        self.seconds_in_guest = 0.0
        self.add_marker("guest")
        # The wait includes the whole run of the guest, which has a time-out of its own.
        self.add_marker(pytest.mark.timeout(0))
        set_world(self, f"guest {guest}")

    def setup(self) -> None:
        need(self.guest.problem())

    def runtest(self) -> None:
        assert self.session_in_guest is not None, "collection has finished, so the guest was started"
        outcome = self.session_in_guest.outcome(self.test)
        self.seconds_in_guest = outcome.seconds
        match outcome.kind:
            case "failed":
                raise GuestTestFailed(outcome.detail, outcome.cause)
            case "skipped":
                pytest.skip(outcome.detail)
            case "xfailed":
                pytest.xfail(outcome.detail)

    def repr_failure(
        self,
        excinfo: pytest.ExceptionInfo[BaseException],
        style: object = None,  # noqa: ARG002 - pytest's signature
    ) -> str | TerminalRepr:
        if isinstance(excinfo.value, GuestTestFailed):
            crash = ReprFileLocation(str(self.path), 0, str(excinfo.value))
            return _GuestFailure(excinfo.value.detail, crash)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class GuestRunner:
    """On the host: adds the items and runs the guests in the background."""

    def __init__(self) -> None:
        self._sessions: list[GuestSession] = []
        self._waiting: SimpleQueue[GuestSession] = SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._host_is_done = False
        self._ended = threading.Event()

    # First: selections by mark and keyword must see the added items.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        tests = [item for item in items if item.get_closest_marker("kernel")]
        everywhere = os.environ.get("OOMPROOF_GUEST_TESTS") == "all"
        for guest, selection in GUESTS.items():
            for test in tests:
                if not (everywhere or selection.search(test.nodeid)):
                    continue
                assert test.parent is not None, "a test lies in a module"
                name = f"{test.name}@{guest}"
                items.append(GuestItem.from_parent(test.parent, name=name, guest=guest, test=test.nodeid))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        for guest in GUESTS:
            items = [item for item in session.items if isinstance(item, GuestItem) and item.guest == guest]
            if not items or guest.problem():
                continue
            guest_session = GuestSession(guest, session.config.rootpath, [item.test for item in items])
            for item in items:
                item.session_in_guest = guest_session
            self._sessions.append(guest_session)
            self._waiting.put(guest_session)
        self._start_worker()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if isinstance(item, GuestItem) and not self._host_is_done:
            self._host_is_done = True
            for _ in range(1, os.cpu_count() or 1):
                self._start_worker()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if isinstance(item, GuestItem) and call.when == "call":
            # How long the test took, not how long we waited for the guest.
            report.duration = item.seconds_in_guest
        return report

    def _start_worker(self) -> None:
        worker = threading.Thread(target=self._work, daemon=True)
        worker.start()
        self._workers.append(worker)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                guest_session = self._waiting.get_nowait()
            except Empty:
                return
            guest_session.run()

    def pytest_unconfigure(self) -> None:
        self._ended.set()
        for guest_session in self._sessions:
            guest_session.stop()
        for worker in self._workers:
            worker.join(timeout=10)


class GuestReporter:
    """In a guest: one JSON line a phase of a test, written at once, for the host to read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind: str = report.outcome
        detail = cause = ""
        if report.skipped and hasattr(report, "wasxfail"):
            kind, detail = "xfailed", report.wasxfail
        elif report.skipped:
            detail = skip_reason(report)
        elif report.failed:
            sections = "".join(f"\n--- {title} ---\n{text}" for title, text in report.sections)
            detail = report.longreprtext + sections
            crash = getattr(report.longrepr, "reprcrash", None)
            cause = crash.message if crash else report.longreprtext
        line = {
            "test": report.nodeid,
            "phase": report.when,
            "kind": kind,
            "detail": detail,
            "cause": cause,
            "seconds": report.duration,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _read_report(path: Path) -> Iterator[tuple[str, _Outcome]]:
    """How each test ended that came to its end: the first phase that did not pass says it."""
    if not path.exists():
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    worst: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines():
        phase = json.loads(line)
        test = phase["test"]
        seconds[test] += phase["seconds"]
        if phase["kind"] != "passed":
            worst.setdefault(test, phase)
        if phase["phase"] == "teardown":
            decisive = worst.get(test, phase)
            yield test, _Outcome(decisive["kind"], decisive["detail"], decisive["cause"], seconds[test])


def pytest_configure(config: pytest.Config) -> None:
    if report := os.environ.get(_REPORT_VARIABLE):
        config.pluginmanager.register(GuestReporter(Path(report)), "oomproof-guest-reporter")
    else:
        config.pluginmanager.register(GuestRunner(), "oomproof-guest-runner")
