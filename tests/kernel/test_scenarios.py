"""Deaths that are mislabelled elsewhere, each with a real kill in a real cgroup of 64 MiB."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel.launching import HOG, HOG_IN_SHELL, PYTHON, UNDER_EMULATION, Launcher, Scenario
from oomproof.leaf import make_leaf
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

LauncherOf = Callable[[Scenario], Launcher]
LIMIT = 64 * MIB
TOO_MUCH = 96 * MIB
FITS = 8 * MIB
OOM_STATUS = 137
SETTLE_S = 20.0 if UNDER_EMULATION else 0.5


def in_64_mib(
    *command: str, budgets: tuple[int, ...] = (TOO_MUCH, FITS), own_words: dict[str, object] | None = None
) -> Scenario:
    return Scenario(
        list(command),
        budgets=list(budgets),
        policy={"limit_bytes": LIMIT},
        attempt={"settle_s": SETTLE_S, "own_words": own_words or {}},
    )


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def ended(launcher: Launcher) -> list[tuple[str, int | None, int | None]]:
    launcher.start()
    launcher.finish()
    return [
        (end["verdict"], end["exit_code"], end["signal"]) for end in launcher.scenario.events("attempt_ended")
    ]


CHECK_TRUE = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"


def test_a_child_that_was_run_with_check_true_is_killed_and_python_exits_1(launcher_of: LauncherOf) -> None:
    launcher = launcher_of(in_64_mib(*python(CHECK_TRUE, *HOG, "{budget}")))
    assert ended(launcher) == [("oom_kill", 1, None), ("exited", 0, None)]


POOL = """
import multiprocessing, sys
def fill(size):
    return len(b"x" * size)
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(fill, [int(sys.argv[1])]))
"""


def test_a_multiprocessing_pool_hangs_when_its_worker_is_killed_and_comes_back_smaller(
    launcher_of: LauncherOf,
) -> None:
    launcher = launcher_of(in_64_mib(*python(POOL, "{budget}")))
    launcher.start()
    assert launcher.finish().stdout == f"[{FITS}]\n".encode()
    first, second = launcher.scenario.events("attempt_ended")
    assert (first["verdict"], first["confidence"]) == ("oom_kill", "certain")
    assert any("ran on after the kill noticed at" in sentence for sentence in first["evidence"])
    assert (second["verdict"], second["exit_code"]) == ("exited", 0)


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    file = Path("/dev/shm") / f"oomproof-test-{uuid.uuid4().hex}"  # noqa: S108  memory, and a name of its own
    if not file.parent.is_dir():
        pytest.skip("there is no /dev/shm")
    yield file
    with contextlib.suppress(FileNotFoundError):
        file.unlink()


def test_a_program_that_fills_a_tmpfs_is_killed_and_its_file_is_named(
    launcher_of: LauncherOf, shared_memory: Path
) -> None:
    fill = f"exec dd if=/dev/zero of={shared_memory} bs=1M count=96 2>/dev/null"
    launcher = launcher_of(in_64_mib("sh", "-c", fill, budgets=(TOO_MUCH,)))
    assert ended(launcher) == [("oom_kill", None, signal.SIGKILL)]
    (leftover,) = launcher.scenario.only_end()["leftovers"]
    assert shared_memory.name in leftover


SIGBUS = """
import mmap, os
fd = os.open("/dev/shm/pool", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 16 << 20)
memory = mmap.mmap(fd, 16 << 20)
for page in range(0, 16 << 20, 4096):
    memory[page] = 1
"""


@pytest.mark.parametrize("asked_for", [True, False])
def test_sigbus_on_a_full_tmpfs_is_a_lack_of_memory_where_that_was_asked_for(
    launcher_of: LauncherOf, asked_for: bool
) -> None:
    small = 'mount -t tmpfs -o size=8m small /dev/shm && exec "$@"'
    words: dict[str, object] = {"full_tmpfs": asked_for}
    launcher = launcher_of(in_64_mib(*PYTHON, "-c", SIGBUS, budgets=(TOO_MUCH,), own_words=words))
    launcher.start(prefix=("unshare", "--mount", "sh", "-c", small, "sh"))
    launcher.finish()
    end = launcher.scenario.only_end()
    assert (end["verdict"], end["signal"]) == (
        "in_process_oom" if asked_for else "signalled",
        signal.SIGBUS,
    )


@pytest.mark.parametrize(
    "program", ["kill -ABRT $$", "(kill -ABRT $BASHPID); exit $?"], ids=["itself", "its child"]
)
def test_a_program_that_aborts_when_memory_ran_out_is_known_by_the_status_of_a_shell(
    launcher_of: LauncherOf, program: str
) -> None:
    launcher = launcher_of(
        in_64_mib("bash", "-c", program, budgets=(TOO_MUCH,), own_words={"exit_codes": [134]})
    )
    assert [verdict for verdict, _, _ in ended(launcher)] == ["in_process_oom"]


MEMORY_ERROR = "import sys; bytearray(int(sys.argv[1]) * 4)"


@pytest.mark.parametrize("asked_for", [True, False])
def test_rlimit_as_makes_a_memory_error_which_is_believed_where_that_was_asked_for(
    launcher_of: LauncherOf, asked_for: bool
) -> None:
    limited = 'ulimit -v 200000; exec "$@"'
    words: dict[str, object] = {"patterns": ["^MemoryError"] if asked_for else []}
    launcher = launcher_of(
        in_64_mib("sh", "-c", limited, "sh", *PYTHON, "-c", MEMORY_ERROR, "{budget}", own_words=words)
    )
    expected = [("in_process_oom", 1, None), ("exited", 0, None)] if asked_for else [("exited", 1, None)]
    assert ended(launcher) == expected


def test_a_setsid_grandchild_keeps_neither_its_port_nor_its_memory(launcher_of: LauncherOf) -> None:
    """60 % of the limit: the second attempt needs as much, and the same port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    keeper = (
        "import socket, sys, time\n"
        f"server = socket.socket(); server.bind(('127.0.0.1', {port})); server.listen()\n"
        f"held = b'x' * {LIMIT * 6 // 10}\n"
        "open(sys.argv[1], 'a').write('held\\n')\n"
        "time.sleep(float(sys.argv[2]))\n"
    )
    # The first attempt leaves the keeper behind and dies of its own memory; the kernel prefers it.
    first = (
        f'setsid {" ".join(PYTHON)} -c "$0" SCRATCH/held 600 &'
        " while ! [ -s SCRATCH/held ]; do sleep 0.05; done;"
        f" echo 1000 > /proc/self/oom_score_adj; exec {HOG_IN_SHELL} {TOO_MUCH}"
    )
    script = f'[ $OOMPROOF_ATTEMPT = 2 ] && exec {" ".join(PYTHON)} -c "$0" SCRATCH/held 0; {first}'
    launcher = launcher_of(in_64_mib("sh", "-c", script, keeper))
    verdicts = ended(launcher)
    assert verdicts == [("oom_kill", None, signal.SIGKILL), ("exited", 0, None)]
    assert (launcher.scenario.scratch / "held").read_text() == "held\n" * 2
    launcher.assert_nothing_left()


def test_oomproof_itself_in_the_limited_cgroup_is_not_the_victim_and_brings_the_program_back(
    launcher_of: LauncherOf,
) -> None:
    with make_leaf("test") as container:
        container.set_limit(LIMIT)
        scenario = Scenario([*HOG, "{budget}"], budgets=[TOO_MUCH, FITS], join=container.join_path)
        launcher = launcher_of(scenario)
        assert ended(launcher) == [("oom_kill", None, signal.SIGKILL), ("exited", 0, None)]
        assert launcher.process.returncode == 0
        assert container.events().oom_kill == (0 if container.version == 1 else 1), "counted where it lived"


def test_a_program_that_ignores_its_budget_is_stopped_when_the_budget_was_halved(
    launcher_of: LauncherOf,
) -> None:
    budgets = (TOO_MUCH, TOO_MUCH * 3 // 4, TOO_MUCH // 2, TOO_MUCH // 4)
    launcher = launcher_of(in_64_mib(*HOG, str(TOO_MUCH), budgets=budgets))
    assert [verdict for verdict, *_ in ended(launcher)] == ["oom_kill"] * 3
    (gave_up,) = launcher.scenario.events("gave_up")
    assert gave_up["reason"].startswith("the budget has no effect: with 96.00 MiB and with 48.00 MiB alike")


def test_a_program_that_refuses_a_smaller_budget_gets_one_in_between(launcher_of: LauncherOf) -> None:
    refuse = f'[ $0 -lt {30 * MIB} ] && echo "needs at least 30 MiB" >&2 && exit 3; exec "$@"'
    scenario = in_64_mib("sh", "-c", refuse, "{budget}", *HOG, "{budget}", budgets=(TOO_MUCH, FITS, 0, 0))
    launcher = launcher_of(scenario)
    assert ended(launcher)[:2] == [("oom_kill", None, signal.SIGKILL), ("exited", 3, None)]
    last = launcher.scenario.events("attempt_ended")[-1]
    assert (last["verdict"], last["exit_code"], last["budget_bytes"]) == ("exited", 0, (TOO_MUCH + FITS) // 2)
