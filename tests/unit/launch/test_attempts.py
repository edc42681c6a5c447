"""Every path of the loop, driven by a detector that sees what the test wants it to see."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from oomproof.errors import CommandNotFound, LeafUnavailable
from oomproof.history.model import Outcome
from oomproof.launch import attempt_leaf, attempts
from oomproof.launch.attempts import RunPolicy, RunResult, run_attempts
from oomproof.launch.events import open_events
from oomproof.launch.model import Evidence, Exit, Kills, Scope, SpawnFailure, SpawnStep, StopMark, StopReason
from oomproof.launch.restart import RestartMode, RestartPolicy
from oomproof.launch.signals import Signals

FIRST_BUDGET = 1000


def ended(exit_: Exit, kills: int = 0, **facts: object) -> Evidence:
    evidence = Evidence(exit=exit_, main_pid=1, kills=Kills(Scope.LEAF, "/leaf", 0, kills), duration_s=1.0)
    return replace(evidence, **facts)  # type: ignore[arg-type]


OOM = ended(Exit(signal=9), kills=1)
KILL_INSIDE = ended(Exit(0), kills=1)
KILL_9 = ended(Exit(signal=9))
FAILURE = ended(Exit(1))
SUCCESS = ended(Exit(0))
STOPPED = ended(Exit(signal=15), stop=StopMark(15, StopReason.STOP, 0.0))
NOT_FOUND = ended(Exit(127), spawn_failure=SpawnFailure(SpawnStep.EXEC, 2))


@dataclass
class Detector:
    """Stands for `supervise`: sees one piece of evidence after another."""

    scratch: Path
    script: Sequence[Evidence] = ()
    policy: RunPolicy = field(default_factory=lambda: RunPolicy(use_leaf=False))
    seen: list[tuple[list[str], str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    steps: int = 100
    waiting: bool = False
    meanwhile: Callable[[int], None] = lambda _attempt: None
    on_hook: Callable[[dict[str, str]], None] = lambda _environment: None
    hook_evidence: Evidence = SUCCESS

    def supervise(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        _signals: object,
        told_to_end: Callable[[int], None] = lambda _number: None,
        **_options: object,
    ) -> Evidence:
        if command[0] == "hook":
            self.on_hook(environment)
            return self.hook_evidence
        self.seen.append((list(command), environment["OOMPROOF_BUDGET_BYTES"]))
        self.log.append("spawn")
        self.meanwhile(len(self.seen))
        evidence = self.script[len(self.seen) - 1]
        if evidence.stop is not None:
            told_to_end(evidence.stop.signal)
        return evidence

    def attempt_started(self, attempt: int, budget_bytes: int) -> int:
        self.log.append(f"started {attempt} with {budget_bytes}")
        return attempt * 10

    def flush(self) -> None:
        self.waiting = False

    def told_to_end(self, attempt_id: int | None, signal: int) -> None:
        self.log.append(f"told {attempt_id} to end by {signal}")

    def attempt_ended(self, attempt_id: int | None, outcome: Outcome, *, goes_on: bool = False) -> None:
        self.waiting = goes_on
        self.log.append(f"ended {attempt_id} {outcome.verdict} -> {outcome.next_budget_bytes}")

    def run(self, *script: Evidence) -> RunResult:
        self.script = script
        with open_events(str(self.scratch / "events"), self.said.append) as events:
            return run_attempts(
                ["program", "{budget}"],
                FIRST_BUDGET,
                next_budget=lambda _attempt, budget: budget - self.steps if budget > 600 else None,
                say=self.said.append,
                recorder=self,
                events=events,
                environment={"PATH": "/bin"},
                policy=self.policy,
            )

    def inject(self, rule: str, otherwise: Evidence) -> RunResult:
        """``num_ooms=2,skip=1``: `otherwise` for 1 attempt, then 2 OOM kills, then all goes well."""
        numbers = {name: int(number) for name, number in (part.split("=") for part in rule.split(","))}
        skipped = [otherwise] * numbers.get("skip", 0)
        return self.run(*skipped, *[OOM] * numbers["num_ooms"], SUCCESS)

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in (self.scratch / "events").read_text().splitlines()]


@pytest.fixture
def detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Detector:
    detector = Detector(tmp_path)
    monkeypatch.setattr(attempts, "supervise", detector.supervise)
    return detector


def test_an_oom_kill_leads_to_the_next_budget_and_a_success_ends_the_run(detector: Detector) -> None:
    result = detector.run(OOM, OOM, SUCCESS)
    assert (result.exit_status, result.succeeded, result.budget_bytes, result.gave_up) == (0, True, 800, None)
    assert detector.seen == [(["program", str(size)], str(size)) for size in (1000, 900, 800)]


@pytest.mark.parametrize(
    ("rule", "attempts", "budget", "gave_up"),
    [
        ("num_ooms=0", 1, 1000, False),
        ("num_ooms=2", 3, 800, False),
        ("num_ooms=3", 4, 700, False),
        ("num_ooms=4", 4, 700, True),
        ("num_ooms=2,skip=1", 4, 800, False),
        ("num_ooms=3,skip=4", 8, 700, False),
        ("num_ooms=9,skip=2", 6, 700, True),
        ("num_ooms=1,skip=5", 5, 1000, True),
    ],
)
def test_ooms_injected_after_other_failures(
    detector: Detector, rule: str, attempts: int, budget: int, gave_up: bool
) -> None:
    restart = RestartPolicy(mode=RestartMode.ON_FAILURE, first_pause_s=0.0, early_deaths=5)
    detector.policy = replace(detector.policy, restart=restart)
    result = detector.inject(rule, otherwise=FAILURE)
    assert (len(result.attempts), result.budget_bytes, result.gave_up is not None) == (
        attempts,
        budget,
        gave_up,
    )
    assert result.succeeded is not gave_up
    assert len([line for line in detector.log if line.startswith("ended")]) == attempts


def test_a_different_failure_with_less_is_a_lower_bound_and_the_next_budget_lies_between(
    detector: Detector,
) -> None:
    result = detector.run(OOM, FAILURE, SUCCESS)
    assert [attempt.budget_bytes for attempt in result.attempts] == [1000, 900, 950]
    assert "notice: the program needs more than 900 B" in "\n".join(detector.said)


def test_a_run_that_ends_on_a_refused_budget_ends_with_the_programs_own_status(detector: Detector) -> None:
    detector.policy = replace(detector.policy, retries=1)
    result = detector.run(OOM, ended(Exit(3)))
    assert result.exit_status == 3
    assert result.gave_up is not None
    assert "needs more than 900 B" in result.gave_up


def test_a_budget_without_effect_ends_the_run(detector: Detector) -> None:
    detector.policy = replace(detector.policy, retries=9)
    detector.steps = 500
    dead = replace(OOM, peak_bytes=5000)
    result = detector.run(dead, dead, SUCCESS)
    assert result.gave_up is not None
    assert result.gave_up.startswith("the budget has no effect: with 1000 B and with 500 B alike")
    assert (result.exit_status, detector.events[-2:]) == (137, ["gave_up", "finished"])


def test_an_attempt_is_written_down_before_its_spawn_and_after_its_end(detector: Detector) -> None:
    detector.run(OOM, SUCCESS)
    assert detector.log == [
        *("started 1 with 1000", "spawn", "ended 10 oom_kill -> 900"),
        *("started 2 with 900", "spawn", "ended 20 exited -> None"),
    ]


def test_an_attempt_that_is_asked_to_end_is_marked_before_its_end(detector: Detector) -> None:
    detector.run(STOPPED)
    assert detector.log[-2:] == ["told 10 to end by 15", "ended 10 stopped -> None"]


@pytest.mark.parametrize("script", [(OOM, SUCCESS), (OOM, STOPPED), (FAILURE,), (OOM, OOM, OOM, OOM)])
def test_no_end_waits_for_a_start_that_never_comes(detector: Detector, script: Sequence[Evidence]) -> None:
    waiting: list[bool] = []
    detector.meanwhile = lambda _attempt: waiting.append(detector.waiting)
    detector.run(*script)
    assert waiting == [False, *[True] * (len(script) - 1)], "written together with the next start"
    assert not detector.waiting


def test_an_end_does_not_wait_for_a_pause_or_a_hook(detector: Detector) -> None:
    waiting: list[bool] = []
    detector.meanwhile = lambda _attempt: waiting.append(detector.waiting)
    detector.on_hook = lambda _environment: waiting.append(detector.waiting)
    detector.policy = replace(detector.policy, restart=SOON, on_oom_exec=("hook",))
    detector.run(FAILURE, OOM, SUCCESS)
    assert waiting == [False] * 4


def test_one_line_an_attempt_says_verdict_evidence_and_budgets(detector: Detector) -> None:
    detector.run(OOM, SUCCESS)
    first, second = detector.said
    assert first.startswith(
        "attempt 1: oom_kill (certain) after 1.0 s: the main process died of SIGKILL; .../leaf"
    )
    assert first.endswith("budget 1000 B -> 900 B")
    assert second.endswith("budget 900 B")


def test_retries_are_counted_after_the_first_attempt(detector: Detector) -> None:
    result = detector.run(OOM, OOM, OOM, OOM)
    assert (result.exit_status, len(result.attempts)) == (137, 4)
    assert result.gave_up == "4 attempts ran out of memory, the last with 700 B"
    assert detector.events[-3:] == ["attempt_ended", "gave_up", "finished"]


def test_without_retries_the_first_oom_is_the_last(detector: Detector) -> None:
    detector.policy = replace(detector.policy, retries=0)
    assert len(detector.run(OOM).attempts) == 1


def test_when_no_smaller_budget_is_left_the_run_gives_up(detector: Detector) -> None:
    detector.policy = replace(detector.policy, retries=9)
    result = detector.run(*[OOM] * 6)
    assert result.gave_up == "no budget below 600 B is worth trying"
    assert result.attempts[-1].budget_bytes == 600


def test_the_exit_status_for_lack_of_memory_can_be_chosen(detector: Detector) -> None:
    detector.policy = replace(detector.policy, retries=0, oom_exit_status=75)
    assert detector.run(OOM).exit_status == 75


@pytest.mark.parametrize(("accepted", "status", "count"), [(False, 0, 2), (True, 0, 1)])
def test_exit_0_with_a_kill_inside_is_a_failure_unless_accepted(
    detector: Detector, accepted: bool, status: int, count: int
) -> None:
    detector.policy = replace(detector.policy, ok_with_kills=accepted)
    result = detector.run(KILL_INSIDE, SUCCESS)
    assert (result.exit_status, len(result.attempts)) == (status, count)


@pytest.mark.parametrize(("evidence", "status"), [(KILL_9, 137), (FAILURE, 1), (SUCCESS, 0), (STOPPED, 143)])
def test_other_ends_are_not_tried_again_and_keep_their_status(
    detector: Detector, evidence: Evidence, status: int
) -> None:
    result = detector.run(evidence)
    assert (result.exit_status, len(result.attempts), result.gave_up) == (status, 1, None)


def test_a_low_suspicion_changes_nothing(detector: Detector) -> None:
    shared = Kills(Scope.OWN, "/own", 0, 1, alone=False)
    assert len(detector.run(replace(SUCCESS, kills=shared)).attempts) == 1


def test_what_could_not_be_started_is_recorded_and_raised(detector: Detector) -> None:
    with pytest.raises(CommandNotFound, match=r"'program' was not found in PATH \(/bin\)"):
        detector.run(NOT_FOUND)
    assert detector.events == ["attempt_started", "attempt_ended", "finished"]
    assert detector.log[-1] == "ended 10 not_started -> None"


def test_a_stop_before_the_first_attempt_starts_nothing(detector: Detector) -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        result = run_attempts(
            ["program"],
            FIRST_BUDGET,
            next_budget=lambda _attempt, _budget: None,
            say=detector.said.append,
            policy=detector.policy,
            signals=signals,
        )
        assert signals.stop_requested() == signal.SIGTERM, "kept for what else the caller has to do"
    assert (result.exit_status, result.attempts) == (143, ())
    assert detector.seen == []


def test_a_stop_that_comes_too_late_for_the_program_prevents_the_next_attempt(detector: Detector) -> None:
    detector.meanwhile = lambda _attempt: os.kill(os.getpid(), signal.SIGINT)
    result = detector.run(OOM, SUCCESS)
    assert (result.exit_status, len(result.attempts)) == (130, 1)


def test_a_limit_without_a_leaf_is_refused_before_anything_starts(
    detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_purpose: str, **_options: object) -> None:
        raise LeafUnavailable("read-only")

    monkeypatch.setattr(attempt_leaf, "make_leaf", refuse)
    detector.policy = RunPolicy(limit_bytes=1)
    with pytest.raises(LeafUnavailable, match="read-only"):
        detector.run(SUCCESS)
    assert detector.log == []


def test_without_a_leaf_the_reason_is_said_once(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_purpose: str, **_options: object) -> None:
        raise LeafUnavailable("cgroupfs is mounted read-only")

    monkeypatch.setattr(attempt_leaf, "make_leaf", refuse)
    detector.policy = RunPolicy()
    detector.run(OOM, SUCCESS)
    assert len([line for line in detector.said if "cgroupfs is mounted read-only" in line]) == 1


def test_a_hook_runs_after_each_lack_of_memory_with_the_facts(detector: Detector) -> None:
    environments: list[dict[str, str]] = []
    detector.on_hook = environments.append
    detector.policy = replace(detector.policy, on_oom_exec=("hook",))
    assert detector.run(OOM, SUCCESS).succeeded
    (environment,) = environments
    facts = {
        name: environment[f"OOMPROOF_{name}"] for name in ("VERDICT", "BUDGET_BYTES", "NEXT_BUDGET_BYTES")
    }
    assert facts == {"VERDICT": "oom_kill", "BUDGET_BYTES": "1000", "NEXT_BUDGET_BYTES": "900"}
    assert environment["OOMPROOF_PEAK_BYTES"] == "", "unknown"


def test_a_hook_that_fails_is_a_warning_only(detector: Detector) -> None:
    detector.policy = replace(detector.policy, on_oom_exec=("hook",))
    detector.hook_evidence = FAILURE
    assert detector.run(OOM, SUCCESS).succeeded
    assert any("warning: the command to run after an OOM failed" in line for line in detector.said)


def test_a_stop_that_reaches_the_hook_ends_the_run(detector: Detector) -> None:
    detector.policy = replace(detector.policy, on_oom_exec=("hook",))
    detector.hook_evidence = STOPPED
    assert detector.run(OOM, SUCCESS).exit_status == 143


# -- starts after other ends than a lack of memory ------------------------------------------

SOON = RestartPolicy(mode=RestartMode.ON_FAILURE, first_pause_s=0.01, healthy_s=10.0, early_deaths=3)


def test_a_failure_is_started_again_with_the_same_budget_where_asked_for(detector: Detector) -> None:
    detector.policy = replace(detector.policy, restart=SOON)
    result = detector.run(FAILURE, KILL_9, SUCCESS)
    assert (result.exit_status, result.budget_bytes, len(result.attempts)) == (0, FIRST_BUDGET, 3)
    assert [attempt.pause_s for attempt in result.attempts] == [0.01, 0.02, 0.0]


def test_a_crash_loop_ends(detector: Detector) -> None:
    detector.policy = replace(detector.policy, restart=SOON)
    result = detector.run(FAILURE, FAILURE, FAILURE)
    assert (result.exit_status, result.gave_up) == (1, "3 early deaths in a row are a crash loop")


def test_a_long_life_forgives_early_deaths(detector: Detector) -> None:
    detector.policy = replace(detector.policy, restart=SOON)
    old = replace(FAILURE, duration_s=11.0)
    result = detector.run(FAILURE, FAILURE, old, FAILURE, FAILURE, SUCCESS)
    assert result.succeeded


def test_restarts_do_not_use_up_the_retries_of_a_lack_of_memory(detector: Detector) -> None:
    detector.policy = replace(detector.policy, restart=SOON, retries=2)
    result = detector.run(FAILURE, OOM, FAILURE, OOM, SUCCESS)
    assert (result.succeeded, result.budget_bytes) == (True, 800)


def test_always_starts_again_after_success_until_stopped(detector: Detector) -> None:
    always = replace(SOON, mode=RestartMode.ALWAYS, healthy_s=0.5)
    detector.policy = replace(detector.policy, restart=always)
    detector.run(SUCCESS, SUCCESS, SUCCESS, SUCCESS, STOPPED)
    assert len(detector.seen) == 5


def test_a_service_that_is_restarted_for_years_is_counted_and_not_remembered(detector: Detector) -> None:
    always = replace(SOON, mode=RestartMode.ALWAYS, healthy_s=0.5)
    detector.policy = replace(detector.policy, restart=always)
    result = detector.run(*[SUCCESS, FAILURE] * 100, STOPPED)
    assert len(result.attempts) <= always.early_deaths + 3
    assert [attempt.number for attempt in result.attempts][-4:] == [198, 199, 200, 201]
    assert detector.log.count("spawn") == 201
    last = json.loads((detector.scratch / "events").read_text().splitlines()[-1])
    assert (last["event"], last["attempts"]) == ("finished", 201)


def test_a_stop_ends_the_pause_before_a_restart(detector: Detector) -> None:
    detector.policy = replace(detector.policy, restart=replace(SOON, first_pause_s=30.0))
    detector.meanwhile = lambda _attempt: os.kill(os.getpid(), signal.SIGTERM)
    begun = time.monotonic()
    assert detector.run(FAILURE).exit_status == 143
    assert time.monotonic() - begun < 10
