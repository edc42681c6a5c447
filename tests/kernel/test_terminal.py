"""A program at a terminal behaves as though its shell had started it: keys, stops, foreground."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from kernel.launching import PATIENCE_S, Launcher, Scenario, arguments, wait_until

pytestmark = pytest.mark.kernel

LauncherOf = Callable[[Scenario], Launcher]

CTRL_C, CTRL_D, CTRL_Z = b"\x03", b"\x04", b"\x1a"


@dataclass(slots=True)
class Screen:
    """Our end of a pseudo-terminal."""

    keyboard: int
    process: subprocess.Popen[bytes]
    text: bytes = field(default=b"")

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def wait_for(self, words: bytes) -> None:
        """Until `words` were shown; forgets all up to them."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.text:
            remaining = deadline - time.monotonic()
            assert remaining > 0, f"{words!r} was not shown, but {self.text!r}"
            if select.select([self.keyboard], [], [], remaining)[0]:
                try:
                    self.text += os.read(self.keyboard, 4096)
                except OSError as error:  # EIO: the last process at the terminal ended
                    raise AssertionError(f"{words!r} was not shown, but {self.text!r}") from error
        self.text = self.text.partition(words)[2]


@pytest.fixture
def open_screens() -> Iterator[list[Screen]]:
    screens: list[Screen] = []
    yield screens
    for screen in screens:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.keyboard)


def at_terminal(command: list[str], screens: list[Screen]) -> Screen:
    """`command` as the leader of a new session at a new terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["setsid", "-c", *command], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = Screen(ours, process)
    screens.append(screen)
    return screen


# Written so that the echo of the command is not taken for its output.
SHOW_GROUPS = 'awk \'{ print ($5 == $8 ? "in " : "not in ") "front" }\' /proc/self/stat'


def test_the_program_is_in_the_foreground_and_ctrl_c_ends_it_and_the_run(
    launcher_of: LauncherOf, open_screens: list[Screen]
) -> None:
    scenario = Scenario(["sh", "-c", f"{SHOW_GROUPS}; exec sleep 600"], budgets=[2, 1])
    launcher_of(scenario)
    screen = at_terminal(arguments(scenario), open_screens)
    screen.wait_for(b"in front")
    screen.type(CTRL_C)
    assert screen.process.wait(PATIENCE_S) == 128 + signal.SIGINT
    end = scenario.only_end()
    assert (end["verdict"], end["signal"]) == ("stopped", signal.SIGINT)


def test_ctrl_z_bg_and_fg_work_as_in_any_shell(launcher_of: LauncherOf, open_screens: list[Screen]) -> None:
    scenario = Scenario(["sh", "-c", f"{SHOW_GROUPS}; exec cat"])
    launcher_of(scenario)
    command = shlex.join(arguments(scenario))
    screen = at_terminal(["bash", "--norc", "--noprofile", "-i"], open_screens)
    screen.type(b"PS1='read''y> '\n")
    screen.wait_for(b"ready> ")
    screen.type(command.encode() + b"\n")
    screen.wait_for(b"in front")
    screen.type(CTRL_Z)
    screen.wait_for(b"Stopped")
    screen.wait_for(b"ready> ")
    screen.type(b"fg\n")
    screen.wait_for(b"launch_driver")
    screen.type(b"hello\n")
    screen.wait_for(b"hello")  # the echo of the keys
    screen.wait_for(b"hello\r\n")
    screen.type(CTRL_D)
    screen.wait_for(b"ready> ")
    screen.type(b"echo status=$?\n")
    screen.wait_for(b"status=0")
    assert scenario.only_end()["verdict"] == "exited"


def test_in_a_pipeline_the_program_leaves_the_terminal_to_others_until_it_reads(
    launcher_of: LauncherOf, open_screens: list[Screen]
) -> None:
    scenario = Scenario(["sh", "-c", f"{SHOW_GROUPS}; read line < /dev/tty; echo got $line"])
    launcher_of(scenario)
    screen = at_terminal(["bash", "--norc", "--noprofile", "-i"], open_screens)
    screen.type(b"PS1='read''y> '\n")
    screen.wait_for(b"ready> ")
    screen.type(shlex.join(arguments(scenario)).encode() + b" | cat\n")
    screen.wait_for(b"not in front")
    screen.type(b"hello\n")
    screen.wait_for(b"got hello")
    screen.wait_for(b"ready> ")
    assert scenario.only_end()["exit_code"] == 0


def test_a_program_in_the_background_that_reads_the_terminal_stops_its_job(
    launcher_of: LauncherOf, open_screens: list[Screen]
) -> None:
    scenario = Scenario(["cat"])
    launcher = launcher_of(scenario)
    command = shlex.join(arguments(scenario))
    screen = at_terminal(["bash", "--norc", "--noprofile", "-i"], open_screens)
    screen.type(b"PS1='read''y> '\n")
    screen.wait_for(b"ready> ")
    screen.type(command.encode() + b" &\n")
    screen.wait_for(b"ready> ")
    wait_until(lambda: scenario.events("attempt_started"), "the start")

    def stopped() -> bool:
        screen.type(b"jobs\n")
        screen.wait_for(b"ready> ")
        return b"Stopped" in screen.text or _state_of(launcher) == "T"

    wait_until(stopped, "the stop")
    screen.type(b"fg\n")
    screen.wait_for(b"launch_driver")
    screen.type(b"hello\n")
    screen.wait_for(b"hello")  # the echo of the keys
    screen.wait_for(b"hello\r\n")
    screen.type(CTRL_D)
    screen.wait_for(b"ready> ")
    assert scenario.only_end()["exit_code"] == 0


def _state_of(launcher: Launcher) -> str:
    """State of the launcher itself (the youngest of its processes is the guardian)."""
    pid = min(launcher.processes())
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]
