"""What a death means: a pure function from evidence to verdict.

The order, first match wins:

1.  never started; our own mark (asked to stop, time-out): never called an OOM;
2.  the kill counter of the attempt's own leaf: certain, whatever the main process made of it;
    then, in a benchmark, the end of the client, which is why we ended the daemon;
3.  the kernel log, where it names the victim;
4.  the kill counter of a cgroup shared with others, as far as other victims can be ruled out;
5.  a userspace OOM killer's mark, the host's counter;
6.  rules about the program's own words, where they were asked for;
7.  SIGTERM by a stranger while the host was short of memory: a suspicion of low confidence, which
    is why the program's own words come before it;
8.  SIGKILL without evidence: unknown, and nothing is made smaller because of it.

Verdict and exit status are separate: exit 0 with a kill inside is an OOM kill that exited 0.
"""

from __future__ import annotations

import signal

from oomproof.launch.benchmark import beside_sentences, client_ended
from oomproof.launch.model import (
    Confidence,
    Evidence,
    Exit,
    Judgement,
    KernelKill,
    Kills,
    Scope,
    StopMark,
    StopReason,
    Verdict,
    signal_name,
)
from oomproof.units import format_size

INTERRUPT_WINDOW_S = 30.0
"""A program that lives on for longer than this after SIGINT, SIGQUIT or SIGHUP did not end by it."""

PRESSURE_PERCENT = 10.0
"""Far above the 0 of a host with memory to spare; systemd-oomd by default acts at 60."""

_SHELL_SIGKILL = 128 + signal.SIGKILL
_SHELL_SIGTERM = 128 + signal.SIGTERM


def judge(evidence: Evidence) -> Judgement:
    """The verdict on one attempt."""
    exit_ = evidence.exit
    if evidence.spawn_failure is not None or exit_ is None:
        return _judgement(evidence, Verdict.NOT_STARTED, Confidence.CERTAIN, [])
    facts = [_exit_sentence(exit_), *beside_sentences(evidence)]
    for rule in _RULES:
        found = rule(evidence, exit_)
        if found is not None:
            verdict, confidence, sentences = found
            return _judgement(evidence, verdict, confidence, facts + sentences)
    return _without_oom(evidence, exit_, facts)


_Finding = tuple[Verdict, Confidence, list[str]] | None


def _judgement(
    evidence: Evidence, verdict: Verdict, confidence: Confidence, sentences: list[str]
) -> Judgement:
    if evidence.spawn_failure is not None:
        failure = evidence.spawn_failure
        sentences = [*sentences, f"the start failed in {failure.step.value} with errno {failure.errno}"]
    return Judgement(verdict, confidence, tuple(sentences), evidence.oom_kills)


def _stopped(evidence: Evidence, exit_: Exit) -> _Finding:
    stop = evidence.stop
    if stop is None:
        # Keys at the terminal reach the program without passing through us.
        if evidence.foreground and exit_.status in (128 + signal.SIGINT, 128 + signal.SIGQUIT):
            return Verdict.STOPPED, Confidence.HIGH, ["the terminal, which the program held, sends it"]
        return None
    if stop.reason in (StopReason.KILL_INSIDE, StopReason.CLIENT_DONE):
        return (
            None  # our answer to a kill, not its cause; the end of a client, during which one may have been
        )
    name, ago = signal_name(stop.signal), f"{stop.seconds_before_end:.3f} s before the end"
    if stop.reason is StopReason.TIMEOUT:
        sentences = [f"its time was up: oomproof sent {name} {ago}"]
    elif stop.reason is StopReason.NOT_READY:
        sentences = [f"its time to become ready was up: oomproof sent {name} {ago}"]
    elif stop.reason is StopReason.CANCELLED:
        sentences = [f"oomproof cancelled it with {name} {ago}"]
    else:
        if not _ends_by(stop, exit_, evidence):
            return None
        sentences = [f"oomproof was asked to end it and passed on {name} {ago}"]
    if evidence.oom_kills:
        sentences.append(_counter_sentence(evidence.kills))
    verdict = Verdict.NOT_READY if stop.reason is StopReason.NOT_READY else Verdict.STOPPED
    return verdict, Confidence.CERTAIN, sentences


def _ends_by(stop: StopMark, exit_: Exit, evidence: Evidence) -> bool:
    """Whether a signal that was passed on is what ended the program.

    SIGTERM always counts as the wish to end it. A program may use the others for other ends:
    SIGHUP to load its configuration again, SIGQUIT to print its threads, SIGINT to cancel.
    """
    numbers = {stop.signal, stop.signal if stop.sent is None else stop.sent}
    if signal.SIGTERM in numbers or exit_.status - 128 in numbers:
        return True
    if stop.seconds_before_end > INTERRUPT_WINDOW_S:
        return False
    return signal.SIGINT in numbers or (not evidence.oom_kills and exit_.status == 0)


def _killed_in_leaf(evidence: Evidence, exit_: Exit) -> _Finding:  # noqa: ARG001  the counter alone decides
    kills = evidence.kills
    if kills is None or kills.scope is not Scope.LEAF or not kills.delta:
        return None
    sentences = [_counter_sentence(kills)]
    if kills.own_limit_reached:
        sentences.append(f"the leaf's own limit of {format_size(kills.limit_bytes)} was reached")
    elif kills.own_limit_reached is False:
        sentences.append("not the leaf's own limit but one above it, or the host's memory, was the reason")
    return Verdict.OOM_KILL, Confidence.CERTAIN, sentences + _details(evidence)


def _named_in_log(evidence: Evidence, exit_: Exit) -> _Finding:  # noqa: ARG001  the log alone decides
    if not evidence.pids_comparable or evidence.main_pid is None:
        return None
    named = [kill for kill in evidence.kernel_log or () if kill.pid == evidence.main_pid]
    if not named:
        return None
    sentences = [_log_sentence(kill) for kill in named]
    return Verdict.OOM_KILL, Confidence.CERTAIN, sentences + _details(evidence, log=False)


def _killed_nearby(evidence: Evidence, exit_: Exit) -> _Finding:
    kills = evidence.kills
    if kills is None or kills.scope is not Scope.OWN or not kills.delta:
        return None
    if _all_victims_foreign(evidence, exit_):
        return None
    sentences = [_counter_sentence(kills), *_details(evidence)]
    if kills.alone:
        sentences.append("no foreign process was seen in that cgroup, but one may have come and gone")
    else:
        sentences.append("other processes share that cgroup and may have been the victims")
    if exit_.signal == signal.SIGKILL or exit_.code == _SHELL_SIGKILL:
        return Verdict.OOM_KILL, Confidence.HIGH, sentences
    confidence = Confidence.LOW if exit_.code == 0 and not kills.alone else Confidence.MEDIUM
    return Verdict.OOM_SUSPECTED, confidence, sentences


def _all_victims_foreign(evidence: Evidence, exit_: Exit) -> bool:
    """The log names as many victims as the counter counted, and a SIGKILLed main is none of them."""
    if not evidence.pids_comparable or evidence.kernel_log is None or evidence.kills is None:
        return False
    return exit_.signal == signal.SIGKILL and len(evidence.kernel_log) >= evidence.kills.delta


def _killed_from_userspace(evidence: Evidence, exit_: Exit) -> _Finding:  # noqa: ARG001  the mark decides
    if evidence.userspace_killer is None:
        return None
    return Verdict.OOM_KILL, Confidence.HIGH, [evidence.userspace_killer]


def _killed_on_host(evidence: Evidence, exit_: Exit) -> _Finding:
    kills = evidence.kills
    if exit_.signal != signal.SIGKILL or kills is None or kills.scope is not Scope.HOST or not kills.delta:
        return None
    if _all_victims_foreign(evidence, exit_):
        return None
    sentence = "that file counts for the whole host, so the victim may have been another"
    return Verdict.OOM_SUSPECTED, Confidence.MEDIUM, [_counter_sentence(kills), sentence]


def _in_process(evidence: Evidence, exit_: Exit) -> _Finding:  # noqa: ARG001  found by the rules already
    if not evidence.in_process:
        return None
    order = list(Confidence)
    best = min((confidence for _, confidence in evidence.in_process), key=order.index)
    return Verdict.IN_PROCESS_OOM, best, [sentence for sentence, _ in evidence.in_process]


def _terminated_under_pressure(evidence: Evidence, exit_: Exit) -> _Finding:
    pressure = evidence.host_pressure_percent
    if exit_.status != _SHELL_SIGTERM or pressure is None or pressure < PRESSURE_PERCENT:
        return None
    sentence = (
        f"somebody on the host waited for memory in {pressure:.0f} % of the last 10 s, and userspace killers"
        " send SIGTERM; so may anybody"
    )
    return Verdict.OOM_SUSPECTED, Confidence.LOW, [sentence]


_RULES = (
    *(_stopped, _killed_in_leaf, client_ended),
    *(_named_in_log, _killed_nearby, _killed_from_userspace, _killed_on_host),
    *(_in_process, _terminated_under_pressure),
)


def _without_oom(evidence: Evidence, exit_: Exit, facts: list[str]) -> Judgement:
    kills = evidence.kills
    counted = kills is not None and kills.scope is not Scope.HOST
    if kills is not None and not kills.delta:
        facts.append(f"{kills.source}: oom_kill stayed at {kills.after}")
    elif kills is not None:
        facts += [_counter_sentence(kills), "none of those victims was of this attempt"]
    else:
        facts.append("no counter of OOM kills can be read here")
    if exit_.signal == signal.SIGKILL:
        facts.append("somebody sent SIGKILL, but not the OOM killer as far as can be told")
        confidence = Confidence.CERTAIN if counted else Confidence.LOW
        return _judgement(evidence, Verdict.KILLED_UNKNOWN, confidence, facts)
    if exit_.code == _SHELL_SIGKILL:
        facts.append("137 is how a shell reports that SIGKILL ended its child, whoever sent it")
    verdict = Verdict.EXITED if exit_.signal is None else Verdict.SIGNALLED
    return _judgement(evidence, verdict, Confidence.CERTAIN if counted else Confidence.HIGH, facts)


def _exit_sentence(exit_: Exit) -> str:
    return f"the main process {exit_}"


def _counter_sentence(kills: Kills | None) -> str:
    if kills is None:
        return "no counter of OOM kills can be read here"
    return f"{kills.source}: oom_kill rose from {kills.before} to {kills.after}"


def _details(evidence: Evidence, *, log: bool = True) -> list[str]:
    kills = evidence.kills
    sentences = []
    if kills is not None and kills.group_kill:
        sentences.append("the kernel killed the whole cgroup at once (memory.oom.group)")
    victim = evidence.exit is not None and evidence.exit.signal == signal.SIGKILL
    if evidence.kill_noticed_s is not None and not victim:
        sent = f" and was sent {signal_name(evidence.stop.signal)}" if evidence.stop is not None else ""
        sentences.append(
            f"the main process ran on after the kill noticed at {evidence.kill_noticed_s:.3f} s{sent}"
        )
    if log:
        sentences += [_log_sentence(kill) for kill in evidence.kernel_log or ()]
    return sentences


def _log_sentence(kill: KernelKill) -> str:
    where = f" against the limit of {kill.oom_memcg}" if kill.oom_memcg else ""
    return f"kernel log: killed process {kill.pid} ({kill.comm}), {kill.constraint}{where}"
