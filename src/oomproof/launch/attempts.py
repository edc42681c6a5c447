"""The loop: start with a budget, judge the death, start again with a smaller one.

Every attempt gets a leaf cgroup of its own where one can be made, is written down before
it starts, and is over only when all of its processes are gone.
Not covered: how much smaller (`oomproof.plan`), what a death means (`verdict`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from oomproof.errors import LeafUnavailable, OomproofError
from oomproof.history.model import Outcome
from oomproof.launch.events import EventWriter
from oomproof.launch.model import AttemptPolicy, Evidence, Judgement, SpawnStep, Verdict
from oomproof.launch.signals import Signals
from oomproof.launch.spawn import failure_to_error
from oomproof.launch.supervisor import supervise, wait_for_memory
from oomproof.launch.template import child_environment, expand_command
from oomproof.launch.verdict import judge
from oomproof.leaf import Leaf, make_leaf
from oomproof.units import format_size

OOM_EXIT_STATUS = 128 + signal.SIGKILL


class Recorder(Protocol):
    """Where attempts are written down durably; `oomproof.history.record.Record` is one."""

    def attempt_started(self, attempt: int, budget_bytes: int) -> int | None:
        """Durable when it returns; the id is given back to `attempt_ended`."""
        ...

    def attempt_ended(self, attempt_id: int | None, outcome: Outcome) -> None:
        """How the attempt ended."""
        ...


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """How a run is run. Sizes in bytes."""

    retries: int = 3
    """Attempts with a smaller budget after the first one."""
    limit_bytes: int | None = None
    """Limit of each attempt's leaf cgroup; without a leaf there is no limit, which is an error."""
    use_leaf: bool = True
    ok_with_kills: bool = False
    """A main process that exits 0 has succeeded even if others of the attempt were killed."""
    oom_exit_status: int = OOM_EXIT_STATUS
    """Exit status of a run whose last attempt died for lack of memory."""
    attempt: AttemptPolicy = field(default_factory=AttemptPolicy)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that has ended."""

    number: int
    """From 1."""
    budget_bytes: int
    evidence: Evidence
    judgement: Judgement
    next_budget_bytes: int | None = None
    """What the next attempt gets; None when there is none."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run."""

    exit_status: int
    """For our own exit: that of the last attempt, 128 + signal, or `RunPolicy.oom_exit_status`."""
    attempts: tuple[Attempt, ...]
    gave_up: str | None = None
    """Why nothing more was tried after a lack of memory, in one sentence."""

    @property
    def succeeded(self) -> bool:
        """The program ended well with `budget_bytes`."""
        return self.exit_status == 0

    @property
    def budget_bytes(self) -> int | None:
        """The budget of the last attempt; None when a stop came before the first."""
        return self.attempts[-1].budget_bytes if self.attempts else None


def run_attempts(
    command: Sequence[str],
    budget_bytes: int,
    *,
    next_budget: Callable[[int, int], int | None],
    say: Callable[[str], None],
    recorder: Recorder | None = None,
    events: EventWriter | None = None,
    environment: Mapping[str, str] | None = None,
    policy: RunPolicy | None = None,
    signals: Signals | None = None,
) -> RunResult:
    """Run `command` (with its budget filled in) until it ends for another reason than memory.

    `next_budget(attempt, budget_bytes)` answers with the smaller budget after attempt number
    `attempt`, None when there is none. `say` gets one plain line per attempt. `signals` are
    those caught already (a caller with more to do than this run); else they are caught here.

    Raises CommandNotFound, CommandNotExecutable or OomproofError when the program could not
    be started, LeafUnavailable when a limit was asked for and no leaf can be made.
    """
    policy = policy or RunPolicy()
    run = _Run(
        command=command,
        next_budget=next_budget,
        say=say,
        recorder=recorder,
        events=events or EventWriter(None, "nowhere", say),
        environment=os.environ if environment is None else environment,
        policy=policy,
        use_leaf=policy.use_leaf,
    )
    with contextlib.ExitStack() as stack:
        return run.to_the_end(budget_bytes, signals or stack.enter_context(Signals()))


@dataclass(slots=True)
class _Run:
    """What stays the same over all attempts of a run, and the attempts that ended."""

    command: Sequence[str]
    next_budget: Callable[[int, int], int | None]
    say: Callable[[str], None]
    recorder: Recorder | None
    events: EventWriter
    environment: Mapping[str, str]
    policy: RunPolicy
    use_leaf: bool
    attempts: list[Attempt] = field(default_factory=list)

    def to_the_end(self, budget_bytes: int, signals: Signals) -> RunResult:
        """All attempts, and the events that close a run."""
        budget: int | None = budget_bytes
        while budget is not None:
            if (stop := signals.stop_requested()) is not None:
                return self._finished(128 + stop, None)
            budget = self._attempt(budget, signals)
        last = self.attempts[-1]
        self._raise_if_not_started(last)
        gave_up = None
        if self._is_oom(last):
            gave_up = self._why_no_more(last)
            self.say(f"giving up: {gave_up}")
            self.events.emit(
                "gave_up", attempts=len(self.attempts), verdict=last.judgement.verdict.value, reason=gave_up
            )
        return self._finished(self._exit_status(last), gave_up)

    def _attempt(self, budget_bytes: int, signals: Signals) -> int | None:
        """One attempt from leaf to record; returns the budget of the next one."""
        number = len(self.attempts) + 1
        with self._leaf() as leaf:
            attempt_id = self._started(number, budget_bytes, leaf)
            evidence = self._supervise(number, budget_bytes, signals, leaf)
        if self._could_not_join(evidence):
            evidence = self._supervise(number, budget_bytes, signals, None)
        return self._ended(attempt_id, Attempt(number, budget_bytes, evidence, judge(evidence)))

    def _supervise(self, number: int, budget_bytes: int, signals: Signals, leaf: Leaf | None) -> Evidence:
        policy = self.policy.attempt
        if self.policy.ok_with_kills:
            policy = replace(policy, stop_on_kill_inside=False)
        evidence = supervise(
            expand_command(self.command, budget_bytes),
            child_environment(self.environment, budget_bytes, number),
            signals,
            leaf=leaf,
            policy=policy,
        )
        if leaf is not None:
            wait_for_memory(leaf)
        return evidence

    @contextlib.contextmanager
    def _leaf(self) -> Iterator[Leaf | None]:
        """A fresh leaf for one attempt, removed afterwards; None where none can be made."""
        leaf = self._make_leaf()
        try:
            if leaf is not None and self.policy.limit_bytes is not None:
                self._limit(leaf, self.policy.limit_bytes)
            yield leaf
        finally:
            if leaf is not None:
                self._remove(leaf)

    def _limit(self, leaf: Leaf, limit_bytes: int) -> None:
        try:
            leaf.set_limit(limit_bytes)
        except OSError as error:
            raise LeafUnavailable(
                f"the kernel refuses a limit of {limit_bytes} bytes for {leaf.directory}"
                f" ({error.strerror}); give another --limit"
            ) from error

    def _make_leaf(self) -> Leaf | None:
        if not self.use_leaf:
            return None
        try:
            return make_leaf("run")
        except LeafUnavailable as error:
            if self.policy.limit_bytes is not None:
                raise
            self._without_leaf(str(error))
            return None

    def _without_leaf(self, why: str) -> None:
        """Said once: the reason does not change between attempts."""
        self.use_leaf = False
        self.say(
            f"notice: no leaf cgroup ({why}); OOM kills are read from the cgroup that oomproof shares"
            " with others, so a verdict can be less certain"
        )

    def _could_not_join(self, evidence: Evidence) -> bool:
        failure = evidence.spawn_failure
        if failure is None or failure.step is not SpawnStep.JOIN:
            return False
        why = f"entering it failed: {os.strerror(failure.errno)}"
        if self.policy.limit_bytes is not None:
            raise LeafUnavailable(f"the limited leaf cgroup cannot be used, {why}; go without --limit")
        self._without_leaf(why)
        return True

    def _remove(self, leaf: Leaf) -> None:
        try:
            leaf.remove()
        except (OomproofError, OSError) as error:
            self.say(f"warning: {error}")

    # -- telling --------------------------------------------------------------------------

    def _started(self, number: int, budget_bytes: int, leaf: Leaf | None) -> int | None:
        attempt_id = self.recorder.attempt_started(number, budget_bytes) if self.recorder else None
        self.events.emit(
            "attempt_started",
            attempt=number,
            budget_bytes=budget_bytes,
            leaf=str(leaf.directory) if leaf else None,
        )
        return attempt_id

    def _ended(self, attempt_id: int | None, attempt: Attempt) -> int | None:
        following = None
        if self._is_oom(attempt) and attempt.number <= self.policy.retries:
            following = self.next_budget(attempt.number, attempt.budget_bytes)
        evidence, judgement = attempt.evidence, attempt.judgement
        attempt = Attempt(attempt.number, attempt.budget_bytes, evidence, judgement, following)
        self.attempts.append(attempt)
        exit_ = evidence.exit
        facts = {
            "verdict": judgement.verdict.value,
            "confidence": judgement.confidence.value,
            "exit_code": exit_.code if exit_ and evidence.spawn_failure is None else None,
            "signal": exit_.signal if exit_ else None,
            "oom_kills": judgement.oom_kills,
            "next_budget_bytes": following,
            "evidence": judgement.evidence,
        }
        if self.recorder is not None:
            self.recorder.attempt_ended(
                attempt_id,
                Outcome(
                    verdict=judgement.verdict.value,
                    confidence=judgement.confidence.value,
                    exit_code=exit_.code if exit_ and evidence.spawn_failure is None else None,
                    signal=exit_.signal if exit_ else None,
                    oom_kills=judgement.oom_kills,
                    peak_bytes=evidence.peak_bytes,
                    duration_s=evidence.duration_s,
                    next_budget_bytes=following,
                    evidence=judgement.evidence,
                ),
            )
        self.events.emit(
            "attempt_ended",
            attempt=attempt.number,
            budget_bytes=attempt.budget_bytes,
            peak_bytes=evidence.peak_bytes,
            duration_s=round(evidence.duration_s, 3),
            survivors=evidence.survivors,
            leftovers=evidence.leftovers,
            **facts,
        )
        self.say(describe(attempt))
        return following

    def _finished(self, exit_status: int, gave_up: str | None) -> RunResult:
        last = self.attempts[-1] if self.attempts else None
        self.events.emit(
            "finished",
            exit_status=exit_status,
            attempts=len(self.attempts),
            verdict=last.judgement.verdict.value if last else Verdict.STOPPED.value,
            budget_bytes=last.budget_bytes if last else None,
        )
        return RunResult(exit_status, tuple(self.attempts), gave_up)

    # -- deciding -------------------------------------------------------------------------

    def _is_oom(self, attempt: Attempt) -> bool:
        if not attempt.judgement.calls_for_less:
            return False
        exit_ = attempt.evidence.exit
        return not (self.policy.ok_with_kills and exit_ is not None and exit_.status == 0)

    def _why_no_more(self, last: Attempt) -> str:
        if last.number > self.policy.retries:
            return f"{last.number} attempts ran out of memory, the last with {format_size(last.budget_bytes)}"
        return f"no budget below {format_size(last.budget_bytes)} is worth trying"

    def _exit_status(self, last: Attempt) -> int:
        if self._is_oom(last):
            return self.policy.oom_exit_status
        return last.evidence.exit.status if last.evidence.exit else 0

    def _raise_if_not_started(self, last: Attempt) -> None:
        failure = last.evidence.spawn_failure
        if failure is not None:
            error = failure_to_error(failure, self.command, self.environment.get("PATH"))
            self._finished(error.exit_code, None)
            raise error


def describe(attempt: Attempt) -> str:
    """One line for people: verdict, evidence, and what happens to the budget."""
    judgement = attempt.judgement
    words = f"attempt {attempt.number}: {judgement.verdict.value} ({judgement.confidence.value})"
    words += f" after {attempt.evidence.duration_s:.1f} s"
    budget = format_size(attempt.budget_bytes)
    if attempt.next_budget_bytes is None:
        budget = f"budget {budget}"
    else:
        budget = f"budget {budget} -> {format_size(attempt.next_budget_bytes)}"
    if attempt.evidence.survivors:
        pids = ", ".join(str(pid) for pid in attempt.evidence.survivors)
        budget += f"; could not be killed: {pids}"
    for leftover in attempt.evidence.leftovers:
        budget += f"; left behind: {leftover}"
    return f"{words}: {'; '.join(judgement.evidence)}; {budget}"
