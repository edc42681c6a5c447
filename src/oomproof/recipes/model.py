"""A recipe as frozen data, and what one budget makes of it: pure, no file is read here.

Not covered: where recipes are found and how they are checked, see `load`; doing what
`Recipe.prepare` returns to a start, see `start`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oomproof.errors import ConfigError, PlanError
from oomproof.recipes.expression import Expression
from oomproof.template import fill
from oomproof.units import format_size

GIVEN = ("budget", "cpus")
"""Values that every recipe can use: the budget in bytes, and the processors that may be used."""


@dataclass(frozen=True, slots=True)
class Value:
    """A named part of the budget, or a number that parts are made from."""

    name: str
    size: Expression
    why: str = ""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is put between the words of a command line."""

    first: tuple[str, ...] = ()
    """Right after the program's name."""
    last: tuple[str, ...] = ()
    """After everything else."""
    programs: frozenset[str] = frozenset()
    """Only where the program (its file's name) is one of these; empty: always."""

    def inserted(self, command: Sequence[str]) -> list[str]:
        """`command` with them in it."""
        if self.programs and Path(command[0]).name not in self.programs:
            return list(command)
        return [command[0], *self.first, *command[1:], *self.last]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A TOML file of the program, of which a copy with some keys set is made for each attempt."""

    options: tuple[str, ...]
    """The program's flags that name it, for example ``--config`` and ``-c``."""
    default: Path
    """What the program reads without such a flag."""
    keys: Mapping[str, str]
    """Dotted key to value, a string with fields."""
    programs: frozenset[str] = frozenset()
    """Where the flag may be added when it is not there."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A command line with its environment, for one budget."""

    values: Mapping[str, int]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    config_keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one program is told its budget."""

    name: str
    path: Path
    summary: str
    values: tuple[Value, ...] = ()
    """In the order in which they are computed: each may use those before it."""
    arguments: Arguments = field(default_factory=Arguments)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set, whatever they were."""
    environment_append: Mapping[str, str] = field(default_factory=dict)
    """Variables to which words are added."""
    config: ConfigFile | None = None
    overhead: Mapping[str, int] = field(default_factory=dict)
    """What the program takes beside any budget, in bytes by name: a term of the plan each."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of ours that fit the program, by their key in a configuration file."""
    left_out: tuple[str, ...] = ()
    """What the knobs do not cover, and why."""
    sources: tuple[str, ...] = ()
    """Where the facts come from."""
    tried: str = ""
    """What was run for real."""

    def compute(self, budget_bytes: int, cpus: int) -> dict[str, int]:
        """Every value by name. Raises PlanError when the budget leaves one of them nothing."""
        values = {"budget": budget_bytes, "cpus": cpus}
        for value in self.values:
            try:
                result = value.size.evaluate(values)
            except ConfigError as error:
                raise ConfigError(f"{self.path}: values.{value.name}: {error}") from error
            if result <= 0:
                raise PlanError(
                    f"recipe {self.name}: nothing is left for {value.name} in a budget of"
                    f" {format_size(budget_bytes)}: give it more memory, or change values.{value.name}"
                    f" ({self.path}: {value.size.text}) with --recipe-values"
                )
            values[value.name] = result
        return values

    def prepare(
        self, command: Sequence[str], environment: Mapping[str, str], budget_bytes: int, cpus: int
    ) -> Prepared:
        """What to start with `budget_bytes`. Raises what `compute` raises."""
        values = self.compute(budget_bytes, cpus)
        filled = {name: fill(text, values) for name, text in self.environment.items()}
        for name, text in self.environment_append.items():
            filled[name] = f"{environment.get(name, '')} {fill(text, values)}".strip()
        keys = self.config.keys if self.config else {}
        return Prepared(
            values,
            tuple(fill(word, values) for word in self.arguments.inserted(command)),
            {**environment, **filled},
            {key: fill(text, values) for key, text in keys.items()},
        )

    def changes(self, command: Sequence[str]) -> bool:
        """Whether the program of `command` would learn anything from this recipe."""
        if self.environment or self.environment_append or self.config:
            return True
        if self.arguments.inserted(command) != list(command):
            return True
        probe = {value.name: 0 for value in self.values}
        return any(fill(word, probe) != word for word in command)
