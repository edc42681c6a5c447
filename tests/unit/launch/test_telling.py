"""The line for people about one attempt."""

from __future__ import annotations

import pytest

from oomproof.launch.model import Attempt, Evidence, Exit, KernelKill, Kills, Scope
from oomproof.launch.telling import describe
from oomproof.launch.verdict import judge

LEAF = "/sys/fs/cgroup/memory/docker/0123456789abcdef/oomproof-run-1-0"


def line(exit_: Exit, kills: int, *, ok_with_kills: bool = False, log: bool = False) -> str:
    source = f"{LEAF}/memory.oom_control"
    kill = KernelKill(7, "hog", "CONSTRAINT_MEMCG", "/docker/0123456789abcdef/oomproof-run-1-0", None)
    evidence = Evidence(
        exit=exit_,
        main_pid=1,
        kills=Kills(Scope.LEAF, source, 0, kills),
        kernel_log=(kill,) if log else None,
        duration_s=1.0,
    )
    return describe(Attempt(1, 1 << 20, evidence, judge(evidence)), ok_with_kills=ok_with_kills)


def test_a_clean_end_is_short() -> None:
    assert line(Exit(0), 0) == (
        "attempt 1: exited (certain) after 1.0 s: the main process exited with 0; budget 1.00 MiB"
    )


def test_the_folders_of_cgroups_are_left_out() -> None:
    told = line(Exit(signal=9), 1, log=True)
    assert "0123456789abcdef" not in told
    assert "; .../memory.oom_control: oom_kill rose from 0 to 1;" in told
    assert "against the limit of .../oomproof-run-1-0;" in told


@pytest.mark.parametrize(
    ("ok_with_kills", "words"),
    [(True, "accepted, as --ok-with-kills asks for"), (False, "which --ok-with-kills would accept")],
)
def test_a_success_with_a_kill_inside_names_the_setting_that_decides(ok_with_kills: bool, words: str) -> None:
    assert words in line(Exit(0), 1, ok_with_kills=ok_with_kills)
    assert "--ok-with-kills" not in line(Exit(1), 1, ok_with_kills=ok_with_kills)
