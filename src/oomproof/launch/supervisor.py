"""Runs one attempt to its end and returns what was seen; sleeps whenever nothing happens.

One loop waits for signals, for the child's report about ``execve`` and for the kernel's
notification about OOM kills. Time-outs exist only while something is pending, so an idle
supervisor is never woken. Decisions about the death are not made here: `verdict`.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil

from oomproof.launch import process_control
from oomproof.launch.beside import Beside
from oomproof.launch.counters import Counters, counters_for, host_pressure_percent, peak_of
from oomproof.launch.guardian import MARK_VARIABLE, Guardian
from oomproof.launch.kernel_log import KernelLog, pids_are_the_hosts
from oomproof.launch.kill_watch import KillWatch
from oomproof.launch.leftovers import SharedMemory, userspace_killer
from oomproof.launch.model import (
    AttemptPolicy,
    Evidence,
    Exit,
    SpawnFailure,
    SpawnStep,
    StopMark,
    StopReason,
)
from oomproof.launch.own_words import StderrRelay, own_words
from oomproof.launch.relay import Relays
from oomproof.launch.signals import STOPS, Signals
from oomproof.launch.spawn import Child, Start, read_report, spawn
from oomproof.launch.terminal import Terminal
from oomproof.leaf import Leaf

KILL_TIMEOUT_S = 10.0
"""How long killed processes may take to go away before they are called survivors."""

_GIVE_WAY = frozenset({StopReason.KILL_INSIDE, StopReason.CLIENT_DONE})
_JOB_CONTROL = frozenset({signal.SIGTSTP, signal.SIGCONT})
_SHELL_SIGTERM = 128 + signal.SIGTERM


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: Signals,
    *,
    leaf: Leaf | None = None,
    guardian: Guardian | None = None,
    policy: AttemptPolicy | None = None,
    told_to_end: Callable[[int], None] = lambda _number: None,
    say: Callable[[str], None] = lambda _line: None,
    beside: Beside | None = None,
) -> Evidence:
    """Run `command` in `leaf` (or in the own cgroup) until it and all it started are gone.

    `beside` is what goes on beside it, for example until it is ready.
    `guardian` is that of the leaf; without one the attempt gets its own, which PID 1 does without.
    `told_to_end` is called at once with each signal that asks the program to end, `say` with what
    somebody should know while the program runs.

    Signals that `signals` catches meanwhile are passed on. Never raises for what the program
    does; whatever happens here, nothing of the attempt is left running.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**environment, **(beside.environment if beside else {})}
    if leaf is None:
        environment = {**environment, MARK_VARIABLE: mark}
    process_control.become_subreaper()
    spare = {os.getpid(), *process_control.children()}
    own_guardian = None
    if guardian is None and os.getpid() != 1:
        try:
            own_guardian = Guardian.start(leaf, mark)
        except OSError as error:
            return Evidence(spawn_failure=SpawnFailure(SpawnStep.FORK, error.errno or 0))
        spare.add(own_guardian.pid)
    try:
        attempt = _Attempt(
            signals,
            leaf,
            policy or AttemptPolicy(),
            spare=frozenset(spare),
            told_to_end=told_to_end,
            say=say,
            beside=beside or Beside(),
        )
        return attempt.run(command, environment)
    finally:
        if own_guardian is not None:
            own_guardian.dismiss()


class _Attempt:
    """The state of one attempt between its start and its end."""

    def __init__(
        self,
        signals: Signals,
        leaf: Leaf | None,
        policy: AttemptPolicy,
        *,
        spare: frozenset[int],
        told_to_end: Callable[[int], None],
        say: Callable[[str], None],
        beside: Beside,
    ) -> None:
        self._signals = signals
        self._leaf = leaf
        self._policy = policy
        self._spare = spare
        self._told_to_end = told_to_end
        self._say = say
        self._counters: Counters | None = counters_for(leaf)
        self._kills = KillWatch(self._counters)
        self._terminal = Terminal.find()
        words = policy.own_words
        self._beside = beside
        self._stderr = StderrRelay(words.patterns) if words and words.patterns else None
        streams = {1: beside.stdout, 2: self._stderr}
        self._relays = Relays({number: relay for number, relay in streams.items() if relay is not None})
        self._log = KernelLog.open()
        self._shared_memory = SharedMemory()
        self._foreground = False
        self._started = time.monotonic()
        self._due: dict[str, float] = {}
        self._stop: tuple[tuple[int, int], StopReason, float] | None = None
        """(received, passed on), why, when."""
        self._failure: SpawnFailure | None = None
        self._report: Child | None = None
        self._main = 0
        self._ended = False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> Evidence:
        """Spawn, wait for the end, clean up, and tell."""
        # In a pipeline or a script the others need the terminal too: there the program gets it
        # when it asks, and the keys reach it through us.
        ours = self._terminal is not None and self._terminal.is_ours()
        self._foreground = ours and process_control.alone_in_group()
        start = Start(
            command,
            environment,
            join_path=self._leaf.join_path if self._leaf else None,
            oom_score_adj=self._policy.oom_score_adj,
            terminal=self._terminal if self._foreground else None,
            streams=self._relays.streams(),
        )
        child = spawn(start, self._signals)
        self._relays.started()
        try:
            if isinstance(child, SpawnFailure):
                return Evidence(spawn_failure=child)
            self._main = child.pid
            try:
                self._wait(child)
            finally:
                survivors, wait_status, max_rss = self._end_everything()
                self._relays.drain()
            return self._tell(survivors, wait_status, max_rss)
        finally:
            for held in (self._terminal, self._log, self._stderr):
                if held is not None:
                    held.close()

    # -- waiting --------------------------------------------------------------------------

    def _wait(self, child: Child) -> None:
        """Until the main process has ended."""
        self._report = child
        poller = select.poll()
        poller.register(self._signals.fd, select.POLLIN)
        poller.register(child.report_fd, select.POLLIN)
        self._kills.begin()
        if self._policy.timeout_s is not None:
            self._due["timeout"] = self._started + self._policy.timeout_s
        try:
            # The child may have ended, and signals may have come, before we look.
            self._reap()
            while not self._ended:
                self._turn(poller)
            self._read_report()
        finally:
            if self._report is not None:
                os.close(self._report.report_fd)
            self._kills.end()

    def _turn(self, poller: select.poll) -> None:
        """Sleep until something happens, then see to it."""
        wanted = dict([*self._kills.wants(), *self._relays.wants(), *self._beside.wants()])
        for fd, mask in wanted.items():
            poller.register(fd, mask)
        ready = {fd for fd, _ in poller.poll(self._poll_timeout_ms())}
        for fd in wanted:
            poller.unregister(fd)
        self._relays.turn(ready)
        if self._report is not None and self._report.report_fd in ready:
            poller.unregister(self._report.report_fd)
            self._read_report()
        if self._kills.turn(ready):
            self._kill_noticed()
        if self._signals.fd in ready:
            self._handle_signals()
        if not self._ended:
            self._beside.turn(ready)
            if self._beside.wish is not None and "kill" not in self._due:
                self._end_for(self._beside.wish)
        self._act_on_time()

    def _read_report(self) -> None:
        if self._report is not None:
            child, self._report = self._report, None
            self._failure = read_report(child)
            if self._failure is None:
                self._beside.begin(self._started)

    def _poll_timeout_ms(self) -> int | None:
        others = (self._kills.due(), self._beside.due())
        due = [*self._due.values(), *(when for when in others if when is not None)]
        if not due:
            return None
        return max(0, ceil((min(due) - time.monotonic()) * 1000))

    def _handle_signals(self) -> None:
        for number in self._signals.read():
            if number == signal.SIGCHLD:
                self._reap()
            elif self._ended:
                self._signals.keep(number)
            else:
                self._forward(number)

    def _reap(self) -> None:
        """Collect all children that ended, but leave the main process for the clean-up.

        As long as it is not collected its pid, which names its process group, is not used again.
        """
        options = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return
            if info is None:
                return
            pid = info.si_pid
            if info.si_code == os.CLD_STOPPED:
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
                if pid == self._main:
                    self._stopped(info.si_status)
            elif pid == self._main:
                self._ended = True
                return
            else:
                self._beside.child_ended(pid, Exit.from_siginfo(info.si_code, info.si_status))
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    # -- signals and the terminal ---------------------------------------------------------

    def _forward(self, number: int) -> None:
        received, number = number, self._policy.signal_map.get(number, number)
        if received in STOPS or number in STOPS:
            self._mark(received, StopReason.STOP, sent=number)
            self._told_to_end(signal.SIGTERM if signal.SIGTERM in (received, number) else received)
        if number == signal.SIGCONT:
            self._continue()
        self._send(number, to_group=number in _JOB_CONTROL or self._policy.forward_to_group)
        if self._beside.has_client and (received in STOPS or number in STOPS):
            # A benchmark is no service: who wants it to end does not wait for its daemon's pleasure.
            self._end_for(StopReason.CANCELLED, received)

    def _send(self, number: int, *, to_group: bool) -> None:
        if to_group and process_control.send(-self._main, number):
            return
        # Not in the group that we made for it; not collected yet, so the pid is still its own.
        process_control.send(self._main, number)

    def _send_to_all(self, number: int) -> None:
        """To the main process' group and, should it have left that, to itself."""
        process_control.send(-self._main, number)
        if process_control.group_of(self._main) != self._main:
            process_control.send(self._main, number)

    def _mark(self, number: int, reason: StopReason, sent: int | None = None) -> None:
        """Remember why it will end: the latest reason, but SIGTERM from outside stays, and our answer
        to a kill and the end of a client give way to all others."""
        before = self._stop
        told_to_end = before is not None and before[1] is StopReason.STOP and signal.SIGTERM in before[0]
        if told_to_end or (before is not None and reason in _GIVE_WAY):
            return
        self._stop = ((number, number if sent is None else sent), reason, time.monotonic())

    def _stopped(self, number: int) -> None:
        """The program was stopped (Ctrl-Z): stop as well, so that our shell sees it."""
        if self._terminal is None or os.getpid() == 1:
            return
        if number in (signal.SIGTTIN, signal.SIGTTOU) and self._terminal.is_ours():
            self._continue()
            self._send(signal.SIGCONT, to_group=True)
            return
        if self._terminal.foreground() == self._main:
            self._terminal.give_to(os.getpgrp())
        elif number == signal.SIGSTOP:
            return  # a debugger or an administrator: nobody waits at the terminal
        self._signals.stop_own_group()

    def _continue(self) -> None:
        """Give the program the terminal, if it is ours to give."""
        if self._terminal is not None and self._terminal.is_ours():
            self._terminal.give_to(self._main)
            self._foreground = True

    # -- kills inside, time-outs ----------------------------------------------------------

    def _kill_noticed(self) -> None:
        assert self._counters is not None  # noqa: S101  who else noticed
        now = time.monotonic()
        if self._policy.stop_on_kill_inside and self._counters.are_ours():
            self._due["settled"] = now + self._policy.settle_s
            if self._leaf is not None:
                self._beside.cancel()  # in a cgroup that both share the victim may be the client
        else:
            self._due["tell"] = now + self._policy.settle_s

    def _act_on_time(self) -> None:
        now = time.monotonic()
        for what, when in list(self._due.items()):
            if when <= now and not self._ended:
                del self._due[what]
                self._act(what)

    def _act(self, what: str) -> None:
        if what == "kill":
            self._send_to_all(signal.SIGKILL)
            return
        if what == "tell":
            where = self._counters.directory if self._counters else ""
            self._say(f"notice: the OOM killer struck in {where}, and the program runs on")
        else:
            self._end_for(StopReason.TIMEOUT if what == "timeout" else StopReason.KILL_INSIDE)

    def _end_for(self, reason: StopReason, received: int = signal.SIGTERM) -> None:
        """Ask it to end, and kill it if it has not done so when its grace is over."""
        self._mark(received, reason, sent=signal.SIGTERM)
        self._beside.cancel()
        self._due.pop("timeout", None)
        self._send_to_all(signal.SIGTERM)
        self._send_to_all(signal.SIGCONT)
        self._due["kill"] = time.monotonic() + self._policy.grace_s

    # -- the end --------------------------------------------------------------------------

    def _end_everything(self) -> tuple[list[int], int, int]:
        """Kill all that is left; survivors, the main process' wait status and its largest RSS."""
        self._end = time.monotonic()
        self._send_to_all(signal.SIGKILL)
        survivors: set[int] = set()
        self._beside.cancel()
        if self._leaf is not None:
            survivors.update(self._leaf.kill_all(KILL_TIMEOUT_S))
        _, wait_status, usage = os.wait4(self._main, 0)
        survivors.update(process_control.kill_descendants(self._spare, KILL_TIMEOUT_S))
        survivors.update(self._beside.end_everything(KILL_TIMEOUT_S))
        if self._terminal is not None:
            self._terminal.take_back_from(self._main)
        return sorted(survivors), wait_status, usage.ru_maxrss * 1024

    def _tell(self, survivors: list[int], wait_status: int, max_rss: int) -> Evidence:
        stop = None
        if self._stop is not None:
            (received, sent), reason, when = self._stop
            stop = StopMark(received, reason, max(0.0, self._end - when), sent)
        peak = peak_of(self._leaf)
        exit_ = Exit.from_wait_status(wait_status)
        kills = self._counters.finish() if self._counters else None
        noticed = self._kills.noticed_at
        ambiguous = exit_.signal == signal.SIGKILL or (kills is not None and kills.delta > 0)
        seen = Evidence(
            exit=exit_,
            main_pid=self._main,
            spawn_failure=self._failure,
            stop=stop,
            kills=kills,
            kernel_log=self._log.kills_in(self._leaf) if self._log and ambiguous else None,
            pids_comparable=pids_are_the_hosts(),
            userspace_killer=userspace_killer(self._leaf.cgroups()) if self._leaf else None,
            host_pressure_percent=host_pressure_percent() if exit_.status == _SHELL_SIGTERM else None,
            in_process=own_words(self._policy.own_words, exit_, self._stderr),
            foreground=self._foreground,
            kill_noticed_s=noticed - self._started if noticed is not None else None,
            peak_bytes=max_rss if peak is None else peak,
            peak_of_cgroup=peak is not None,
            duration_s=self._end - self._started,
            survivors=tuple(survivors),
            leftovers=self._shared_memory.new_files(),
        )
        return self._beside.add_to(seen)
