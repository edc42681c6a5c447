"""The loop: start with a budget, judge the death, start again with a smaller one.

Every attempt gets a leaf cgroup of its own where one can be made, is written down before
it starts, and is over only when all of its processes are gone.
Not covered: how much smaller (`oomproof.plan`), what a death means (`verdict`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from oomproof.errors import LeafUnavailable, OomproofError
from oomproof.launch import process_control
from oomproof.launch.attempt_leaf import AttemptLeaves
from oomproof.launch.benchmark import End, end_of
from oomproof.launch.beside import Beside
from oomproof.launch.deciding import Next, decide, is_lack, still_needed
from oomproof.launch.events import EventWriter
from oomproof.launch.guardian import Guardian
from oomproof.launch.leftovers import wait_for_memory
from oomproof.launch.model import (
    Attempt,
    AttemptPolicy,
    Evidence,
    Exit,
    SidecarPolicy,
    SpawnStep,
    StopReason,
    Verdict,
)
from oomproof.launch.restart import RestartPolicy
from oomproof.launch.signals import Signals
from oomproof.launch.spawn import failure_to_error
from oomproof.launch.supervisor import supervise
from oomproof.launch.telling import Recorder, describe, event_fields, hook_environment, outcome
from oomproof.launch.verdict import judge
from oomproof.leaf import Leaf
from oomproof.template import child_environment, expand_command

__all__ = ["OOM_EXIT_STATUS", "Attempt", "Recorder", "RunPolicy", "RunResult", "describe", "run_attempts"]

OOM_EXIT_STATUS = 128 + signal.SIGKILL
Prepare = Callable[[int], tuple[Sequence[str], Mapping[str, str]]]
"""From the budget of an attempt to its command line and environment; files it makes are in place."""

HOOK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """How a run is run. Sizes in bytes."""

    retries: int = 3
    """Attempts with another budget after the first one."""
    limit_bytes: int | None = None
    """Limit of each attempt's leaf cgroup; without a leaf there is no limit, which is an error."""
    use_leaf: bool = True
    ok_with_kills: bool = False
    """A main process that exits 0 has succeeded even if others of the attempt were killed."""
    oom_exit_status: int = OOM_EXIT_STATUS
    """Exit status of a run whose last attempt died for lack of memory."""
    attempt: AttemptPolicy = field(default_factory=AttemptPolicy)
    on_oom_exec: tuple[str, ...] = ()
    """A command to run after each attempt that ran out of memory, with the facts in its environment."""
    min_rate: float | None = None
    """A benchmark with a lower rate has failed."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    """After ends for other reasons than memory; the budget stays."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run."""

    exit_status: int
    """For our own exit: that of the last attempt, 128 + signal, or `RunPolicy.oom_exit_status`."""
    attempts: tuple[Attempt, ...]
    """Of a service that was restarted many times, the latest alone and one of each kind."""
    gave_up: str | None = None
    """Why nothing more was tried after a lack of memory, in one sentence."""
    failure: str | None = None
    """Why it failed for another reason, where the exit status is not the program's own."""

    @property
    def succeeded(self) -> bool:
        """The program ended well, and by itself, with `budget_bytes`."""
        stopped = not self.attempts or self.attempts[-1].judgement.verdict is Verdict.STOPPED
        return self.exit_status == 0 and not stopped

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
    prepare: Prepare | None = None,
) -> RunResult:
    """Run `command` (with its budget filled in) until it ends for another reason than memory.

    `next_budget(attempt, budget_bytes)` answers with the smaller budget after attempt number
    `attempt`, None when there is none. `say` gets one plain line per attempt. `signals` are
    those caught already (a caller with more to do than this run); else they are caught here.
    `prepare` makes what is started out of each attempt's budget, where more than filling it in
    is to be done; what it raises ends the run.

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
        leaves=AttemptLeaves(policy.limit_bytes, say),
        use_leaf=policy.use_leaf,
        prepare=prepare,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(run.leaves)
        try:
            return run.to_the_end(budget_bytes, signals or stack.enter_context(Signals()))
        except OomproofError as error:
            run.failed(error)
            raise


class _Start(NamedTuple):
    """What one attempt executes."""

    number: int
    budget_bytes: int
    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(slots=True)
class _Run:
    """What stays the same over all attempts of a run, and the attempts that ended, see `still_needed`."""

    command: Sequence[str]
    next_budget: Callable[[int, int], int | None]
    say: Callable[[str], None]
    recorder: Recorder | None
    events: EventWriter
    environment: Mapping[str, str]
    policy: RunPolicy
    leaves: AttemptLeaves
    use_leaf: bool
    prepare: Prepare | None = None
    attempts: list[Attempt] = field(default_factory=list)
    following: Next = field(default_factory=Next)
    """What follows the last of them."""

    def to_the_end(self, budget_bytes: int, signals: Signals) -> RunResult:
        """All attempts, and the events that close a run."""
        pause_s = 0.0
        while True:
            if (stop := signals.stop_within(pause_s)) is not None:
                return self._finished(128 + stop, None)
            last = self._attempt(budget_bytes, signals)
            if last.next_budget_bytes is None:
                break
            budget_bytes, pause_s = last.next_budget_bytes, last.pause_s
        self._raise_if_not_started(last)
        gave_up = self.following.gave_up
        if gave_up is not None:
            self.say(f"giving up: {gave_up}")
            self.events.emit(
                "gave_up", attempts=self._count, verdict=last.judgement.verdict.value, reason=gave_up
            )
        end = self._end(last)
        if end.failure is not None:
            self.say(f"failed: {end.failure}")
        return self._finished(end.status, gave_up, failure=end.failure)

    @property
    def _count(self) -> int:
        return self.attempts[-1].number if self.attempts else 0

    def _attempt(self, budget_bytes: int, signals: Signals) -> Attempt:
        """One attempt from leaf to record."""
        number = self._count + 1
        start = self._prepared(number, budget_bytes)
        with contextlib.ExitStack() as stack:
            leaf, guardian = self._enter_leaf(stack)
            attempt_id = self._started(number, budget_bytes, leaf)
            told = functools.partial(self._told_to_end, attempt_id)
            evidence = self._supervise(start, signals, told_to_end=told, leaf=leaf, guardian=guardian)
        if self._could_not_join(evidence):
            evidence = self._supervise(start, signals, told_to_end=told)
        attempt = Attempt(number, budget_bytes, evidence, judge(evidence))
        self.following = self._decide(attempt)
        attempt = replace(
            attempt, next_budget_bytes=self.following.budget_bytes, pause_s=self.following.pause_s
        )
        self.attempts = still_needed([*self.attempts, attempt], self.policy.restart)
        if self.recorder is not None:
            self.recorder.attempt_ended(attempt_id, outcome(attempt), goes_on=self._goes_on_at_once(attempt))
        self.events.emit("attempt_ended", **event_fields(attempt))
        self.say(describe(attempt, ok_with_kills=self.policy.ok_with_kills))
        if self.following.notice is not None:
            self.say(f"notice: {self.following.notice}")
        if self.policy.on_oom_exec and self._is_oom(attempt):
            self._run_hook(attempt, signals)
        return attempt

    def _goes_on_at_once(self, attempt: Attempt) -> bool:
        return attempt.next_budget_bytes is not None and not attempt.pause_s and not self.policy.on_oom_exec

    def _prepared(self, number: int, budget_bytes: int) -> _Start:
        """The command line and the environment of one attempt."""
        if self.prepare is None:
            command: Sequence[str] = expand_command(self.command, budget_bytes)
            environment = self.environment
        else:
            command, environment = self.prepare(budget_bytes)
        return _Start(number, budget_bytes, command, child_environment(environment, budget_bytes, number))

    def _supervise(
        self,
        start: _Start,
        signals: Signals,
        *,
        told_to_end: Callable[[int], None],
        leaf: Leaf | None = None,
        guardian: Guardian | None = None,
    ) -> Evidence:
        policy = self.policy.attempt
        if self.policy.ok_with_kills:
            policy = replace(policy, stop_on_kill_inside=False)
        with self._beside(start, signals) as beside:
            if not self.attempts:
                process_control.give_memory_back()  # all that is ever imported is imported by now
            evidence = supervise(
                start.command,
                start.environment,
                signals,
                leaf=leaf,
                guardian=guardian,
                policy=policy,
                told_to_end=told_to_end,
                say=self.say,
                beside=beside,
            )
        if leaf is not None:
            wait_for_memory(leaf)
        return evidence

    def _beside(self, start: _Start, signals: Signals) -> contextlib.AbstractContextManager[Beside]:
        """What goes on beside the program, with the budget filled in."""
        policy = self.policy.attempt.sidecar
        if policy is None:
            return contextlib.nullcontext(Beside())
        # Imported here: most runs do without it. What start-up left behind makes room for it.
        process_control.give_memory_back()
        from oomproof.launch.sidecar import running_beside  # noqa: PLC0415

        return running_beside(
            policy.with_budget(lambda command: expand_command(command, start.budget_bytes)),
            start.environment,
            signals,
            oom_score_adj=self.policy.attempt.oom_score_adj,
            use_leaf=self.use_leaf,
            on_ready=lambda seconds: self._ready(start.number, seconds, str(policy.ready)),
            say=self.say,
        )

    def _run_hook(self, attempt: Attempt, signals: Signals) -> None:
        """Outside of any leaf, and for no longer than HOOK_TIMEOUT_S: it must not hold up the restart."""
        evidence = supervise(
            self.policy.on_oom_exec,
            {**self.environment, **hook_environment(attempt)},
            signals,
            policy=AttemptPolicy(timeout_s=HOOK_TIMEOUT_S, grace_s=1.0),
        )
        if evidence.stop is not None and evidence.stop.reason is StopReason.STOP:
            signals.keep(evidence.stop.signal)
        if evidence.spawn_failure is not None or evidence.exit != Exit(code=0):
            self.say(
                f"warning: the command to run after an OOM failed: {'; '.join(judge(evidence).evidence)}"
            )

    def _enter_leaf(self, stack: contextlib.ExitStack) -> tuple[Leaf | None, Guardian | None]:
        """A leaf for one attempt and its guardian, until `stack` ends; None where none can be made."""
        if not self.use_leaf:
            return None, None
        try:
            return stack.enter_context(self.leaves.fresh())
        except LeafUnavailable as error:
            if self.policy.limit_bytes is not None:
                raise
            self._without_leaf(str(error))
            return None, None

    def _without_leaf(self, why: str) -> None:
        """Said once: the reason does not change between attempts."""
        self.use_leaf = False
        self.say(
            f"notice: no leaf cgroup ({why}); OOM kills are read from the cgroup that oomproof shares"
            " with others, so a verdict can be less certain"
        )

    def _could_not_join(self, evidence: Evidence) -> bool:
        """Whether to try the same attempt without a leaf; with a limit that would break a promise."""
        failure = evidence.spawn_failure
        if failure is None or failure.step is not SpawnStep.JOIN or self.policy.limit_bytes is not None:
            return False
        self._without_leaf(f"entering it failed: {os.strerror(failure.errno)}")
        return True

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

    def _told_to_end(self, attempt_id: int | None, number: int) -> None:
        if self.recorder is not None:
            self.recorder.told_to_end(attempt_id, number)

    def _ready(self, number: int, seconds: float, target: str) -> None:
        self.events.emit("ready", attempt=number, seconds=round(seconds, 3), target=target)
        self.say(f"attempt {number}: ready after {seconds:.1f} s ({target})")

    def failed(self, error: OomproofError) -> None:
        """Close the stream of events of a run that could not go on."""
        self._finished(error.exit_code, None, Verdict.NOT_STARTED)

    def _finished(
        self,
        exit_status: int,
        gave_up: str | None,
        without_attempts: Verdict = Verdict.STOPPED,
        failure: str | None = None,
    ) -> RunResult:
        if self.recorder is not None:
            self.recorder.flush()
        last = self.attempts[-1] if self.attempts else None
        self.events.emit(
            "finished",
            exit_status=exit_status,
            attempts=self._count,
            verdict=(last.judgement.verdict if last else without_attempts).value,
            budget_bytes=last.budget_bytes if last else None,
            failure=failure,
        )
        return RunResult(exit_status, tuple(self.attempts), gave_up, failure)

    # -- deciding -------------------------------------------------------------------------

    def _is_oom(self, attempt: Attempt) -> bool:
        return is_lack(attempt, ok_with_kills=self.policy.ok_with_kills)

    def _decide(self, attempt: Attempt) -> Next:
        return decide(
            [*self.attempts, attempt],
            next_budget=self.next_budget,
            retries=self.policy.retries,
            ok_with_kills=self.policy.ok_with_kills,
            restart=self.policy.restart,
        )

    def _end(self, last: Attempt) -> End:
        if self._is_oom(last):
            return End(self.policy.oom_exit_status)
        return end_of(
            last,
            self.policy.attempt.sidecar or SidecarPolicy(),
            ok_with_kills=self.policy.ok_with_kills,
            min_rate=self.policy.min_rate,
        )

    def _raise_if_not_started(self, last: Attempt) -> None:
        failure = last.evidence.spawn_failure
        if failure is not None:
            raise failure_to_error(failure, self.command, self.environment.get("PATH"))
