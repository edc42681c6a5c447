"""What run, bench and entrypoint share: a program started with a planned budget.

Not covered: their settings, see `settings`; the attempts themselves, see `oomproof.launch`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oomproof import config
from oomproof.cli import output
from oomproof.cli.learning import Course, course_of, record_of, run_of
from oomproof.cli.planning import Planned
from oomproof.cli.settings import BENCH, COMMAND, LAUNCHING, MEASURING, NOT_FROM_RECIPE
from oomproof.config import Setting
from oomproof.errors import ConfigError, UsageError
from oomproof.history.model import OpenAttempt
from oomproof.history.record import Record
from oomproof.launch.attempts import RunPolicy, RunResult, run_attempts
from oomproof.launch.events import EventWriter
from oomproof.launch.interrupted import end_of, judge_open
from oomproof.launch.model import AttemptPolicy, OwnWords, SidecarPolicy
from oomproof.launch.restart import RestartPolicy
from oomproof.launch.signals import Signals
from oomproof.launch.spawn import executable_problem
from oomproof.launch.telling import describe
from oomproof.plan.budget import NOT_PROBED
from oomproof.plan.model import Plan
from oomproof.units import MIB, format_size

if TYPE_CHECKING:
    from oomproof.recipes.model import Recipe
    from oomproof.recipes.start import Starts


LEAST_LIMIT_BYTES = MIB
"""What was forked took 0.5 MiB in its cgroup before it could execute any program (Linux 6.18, x86-64)."""


def add_command(parser: argparse.ArgumentParser, help: str = "the program and its arguments") -> None:
    """The command line of the program, after ``--`` or from the first word that is no flag."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help=help)


EXIT_CODES = """exit codes:
  the program's own, or 128 + N if signal N ended it
  137   memory ran out to the end (--oom-exit-code)
  124   it was not ready in time (--ready-timeout)
  2     the settings make no sense
  125   oomproof itself cannot go on
  126   the command cannot be executed
  127   the command was not found"""
OF_BENCHMARKS = """
of a benchmark with --client:
  0     the client succeeded
  the client's own, if that failed
  1     the daemon exited before its client
  124   it was not ready in time, or --timeout was up
  128 + N  signal N asked oomproof to end
of every benchmark:
  1     there is no rate, or it is below --min-rate"""


def add_exit_codes(parser: argparse.ArgumentParser, more: str = "") -> None:
    """At the end of the verb's help."""
    parser.epilog = EXIT_CODES + more


def command_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The program's command line; empty when none was given."""
    words = tuple(args.command)
    return words[1:] if words[:1] == ("--",) else words


def need_command(command: Sequence[str], verb: str) -> tuple[str, ...]:
    """`command`; raises UsageError when it is empty."""
    if not command:
        raise UsageError(f"no command: write oomproof {verb} [settings] -- COMMAND ARGUMENTS")
    return tuple(command)


def resolve(settings: Sequence[Setting], flags: Mapping[str, object]) -> dict[str, Any]:
    """The value of each setting, from flags, environment, file and recipe.

    Under ``recipe`` is the Recipe itself, under ``suggested`` the names of what it had the say in.

    Warns of a misspelt variable, which would otherwise be believed to work. Raises UsageError
    for settings that contradict each other.
    """
    values = config.resolve(settings, flags, os.environ)
    values |= {"recipe": (recipe := recipe_of(values)), "suggested": frozenset()}
    if recipe is not None:
        values = _with_suggestions(
            recipe, values, config.resolve(settings, flags, os.environ, suggestions(recipe))
        )
    known = (*LAUNCHING, *MEASURING, *config.probe_settings(probe=True), BENCH, COMMAND)
    for name in config.unknown_variables(known, os.environ):
        output.warning(f"{name} is no setting of oomproof and changes nothing")
    if values["limit"] is not None and not values["leaf"]:
        raise UsageError(
            "--limit needs a cgroup to put it on, and --no-leaf forbids one: leave one of them out"
        )
    if values["limit"] is not None and values["limit"] < LEAST_LIMIT_BYTES:
        raise UsageError(
            f"--limit {format_size(values['limit'])} is less than what the start of any program takes:"
            f" give at least {format_size(LEAST_LIMIT_BYTES)}"
        )
    _check_rate(values)
    return values


def suggestions(recipe: Recipe) -> config.Suggested:
    """The settings that a recipe brings; flags, environment and file win over them.

    Raises ConfigError for one that there is not, or that is no recipe's business.
    """
    known = {setting.key for setting in LAUNCHING} - NOT_FROM_RECIPE
    for key in recipe.settings:
        if key not in known:
            raise ConfigError(
                f"{recipe.path}: settings.{key}: a recipe can set no such thing:"
                f" there are {', '.join(sorted(known))}"
            )
    return config.Suggested(f"{recipe.path}: settings.", recipe.settings)


def _with_suggestions(recipe: Recipe, without: dict[str, Any], suggested: dict[str, Any]) -> dict[str, Any]:
    """The settings that `recipe` suggested; says which of them nobody else had a say in."""
    names = {key: key.replace("-", "_") for key in recipe.settings}
    taken = {key: name for key, name in names.items() if suggested.get(name) != without.get(name)}
    if taken and not suggested["quiet"]:
        said = ", ".join(f"--{key} {recipe.settings[key]}" for key in taken)
        output.say(f"recipe {recipe.name} brings {said}")
    return suggested | {"recipe": recipe, "suggested": frozenset(taken.values())}


def check_recipe(settings: Mapping[str, Any], command: Sequence[str]) -> None:
    """Raises UsageError for a recipe that would not reach the program: it would be believed to work."""
    recipe = settings["recipe"]
    if recipe is not None and not recipe.changes(command):
        ways = [f"start {name} itself" for name in sorted(recipe.arguments.programs)]
        ways += [f"write {{{value.name}}} in it" for value in recipe.values]
        raise UsageError(
            f"recipe {recipe.name} changes nothing in this command: {', or '.join(ways) or 'leave it out'}"
        )


def recipe_of(settings: Mapping[str, Any]) -> Recipe | None:
    """The recipe asked for; None without one, at no cost."""
    if settings["recipe"] is None:
        if settings["recipe_values"]:
            raise UsageError("--recipe-values changes values of a recipe, and there is none: add --recipe")
        return None
    from oomproof.recipes.load import folders, load, with_values

    recipe = load(settings["recipe"], folders(os.environ, settings["recipe_dir"]))
    return with_values(recipe, settings["recipe_values"])


def _check_rate(values: Mapping[str, Any]) -> None:
    rules = [values.get("rate_json"), values.get("rate_regex")]
    if None not in rules:
        raise UsageError("--rate-json and --rate-regex both say where the rate is: leave one of them out")
    if values.get("min_rate") is not None and rules == [None, None]:
        raise UsageError("--min-rate needs a rate: say where it is with --rate-json or --rate-regex")


def launch(
    verb: str,
    command: Sequence[str],
    settings: dict[str, Any],
    planned: Planned,
    *,
    events: EventWriter,
    signals: Signals,
) -> RunResult:
    """Announce the plan and run `command` with its budget, and a smaller one after each OOM kill.

    An earlier attempt that died together with its oomproof counts as such a kill if it was most likely one.
    """
    say = output.say_if_it_matters if settings["quiet"] else output.say
    prepare = _prepare(command, settings, say)
    record = record_of(settings)
    found = record.run_started(run_of(verb, command, settings, planned))
    # With --ok-with-kills, what others call a death is none.
    seen = () if settings["ok_with_kills"] else record.seen
    course = course_of(settings, planned, seen)
    if course.learned and prepare is not None and not prepare.allows(course.plan.budget_bytes):
        course = course_of(settings, planned, ())  # too little for the recipe

    def smaller(_attempt: int, budget_bytes: int) -> int | None:
        smaller = course.after(budget_bytes)
        worthless = smaller is not None and prepare is not None and not prepare.allows(smaller)
        return None if worthless else smaller

    policy = _policy(settings)
    _check_client(settings.get("client", ()))
    for problem in _hidden_problems(settings):
        output.warning(problem)
    plan = _after_open(course, found, record)
    _announce(course, plan, events, command, say, probe_wanted=settings["probe"])
    with record:
        result = run_attempts(
            command,
            plan.budget_bytes,
            next_budget=smaller,
            say=say,
            recorder=record,
            events=events,
            signals=signals,
            policy=policy,
            prepare=prepare,
        )
    if settings["quiet"] and result.attempts:
        output.say(describe(result.attempts[-1], ok_with_kills=policy.ok_with_kills))
    return result


def _check_client(command: Sequence[str]) -> None:
    """Raises CommandError before the daemon is started for nothing."""
    error = executable_problem(command[0], os.environ.get("PATH")) if command else None
    if error is not None:
        raise type(error)(f"--client: {error}")


def _hidden_problems(settings: Mapping[str, Any]) -> list[str]:
    """Commands that cannot be executed, which would be noticed only when they are needed."""
    ready = settings["ready"]
    commands = {"--on-oom-exec": settings["on_oom_exec"], "--ready exec": ready.command if ready else ()}
    problems = []
    for flag, command in commands.items():
        error = executable_problem(command[0], os.environ.get("PATH")) if command else None
        if error is not None:
            problems.append(f"{flag}: {error}")
    return problems


def _after_open(course: Course, found: Sequence[OpenAttempt], record: Record) -> Plan:
    """The plan, but less than attempts had that nobody saw end and that most likely ran out of memory."""
    plan, ends = course.plan, {}
    for attempt in found:
        judgement = judge_open(attempt)
        budget = attempt.budget_bytes
        following = None
        if judgement.calls_for_less:
            # Where nothing smaller is worth trying the smallest is tried again.
            following = min(course.below(budget) or budget, plan.budget_bytes)
            plan = plan.with_budget(
                following, f"an attempt with {format_size(budget)} has no end", "interrupted"
            )
        ends[attempt.id] = end_of(judgement, following)
        output.say(
            f"found an attempt without an end: {judgement.verdict.value} ({judgement.confidence.value}):"
            f" {'; '.join(judgement.evidence)}; budget {format_size(budget)}"
            + (f" -> {format_size(following)}" if following is not None else "")
        )
    record.found_open(ends)
    return plan


def _announce(
    course: Course,
    plan: Plan,
    events: EventWriter,
    command: Sequence[str],
    say: Callable[[str], None],
    *,
    probe_wanted: bool,
) -> None:
    """The plan, and why it is not what check and probe alone say, on stderr and as an event."""
    for notice in plan.notices:
        # Who wants no probe need not be told each time that there was none.
        if probe_wanted or notice != NOT_PROBED:
            say(f"notice: {notice}")
    say(
        f"plan: budget {format_size(plan.budget_bytes)} of {format_size(plan.allowed_bytes)}"
        f" that can be had ({plan.terms[0].source}), margin {format_size(plan.margin_bytes)}"
    )
    if course.learned and plan is course.plan:
        say(f"learned: start with {format_size(plan.budget_bytes)}, {course.learned}")
    document = plan.as_json()
    del document["schema_version"]
    events.emit("planned", command=list(command), **document)


def _prepare(
    command: Sequence[str], settings: Mapping[str, Any], say: Callable[[str], None]
) -> Starts | None:
    """None where filling the budget into the command is all there is to do."""
    if settings["recipe"] is None and not settings["render"]:
        return None
    from oomproof.recipes.start import Starts

    return Starts(command, os.environ, settings["recipe"], settings["render"], say)


def _policy(settings: dict[str, Any]) -> RunPolicy:
    words = OwnWords(settings["oom_codes"], settings["oom_pattern"], settings["oom_sigbus"])
    return RunPolicy(
        retries=settings["retries"],
        limit_bytes=settings["limit"],
        use_leaf=settings["leaf"],
        ok_with_kills=settings["ok_with_kills"],
        oom_exit_status=settings["oom_exit_code"],
        on_oom_exec=settings["on_oom_exec"],
        min_rate=settings.get("min_rate"),
        restart=RestartPolicy(settings["restart"]),
        attempt=AttemptPolicy(
            grace_s=settings["grace"],
            timeout_s=settings["timeout"],
            stop_on_kill_inside=settings["stop_on_kill"],
            oom_score_adj=settings["oom_score_adj"],
            signal_map=settings["signal_map"],
            own_words=words if words != OwnWords() else None,
            sidecar=_sidecar(settings),
        ),
    )


def _sidecar(settings: Mapping[str, Any]) -> SidecarPolicy | None:
    policy = SidecarPolicy(
        ready=settings["ready"],
        ready_timeout_s=settings["ready_timeout"],
        client=settings.get("client", ()),
        rate=settings.get("rate_json") or settings.get("rate_regex"),
    )
    return policy if policy.ready or policy.client or policy.rate else None
