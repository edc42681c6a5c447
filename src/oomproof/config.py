"""Settings of the launching verbs: one table; flag wins over environment over file over recipe.

A setting named ``margin_floor`` is the flag ``--margin-floor``, the variable
``OOMPROOF_MARGIN_FLOOR`` and the key ``margin-floor`` of a TOML file (``--config FILE`` or
``OOMPROOF_CONFIG``). Not covered: what the settings mean to the rooms that take them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.errors import ConfigError, InvalidSize, UsageError
from oomproof.units import parse_size

if TYPE_CHECKING:
    import argparse

ENVIRONMENT_PREFIX = "OOMPROOF_"
CONFIG_VARIABLE = "OOMPROOF_CONFIG"
LARGEST_FILE_BYTES = 16 << 20
"""Of what people write, and of templates: a file beyond that, such as a device, may have no end."""
NOT_SETTINGS = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in (
        *("CONFIG", "STATE_DIR", "BUDGET_BYTES", "ATTEMPT", "MARK"),
        # Told to the hook of --on-oom-exec, which may call oomproof itself.
        *("VERDICT", "CONFIDENCE", "OOM_KILLS", "EVIDENCE", "PEAK_BYTES", "NEXT_BUDGET_BYTES"),
    )
)
"""Variables of ours that are not in the table: what the program is told, and where state lives."""

Value = Any
"""What a setting's `parse` returns."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    parse: Callable[[str], Value]
    """Raises UsageError or ValueError when the text cannot be used."""
    default: Value
    help: str
    metavar: str | None = None
    """None: a switch, ``--name`` and ``--no-name``."""

    @property
    def flag(self) -> str:
        """On the command line."""
        return "--" + self.key

    @property
    def variable(self) -> str:
        """In the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def key(self) -> str:
        """In a file."""
        return self.name.replace("_", "-")


def parse_switch(text: str) -> bool:
    """``1/true/yes/on`` and ``0/false/no/off``; raises ValueError."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("write true or false")


def parse_count(text: str) -> int:
    """A whole number from 0 up; raises ValueError."""
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError("write a whole number from 0 up")
    return int(text)


def parse_seconds(text: str) -> float:
    """A number of seconds from 0 up, such as ``10`` or ``0.5``; raises ValueError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise ValueError("write seconds as a number from 0 up, such as 10 or 0.5")
    return seconds


def parse_command(text: str) -> tuple[str, ...]:
    """A command line split as a POSIX shell splits words; nothing else is expanded."""
    import shlex  # noqa: PLC0415 - few starts need it

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{error}: quote it as for a shell") from error
    if not words:
        raise ValueError("write a command")
    return words


def parse_positive_size(text: str) -> int:
    """As `parse_size`; nothing at all is no size. Raises InvalidSize."""
    size = parse_size(text)
    if size == 0:
        raise InvalidSize(f"{text!r} leaves nothing: give a size above 0")
    return size


def parse_percent(text: str) -> int:
    """``50%`` or ``12.5%``, above 0 and up to 100 -> millionths; raises ValueError."""
    number, sign, rest = text.strip().partition("%")
    try:
        share = float(number) * 10_000 if sign and not rest else 0.0
    except ValueError:
        share = 0.0
    if not 0.5 < share <= 1_000_000:
        raise ValueError("write a percentage above 0% and up to 100%, such as 50% or 12.5%")
    return round(share)


def parse_sizes(text: str) -> tuple[int, ...]:
    """``512M,1G,2G`` -> bytes in ascending order, each once. Raises InvalidSize."""
    return tuple(sorted({parse_positive_size(word) for word in text.split(",")}))


LIMIT = Setting("limit", parse_positive_size, None, "put this limit on the program's own leaf cgroup", "SIZE")
BUDGET = Setting(
    "budget", parse_positive_size, None, "start with exactly this budget instead of a planned one", "SIZE"
)
CAP = Setting("cap", parse_positive_size, None, "never plan more than this", "SIZE")
FLOOR = Setting("floor", parse_size, None, "the program needs at least this", "SIZE")
MARGIN_FLOOR = Setting(
    "margin_floor", parse_size, None, "smallest margin (default: 3 %%, at least 32MiB)", "SIZE"
)
PROBE_RESULT = Setting("probe_result", Path, None, "take the probe's result from this JSON file", "FILE")

STEPS = Setting("steps", parse_sizes, (), "the only budgets that the program can use: 512M,1G,2G", "SIZES")
SHARE = Setting("share", parse_percent, None, "this program's part of what can be had", "P%")
THREADS = Setting("threads", parse_count, 0, "threads that the program starts", "N")
PINNED = Setting("pinned", parse_size, 0, "how much of the budget is page-locked", "SIZE")
TAG = Setting("tag", str, None, "kind of input: what is learned with one tag holds for it alone", "WORD")
MACHINE = Setting(
    "machine", str, None, "kind of machine (default: its architecture, memory and processors)", "NAME"
)
HISTORY = Setting(
    "history", str, None, "keep the history in FILE or at postgresql://...; none: remember nothing", "TARGET"
)
HISTORY_DAYS = Setting(
    "history_days", parse_count, 90, "forget runs after so many days (default: 90; 0: never)", "DAYS"
)
LEARN = Setting("learn", parse_switch, True, "let what earlier runs showed shape the budget (on by default)")

PLANNING = (
    *(LIMIT, BUDGET, CAP, FLOOR, MARGIN_FLOOR, STEPS, SHARE, THREADS, PINNED, PROBE_RESULT),
    *(TAG, MACHINE, HISTORY, HISTORY_DAYS, LEARN),
)
"""Settings that shape the budget."""


def probe_settings(*, probe: bool, quick: bool | None = False) -> tuple[Setting, Setting]:
    """Whether to probe first, and whether to touch a part only; the verbs differ in their defaults.

    `quick` None: quick where the limit is large.
    """
    words = {True: "on by default", False: "off by default", None: "default: where the limit is large"}
    return (
        Setting("probe", parse_switch, probe, f"probe first ({words[probe]})"),
        Setting("quick", parse_switch, quick, f"touch a part and extrapolate ({words[quick]})"),
    )


def add_flags(parser: argparse.ArgumentParser, settings: Sequence[Setting]) -> None:
    """A flag for each setting; none has a default, so that `resolve` can tell what was given."""
    import argparse  # noqa: PLC0415 - only the command line needs it

    parser.add_argument("--config", metavar="FILE", help="TOML file with any of these settings")
    for setting in settings:
        if setting.metavar is None:
            parser.add_argument(
                setting.flag, dest=setting.name, action=argparse.BooleanOptionalAction, help=setting.help
            )
        else:
            parser.add_argument(setting.flag, dest=setting.name, metavar=setting.metavar, help=setting.help)


@dataclass(frozen=True, slots=True)
class Suggested:
    """Settings by key that apply where nobody says anything else (those of a recipe)."""

    where: str
    """The file and table they are from, for messages."""
    values: Mapping[str, object]


NOTHING_SUGGESTED = Suggested("", {})


def resolve(
    settings: Sequence[Setting],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    suggested: Suggested = NOTHING_SUGGESTED,
) -> dict[str, Value]:
    """The value of each setting, by name: of `flags`, else `environ`, the file, `suggested`, its default.

    Raises ConfigError (or the UsageError of the value's own parser), naming the flag,
    variable or key at fault.
    """
    file = flags.get("config") or environ.get(CONFIG_VARIABLE)
    from_file = _read_file(Path(str(file)), settings) if file else {}
    values: dict[str, Value] = {}
    for setting in settings:
        flag, variable = flags.get(setting.name), environ.get(setting.variable)
        if flag is not None:
            values[setting.name] = _parse(setting, flag, setting.flag)
        elif variable:  # an empty one says nothing, as usual where compose files fill them in
            values[setting.name] = _parse(setting, variable, setting.variable)
        elif setting.key in from_file:
            values[setting.name] = _parse(setting, from_file[setting.key], f"{file}: {setting.key}")
        elif setting.key in suggested.values:
            where = f"{suggested.where}{setting.key}"
            values[setting.name] = _parse(setting, suggested.values[setting.key], where)
        else:
            values[setting.name] = setting.default
    return values


def unknown_variables(settings: Sequence[Setting], environ: Mapping[str, str]) -> list[str]:
    """``OOMPROOF_*`` variables that name no setting: most likely misspelt."""
    known = {setting.variable for setting in settings} | NOT_SETTINGS
    return sorted(name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known)


def _parse(setting: Setting, value: object, where: str) -> Value:
    if isinstance(value, bool):
        if setting.metavar is not None:
            raise ConfigError(f"{where}: {str(value).lower()} is a switch's value, write {setting.metavar}")
        return value
    if isinstance(value, (list, tuple)):
        if setting.parse is not parse_command:
            wanted = f"{setting.metavar} as one string or number" if setting.metavar else "true or false"
            raise ConfigError(f"{where}: a list is no value for it, write {wanted}")
        if not all(isinstance(word, str) for word in value):
            raise ConfigError(f"{where}: the words of a COMMAND are strings, write each in quotes")
        if not value:
            raise ConfigError(f"{where}: the list is empty, write a command")
        return tuple(value)
    try:
        return setting.parse(str(value))
    except UsageError as error:
        raise type(error)(f"{where}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{where}: {value!r} cannot be used: {error}") from error


def read_whole(path: Path) -> bytes:
    """The file `path`. Raises OSError, also for one above LARGEST_FILE_BYTES, of which no more is read."""
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def _read_file(path: Path, settings: Sequence[Setting]) -> dict[str, object]:
    import tomllib  # noqa: PLC0415 - most starts have no file

    try:
        document = tomllib.loads(read_whole(path).decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: name a readable TOML file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    known = sorted(setting.key for setting in settings)
    for key, value in document.items():
        if key not in known:
            raise ConfigError(f"{path}: there is no setting {key!r}: the settings are {', '.join(known)}")
        if not isinstance(value, (str, int, float, bool, list)):
            kind = "table" if isinstance(value, dict) else type(value).__name__
            raise ConfigError(f"{path}: {key}: a {kind} is no value for it, write one string or number")
    return document
