"""Fixtures of the tests that make real cgroups and real kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel.launching import Launcher, Scenario
from kernel.probing import a_container
from kernel.verbs import Oomproof
from oomproof.leaf import Leaf


@pytest.fixture
def launcher_of(tmp_path: Path) -> Iterator[Callable[[Scenario], Launcher]]:
    """Makes launchers whose every process is ended after the test, whatever happened."""
    launchers: list[Launcher] = []

    def make(scenario: Scenario) -> Launcher:
        scenario.scratch = tmp_path / str(len(launchers))
        scenario.scratch.mkdir()
        launchers.append(Launcher(scenario))
        return launchers[-1]

    yield make
    for launcher in launchers:
        launcher.end()


@pytest.fixture
def container() -> Iterator[Leaf]:
    """A cgroup with a limit, as a container would be."""
    with a_container() as leaf:
        yield leaf


@pytest.fixture
def oomproof(tmp_path: Path) -> Iterator[Oomproof]:
    launcher = Oomproof(tmp_path)
    yield launcher
    launcher.end()
