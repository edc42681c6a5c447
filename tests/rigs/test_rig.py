"""The rig itself: what happens in a guest comes out of it, also when the guest comes to grief."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rigs.guest import Guest, GuestDied, GuestTimedOut
from rigs.pytest_worlds import need

pytestmark = [pytest.mark.guest, pytest.mark.timeout(300)]

# Far beyond the five seconds of a boot: the machine may be busy with other tests.
PATIENCE_S = 120


@pytest.fixture(autouse=True)
def _guests_can_be_had() -> None:
    need(Guest("6.12", "v2").problem() or Guest("6.1", "v1").problem())


def test_exit_code_output_and_shared_files_come_out(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from the host")
    run = Guest("6.12", "v2").run(
        'cat in; echo " $GREETING" >&2; echo back > out; exit 7',
        timeout_s=PATIENCE_S,
        environment={"GREETING": "it's $HOME"},
        working_directory=tmp_path,
        shared=tmp_path,
    )
    assert run.exit_code == 7
    assert run.output == "from the host it's $HOME\n"
    assert (tmp_path / "out").read_text() == "back\n"


def test_files_of_the_host_are_seen_but_never_written(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    run = Guest("6.12", "v2").run(f"cat {kept}; echo overwritten > {kept}; cat {kept}", timeout_s=PATIENCE_S)
    assert run.output == "as it wasoverwritten\n"
    assert kept.read_text() == "as it was"


@pytest.mark.parametrize(
    ("guest", "limit"),
    [
        (Guest("6.12", "v2"), "/sys/fs/cgroup/leaf/memory.max"),
        (Guest("6.1", "hybrid"), "/sys/fs/cgroup/memory/leaf/memory.limit_in_bytes"),
    ],
    ids=["v2", "hybrid"],
)
def test_an_oom_kill_is_real_and_in_the_kernel_log(guest: Guest, limit: str) -> None:
    leaf = Path(limit).parent
    run = guest.run(
        f"mkdir {leaf} && echo 32M > {limit} && uname -r"
        f" && sh -c 'echo $$ > {leaf}/cgroup.procs; exec tail /dev/zero'",
        timeout_s=PATIENCE_S,
    )
    assert run.exit_code == 128 + 9
    assert run.output.startswith(guest.kernel + ".")
    assert "Memory cgroup out of memory: Killed process" in run.kernel_log


def test_without_cgroups_there_is_no_hierarchy_but_swap_when_asked_for() -> None:
    run = Guest("6.1", "none", swap_mib=64).run(
        "grep -c cgroup /proc/mounts; tail -n +2 /proc/swaps", timeout_s=PATIENCE_S
    )
    cgroup_mounts, device, _, kib, *_ = run.output.split()
    assert cgroup_mounts == "0"
    assert device == "/dev/zram0"
    assert int(kib) == pytest.approx(64 * 1024, rel=0.01)


def test_a_command_that_hangs_is_ended_at_its_time_out() -> None:
    with Guest("6.12", "v2").start("echo begun; sleep 1000") as running:
        deadline = time.monotonic() + PATIENCE_S
        while not running.output() and time.monotonic() < deadline:
            time.sleep(0.1)
        with pytest.raises(GuestTimedOut, match=r"still running after .* s, switched off") as caught:
            running.wait(0.5)
    assert caught.value.output == "begun\n"


def test_a_guest_that_dies_says_so_with_the_kernels_last_words() -> None:
    with pytest.raises(GuestDied, match="died before the command ended") as caught:
        Guest("6.12", "v2").run("echo begun; echo c > /proc/sysrq-trigger; sleep 1000", timeout_s=PATIENCE_S)
    assert caught.value.output == "begun\n"
    assert "sysrq triggered crash" in str(caught.value)


def test_a_kernel_that_is_not_installed_is_a_problem_with_a_way_out() -> None:
    assert Guest("0.1", "v2").problem() == "the guest kernel 0.1 is not installed (make rig)"
