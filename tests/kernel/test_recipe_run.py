"""Recipes and templates on the command line: each attempt gets its own, and what the user says wins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernel.launching import HOG, HOG_IN_SHELL, PATIENCE_S, wait_until
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

OOMPROOF = [sys.executable, "-m", "oomproof"]
RECIPE = """\
summary = "a program that fills its cache"
[values]
cache = "budget - 8MiB"
[arguments]
last = ["{cache}"]
[environment]
CACHE = "{cache_kib}"
[settings]
oom-codes = "77"
signal-map = "TERM:USR1"
retries = 2
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "hog.toml"
    path.write_text(RECIPE)
    return path


def run(tmp_path: Path, *arguments: str, limit: str = "96MiB") -> subprocess.CompletedProcess[str]:
    settings = ["--history", "none", "--events", str(tmp_path / "events.jsonl"), "--limit", limit]
    return subprocess.run(
        [*OOMPROOF, "run", *settings, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
        check=False,
    )


def ends(tmp_path: Path) -> list[dict[str, object]]:
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "attempt_ended"]


def test_a_kill_is_followed_by_smaller_knobs(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "conf.in").write_text("cache={cache_mib} budget={budget_mib}\n")
    script = f'cat conf >> seen; echo "$CACHE" >> seen; exec {HOG_IN_SHELL} "$0"'
    done = run(
        tmp_path,
        *("--budget", "96MiB", "--on-oom", "shrink:50%", "--recipe", str(recipe)),
        *("--recipe-values", "cache=budget + 32MiB", "--render", "conf.in:conf"),
        *("--", "sh", "-c", script),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text().splitlines() == [
        "cache=128 budget=96",
        str(128 * 1024),
        "cache=80 budget=48",
        str(80 * 1024),
    ]
    assert [end["verdict"] for end in ends(tmp_path)] == ["oom_kill", "exited"]
    assert "recipe hog: cache 128.00 MiB" in done.stderr
    assert "recipe hog: cache 80.00 MiB" in done.stderr


def test_the_recipe_says_what_a_lack_of_memory_is_and_flags_win(recipe: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "--recipe", str(recipe), "--", "sh", "-c", "exit 77")
    assert [end["verdict"] for end in ends(tmp_path)] == ["in_process_oom"] * 3, "retries = 2, of the recipe"
    assert done.returncode == 137
    (tmp_path / "events.jsonl").unlink()
    flags = ("--oom-codes", "78", "--retries", "0")
    done = run(tmp_path, "--recipe", str(recipe), *flags, "--", "sh", "-c", "exit 77")
    assert [end["verdict"] for end in ends(tmp_path)] == ["exited"]
    assert done.returncode == 77


def test_no_budget_is_tried_that_leaves_a_part_nothing(recipe: Path, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        *("--budget", "16MiB", "--on-oom", "shrink:60%", "--recipe", str(recipe)),
        *("--", "sh", "-c", "exit 77"),
    )
    assert len(ends(tmp_path)) == 1
    assert done.returncode == 137
    assert "no budget below 16.00 MiB is worth trying" in done.stderr
    done = run(tmp_path, "--budget", "8MiB", "--recipe", str(recipe), "--", "true")
    assert done.returncode == 125
    assert "nothing is left for cache in a budget of 8.00 MiB" in done.stderr


def test_the_signal_that_ends_the_program_in_order(recipe: Path, tmp_path: Path) -> None:
    script = "trap 'exit 9' USR1; : > ready; while :; do sleep 0.05; done"
    settings = ["--history", "none", "--limit", "96MiB", "--recipe", str(recipe)]
    with subprocess.Popen([*OOMPROOF, "run", *settings, "--", "sh", "-c", script], cwd=tmp_path) as process:
        try:
            wait_until((tmp_path / "ready").exists, "the program")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 9
        finally:
            process.kill()


def test_a_benchmark_by_the_recipe_of_a_daemon_needs_no_client(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE + 'ready = "tcp://127.0.0.1:9"\nready-timeout = "none"\n')
    settings = ["--history", "none", "--limit", "96MiB", "--recipe", str(recipe)]
    bench = [*OOMPROOF, "bench", *settings]
    done = subprocess.run(
        [*bench, "--", "true"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*bench, "--ready", "tcp://127.0.0.1:9", "--", "true"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, "who says it himself is taken at his word"
    assert "--client" in done.stderr


def test_mistakes_are_told_before_anything_is_started(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace("{cache}", "{cash}"))
    done = run(tmp_path, "--recipe", str(recipe), "--", "touch", "started")
    assert (done.returncode, "hog.toml: arguments.last: no value is called {cash}" in done.stderr) == (
        2,
        True,
    )
    done = run(tmp_path, "--render", "none.in:conf", "--", "touch", "started")
    assert (done.returncode, "--render none.in: No such file" in done.stderr) == (2, True)
    assert done.stderr.count("\n") <= 4
    assert not (tmp_path / "started").exists()


def test_the_launcher_stays_small_with_a_recipe(recipe: Path, tmp_path: Path) -> None:
    command = [*HOG, str(8 * MIB), "600"]
    recipe.write_text(RECIPE.replace('last = ["{cache}"]', ""))
    settings = ["--history", "none", "--limit", "96MiB", "--recipe", str(recipe)]
    with subprocess.Popen([*OOMPROOF, "run", *settings, "--", *command], cwd=tmp_path) as process:
        try:
            wait_until(lambda: _rss_kib_when_running(process.pid) is not None, "the program")
            rss_kib = _rss_kib_when_running(process.pid)
            assert rss_kib is not None
            assert rss_kib < 20 * 1024
        finally:
            process.send_signal(signal.SIGKILL)


def _rss_kib_when_running(pid: int) -> int | None:
    """Of the launcher; None while its program does not run yet."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not any(b"hog.py\0" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children):
        return None
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
