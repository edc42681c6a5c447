"""Recipes as TOML files: where they are, and what a file must say to be one.

A recipe is looked for in the folder that was named (``--recipe-dir``), in
``$XDG_CONFIG_HOME/oomproof/recipes`` and among those that come with oomproof, in this order;
a name with a ``/`` or that ends in ``.toml`` is the file itself. Every error names the file
and the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from oomproof.config import read_whole
from oomproof.errors import ConfigError, UsageError
from oomproof.recipes.expression import Expression, is_name
from oomproof.recipes.model import GIVEN, Arguments, ConfigFile, Recipe, Value
from oomproof.template import SUFFIXES, fields, is_field
from oomproof.units import parse_size

BUNDLED = Path(__file__).parent
ENDING = ".toml"


def folders(environ: Mapping[str, str], named: Path | None = None) -> list[Path]:
    """Where recipes are, the first wins."""
    home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else None)
    users = [Path(home, "oomproof", "recipes")] if home else []
    return [*([named] if named else []), *users, BUNDLED]


def names(places: Iterable[Path]) -> list[str]:
    """Every recipe there is, sorted."""
    return sorted({path.stem for place in places for path in place.glob(f"*{ENDING}")})


def load(name: str, places: Iterable[Path]) -> Recipe:
    """The recipe called `name`. Raises ConfigError when there is none, or its file makes no sense."""
    places = list(places)
    if "/" in name or name.endswith(ENDING):
        return read(Path(name))
    for place in places:
        path = place / (name + ENDING)
        if path.exists():
            return read(path)
    raise ConfigError(
        f"there is no recipe {name!r}: the recipes are {', '.join(names(places))};"
        f" give the file of your own one with its path"
    )


def read(path: Path) -> Recipe:
    """The recipe in the file `path`."""
    try:
        document = tomllib.loads(read_whole(path).decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: name a recipe or a readable TOML file") from error
    except (ValueError, RecursionError) as error:  # no TOML, no text, numbers or lists beyond all measure
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return _Reader(path, document).recipe()


def with_values(recipe: Recipe, replaced: Mapping[str, str]) -> Recipe:
    """`recipe` with the expressions of some values replaced. Raises ConfigError for those it lacks."""
    known = [value.name for value in recipe.values]
    for name in replaced:
        if name not in known:
            raise ConfigError(
                f"--recipe-values {name}: recipe {recipe.name} has no such value: it has {', '.join(known)}"
            )
    seen: list[str] = []
    values = []
    for value in recipe.values:
        if value.name in replaced:
            where = f"--recipe-values {value.name}"
            value = replace(value, size=_expression(replaced[value.name], where, seen))  # noqa: PLW2901
        values.append(value)
        seen.append(value.name)
    return replace(recipe, values=tuple(values))


def _expression(text: object, where: str, before: list[str]) -> Expression:
    """`before`: the values that it may use, beside those that are given."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise ConfigError(f'{where}: {text!r} is no size: write one such as "budget * 75%"')
    try:
        expression = Expression.parse(str(text))
    except UsageError as error:
        raise ConfigError(f"{where}: {error}") from error
    unknown = sorted(expression.names.difference(before, GIVEN))
    if unknown:
        raise ConfigError(
            f"{where}: {expression.text!r} uses {', '.join(unknown)}, which no value before it is called:"
            f" there are {', '.join([*GIVEN, *before])}"
        )
    return expression


class _Reader:
    """Reads one document, and refuses what it does not know."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self._path = path
        self._document = document
        self._values: list[Value] = []

    def recipe(self) -> Recipe:
        document = self._document
        known = {
            *("summary", "left-out", "sources", "tried", "values", "arguments"),
            *("environment", "environment-append", "config", "overhead", "settings"),
        }
        self._known(document, known, "")
        if "summary" not in document:
            self._fail("summary", "it is missing: say in a sentence which program this is for")
        self._read_values(self._table(document, "values"))
        recipe = Recipe(
            name=self._path.stem,
            path=self._path,
            summary=self._string(document, "summary"),
            values=tuple(self._values),
            arguments=self._arguments(self._table(document, "arguments")),
            environment=self._variables(document, "environment"),
            environment_append=self._variables(document, "environment-append"),
            config=self._config(self._table(document, "config")),
            overhead=self._sizes(self._table(document, "overhead"), "overhead."),
            settings=self._table(document, "settings"),
            left_out=self._strings(document, "left-out"),
            sources=self._strings(document, "sources"),
            tried=self._string(document, "tried"),
        )
        twice = sorted(recipe.environment.keys() & recipe.environment_append.keys())
        if twice:
            self._fail(f"environment-append.{twice[0]}", "environment sets it already: keep one of the two")
        return recipe

    def _read_values(self, table: Mapping[str, Any]) -> None:
        seen: list[str] = []
        for name, entry in table.items():
            key = f"values.{name}"
            if not is_name(name) or name in GIVEN or name.endswith(SUFFIXES):
                self._fail(
                    key,
                    "it is no name for a value: use small letters, digits and _, neither budget nor _mib",
                )
            text, why = entry, ""
            if isinstance(entry, dict):
                self._known(entry, {"size", "why"}, key + ".")
                text, why = entry.get("size"), self._string(entry, "why", key + ".")
            self._values.append(Value(name, _expression(text, f"{self._path}: {key}", seen), why))
            seen.append(name)

    def _arguments(self, table: Mapping[str, Any]) -> Arguments:
        self._known(table, {"first", "last", "programs"}, "arguments.")
        return Arguments(
            first=self._fields(self._strings(table, "first", "arguments."), "arguments.first"),
            last=self._fields(self._strings(table, "last", "arguments."), "arguments.last"),
            programs=frozenset(self._strings(table, "programs", "arguments.")),
        )

    def _config(self, table: Mapping[str, Any]) -> ConfigFile | None:
        if not table:
            return None
        self._known(table, {"options", "default", "programs", "set"}, "config.")
        keys = self._texts(self._table(table, "set", "config."), "config.set.")
        options = self._strings(table, "options", "config.")
        if not keys or not options or "default" not in table:
            self._fail("config", "it needs options, default and set: which file, and which of its keys")
        return ConfigFile(
            options=options,
            default=Path(self._string(table, "default", "config.")),
            keys=keys,
            programs=frozenset(self._strings(table, "programs", "config.")),
        )

    def _variables(self, document: Mapping[str, Any], key: str) -> dict[str, str]:
        table = self._table(document, key)
        for name in table:
            if not name or "=" in name or "\0" in name:
                self._fail(f"{key}.{name!r}", "no variable can be called so: leave = out, and give it a name")
        return self._texts(table, key + ".")

    def _sizes(self, table: Mapping[str, Any], prefix: str) -> dict[str, int]:
        """A table of fixed sizes, such as ``driver = "300MiB"``."""
        sizes = {}
        for name in table:
            if not is_name(name):
                self._fail(prefix + name, "it is no name: use small letters, digits and _")
            try:
                sizes[name] = parse_size(self._string(table, name, prefix))
            except UsageError as error:
                self._fail(prefix + name, str(error))
        return sizes

    def _texts(self, table: Mapping[str, Any], prefix: str) -> dict[str, str]:
        """A table of strings with fields."""
        texts = {name: self._string(table, name, prefix) for name in table}
        for name, text in texts.items():
            self._fields((text,), prefix + name)
        return texts

    def _fields(self, texts: tuple[str, ...], key: str) -> tuple[str, ...]:
        values = dict.fromkeys((*GIVEN, *(value.name for value in self._values)), 1)
        for text in texts:
            for field in fields(text):
                if not is_field(field, values):
                    self._fail(key, f"no value is called {{{field}}}: there are {', '.join(values)}")
        return texts

    def _table(self, table: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
        found = table.get(key, {})
        if not isinstance(found, dict):
            self._fail(prefix + key, "it must be a table")
        return found

    def _string(self, table: Mapping[str, Any], key: str, prefix: str = "") -> str:
        found = table.get(key, "")
        if not isinstance(found, str) or "\0" in found:
            self._fail(prefix + key, "it must be a string")
        return found

    def _strings(self, table: Mapping[str, Any], key: str, prefix: str = "") -> tuple[str, ...]:
        found = table.get(key, [])
        if not isinstance(found, list) or not all(isinstance(x, str) and "\0" not in x for x in found):
            self._fail(prefix + key, "it must be a list of strings")
        return tuple(found)

    def _known(self, table: Mapping[str, Any], known: set[str], prefix: str) -> None:
        for key in table:
            if key not in known:
                self._fail(prefix + key, f"there is no such key: there are {', '.join(sorted(known))}")

    def _fail(self, key: str, why: str) -> NoReturn:
        raise ConfigError(f"{self._path}: {key}: {why}")
