"""Recipes: what a file may say, where it is found, and what one budget makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof import config
from oomproof.cli.launching import check_recipe, suggestions
from oomproof.cli.settings import LAUNCHING, parse_recipe_values
from oomproof.errors import ConfigError, PlanError, UsageError
from oomproof.recipes.load import BUNDLED, folders, load, names, read, with_values
from oomproof.recipes.model import Recipe
from oomproof.recipes.start import Starts, find_option
from oomproof.units import GIB, MIB, parse_size

JAVA = """\
summary = "a virtual machine"
left-out = ["the rest"]
sources = ["its manual"]
tried = "yes"
[values]
threads = 4
stacks = { size = "threads * 1MiB", why = "one each" }
heap = "(budget - stacks) * 50%"
[arguments]
first = ["-Xmx{heap_mib}m"]
last = ["--threads", "{threads}"]
[environment]
LIMIT = "{budget}"
[environment-append]
OPTIONS = "-Xmx{heap}"
[settings]
oom-codes = "3"
signal-map = "TERM:INT"
"""


@pytest.fixture
def java(tmp_path: Path) -> Path:
    path = tmp_path / "java.toml"
    path.write_text(JAVA)
    return path


def test_one_budget_becomes_arguments_and_variables(java: Path) -> None:
    prepared = read(java).prepare(["java", "{stacks_kib}"], {"OPTIONS": "-v", "LIMIT": "1"}, 204 * MIB, 2)
    assert dict(prepared.values) == {
        "budget": 204 * MIB,
        "cpus": 2,
        "threads": 4,
        "stacks": 4 * MIB,
        "heap": 100 * MIB,
    }
    assert prepared.command == ("java", "-Xmx100m", "4096", "--threads", "4")
    assert prepared.environment == {"OPTIONS": f"-v -Xmx{100 * MIB}", "LIMIT": str(204 * MIB)}


def test_variables_that_were_not_there(java: Path) -> None:
    assert read(java).prepare(["java"], {}, 204 * MIB, 2).environment["OPTIONS"] == f"-Xmx{100 * MIB}"


def test_arguments_for_some_programs_only(java: Path) -> None:
    java.write_text(JAVA.replace("[arguments]", '[arguments]\nprograms = ["java"]'))
    recipe = read(java)
    assert recipe.prepare(["/opt/jdk/bin/java"], {}, GIB, 1).command[1].startswith("-Xmx")
    assert recipe.prepare(["sh", "-c", "java"], {}, GIB, 1).command == ("sh", "-c", "java")


def test_a_budget_that_leaves_nothing_is_refused_by_name(java: Path) -> None:
    with pytest.raises(PlanError, match=r"nothing is left for heap in a budget of 4.00 MiB.*java.toml"):
        read(java).compute(4 * MIB, 1)


def test_other_sizes_for_values(java: Path) -> None:
    recipe = with_values(read(java), parse_recipe_values("threads = 8, heap=min(budget, stacks, 1GiB)"))
    assert recipe.compute(GIB, 1)["heap"] == 8 * MIB
    with pytest.raises(ConfigError, match=r"--recipe-values metaspace: .*threads, stacks, heap"):
        with_values(recipe, {"metaspace": "1"})
    with pytest.raises(ConfigError, match=r"--recipe-values threads: .*uses heap"):
        with_values(recipe, {"threads": "heap"})
    for text in ("threads", "threads=", "=1", "a=1,,b=2"):
        with pytest.raises(ValueError, match="pairs"):
            parse_recipe_values(text)


@pytest.mark.parametrize(
    ("changed", "to", "key"),
    [
        ("summary", "sumary", "sumary"),
        ('summary = "a virtual machine"', "", "summary"),
        ('"a virtual machine"', "5", "summary"),
        ('["the rest"]', '"the rest"', "left-out"),
        ('["its manual"]', "[1]", "sources"),
        ("threads = 4", "threads = 4.5", "values.threads"),
        ("threads = 4", "threads = true", "values.threads"),
        ("threads = 4", 'threads = "4 +"', "values.threads"),
        ("threads = 4", 'threads = "heap"', "values.threads"),
        ("threads = 4", 'Threads = "1"', "values.Threads"),
        ("threads = 4", 'budget = "1"', "values.budget"),
        ("threads = 4", 'x_mib = "1"', "values.x_mib"),
        ("threads = 4", 'min = "1"', "values.min"),
        ("threads = 4", 'a = { sise = "1" }', "values.a.sise"),
        ("threads = 4", "a = { size = 1, why = 2 }", "values.a.why"),
        ("threads = 4", 'a = { why = "none" }', "values.a"),
        ("{heap_mib}m", "{help_mib}m", "arguments.first"),
        ("{threads}", "{thread}", "arguments.last"),
        ("first", "frist", "arguments.frist"),
        ("{budget}", "{bugdet}", "environment.LIMIT"),
        ('"{budget}"', "7", "environment.LIMIT"),
        ("LIMIT", '"A=B"', "environment.'A=B'"),
        ("OPTIONS", '""', "environment-append.''"),
        ("OPTIONS", "LIMIT", "environment-append.LIMIT"),
        ("[settings]", "[config]\noptions = ['-c']\n[settings]", "config"),
        ("[settings]", "[config]\nset = 1\n[settings]", "config.set"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(java: Path, changed: str, to: str, key: str) -> None:
    java.write_text(JAVA.replace(changed, to))
    with pytest.raises(UsageError) as caught:
        read(java)
    assert str(caught.value).startswith(f"{java}: {key}: ")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("setting", ["limit", "budget", "history", "on-oom-exec", "recipe", "nonsense"])
def test_settings_that_are_no_recipes_business(java: Path, setting: str) -> None:
    java.write_text(JAVA.replace("oom-codes", setting))
    with pytest.raises(ConfigError, match=rf"java.toml: settings.{setting}: "):
        suggestions(read(java))


def test_settings_of_a_recipe_give_way_to_all_others(java: Path, tmp_path: Path) -> None:
    suggested = suggestions(read(java))
    values = config.resolve(LAUNCHING, {}, {}, suggested)
    assert values["oom_codes"] == {3}
    assert values["signal_map"] == {15: 2}
    file = tmp_path / "config.toml"
    file.write_text('oom-codes = "5"\n')
    assert config.resolve(LAUNCHING, {"config": str(file)}, {}, suggested)["oom_codes"] == {5}
    assert config.resolve(LAUNCHING, {}, {"OOMPROOF_OOM_CODES": "6"}, suggested)["oom_codes"] == {6}
    assert config.resolve(LAUNCHING, {"oom_codes": "7"}, {}, suggested)["oom_codes"] == {7}


def test_a_setting_that_cannot_be_used_names_the_recipe(java: Path) -> None:
    java.write_text(JAVA.replace('"3"', '"many"'))
    with pytest.raises(ConfigError, match=r"java.toml: settings.oom-codes: "):
        config.resolve(LAUNCHING, {}, {}, suggestions(read(java)))


def test_where_recipes_are_found(tmp_path: Path) -> None:
    named, home = tmp_path / "named", tmp_path / "home"
    users = home / ".config" / "oomproof" / "recipes"
    users.mkdir(parents=True)
    named.mkdir()
    places = folders({"HOME": str(home)}, named)
    assert places == [named, users, BUNDLED]
    assert load("jvm", places).path == BUNDLED / "jvm.toml"
    (users / "jvm.toml").write_text('summary = "the user\'s own"')
    assert load("jvm", places).summary == "the user's own"
    (named / "jvm.toml").write_text('summary = "the one of the folder"')
    assert load("jvm", places).summary == "the one of the folder"
    assert load(str(users / "jvm.toml"), places).summary == "the user's own"
    assert folders({"XDG_CONFIG_HOME": "/etc/xdg"})[0] == Path("/etc/xdg/oomproof/recipes")
    assert folders({}) == [BUNDLED]
    with pytest.raises(ConfigError, match=r"no recipe 'jmv': the recipes are cuzk, dask,"):
        load("jmv", places)
    with pytest.raises(ConfigError, match="No such file"):
        load("./none.toml", places)


EXPECTED = {
    *("jvm", "go", "node", "python-malloc", "duckdb", "polars", "postgres", "redis", "dask", "ray", "spark"),
    *("vllm", "cuzk", "oomproof-prover"),
}


def bundled() -> list[Recipe]:
    return [read(path) for path in sorted(BUNDLED.glob("*.toml"))]


def test_the_recipes_that_come_along() -> None:
    assert {recipe.name for recipe in bundled()} == EXPECTED == set(names([BUNDLED]))


@pytest.mark.parametrize("recipe", bundled(), ids=lambda recipe: recipe.name)
def test_a_recipe_explains_itself_and_fits_the_settings(recipe: Recipe) -> None:
    assert recipe.summary
    assert recipe.left_out
    assert recipe.sources
    assert recipe.tried
    assert all(value.why for value in recipe.values)
    config.resolve(LAUNCHING, {}, {}, suggestions(recipe))


# What a value is a part of the budget, and how often the program takes it.
PARTS = {
    "jvm": {"metaspace": 1, "code_cache": 1, "direct": 1, "stacks": 1, "machine": 1, "heap": 1},
    "go": {"unaware": 1, "limit": 1},
    "node": {"machine": 1, "young": 1, "buffers": 1, "old_space": 1},
    "duckdb": {"interpreter": 1, "memory_limit": 1},
    "polars": {"interpreter": 1, "spill": 1},
    "redis": {"server": 1, "buffers": 1, "maxmemory": 2},
    "dask": {"nanny": 1, "memory_limit": 1},
    "ray": {"system": 1, "object_store": 1, "memory": 1},
    "spark": {"overhead": 1, "driver": 1},
    "vllm": {"processes": 1, "kv_offload": 1},
    "cuzk": {"outside": 1, "total_budget": 1},
    "postgres": {"shared_buffers": 1, "backends": 1, "maintenance_work_mem": 3},
}


@given(st.integers(0, 2**40), st.integers(1, 512))
def test_the_parts_of_a_recipe_never_add_up_to_more_than_the_budget(more: int, cpus: int) -> None:
    for recipe in bundled():
        floor = parse_size(str(recipe.settings.get("floor", "64MiB")))
        budget = floor + more
        values = recipe.compute(budget, cpus)
        parts = sum(values[name] * times for name, times in PARTS.get(recipe.name, {}).items())
        if recipe.name == "postgres":
            parts += values["work_mem"] * values["active"] * 4
        assert parts <= budget, (recipe.name, values)


def test_a_budget_at_the_floor_is_enough() -> None:
    for recipe in bundled():
        recipe.compute(parse_size(str(recipe.settings.get("floor", "64MiB"))), 2)


# -- starting ---------------------------------------------------------------------------------


CUZK = """\
summary = "an engine"
[values]
total = "budget - 64MiB"
[config]
options = ["--config", "-c"]
default = "DEFAULT"
programs = ["engine"]
set = { "memory.total_budget" = "{total_mib}MiB" }
"""


@pytest.fixture
def engine(tmp_path: Path) -> Recipe:
    path = tmp_path / "engine.toml"
    path.write_text(CUZK.replace("DEFAULT", str(tmp_path / "default.toml")))
    return read(path)


@pytest.mark.parametrize("words", [["-c", "FILE"], ["--config", "FILE"], ["--config=FILE"]])
def test_a_copy_of_the_programs_file_with_the_key_set(
    engine: Recipe, tmp_path: Path, words: list[str]
) -> None:
    file = tmp_path / "own.toml"
    file.write_text('listen = 1 # port\n[memory]\ntotal_budget = "auto"\n')
    said: list[str] = []
    command = ["wrapper", *(word.replace("FILE", str(file)) for word in words), "-v"]
    starts = Starts(command, {}, engine, (), said.append)
    for budget in (164 * MIB, 144 * MIB):
        started, _ = starts(budget)
        found = find_option(engine.config.options if engine.config else (), started)
        assert found is not None
        copy = Path(started[found[0]].removeprefix(found[1]))
        total = f"{budget // MIB - 64}MiB"
        assert copy.read_text() == f'listen = 1 # port\n[memory]\ntotal_budget = "{total}"\n'
        assert os.get_inheritable(int(copy.name)), "the program opens it by that number"
        assert started[-1] == "-v"
    assert file.read_text().count("auto") == 1
    assert said == [f"recipe engine: total {mib}.00 MiB" for mib in (100, 80)]


def test_a_program_without_a_file_of_its_own(engine: Recipe, tmp_path: Path) -> None:
    started, _ = Starts(["/opt/engine", "-v"], {}, engine, (), print)(164 * MIB)
    assert started[:3] == ["/opt/engine", "-v", "--config"]
    assert Path(started[3]).read_text() == '[memory]\ntotal_budget = "100MiB"\n'
    (tmp_path / "default.toml").write_text("listen = 1\n")
    started, _ = Starts(["engine"], {}, engine, (), print)(164 * MIB)
    assert Path(started[2]).read_text() == 'listen = 1\n[memory]\ntotal_budget = "100MiB"\n'
    with pytest.raises(ConfigError, match=r"no file with --config or -c, and sh may not"):
        Starts(["sh", "-c"], {}, engine, (), print)(164 * MIB)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("[memory", "Expected"),
        ("memory = {}", "cannot be set"),
        ("a = \xff", "utf-8"),
    ],
)
def test_a_file_that_cannot_be_copied(
    engine: Recipe, tmp_path: Path, content: str | None, words: str
) -> None:
    file = tmp_path / "own.toml"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=words) as caught:
        Starts(["engine", "-c", str(file)], {}, engine, (), print)(164 * MIB)
    assert str(caught.value).startswith(str(file))


def test_a_budget_that_is_too_small_is_not_tried(engine: Recipe) -> None:
    starts = Starts(["engine"], {}, engine, (), print)
    assert starts.allows(65 * MIB)
    assert not starts.allows(64 * MIB)
    assert Starts(["engine"], {}, None, (), print).allows(1)


def test_a_recipe_that_would_not_reach_the_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "db.toml"
    path.write_text(
        'summary = "a database"\n[values]\nlimit = "budget"\n'
        '[arguments]\nprograms = ["db"]\nfirst = ["{limit}"]\n'
    )
    recipe = read(path)
    for command in (["db"], ["/bin/db", "x"], ["sh", "-c", "db {limit_mib}"]):
        check_recipe({"recipe": recipe}, command)
    with pytest.raises(
        UsageError, match=r"recipe db changes nothing .* start db itself, or write \{limit\} in it"
    ):
        check_recipe({"recipe": recipe}, ["sh", "-c", "db {budget}"])
    check_recipe({"recipe": None}, ["sh"])


@pytest.mark.parametrize("content", ["a = " + "[" * 10_000, "a = " + "1" * 5_000])
def test_a_file_beyond_all_measure_is_no_recipe(tmp_path: Path, content: str) -> None:
    (tmp_path / "deep.toml").write_text(content)
    with pytest.raises(ConfigError, match=r"deep\.toml is not TOML"):
        read(tmp_path / "deep.toml")


@given(st.binary(max_size=200))
def test_no_file_content_raises_anything_but_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(content)
    try:
        read(path)
    except UsageError as error:
        assert "fuzz.toml" in str(error)
