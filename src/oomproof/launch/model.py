"""What was seen of an attempt and what it means, as frozen data: no file is read here.

Sizes are bytes, times are seconds; None means that nobody can tell. What is newer is a named tuple:
a frozen dataclass costs a supervisor 16 KiB, a named tuple 5.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomproof.launch.rate import RateRule
    from oomproof.launch.readiness import Target


class Verdict(StrEnum):
    """What ended an attempt. Separate from the exit status: both are reported."""

    EXITED = "exited"
    """The main process ended by itself and nothing speaks for a lack of memory."""
    SIGNALLED = "signalled"
    """A signal other than SIGKILL ended the main process and did not come through oomproof."""
    OOM_KILL = "oom_kill"
    """The kernel's OOM killer killed at least one process of the attempt."""
    OOM_SUSPECTED = "oom_suspected"
    """The kernel's OOM killer struck nearby and the death fits, but another victim is possible."""
    IN_PROCESS_OOM = "in_process_oom"
    """The program says itself that it ran out of memory (only by rules that were asked for)."""
    KILLED_UNKNOWN = "killed_unknown"
    """SIGKILL by somebody, without any evidence of the OOM killer."""
    STOPPED = "stopped"
    """Ended because somebody asked oomproof to end it, or because its time was up."""
    NOT_STARTED = "not_started"
    """The program never ran."""
    NOT_READY = "not_ready"
    """It did not become ready in the time allowed, and oomproof ended it."""
    CLIENT_DONE = "client_done"
    """A benchmark's client ended well, and oomproof ended the daemon."""
    CLIENT_FAILED = "client_failed"
    """A benchmark's client failed, which is not held against the daemon, and oomproof ended that."""


class Confidence(StrEnum):
    """How sure a verdict is."""

    CERTAIN = "certain"
    """The kernel's own counter of a cgroup that held this attempt alone, or our own act."""
    HIGH = "high"
    """Another explanation needs an unlikely coincidence."""
    MEDIUM = "medium"
    """The most likely explanation; good enough to start again with a smaller budget."""
    LOW = "low"
    """One explanation among several; nothing is changed because of it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: exactly one of the two is set."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def from_wait_status(cls, wait_status: int) -> Exit:
        """From the status of ``wait4``."""
        code = os.waitstatus_to_exitcode(wait_status)
        return cls(code=code) if code >= 0 else cls(signal=-code)

    @classmethod
    def from_siginfo(cls, code: int, status: int) -> Exit:
        """From ``si_code`` and ``si_status`` of ``waitid``."""
        return cls(code=status) if code == os.CLD_EXITED else cls(signal=status)

    @property
    def status(self) -> int:
        """The exit status as a shell reports it: the code, or 128 + signal."""
        if self.signal is not None:
            return 128 + self.signal
        return self.code or 0

    def __str__(self) -> str:
        if self.signal is not None:
            return f"died of {signal_name(self.signal)}"
        return f"exited with {self.code}"


class StopReason(StrEnum):
    """Why oomproof itself ended an attempt."""

    STOP = "stop"
    """A signal was sent to oomproof and passed on."""
    TIMEOUT = "timeout"
    """The attempt ran longer than it was allowed to."""
    KILL_INSIDE = "kill_inside"
    """A process of the attempt was killed by the OOM killer while the main process ran on."""
    CANCELLED = "cancelled"
    """Another part of the same run made the attempt pointless."""
    NOT_READY = "not_ready"
    """The program did not become ready in the time allowed."""
    CLIENT_DONE = "client_done"
    """The client of a benchmark has ended: the daemon is not needed any longer."""


@dataclass(frozen=True, slots=True)
class StopMark:
    """Our own mark on an attempt that we ended or passed a signal to."""

    signal: int
    reason: StopReason
    seconds_before_end: float
    """Between the mark and the end of the main process."""
    sent: int | None = None
    """What was passed on in its place (``--signal-map``); None: the same."""


class SpawnStep(StrEnum):
    """Where a start failed."""

    FORK = "fork"
    JOIN = "join"
    """Moving into the leaf cgroup."""
    PREPARE = "prepare"
    EXEC = "exec"


@dataclass(frozen=True, slots=True)
class SpawnFailure:
    """The program was never executed."""

    step: SpawnStep
    errno: int


class Scope(StrEnum):
    """Whose kills a counter counts."""

    LEAF = "leaf"
    """The attempt alone."""
    OWN = "own"
    """Everybody in the cgroup that oomproof itself runs in."""
    HOST = "host"
    """Everybody on this kernel (``/proc/vmstat``)."""


@dataclass(frozen=True, slots=True)
class Kills:
    """How the kernel's kill counters moved during an attempt."""

    scope: Scope
    source: str
    """The file that was read before and after."""
    before: int
    after: int
    own_limit_reached: bool | None = None
    """True: the limit of this very cgroup was the reason; False: an ancestor's limit or the
    host's memory was; None: not told."""
    limit_bytes: int | None = None
    group_kill: bool = False
    """The kernel killed the whole cgroup at once (``memory.oom.group``)."""
    alone: bool | None = None
    """True: no foreign process was seen in the cgroup, at the start, at the end and at notifications."""

    @property
    def delta(self) -> int:
        """Never negative: a v1 subtree loses the counts of cgroups that are removed."""
        return max(0, self.after - self.before)


@dataclass(frozen=True, slots=True)
class KernelKill:
    """One line of the kernel log about a process killed for lack of memory."""

    pid: int
    """In the host's pid namespace."""
    comm: str
    constraint: str
    """``CONSTRAINT_MEMCG`` (a cgroup's limit) or ``CONSTRAINT_NONE`` (the host's memory), ..."""
    oom_memcg: str | None
    """The cgroup whose limit was reached."""
    task_memcg: str | None
    """The cgroup of the victim."""


class Readiness(NamedTuple):
    """Whether, and when, the program became ready."""

    target: str
    """As the user wrote it."""
    seconds: float | None
    """Since the start; None: it did not."""
    trouble: str
    """The latest answer that was no, for people."""


class ClientEnd(NamedTuple):
    """How the client of a benchmark ended."""

    exit: Exit | None
    """None: it was never executed, see `spawn_failure`, or has not been collected."""
    duration_s: float
    spawn_failure: SpawnFailure | None = None
    cancelled: bool = False
    """We killed it, because there was nothing left to measure."""
    oom_kills: int | None = None
    """In the client's own cgroup; None: not counted."""

    @property
    def succeeded(self) -> bool:
        """It ended by itself and well; kills inside are judged elsewhere."""
        return not self.cancelled and self.exit == Exit(code=0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was seen of one attempt; `verdict.judge` needs nothing else."""

    exit: Exit | None = None
    """The main process; None only when it was never forked."""
    main_pid: int | None = None
    spawn_failure: SpawnFailure | None = None
    stop: StopMark | None = None
    kills: Kills | None = None
    """None: no counter could be read."""
    kernel_log: tuple[KernelKill, ...] | None = None
    """Kills logged by the kernel during the attempt; None: not read, or not readable."""
    pids_comparable: bool = False
    """Our pids are those of the kernel log (this is the host's pid namespace)."""
    userspace_killer: str | None = None
    """One sentence about a userspace OOM killer's own mark on the cgroup."""
    host_pressure_percent: float | None = None
    """Share of the last ten seconds in which somebody on the host waited for memory; None: not read."""
    in_process: tuple[tuple[str, Confidence], ...] = ()
    """What the rules that were asked for found: sentence and confidence."""
    foreground: bool = False
    """The attempt held the terminal, whose keys reach it without passing through oomproof."""
    kill_noticed_s: float | None = None
    """When a kill was noticed while the main process still ran, since the start."""
    peak_bytes: int | None = None
    peak_of_cgroup: bool = False
    """The peak is the leaf's; else it is the main process's own (``ru_maxrss``), which teaches nothing."""
    duration_s: float = 0.0
    survivors: tuple[int, ...] = ()
    """Processes that could not be killed within the time allowed."""
    leftovers: tuple[str, ...] = ()
    """Sentences about what the attempt left behind."""
    ready: Readiness | None = None
    """None: nobody asked."""
    client: ClientEnd | None = None
    """None: there was none, or it was never started."""
    rate: float | None = None
    """What the benchmark printed, by the rule that was given."""
    rate_trouble: str | None = None
    """Why there is no rate although a rule was given."""

    @property
    def ended_well(self) -> bool:
        """The main process exited with 0 or, where a client had to be served, that did."""
        served = self.stop is not None and self.stop.reason is StopReason.CLIENT_DONE
        if served and self.client is not None:
            return self.client.succeeded
        return self.exit is not None and self.exit.status == 0

    @property
    def oom_kills(self) -> int | None:
        """Kills in the attempt's leaf or the own cgroup; None when not counted."""
        if self.kills is None or self.kills.scope is Scope.HOST:
            return None
        return self.kills.delta


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on an attempt, and the sentences it rests on."""

    verdict: Verdict
    confidence: Confidence
    evidence: tuple[str, ...]
    oom_kills: int | None = None

    @property
    def calls_for_less(self) -> bool:
        """Whether a smaller budget is the answer: lack of memory, and sure enough of it."""
        lack = (Verdict.OOM_KILL, Verdict.OOM_SUSPECTED, Verdict.IN_PROCESS_OOM)
        return self.verdict in lack and self.confidence is not Confidence.LOW


@dataclass(frozen=True, slots=True)
class OwnWords:
    """Rules that were asked for about what a program says itself about a lack of memory."""

    exit_codes: frozenset[int] = frozenset()
    """As a shell reports them: 3 of a JVM with ExitOnOutOfMemoryError, 134 of Node (128 + SIGABRT)."""
    patterns: tuple[str, ...] = ()
    """Regular expressions on stderr, for example ``CUDA out of memory``, ``std::bad_alloc``."""
    full_tmpfs: bool = False
    """SIGBUS while a tmpfs is full: a mapped file there could not grow."""


class SidecarPolicy(NamedTuple):
    """What goes on beside the program, see `sidecar`."""

    ready: Target | None = None
    ready_timeout_s: float | None = None
    client: tuple[str, ...] = ()
    """The command of a benchmark's client, started when the program is ready; when it ends, so does the
    program."""
    rate: RateRule | None = None
    """Of the client; without one, of the program itself."""

    def with_budget(self, expand: Callable[[Sequence[str]], list[str]]) -> SidecarPolicy:
        """With the budget filled in by `expand` wherever a command has a place for it."""
        ready = self.ready and self.ready._replace(command=tuple(expand(self.ready.command)))
        return self._replace(ready=ready, client=tuple(expand(self.client)))


@dataclass(frozen=True, slots=True)
class AttemptPolicy:
    """How one attempt is run."""

    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL when oomproof itself ends an attempt."""
    timeout_s: float | None = None
    settle_s: float = 0.5
    """How long the main process may take to end by itself after a kill inside was noticed."""
    stop_on_kill_inside: bool = True
    """End the attempt when one of its processes was killed and the main process runs on."""
    oom_score_adj: int = 300
    """The child's, unless our own is higher: the kernel shall prefer it to its supervisor."""
    signal_map: dict[int, int] = field(default_factory=dict)
    """Signals to pass on as another one."""
    forward_to_group: bool = False
    """Pass signals to the whole process group, not to the main process alone."""
    own_words: OwnWords | None = None
    """Rules about what the program says itself about a lack of memory."""
    sidecar: SidecarPolicy | None = None


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
    pause_s: float = 0.0
    """Before the next attempt."""


def signal_name(number: int) -> str:
    """``15`` -> ``"SIGTERM"``; real-time signals by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
