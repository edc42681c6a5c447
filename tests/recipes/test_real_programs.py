"""Every recipe with its real program: with its budget it lives, with twice as much it is killed.

Each workload (`programs`) fills what it is told it may have: there the recipe's sum meets the kernel's.
A program that is not installed is skipped by name; with ``OOMPROOF_REQUIRE_RIGS=1`` that is a failure.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oomproof.units import MIB
from rigs.own_cgroup import leaf_problem
from rigs.pytest_worlds import need

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(400)]

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
PATIENCE_S = 180
# What programs take grows with the processors that they see: the same on every machine.
TWO_PROCESSORS = ["taskset", "--cpu-list", ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))]
# Where `make programs` puts the packages that are too large for every developer's environment.
PYTHON = Path(sys.prefix, "programs", "bin", "python")
POSTGRES = next(
    iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/lib/postgresql")
)


@dataclass(frozen=True, slots=True)
class Real:
    """How one program is started with a workload."""

    limit_mib: int
    """Of the leaf."""
    problem: Callable[[], str | None]
    """Why it cannot be run here."""
    workload: Callable[[Path], AbstractContextManager[list[str]]]
    """The command line, with all it needs in the given folder and beside it while it runs."""
    fills: float = 0.7
    """The part of the budget that the workload takes at least, as proof that it takes any."""


# -- what can be run here ---------------------------------------------------------------------


def lacks(*programs: str) -> Callable[[], str | None]:
    return lambda: next((f"{name} is not installed" for name in programs if shutil.which(name) is None), None)


def lacks_compiler_or(*programs: str) -> Callable[[], str | None]:
    def problem() -> str | None:
        if shutil.which("javac") is None and shutil.which("ecj") is None:
            return "neither javac nor ecj is installed"
        return lacks(*programs)()

    return problem


def lacks_package(name: str) -> Callable[[], str | None]:
    """Of the environment that `make programs` makes."""

    def problem() -> str | None:
        if not PYTHON.exists():
            return f"{name} is not installed: make programs"
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
        missing = subprocess.run([PYTHON, "-c", code], check=False).returncode
        return f"{name} is not installed: make programs" if missing else None

    return problem


def lacks_duckdb() -> str | None:
    return None if importlib.util.find_spec("duckdb") else "duckdb is not installed"


def lacks_postgres() -> str | None:
    if not (POSTGRES / "postgres").exists():
        return "postgres is not installed"
    return None if os.geteuid() == 0 else "postgres needs root, to become another user"


# -- how they are started ---------------------------------------------------------------------


def python(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / name), *arguments]


def just(command: Callable[[Path], list[str]]) -> Callable[[Path], AbstractContextManager[list[str]]]:
    """A workload that needs nothing but its folder."""

    @contextmanager
    def workload(folder: Path) -> Iterator[list[str]]:
        yield command(folder)

    return workload


def jvm(folder: Path) -> list[str]:
    compiler = ["javac"] if shutil.which("javac") else ["ecj", "-proc:none", "-17"]
    subprocess.run([*compiler, "-d", str(folder), str(PROGRAMS / "Fill.java")], check=True)
    # Behind a shell, where no argument would reach it.
    return ["sh", "-c", f"exec java -cp '{folder}' Fill"]


def go(folder: Path) -> list[str]:
    build = ["go", "build", "-o", str(folder / "fill"), str(PROGRAMS / "fill.go")]
    subprocess.run(build, check=True, env={**os.environ, "GOCACHE": str(folder / "cache")}, cwd=folder)
    return [str(folder / "fill")]


def node(_folder: Path) -> list[str]:
    return ["node", str(PROGRAMS / "fill.js"), "{old_space}", "90"]


def malloc(_folder: Path) -> list[str]:
    return python("fill_threads.py")


def duckdb(folder: Path) -> list[str]:
    return python("fill_duckdb.py", "{memory_limit}", str(folder), "5000000", "{threads}")


def polars(folder: Path) -> list[str]:
    return [str(PYTHON), str(PROGRAMS / "fill_polars.py"), str(folder), "7000000"]


def redis(folder: Path) -> list[str]:
    return python("fill_redis.py", str(folder), "redis-server")


@contextmanager
def postgres(_folder: Path) -> Iterator[list[str]]:
    """Not in the test's own folder: the user postgres may not go there."""
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with tempfile.TemporaryDirectory(prefix="oomproof-postgres-") as home:
        shutil.chown(home, "postgres", "postgres")
        server = [*as_postgres, str(POSTGRES / "postgres"), "-D", f"{home}/data"]
        subprocess.run(
            [*as_postgres, POSTGRES / "initdb", "--auth=trust", "--no-sync", "-D", f"{home}/data"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=home,
        )
        yield python("fill_postgres.py", "{active}", home, *server)


@contextmanager
def dask(folder: Path) -> Iterator[list[str]]:
    """Beside the worker: a scheduler, and the client that has the work done."""
    at = ["--scheduler-file", str(folder / "scheduler.json")]
    program = str(PYTHON.with_name("dask"))
    beside = [
        [program, "scheduler", "--port", "0", "--no-dashboard", *at],
        [str(PYTHON), str(PROGRAMS / "fill_dask.py"), str(folder / "scheduler.json")],
    ]
    with (folder / "beside.log").open("wb") as log:
        running = [subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) for command in beside]
    settings = ["--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--death-timeout", "60"]
    try:
        yield [program, "worker", *at, "--local-directory", str(folder), *settings]
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def ray(_folder: Path) -> Iterator[list[str]]:
    """Not in the test's own folder: its name would be too long for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="oomproof-ray-") as home:
        yield [str(PYTHON), str(PROGRAMS / "fill_ray.py"), home]


def cuzk(folder: Path) -> list[str]:
    file = folder / "cuzk.toml"
    file.write_text('[daemon]\nlisten = "0.0.0.0:9820"\n\n[memory]\n# all of it\ntotal_budget = "auto"\n')
    return python("fill_toml.py", "--config", str(file))


REAL = {
    "jvm": Real(512, lacks_compiler_or("java"), just(jvm)),
    "go": Real(256, lacks("go"), just(go)),
    # With little memory V8 makes do with a young generation far below the 48 MiB that are kept for it.
    "node": Real(384, lacks("node"), just(node), fills=0.6),
    "python-malloc": Real(256, lambda: None, just(malloc)),
    "oomproof-prover": Real(256, lambda: None, just(malloc)),
    "duckdb": Real(512, lacks_duckdb, just(duckdb)),
    "polars": Real(384, lacks_package("polars"), just(polars)),
    "postgres": Real(512, lacks_postgres, postgres),
    "redis": Real(256, lacks("redis-server"), just(redis)),
    "dask": Real(512, lacks_package("distributed"), dask),
    "ray": Real(1536, lacks_package("ray"), ray),
    "cuzk": Real(512, lambda: None, just(cuzk)),
}


# -- the tests --------------------------------------------------------------------------------


def attempt(folder: Path, arguments: list[str]) -> tuple[dict[str, Any], str]:
    """Runs a launcher that makes one attempt; how that ended, and all that was said."""
    events = folder / "events.jsonl"
    done = subprocess.run(
        [*TWO_PROCESSORS, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
        cwd=folder,
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert events.exists(), said
    (end,) = (
        document
        for document in map(json.loads, events.read_text().splitlines())
        if document["event"] == "attempt_ended"
    )
    return end, said


@pytest.fixture(params=REAL)
def name(request: pytest.FixtureRequest) -> str:
    recipe: str = request.param
    need(leaf_problem())
    need(REAL[recipe].problem())
    return recipe


def test_with_its_budget_it_lives(name: str, tmp_path: Path) -> None:
    real = REAL[name]
    settings = ["--limit", f"{real.limit_mib}MiB", "--recipe", name, "--retries", "0", "--history", "none"]
    settings += ["--events", str(tmp_path / "events.jsonl"), "--timeout", str(PATIENCE_S - 20)]
    with real.workload(tmp_path) as command:
        end, said = attempt(tmp_path, [sys.executable, "-m", "oomproof", "run", *settings, "--", *command])
    assert (end["verdict"], end["oom_kills"], end["exit_code"]) == ("exited", 0, 0), said
    assert end["peak_bytes"] >= real.fills * end["budget_bytes"], said


def test_with_twice_the_budget_it_is_killed(name: str, tmp_path: Path) -> None:
    real = REAL[name]
    limit = real.limit_mib * MIB
    order: dict[str, object] = {
        "recipe": name,
        "values": {},
        "budget_bytes": 2 * (limit - 32 * MIB),
        "limit_bytes": limit,
        "events": str(tmp_path / "events.jsonl"),
    }
    with real.workload(tmp_path) as command:
        launcher = [sys.executable, str(HERE / "overbook.py"), json.dumps(order | {"command": command})]
        end, said = attempt(tmp_path, launcher)
    assert (end["verdict"], end["confidence"]) == ("oom_kill", "certain"), said
    assert end["oom_kills"] >= 1, said
    assert any("the leaf's own limit" in sentence for sentence in end["evidence"]), said


def too_much_for_go(folder: Path) -> list[str]:
    """The kernel refuses what the address space has no room for; the runtime ends itself."""
    return ["sh", "-c", f"ulimit -v 900000; exec {go(folder)[0]}"]


SAYS_SO: dict[str, tuple[Callable[[], str | None], Callable[[Path], list[str]]]] = {
    "jvm": (lacks_compiler_or("java"), lambda folder: [*jvm(folder)[:2], f"{jvm(folder)[2]} too much"]),
    "node": (lacks("node"), lambda folder: [*node(folder)[:-1], "300"]),
    "go": (lacks("go"), too_much_for_go),
    "python-malloc": (lambda: None, lambda _: [sys.executable, "-c", "b'x' * (1 << 60)"]),
}


@pytest.mark.parametrize("name", SAYS_SO)
def test_a_program_that_says_itself_that_memory_ran_out_is_believed(name: str, tmp_path: Path) -> None:
    problem, command = SAYS_SO[name]
    need(leaf_problem())
    need(problem())
    settings = ["--limit", "512MiB", "--recipe", name, "--retries", "0", "--history", "none"]
    settings += ["--events", str(tmp_path / "events.jsonl")]
    end, said = attempt(
        tmp_path, [sys.executable, "-m", "oomproof", "run", *settings, "--", *command(tmp_path)]
    )
    assert (end["verdict"], end["oom_kills"]) == ("in_process_oom", 0), said


def test_fewer_arenas_take_less_memory(tmp_path: Path) -> None:
    """What the knob of python-malloc is for: the same work, without the recipe and with it."""
    need(leaf_problem())
    peaks = []
    for number, recipe in enumerate([[], ["--recipe", "python-malloc"]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = [
            "--limit",
            "512MiB",
            *recipe,
            "--history",
            "none",
            "--events",
            str(folder / "events.jsonl"),
        ]
        end, said = attempt(
            folder,
            [sys.executable, "-m", "oomproof", "run", *settings, "--", *python("free_in_threads.py")],
        )
        assert end["verdict"] == "exited", said
        peaks.append(end["peak_bytes"])
    assert peaks[1] < 0.8 * peaks[0], peaks
