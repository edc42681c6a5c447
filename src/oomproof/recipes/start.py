"""Each attempt's command line, environment and files, from a recipe and templates.

The copy that a recipe makes of a program's own TOML file has no name on any disk: it is an
anonymous file (memfd_create) that the program opens through ``/proc/self/fd``. It works where
nothing can be written, and goes away by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oomproof.errors import ConfigError, PlanError
from oomproof.recipes.model import ConfigFile, Recipe
from oomproof.recipes.render import Rendering, render
from oomproof.recipes.toml_edit import set_keys
from oomproof.template import expand_command
from oomproof.units import MIB, format_size


class Starts:
    """What to start with a budget: call it before each attempt."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        recipe: Recipe | None,
        renderings: Sequence[Rendering],
        say: Callable[[str], None],
    ) -> None:
        self._command = command
        self._environment = environment
        self._recipe = recipe
        self._renderings = renderings
        self._say = say
        self._cpus = len(os.sched_getaffinity(0))
        self._copy: int | None = None

    def __call__(self, budget_bytes: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command line and its environment; files are in their places when it returns.

        Raises ConfigError and PlanError, which name the file, key or value at fault.
        """
        values: Mapping[str, int] = {"budget": budget_bytes}
        command: Sequence[str] = expand_command(self._command, budget_bytes)
        environment = self._environment
        recipe = self._recipe
        if recipe is not None:
            prepared = recipe.prepare(self._command, environment, budget_bytes, self._cpus)
            command, environment, values = prepared.command, prepared.environment, prepared.values
            if recipe.config is not None:
                command = self._with_copy(recipe.config, command, prepared.config_keys)
            self._say(f"recipe {recipe.name}: {describe(recipe, values)}")
        for rendering in self._renderings:
            render(rendering, values)
        return command, environment

    def allows(self, budget_bytes: int) -> bool:
        """Whether the recipe leaves something for every part of such a budget."""
        try:
            if self._recipe is not None:
                self._recipe.compute(budget_bytes, self._cpus)
        except PlanError:
            return False
        return True

    def _with_copy(self, config: ConfigFile, command: Sequence[str], keys: Mapping[str, str]) -> list[str]:
        """`command` with the program's file replaced by a copy in which `keys` are set."""
        words = list(command)
        found = find_option(config.options, words)
        source = config.default if found is None else Path(words[found[0]].removeprefix(found[1]))
        if found is None and Path(words[0]).name not in config.programs:
            raise ConfigError(
                f"the command names no file with {' or '.join(config.options)},"
                f" and {words[0]} may not know that flag: name the file, or use --render"
            )
        try:
            # A program that is told of no file starts without its default one, too.
            text = "" if found is None and not source.exists() else source.read_text(encoding="utf-8")
            content = set_keys(text, keys)
        except OSError as error:
            raise ConfigError(f"{source}: {error.strerror}: name the program's own file") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source}: {error}; or use --render instead of the recipe") from error
        copy = f"/proc/self/fd/{self._anonymous(source.name, content)}"
        if found is None:
            return [*words, config.options[0], copy]
        words[found[0]] = found[1] + copy
        return words

    def _anonymous(self, name: str, content: str) -> int:
        """A descriptor that the program inherits; that of the attempt before is closed."""
        if self._copy is not None:
            os.close(self._copy)
        self._copy = os.memfd_create(name, 0)
        os.write(self._copy, content.encode())
        return self._copy


def find_option(options: Sequence[str], words: Sequence[str]) -> tuple[int, str] | None:
    """Which word has the value of one of `options`, and what stands before it in that word."""
    for number, word in enumerate(words[1:], 1):
        if word in options and number + 1 < len(words):
            return number + 1, ""
        for option in options:
            if option.startswith("--") and word.startswith(option + "="):
                return number, option + "="
    return None


def describe(recipe: Recipe, values: Mapping[str, int]) -> str:
    """``heap 614.40 MiB, threads 64``: what became of each value."""
    parts = [f"{value.name} {format_value(values[value.name])}" for value in recipe.values]
    return ", ".join(parts) or "nothing depends on the budget"


def format_value(value: int) -> str:
    """A size for people; what is below 1 MiB may as well be a count, and stays a plain number."""
    return format_size(value) if value >= MIB else str(value)
