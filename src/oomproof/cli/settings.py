"""The settings of run, bench and entrypoint, and how each is read. See `oomproof.config`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof import config
from oomproof.config import Setting
from oomproof.launch.attempts import OOM_EXIT_STATUS
from oomproof.launch.model import AttemptPolicy
from oomproof.launch.restart import RestartMode
from oomproof.plan.descent import parse_policy

if TYPE_CHECKING:
    from oomproof.recipes.render import Rendering

READY_TIMEOUT_S = 300.0


def parse_oom_score_adj(text: str) -> int:
    """-1000 to 1000; raises ValueError."""
    digits = text.strip().removeprefix("-")
    if not digits.isdecimal() or not digits.isascii() or len(digits) > 4 or int(digits) > 1000:
        raise ValueError("write a whole number from -1000 to 1000")
    return int(text)


def parse_exit_code(text: str) -> int:
    """0 to 255; raises ValueError."""
    code = config.parse_count(text)
    if code > 255:
        raise ValueError("write a number from 0 to 255")
    return code


def parse_exit_codes(text: str) -> frozenset[int]:
    """Exit codes with commas between them; raises ValueError."""
    codes = frozenset(parse_exit_code(word.strip()) for word in text.split(","))
    if 0 in codes:
        raise ValueError("0 says that all went well")
    return codes


def parse_restart(text: str) -> RestartMode:
    """``never``, ``on-failure`` or ``always``; raises ValueError."""
    try:
        return RestartMode(text)
    except ValueError:
        raise ValueError(f"write {', '.join(mode.value for mode in RestartMode)}") from None


def parse_pattern(text: str) -> tuple[str, ...]:
    """A regular expression; raises ValueError."""
    import re

    try:
        re.compile(text.encode())
    except re.error as error:
        raise ValueError(f"it is no regular expression, {error}") from error
    return (text,)


def parse_time_limit(text: str) -> float | None:
    """Seconds above 0, or ``none`` for no limit; raises ValueError."""
    if text == "none":
        return None
    seconds = config.parse_seconds(text)
    if seconds == 0:
        raise ValueError("write seconds above 0, or none for no limit")
    return seconds


def parse_ready(text: str) -> object:
    """See `oomproof.launch.readiness`; raises ValueError."""
    from oomproof.launch.readiness import parse_target

    return parse_target(text)


def parse_rate_path(text: str) -> object:
    """See `oomproof.launch.rate`; raises ValueError."""
    from oomproof.launch.rate import parse_path

    return parse_path(text)


def parse_rate_expression(text: str) -> object:
    """See `oomproof.launch.rate`; raises ValueError."""
    from oomproof.launch.rate import parse_expression

    return parse_expression(text)


def parse_rate(text: str) -> float:
    """A number from 0 up; raises ValueError."""
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise ValueError("write a number from 0 up")
    return rate


def parse_signal_map(text: str) -> dict[int, int]:
    """``TERM:INT,HUP:USR1`` -> numbers; raises ValueError."""
    pairs = {}
    for pair in text.split(","):
        received, colon, sent = pair.partition(":")
        if not colon:
            raise ValueError("write pairs such as TERM:INT, with commas between them")
        pairs[_signal_number(received)] = _signal_number(sent)
    return pairs


def parse_recipe_values(text: str) -> dict[str, str]:
    """``threads=200,metaspace=512MiB`` -> expressions by name; raises ValueError."""
    values = {}
    for pair in _split_outside_parentheses(text):
        name, equals, expression = (part.strip() for part in pair.partition("="))
        if not (name and equals and expression):
            raise ValueError("write pairs such as threads=200, with commas between them")
        values[name] = expression
    return values


def _split_outside_parentheses(text: str) -> list[str]:
    """At commas, but not at those of ``min(a, b)``."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def parse_renderings(text: str) -> tuple[Rendering, ...]:
    """``in.toml:/run/engine.toml``, more with commas between them; raises ValueError."""
    from oomproof.recipes.render import Rendering

    renderings = []
    for pair in text.split(","):
        source, colon, target = pair.strip().partition(":")
        if not (source and colon and target) or ":" in target:
            raise ValueError("write SRC:DST, with commas between several")
        renderings.append(Rendering(Path(source), Path(target)))
    return tuple(renderings)


def _signal_number(text: str) -> int:
    name = text.strip().upper()
    try:
        number = (
            signal.Signals(int(name)) if name.isdigit() else signal.Signals["SIG" + name.removeprefix("SIG")]
        )
    except (KeyError, ValueError):
        raise ValueError(f"{text.strip()!r} is no signal") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"{number.name} cannot be caught or is final: map another one")
    return number


RECIPE = Setting("recipe", str, None, "turn the program's own knobs: see oomproof recipes", "NAME|FILE")
RECIPE_DIR = Setting("recipe_dir", Path, None, "look for recipes in this folder first", "DIR")

ON_OOM = Setting(
    "on_oom",
    parse_policy,
    parse_policy("adaptive"),
    "after an OOM kill: adaptive (default; it learns), shrink:P%% of the budget, or margin:P%% more margin",
    "POLICY",
)
RETRIES = Setting("retries", config.parse_count, 3, "smaller starts after the first one (default: 3)", "N")

RECIPES = (
    RECIPE,
    RECIPE_DIR,
    Setting(
        "recipe_values",
        parse_recipe_values,
        {},
        "other sizes for values of the recipe: threads=200,metaspace=512MiB",
        "NAME=SIZE",
    ),
    Setting(
        "render",
        parse_renderings,
        (),
        "before each attempt make the file DST of the template SRC, budget filled in",
        "SRC:DST",
    ),
)

LAUNCHING: tuple[Setting, ...] = (
    *config.PLANNING,
    *RECIPES,
    ON_OOM,
    RETRIES,
    Setting("events", str, None, "write one JSON object a line to FILE or fd:N", "TARGET"),
    Setting("leaf", config.parse_switch, True, "a cgroup for each attempt where possible (on by default)"),
    Setting("quiet", config.parse_switch, False, "say only warnings and how it ended"),
    Setting(
        "grace",
        config.parse_seconds,
        10.0,
        "from SIGTERM to SIGKILL where oomproof itself ends an attempt (default: 10)",
        "SECONDS",
    ),
    Setting(
        "timeout", parse_time_limit, None, "end an attempt after this long; none: never (default)", "SECONDS"
    ),
    Setting(
        "ready",
        parse_ready,
        None,
        "how to tell that the program is ready: http://HOST:PORT/PATH, tcp://HOST:PORT, unix:PATH,"
        " exec:COMMAND, or notify (READY=1 to NOTIFY_SOCKET)",
        "TARGET",
    ),
    Setting(
        "ready_timeout",
        parse_time_limit,
        READY_TIMEOUT_S,
        f"end an attempt that is not ready after this long; none: never (default: {READY_TIMEOUT_S:g})",
        "SECONDS",
    ),
    Setting(
        "stop_on_kill",
        config.parse_switch,
        True,
        "end an attempt when one of its processes was OOM-killed and the main one runs on (on by default)",
    ),
    Setting(
        "ok_with_kills",
        config.parse_switch,
        False,
        "exit 0 is a success even if processes of the attempt were OOM-killed",
    ),
    Setting(
        "oom_exit_code",
        parse_exit_code,
        OOM_EXIT_STATUS,
        f"exit code when the last attempt ran out of memory (default: {OOM_EXIT_STATUS})",
        "CODE",
    ),
    Setting(
        "oom_score_adj",
        parse_oom_score_adj,
        AttemptPolicy().oom_score_adj,
        f"of the program (default: {AttemptPolicy().oom_score_adj}, or oomproof's own if higher)",
        "N",
    ),
    Setting("signal_map", parse_signal_map, {}, "pass signals on as others: TERM:INT,...", "FROM:TO"),
    Setting(
        "restart",
        parse_restart,
        RestartMode.NEVER,
        "after ends for other reasons than memory: never (default), on-failure or always",
        "WHEN",
    ),
    Setting("on_oom_exec", config.parse_command, (), "run this after each lack of memory", "COMMAND"),
    Setting(
        "oom_codes",
        parse_exit_codes,
        frozenset(),
        "exit codes with which the program says itself that memory ran out, for example 3,134",
        "CODES",
    ),
    Setting(
        "oom_pattern",
        parse_pattern,
        (),
        "regular expression on its stderr that says so, for example 'CUDA out of memory|bad_alloc'",
        "REGEX",
    ),
    Setting(
        "oom_sigbus",
        config.parse_switch,
        False,
        "SIGBUS while a tmpfs such as /dev/shm is full is a lack of memory (off by default)",
    ),
)
"""Settings of every launching verb, beside whether to probe."""

MEASURING: tuple[Setting, ...] = (
    Setting(
        "client",
        config.parse_command,
        (),
        "the program is a daemon: run this against it once it is ready, then end the daemon",
        "COMMAND",
    ),
    Setting("rate_json", parse_rate_path, None, "where in the benchmark's JSON the rate is: .a.b[0]", "PATH"),
    Setting("rate_regex", parse_rate_expression, None, "the same by expression: 'rate: ([0-9.]+)'", "REGEX"),
    Setting("min_rate", parse_rate, None, "a benchmark with a lower rate has failed (exit code 1)", "RATE"),
)
"""Settings of a benchmark."""

BENCH = Setting(
    "bench", config.parse_command, None, "run this first; the budget it needs is the program's", "COMMAND"
)
COMMAND = Setting("command", config.parse_command, None, "the program, where none follows --", "COMMAND")
"""Of entrypoint alone."""

NOT_FROM_RECIPE = frozenset(
    {"limit", "budget", "cap", "probe-result", "recipe", "recipe-dir", "recipe-values", "render"}
    | {"events", "history", "history-days", "machine", "tag", "on-oom-exec", "quiet", "learn", "share"}
)
"""What says something about one start and its place, and nothing about a program."""
