"""``oomproof recipes``: which recipes there are, what one does with a budget, and what it leaves out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from oomproof import config
from oomproof.cli import output
from oomproof.cli.launching import suggestions
from oomproof.cli.settings import LAUNCHING
from oomproof.errors import UsageError
from oomproof.recipes.load import folders, load, names
from oomproof.recipes.model import Prepared, Recipe
from oomproof.recipes.start import format_value
from oomproof.units import GIB, format_size

SCHEMA_VERSION = 1
EXAMPLE_BUDGET = 4 * GIB
PROGRAM = "PROGRAM"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``recipes``."""
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="explain this recipe")
    parser.add_argument(
        "--budget",
        type=_size,
        metavar="SIZE",
        help="explain with it (default: 4GiB, or twice what the recipe needs)",
    )
    parser.add_argument(
        "--recipe-dir", type=Path, metavar="DIR", help="look for recipes in this folder first"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, sizes in bytes")


def _size(text: str) -> int:
    try:
        return config.parse_positive_size(text)
    except UsageError as error:
        raise type(error)(f"--budget: {error}") from error


def run(args: argparse.Namespace) -> int:
    """The list, or one recipe. Raises ConfigError for a file that is no recipe."""
    named = args.recipe_dir or os.environ.get("OOMPROOF_RECIPE_DIR")
    places = folders(os.environ, Path(named) if named else None)
    if args.name is None:
        _list([load(name, places) for name in names(places)], as_json=args.json)
        return 0
    recipe = load(args.name, places)
    needed = config.resolve(LAUNCHING, {}, {}, suggestions(recipe))["floor"] or 0
    prepared = prepare_example(recipe, args.budget or max(EXAMPLE_BUDGET, 2 * needed))
    if args.json:
        output.print_json({"schema_version": SCHEMA_VERSION, **as_json(recipe, prepared)})
    else:
        for line in explained(recipe, prepared):
            print(line)
    return 0


def _list(recipes: list[Recipe], *, as_json: bool) -> None:
    if as_json:
        entries = [{"name": r.name, "file": str(r.path), "summary": r.summary} for r in recipes]
        output.print_json({"schema_version": SCHEMA_VERSION, "recipes": entries})
    else:
        output.print_table(("NAME", "FOR"), [(recipe.name, recipe.summary) for recipe in recipes])


def prepare_example(recipe: Recipe, budget_bytes: int) -> Prepared:
    """The recipe applied to a program without arguments. Raises PlanError for too small a budget."""
    program = min(recipe.arguments.programs, default=PROGRAM)
    return recipe.prepare([program], {}, budget_bytes, len(os.sched_getaffinity(0)))


def explained(recipe: Recipe, prepared: Prepared) -> Iterator[str]:
    """For people, line by line."""
    yield f"{recipe.name}: {recipe.summary}"
    yield f"  {recipe.path}"
    yield f"with a budget of {format_size(prepared.values['budget'])}"
    rows = [
        (value.name, format_value(prepared.values[value.name]), value.size.text, value.why)
        for value in recipe.values
    ]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:3]]
    for name, size, text, why in rows:
        yield f"  {name:{widths[0]}}  {size:>{widths[1]}}  {text:{widths[2]}}  {why}".rstrip()
    yield from _section("the program is started with", list(_knobs(recipe, prepared)))
    beside = [f"{name} {format_size(size)}" for name, size in recipe.overhead.items()]
    yield from _section("beside any budget", beside)
    yield from _section("settings it brings", [f"--{key} {value}" for key, value in recipe.settings.items()])
    yield from _section("not covered", recipe.left_out)
    yield from _section("the facts are from", recipe.sources)
    yield from _section("tried", [recipe.tried] if recipe.tried else [])


def _section(title: str, lines: list[str] | tuple[str, ...]) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {line}" for line in lines)


def _knobs(recipe: Recipe, prepared: Prepared) -> Iterator[str]:
    for name in recipe.environment:
        yield f"{name}={prepared.environment[name]}"
    for name in recipe.environment_append:
        yield f'{name}="${name} {prepared.environment[name]}"'
    arguments = recipe.arguments
    if arguments.first or arguments.last:
        first = prepared.command[1 : 1 + len(arguments.first)]
        last = prepared.command[1 + len(arguments.first) :]
        yield " ".join([prepared.command[0], *map(_quoted, first), "...", *map(_quoted, last)])
    if recipe.config is not None:
        for key, value in prepared.config_keys.items():
            flag = recipe.config.options[0]
            yield f'{key} = "{value}" in a copy of the file that {flag} names (else {recipe.config.default})'


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def as_json(recipe: Recipe, prepared: Prepared) -> Mapping[str, object]:
    """For programs. `command` is that of a program without arguments."""
    return {
        "name": recipe.name,
        "file": str(recipe.path),
        "summary": recipe.summary,
        "budget_bytes": prepared.values["budget"],
        "values": [
            {
                "name": value.name,
                "value": prepared.values[value.name],
                "expression": value.size.text,
                "why": value.why,
            }
            for value in recipe.values
        ],
        "command": list(prepared.command),
        "environment": dict(prepared.environment),
        "config": dict(prepared.config_keys),
        "overhead": dict(recipe.overhead),
        "settings": dict(recipe.settings),
        "left_out": list(recipe.left_out),
        "sources": list(recipe.sources),
        "tried": recipe.tried,
    }
