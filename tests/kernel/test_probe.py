"""The probe on the running kernel: real leaf cgroups, real touching, real kills."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.probing import (
    LIMIT,
    PROBE,
    SETTLE_BYTES,
    SETTLE_S,
    SLOWLY,
    Running,
    in_cgroup,
    leaf_of,
    own_leaf,
    parent_of,
    probe_in,
    probe_leaves,
    slowness,
    wait_until,
    with_v2_file,
)
from oomproof.leaf import Leaf
from oomproof.limits import find_memory_cgroup
from oomproof.probe import ProbeRequest, Shape, StopReason, run_probe
from oomproof.probe.decide import Progress
from oomproof.probe.readings import Reading
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

IN_A_GUEST = "OOMPROOF_TEST_REPORT"
"""Set by `rigs.pytest_guests` where it runs tests in a guest."""
NEIGHBOUR = Path(__file__).with_name("neighbour.py")
HOG = Path(__file__).with_name("hog.py")


def test_the_probe_ends_at_the_reserve_within_16_mib_of_the_limit() -> None:
    result = run_probe(ProbeRequest(limit_bytes=LIMIT))
    assert result.stop_reason is StopReason.RESERVE
    assert result.cgroup_limit_bytes == LIMIT
    assert LIMIT - 16 * MIB < result.allocated_bytes < LIMIT
    assert result.usage_peak_bytes < LIMIT


def test_inside_a_container_the_limit_of_the_container_binds(container: Leaf) -> None:
    document = probe_in(container)
    assert document["cgroup_limit_bytes"] == LIMIT
    assert document["stop_reason"] == "reserve"
    grown = document["usage_peak_bytes"] - document["usage_before_bytes"]
    assert document["overhead_bytes"] == grown - document["allocated_bytes"]
    by_cause = sum(document["overhead_by_cause"].values())
    assert document["overhead_bytes"] == by_cause + document["others_bytes"]
    # A page-table entry of 8 bytes for each page of 4 KiB, and tables that are not full.
    assert document["allocated_bytes"] // 512 <= document["overhead_by_cause"]["page_tables"] + 64 * 1024
    assert document["kernel_overhead_bytes"] < document["allocated_bytes"] // 512 + 2 * MIB


@pytest.mark.parametrize("kind", [shape.value for shape in Shape if shape is not Shape.CUDA_PINNED])
def test_everything_is_given_back_within_2_s(container: Leaf, kind: str) -> None:
    before = container.usage_bytes()
    assert probe_in(container, "--as", kind)["allocated_bytes"] > LIMIT // 2
    wait_until(lambda: container.usage_bytes() <= before + SETTLE_BYTES, SETTLE_S)
    assert not [path for path in container.cgroups() if "probe" in path.name]


@pytest.mark.parametrize(
    ("kind", "victim", "number"),
    [
        ("anon", "oomproof", signal.SIGINT),
        ("anon", "oomproof", signal.SIGTERM),
        ("anon", "oomproof", signal.SIGKILL),
        ("anon", "toucher", signal.SIGKILL),
        ("anon", "guard", signal.SIGKILL),
        ("file", "oomproof", signal.SIGKILL),
        ("file", "toucher", signal.SIGKILL),
    ],
)
def test_everything_is_given_back_within_2_s_of_any_end(
    container: Leaf, kind: str, victim: str, number: signal.Signals
) -> None:
    before = container.usage_bytes()
    command = in_cgroup(container, *PROBE, "--as", kind, "--chunk", "128KiB")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as oomproof:
        wait_until(lambda: container.usage_bytes() >= before + LIMIT // 3)
        [leaf] = [path for path in container.cgroups() if "oomproof-probe" in path.name]
        toucher = int((leaf / "cgroup.procs").read_text())
        pids = {"oomproof": oomproof.pid, "toucher": toucher, "guard": parent_of(toucher)}
        os.kill(pids[victim], number)
        patience_s = SETTLE_S * slowness()
        wait_until(lambda: container.usage_bytes() <= before + SETTLE_BYTES, patience_s)
        wait_until(lambda: not leaf.exists(), patience_s)
        oomproof.wait(60)


@pytest.mark.parametrize(("beyond_bytes", "killed"), [(0, False), (16 * MIB, True)])
def test_what_it_answers_lives_and_16_mib_more_is_killed(
    container: Leaf, beyond_bytes: int, killed: bool
) -> None:
    """The truth is what the kernel does to a program beside a waiting launcher of the prober's size."""
    size = probe_in(container)["allocated_bytes"] + beyond_bytes
    hog = [sys.executable, "-S", "-E", str(HOG), str(size)]
    launcher = (
        f"import oomproof.cli.probe, subprocess, sys; sys.exit(subprocess.run({hog!r}).returncode != 0)"
    )
    done = subprocess.run(in_cgroup(container, sys.executable, "-c", launcher), timeout=100, check=False)
    assert ((container.events().oom_kill or 0) > 0) is killed
    assert (done.returncode != 0) is killed


@pytest.mark.parametrize(("beyond_bytes", "killed"), [(0, False), (16 * MIB, True)])
def test_what_oomproof_held_itself_is_there_for_a_program_that_is_started_afterwards(
    container: Leaf, beyond_bytes: int, killed: bool
) -> None:
    interpreter_of_the_hog = 4 * MIB
    size = probe_in(container)["allocatable_bytes"] - interpreter_of_the_hog + beyond_bytes
    assert size > LIMIT - 16 * MIB
    hog = in_cgroup(container, sys.executable, "-S", "-E", str(HOG), str(size))
    done = subprocess.run(hog, timeout=100, check=False)
    assert ((container.events().oom_kill or 0) > 0) is killed
    assert (done.returncode != 0) is killed


def test_on_a_terminal_a_line_shows_share_rate_and_time_left_and_is_wiped_away() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROBE, *SLOWLY], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the last process at the terminal ended
            while data := os.read(ours, 4096):
                shown += data
        os.close(ours)
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["stop_reason"] == "reserve"
    updates = shown.split(b"\r\x1b[K")
    assert updates[0] == updates[-1] == b"", "nothing but the line, and that is gone at the end"
    line = rb"\[#*\.*\] [\d.]+ [KMG]iB of [\d.]+ MiB touched, [\d.]+ [KMG]iB/s, \d+ s left"
    assert all(re.fullmatch(line, update) for update in updates[2:-1])
    assert len(updates) > 10


def test_a_reserve_that_leaves_nothing_to_touch_is_said() -> None:
    result = run_probe(ProbeRequest(limit_bytes=LIMIT, reserve_bytes=LIMIT))
    assert (result.allocated_bytes, result.stop_reason) == (0, StopReason.RESERVE)
    assert result.notices[-1].startswith("Nothing was touched: ")
    assert result.notices[-1].endswith(
        "the reserve is 96.00 MiB of the cgroup and 96.00 MiB of the host: free memory, or lower --reserve."
    )


def test_max_is_touched_exactly() -> None:
    result = run_probe(ProbeRequest(max_bytes=20 * MIB + 4096, chunk_bytes=8 * MIB))
    assert (result.allocated_bytes, result.stop_reason) == (20 * MIB + 4096, StopReason.MAXIMUM)
    assert result.probe_chunks == 3


def test_the_deadline_ends_it_with_what_was_touched() -> None:
    result = run_probe(ProbeRequest(limit_bytes=LIMIT, chunk_bytes=16 * 1024, deadline_s=2 * slowness()))
    assert result.stop_reason is StopReason.DEADLINE
    assert 0 < result.allocated_bytes < LIMIT


def test_without_a_leaf_it_runs_in_the_own_cgroup_and_says_so(container: Leaf) -> None:
    document = probe_in(container, wrapped_by=with_read_only_cgroupfs())
    assert document["stop_reason"] == "reserve"
    assert document["cgroup_limit_bytes"] == LIMIT
    assert "own cgroup" in document["notices"][0]


def test_a_limit_without_a_leaf_is_an_error_that_says_why() -> None:
    command = [*with_read_only_cgroupfs(), *PROBE, "--limit", "96MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 125
    assert done.stdout == ""
    assert done.stderr.startswith("oomproof: error: no cgroup can be made below")
    assert done.stderr.count("\n") == 1


def with_read_only_cgroupfs() -> tuple[str, ...]:
    own = find_memory_cgroup()
    assert own is not None
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, str(own.mount_point))


def test_a_toucher_that_the_kernel_kills_answers_with_what_it_had() -> None:
    def leave_almost_nothing(progress: Progress, reading: Reading) -> None:
        if progress.allocated_bytes >= LIMIT // 2 and reading.leaf_usage_bytes is not None:
            own_leaf().set_limit(reading.leaf_usage_bytes + 2 * MIB)

    result = run_probe(ProbeRequest(limit_bytes=LIMIT, chunk_bytes=16 * MIB), on_step=leave_almost_nothing)
    assert result.stop_reason is StopReason.KILLED
    assert LIMIT // 2 <= result.allocated_bytes < LIMIT
    assert result.notices[-1].startswith("The kernel's OOM killer killed the toucher")
    assert leaf_of(os.getpid()) is None


def test_a_limit_lowered_meanwhile_is_obeyed() -> None:
    def lower(progress: Progress, reading: Reading) -> None:
        # A slow machine takes smaller steps: the first time that it is past the mark.
        if progress.allocated_bytes >= 16 * MIB and own_leaf().limit_bytes() == LIMIT:
            own_leaf().set_limit(LIMIT // 2)

    result = run_probe(ProbeRequest(limit_bytes=LIMIT, chunk_bytes=8 * MIB), on_step=lower)
    assert result.stop_reason is StopReason.RESERVE
    assert result.cgroup_limit_bytes == LIMIT // 2
    assert result.allocated_bytes < LIMIT // 2
    assert "The limit changed from 96.00 MiB to 48.00 MiB" in result.notices[-1]


def test_an_address_space_limit_ends_it_with_what_the_kernel_gave() -> None:
    limited = 'ulimit -v 400000 && exec "$@"'
    command = ["sh", "-c", limited, "sh", *PROBE, "--limit", "768MiB", "--chunk", "32MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["stop_reason"] == "limit"
    assert 100 * MIB < document["allocated_bytes"] < 400_000 * 1024


def test_memory_that_may_not_be_locked_ends_it_with_what_could_be() -> None:
    without_right = ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", "sh", "-c"]
    limited = 'ulimit -l 8192 && exec "$@"'
    command = [*without_right, limited, "sh", *PROBE, "--as", "pinned", "--limit", "96MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["stop_reason"] == "memlock"
    assert 8 * MIB - MIB // 2 <= document["allocated_bytes"] <= 8 * MIB


def test_quick_answers_as_the_full_probe_does_within_its_error_bar() -> None:
    full = run_probe(ProbeRequest(limit_bytes=2 * LIMIT))
    quick = run_probe(ProbeRequest(limit_bytes=2 * LIMIT, quick=True))
    assert quick.extrapolated and quick.touched_bytes == 64 * MIB
    assert quick.stop_reason is StopReason.RESERVE
    assert (
        abs(quick.allocated_bytes - full.allocated_bytes) <= quick.error_bytes <= full.allocated_bytes // 50
    )


def test_memory_high_ends_it_before_it_throttles(container: Leaf) -> None:
    with_v2_file(container, "memory.high").write_text(str(LIMIT // 2))
    document = probe_in(container)
    assert document["stop_reason"] == "throttled"
    assert MIB < document["allocated_bytes"] < LIMIT // 2
    assert container.events().high == 0


def test_oom_group_keeps_a_larger_reserve(container: Leaf) -> None:
    with_v2_file(container, "memory.oom.group").write_text("1")
    document = probe_in(container)
    assert document["stop_reason"] == "oom_group"
    page_cache = 4 * MIB  # counts as usage and as headroom
    assert MIB < document["usage_peak_bytes"] <= LIMIT - 32 * MIB + page_cache


def test_a_step_that_memory_high_throttles_is_broken_off() -> None:
    def throttle(progress: Progress, reading: Reading) -> None:
        if progress.allocated_bytes >= LIMIT and reading.leaf_usage_bytes is not None:
            high = with_v2_file(own_leaf(), "memory.high")
            high.write_text(str(reading.leaf_usage_bytes + MIB))

    result = run_probe(ProbeRequest(limit_bytes=2 * LIMIT), on_step=throttle)
    assert result.stop_reason is StopReason.THROTTLED
    assert LIMIT <= result.allocated_bytes < LIMIT * 3 // 2


def test_a_toucher_that_stands_still_at_the_limit_is_ended() -> None:
    """With the OOM killer switched off (v1), nobody else would ever end it."""

    def stop_at_limit(progress: Progress, reading: Reading) -> None:
        if progress.allocated_bytes >= LIMIT // 2 and reading.leaf_usage_bytes is not None:
            control = own_leaf().directory / "memory.oom_control"
            if not control.exists():
                pytest.skip("this kernel has no memory.oom_control in its cgroups")
            control.write_text("1")
            own_leaf().set_limit(reading.leaf_usage_bytes + MIB)

    result = run_probe(ProbeRequest(limit_bytes=LIMIT, chunk_bytes=8 * MIB), on_step=stop_at_limit)
    assert result.stop_reason is StopReason.RESERVE
    assert LIMIT // 2 <= result.allocated_bytes < LIMIT


@pytest.fixture
def swap() -> Iterator[None]:
    """The machine's swap; in a guest, which is thrown away afterwards, one on its compressed device."""
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        yield
        return
    device = Path("/sys/block/zram0")
    if IN_A_GUEST not in os.environ or not device.exists():
        pytest.skip("this machine has no swap")
    (device / "disksize").write_text("64M")
    subprocess.run(["mkswap", "/dev/zram0"], check=True, capture_output=True)
    subprocess.run(["swapon", "/dev/zram0"], check=True)
    yield
    subprocess.run(["swapoff", "/dev/zram0"], check=True)
    (device / "reset").write_text("1")


@pytest.mark.usefixtures("swap")
def test_swapping_ends_it() -> None:
    def push_out(progress: Progress, reading: Reading) -> None:
        if progress.allocated_bytes >= LIMIT // 2:
            with_v2_file(own_leaf(), "memory.reclaim").write_text(str(16 * MIB))

    result = run_probe(ProbeRequest(max_bytes=LIMIT, chunk_bytes=8 * MIB), on_step=push_out)
    assert result.stop_reason is StopReason.SWAPPING
    assert LIMIT // 2 <= result.allocated_bytes < LIMIT


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_early_with_the_partial_result(number: signal.Signals, code: int) -> None:
    running = Running(*SLOWLY)
    running.process.send_signal(number)
    output, errors = running.process.communicate(timeout=60)
    assert (running.process.returncode, errors) == (code, "")
    document = json.loads(output)
    assert document["stop_reason"] == "interrupted"
    assert document["allocated_bytes"] > 0
    running.assert_nothing_is_left()


def test_nothing_outlives_a_killed_oomproof() -> None:
    running = Running(*SLOWLY)
    running.process.kill()
    running.process.communicate(timeout=60)
    running.assert_nothing_is_left()


@pytest.mark.parametrize("victim", ["toucher", "guard"])
def test_a_killed_child_answers_with_what_it_had(victim: str) -> None:
    running = Running(*SLOWLY)
    os.kill(getattr(running, victim), signal.SIGKILL)
    output, errors = running.process.communicate(timeout=60)
    assert (running.process.returncode, errors) == (0, "")
    document = json.loads(output)
    assert document["stop_reason"] == "killed"
    assert document["allocated_bytes"] > 0
    running.assert_nothing_is_left()


def test_a_signal_at_any_moment_leaves_nothing() -> None:
    """Killed at moments spread from the making of the leaf to the end of a short run."""
    before = probe_leaves()
    for moment in range(6):
        command = [*PROBE, "--max", "16MiB"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda process=process: leaf_of(process.pid) or process.poll() is not None)  # type: ignore[misc]
        time.sleep(moment * 0.01)
        process.send_signal(signal.SIGTERM if moment % 2 else signal.SIGKILL)
        process.wait(60)
    wait_until(lambda: probe_leaves() <= before, 10)


def test_a_neighbour_that_grows_in_the_same_cgroup_lives(container: Leaf) -> None:
    container.set_limit(2 * LIMIT)
    grow = [sys.executable, "-S", "-E", str(NEIGHBOUR), str(50 * MIB), str(LIMIT)]
    command = in_cgroup(container, *grow)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as neighbour:
        assert neighbour.stdout is not None and neighbour.stdin is not None
        assert neighbour.stdout.readline() == b"growing\n"
        result = probe_in(container)
        assert neighbour.poll() is None
        neighbour.stdin.close()
        assert neighbour.wait(60) == 0
    assert result["allocated_bytes"] > 0
