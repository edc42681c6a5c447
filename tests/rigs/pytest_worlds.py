"""pytest plugin: in which worlds the kernel tests ran, and which of them were skipped, with reasons.

A world is a kernel with a cgroup mode: this host, or a guest. Tests that need a world which
cannot be had here are skipped; the end of the run counts them, so that a green run cannot
hide that nothing ran. With ``OOMPROOF_REQUIRE_RIGS=1`` they fail instead.

Marks: ``kernel`` for tests that make leaf cgroups, ``guest`` for tests that boot a guest.
"""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from rigs.own_cgroup import leaf_problem

_WORLD = "world"


@dataclass(slots=True)
class _Tally:
    ran: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def need(problem: str | None) -> None:
    """Skips the running test for `problem`, or fails it where every rig is required; None: goes on."""
    if problem is None:
        return
    if os.environ.get("OOMPROOF_REQUIRE_RIGS") == "1":
        pytest.fail(f"required by OOMPROOF_REQUIRE_RIGS=1: {problem}", pytrace=False)
    pytest.skip(problem)


def set_world(item: pytest.Item, world: str) -> None:
    """Says in which world `item` runs; shows in the summary and in JUnit reports."""
    item.user_properties.append((_WORLD, world))


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("kernel"):
        set_world(item, "host")
    elif item.get_closest_marker("guest"):
        set_world(item, "rig")


@functools.cache
def _host_problem() -> str | None:
    return leaf_problem()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if (_WORLD, "host") in item.user_properties:
        need(_host_problem())


class Tallies:
    """Counts per world; registered once per session."""

    def __init__(self) -> None:
        self._by_world: defaultdict[str, _Tally] = defaultdict(_Tally)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        world = dict(report.user_properties).get(_WORLD)
        if world is None:
            return
        tally = self._by_world[str(world)]
        if report.skipped and not hasattr(report, "wasxfail"):
            tally.skipped[skip_reason(report)] += 1
        elif report.when == "call" or report.failed:
            tally.ran += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._by_world:
            return
        terminalreporter.section("kernel tests")
        width = max(map(len, self._by_world))
        for world, tally in sorted(self._by_world.items()):
            skipped = tally.skipped.total()
            colour = {"yellow": True} if skipped else {"green": True}
            terminalreporter.write_line(f"{world:{width}}  {tally.ran} ran, {skipped} skipped", **colour)
            for reason, count in tally.skipped.most_common():
                terminalreporter.write_line(f"{'':{width}}    {count} skipped: {reason}")


def skip_reason(report: pytest.TestReport) -> str:
    """The reason of a skipped test, without the place where the skip was raised."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tallies(), "oomproof-tallies")
