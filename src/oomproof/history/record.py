"""How a launcher reads and writes the history: a disk that cannot be used is said once.

It is never a refusal to start. Each access is made by a child that lives for it alone: SQLite
costs 2 MiB, a launcher lives as long as its program, and a disk that hangs must not hang PID 1.
Not covered: the file itself, see `store`; a history on a server, see `fleet`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oomproof.errors import HistoryError
from oomproof.history import alive
from oomproof.history.model import Observation, OpenAttempt, Outcome, Run, is_server, printable_target

if TYPE_CHECKING:
    from oomproof.history.store import History

REMEDY = "name a writable place with --history FILE or OOMPROOF_STATE_DIR, or pass --history none"
PATIENCE_S = 15.0
"""For one write: above the time that SQLite itself waits for others to release the file."""

Access = Callable[["History"], Any]
"""Answers with what JSON can hold."""


class Record:
    """The history of one run in `target`, a file or a server; `warn` is told once of a failure.

    Without a target nothing is remembered. `required`: somebody asked for this very one. Then
    `run_started` raises HistoryError where it would have warned, and a file that is no history is
    left alone. What is older than `keep_days` is forgotten (0: nothing is).
    """

    def __init__(
        self,
        target: Path | str | None,
        warn: Callable[[str], None],
        *,
        required: bool = False,
        keep_days: float = 0,
    ) -> None:
        self._target = target
        self._warn = warn
        self._required = required
        self._keep_days = keep_days
        self._run_id: int | None = None
        self._found: dict[int, Outcome] = {}
        self._ends: dict[int, Outcome] = {}
        self._lock: int | None = None
        self.seen: tuple[Observation, ...] = ()
        """What runs like it teach, oldest first; from `run_started` on."""

    def run_started(self, run: Run) -> tuple[OpenAttempt, ...]:
        """Write down the run that the following attempts belong to, and read what runs like it teach.

        Returns earlier attempts of the same command under the same limit that have no end, oldest
        first. Give their ends to `found_open`. On a server there are none: whether the oomproof
        of another machine still lives cannot be told.
        """
        target, keep_days = self._target, self._keep_days
        if target is None:
            return ()

        def start(history: History) -> dict[str, Any]:
            if keep_days:
                history.forget_older_than(keep_days)
            found = []
            if isinstance(target, Path):
                found = history.open_attempts(
                    run.command, run.limit_bytes, lambda run_id: alive.is_alive(target, run_id)
                )
            return {
                "open": [asdict(attempt) for attempt in found],
                "seen": [asdict(observation) for observation in history.observations(run)],
                "run": history.run_started(run),
            }

        started = self._access(start, required=self._required)
        if started is None:
            return ()
        self._run_id = started["run"]
        self.seen = tuple(Observation(**observation) for observation in started["seen"])
        if isinstance(target, Path):
            self._hold(target, started["run"])
        return tuple(OpenAttempt(**attempt) for attempt in started["open"])

    def _hold(self, path: Path, run_id: int) -> None:
        try:
            self._lock = alive.hold(path, run_id)
        except OSError as error:
            self._warn(
                f"no lock can be held beside the history {path} ({error.strerror}): another oomproof may take"
                " an attempt of this one for dead"
            )

    def found_open(self, ends: Mapping[int, Outcome]) -> None:
        """The ends of open attempts by their id, to be written down with the start of the next attempt."""
        self._found = dict(ends)

    def attempt_started(self, attempt: int, budget_bytes: int) -> int | None:
        """Committed when this returns; None when nothing is remembered."""
        run_id, ends = self._run_id, self._found | self._ends
        if run_id is None:
            return None
        self._found, self._ends = {}, {}
        attempt_id: int | None = self._access(
            lambda history: history.attempt_started(run_id, attempt, budget_bytes, ends), in_between=True
        )
        return attempt_id

    def told_to_end(self, attempt_id: int | None, signal: int) -> None:
        """Write down that an attempt was asked to end, without waiting for the disk.

        Should all die before the attempt has ended, its end is known not to be for lack of memory.
        """
        target = self._target
        if target is not None and attempt_id is not None:
            _leave_to_child(
                lambda: _access_to(
                    target, lambda history: history.told_to_end(attempt_id, signal), replace_any=False
                )
            )

    def attempt_ended(self, attempt_id: int | None, outcome: Outcome, *, goes_on: bool = False) -> None:
        """Write down the end of an attempt of `attempt_started`; with the next start where it `goes_on`."""
        if attempt_id is not None:
            self._ends[attempt_id] = outcome
            if not goes_on:
                self.flush()

    def flush(self) -> None:
        """Write down the end that waits for a start."""
        ends, self._ends = self._ends, {}

        def write(history: History) -> None:
            for attempt_id, outcome in ends.items():
                history.attempt_ended(attempt_id, outcome)

        if ends:
            self._access(write)

    def close(self) -> None:
        """The run is over: nobody need take this process for the one that would write down its end."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _access(self, access: Access, *, required: bool = False, in_between: bool = False) -> Any:
        target = self._target
        if target is None:
            return None
        answer = _in_child(
            lambda: _access_to(target, access, replace_any=not self._required, in_between=in_between)
        )
        for notice in answer.get("notices", ()):
            self._warn(notice)
        if "error" in answer:
            message = f"the history {printable_target(target)} cannot be used ({answer['error']})"
            if required:
                raise HistoryError(f"{message}: {REMEDY}")
            self._warn(f"{message}, attempts are not remembered: {REMEDY}")
            self._target = None
        return answer.get("value")


def learned(target: Path | str, run: Run) -> tuple[Observation, ...]:
    """What runs like `run` teach, without writing a run down; nothing where there is no history yet.

    Raises HistoryError when it cannot be read.
    """
    if isinstance(target, Path) and not target.exists():
        return ()

    def look(history: History) -> list[object]:
        return [asdict(observation) for observation in history.observations(run)]

    answer = _in_child(lambda: _access_to(target, look, replace_any=False))
    if "error" in answer:
        raise HistoryError(
            f"the history {printable_target(target)} cannot be used ({answer['error']}): {REMEDY}"
        )
    return tuple(Observation(**observation) for observation in answer["value"])


def _access_to(
    target: Path | str, access: Access, *, replace_any: bool, in_between: bool = False
) -> dict[str, Any]:
    """Runs in the child: one access, or the reason why not.

    `in_between`: the file is not closed, which would merge SQLite's journal into it and take several
    more turns of the disk. A commit is durable without, and the last write of a run closes.
    """
    from oomproof.history import damaged  # noqa: PLC0415 - only in the child, as SQLite

    notices: list[str] = []

    def attempt() -> dict[str, Any]:
        history = opened(target, notices.append, replace_any=replace_any)
        try:
            return {"value": access(history), "notices": notices}
        finally:
            if not in_between:
                history.close()

    try:
        file = damaged.identity(target)
        try:
            return attempt()
        except Exception as error:
            # A damaged page shows only when it is read.
            if not isinstance(target, Path) or not damaged.is_damage(error):
                raise
            damaged.set_aside(target, file, str(error), notices.append)
            return attempt()
    except OSError as error:
        return {"error": error.strerror or str(error), "notices": notices}
    except HistoryError as error:
        return {"error": str(error), "notices": notices}
    except Exception as error:
        if is_database_error(error):
            return {"error": " ".join(str(error).split()), "notices": notices}
        raise


def is_database_error(error: Exception) -> bool:
    """PEP 249: each driver has an exception ``Error`` above all of its own."""
    return any(
        base.__name__ == "Error" and base.__module__.split(".")[0] in ("sqlite3", "psycopg")
        for base in type(error).__mro__
    )


def opened(target: Path | str, warn: Callable[[str], None], *, replace_any: bool) -> History:
    """The history itself, in this process; a damaged file is set aside, of which `warn` is told.

    Raises OSError, HistoryError or an exception of the database (see `is_database_error`).
    """
    if not isinstance(target, Path) and is_server(target):
        from oomproof.history.fleet import open_fleet  # noqa: PLC0415 - the driver is an extra

        return open_fleet(target)
    from oomproof.history.damaged import open_or_replace  # noqa: PLC0415 - only in the child, as SQLite

    return open_or_replace(Path(target), warn, replace_any=replace_any)


def _in_child(task: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `task` returns (JSON), computed in a forked child; ``{"error": ...}`` when none came back."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = _fork(task, writer)
    except OSError as error:
        os.close(reader)
        return {"error": f"no process can be made for it, {error.strerror}"}
    finally:
        os.close(writer)
    try:
        answer = _read_until(reader, time.monotonic() + PATIENCE_S)
        if answer is None:
            _end(pid)
            return {"error": f"no answer from the disk within {PATIENCE_S:.0f} s"}
    finally:
        os.close(reader)
    _, status = os.waitpid(pid, 0)
    if not answer:
        return {"error": f"its writer ended with {os.waitstatus_to_exitcode(status)}"}
    document: dict[str, Any] = json.loads(answer)
    return document


def _leave_to_child(task: Callable[[], dict[str, Any]]) -> None:
    """As `_in_child` for nobody: whoever collects our children collects this one."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        _fork(task, writer)
    except OSError:
        pass  # no process to spare: the end of the attempt will be written down in its time
    finally:
        os.close(reader)
        os.close(writer)


def _fork(task: Callable[[], dict[str, Any]], writer: int) -> int:
    # The child must not answer signals in our name: it shares the pipe that `launch.signals` reads.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _answer_and_exit(task, writer)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _end(pid: int) -> None:
    """Kill a child and collect it, unless it hangs in the kernel: PID 1 reaps it when it ends."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 1.0
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)


def _answer_and_exit(task: Callable[[], dict[str, Any]], writer: int) -> None:
    """The whole life of the child; never returns."""
    status = 1
    try:
        os.write(writer, json.dumps(task()).encode())
        status = 0
    except BaseException:  # noqa: BLE001 - a forked child must not run on into its parent's code
        import traceback  # noqa: PLC0415 - few children need it

        traceback.print_exc()
    finally:
        os._exit(status)


def _read_until(reader: int, deadline: float) -> bytes | None:
    """All bytes up to the end of the pipe; None when that did not come in time."""
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    answer = b""
    while poller.poll(max(0, (deadline - time.monotonic()) * 1000)):
        chunk = os.read(reader, 65536)
        if not chunk:
            return answer
        answer += chunk
    return None
