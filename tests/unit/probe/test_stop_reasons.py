"""From the files of recorded machines to the reason to stop, with a clock that stands where it is put.

What the kernel would write while a probe runs is written into a copy; reading, summing up and deciding
are the real ones. The kernel itself is asked in tests/kernel/test_probe.py, where it can be.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from oomproof.limits import detect_limits
from oomproof.probe import ProbeRequest, StopReason
from oomproof.probe.decide import Progress, Readings, Step, Stop, decide, reserves
from oomproof.probe.readings import Reading, summarise
from oomproof.units import GIB, MIB

RECORDED = Path(__file__).parents[2] / "fixtures/limits"


class Recorded:
    """A copy of a recorded machine, whose files may change between two readings."""

    def __init__(self, name: str, directory: Path) -> None:
        self.root = directory / name
        shutil.copytree(RECORDED / name, self.root)

    def write(self, path: str, content: str) -> None:
        (self.root / path).write_text(content)

    def read(self, at_s: float) -> Reading:
        return replace(summarise(detect_limits(self.root), None), at_s=at_s)


def decided(first: Reading, now: Reading, request: ProbeRequest | None = None) -> Step | Stop:
    request = request or ProbeRequest()
    progress = Progress(64 * MIB, request.chunk_bytes)
    return decide(request, reserves(request, first), progress, Readings(first, first, now, first))


def test_what_was_recorded_lets_the_probe_go_on(tmp_path: Path) -> None:
    for name in ("swap_v2", "v1_docker", "v1_slurm_nested", "v2_parent_slice"):
        machine = Recorded(name, tmp_path)
        assert isinstance(decided(machine.read(0), machine.read(1)), Step), name


def test_usage_up_to_the_reserve_is_the_normal_end(tmp_path: Path) -> None:
    machine = Recorded("v1_docker", tmp_path)
    [usage] = machine.root.glob("sys/fs/cgroup/memory/**/memory.usage_in_bytes")
    [limit] = [int(path.with_name("memory.limit_in_bytes").read_text()) for path in [usage]]
    first = machine.read(0)
    assert first.limit_bytes == limit
    usage.write_text(str(limit - MIB))
    [stat] = [usage.with_name("memory.stat")]
    stat.write_text("total_inactive_file 0\ntotal_active_file 0\ntotal_dirty 0\ntotal_writeback 0\n")
    assert decided(first, machine.read(1)) == Stop(StopReason.RESERVE)


def test_a_cgroup_above_memory_high_is_throttled_as_it_was_recorded(tmp_path: Path) -> None:
    first = Recorded("v2_memory_high_only", tmp_path).read(0)
    assert first.high_headroom_bytes == 0
    assert decided(first, first) == Stop(StopReason.THROTTLED)


OWN = "sys/fs/cgroup/"
"""Of swap_v2."""


def test_an_event_of_memory_high_says_that_the_kernel_throttled(tmp_path: Path) -> None:
    machine = Recorded("swap_v2", tmp_path)
    machine.write(OWN + "memory.events", "low 0\nhigh 3\nmax 0\noom 0\noom_kill 0\n")
    first = machine.read(0)
    assert isinstance(decided(first, machine.read(1)), Step), "events of before are no news"
    machine.write(OWN + "memory.events", "low 0\nhigh 4\nmax 0\noom 0\noom_kill 0\n")
    assert decided(first, machine.read(1)) == Stop(StopReason.THROTTLED)


def pressure(full_us: int) -> str:
    some = f"some avg10=9.00 avg60=2.00 avg300=0.00 total={2 * full_us}\n"
    return f"{some}full avg10=4.50 avg60=1.00 avg300=0.00 total={full_us}\n"


@pytest.mark.parametrize(("stalled_us", "stops"), [(190_000, False), (210_000, True)])
def test_a_cgroup_that_stands_still_for_a_fifth_of_a_step(
    tmp_path: Path, stalled_us: int, stops: bool
) -> None:
    machine = Recorded("swap_v2", tmp_path)
    machine.write(OWN + "memory.pressure", pressure(1_000_000))
    first = machine.read(10)
    machine.write(OWN + "memory.pressure", pressure(1_000_000 + stalled_us))
    assert (decided(first, machine.read(11)) == Stop(StopReason.THROTTLED)) is stops


def test_swap_that_grows_ends_it(tmp_path: Path) -> None:
    machine = Recorded("swap_v2", tmp_path)
    machine.write(OWN + "memory.swap.max", str(GIB))
    machine.write(OWN + "memory.swap.current", str(3 * MIB))
    first = machine.read(0)
    assert isinstance(decided(first, machine.read(1)), Step), "what was swapped out before is no news"
    machine.write(OWN + "memory.swap.current", str(3 * MIB + 4096))
    assert decided(first, machine.read(1)) == Stop(StopReason.SWAPPING)


def test_where_a_kill_takes_the_whole_cgroup_the_reserve_is_larger_and_names_that(tmp_path: Path) -> None:
    machine = Recorded("swap_v2", tmp_path)
    machine.write(OWN + "memory.oom.group", "1")
    first = machine.read(0)
    assert first.limit_bytes is not None
    assert reserves(ProbeRequest(), first).cgroup_bytes >= 32 * MIB
    machine.write(OWN + "memory.current", str(first.limit_bytes - 32 * MIB))
    machine.write(OWN + "memory.stat", "inactive_file 0\nactive_file 0\n")
    assert decided(first, machine.read(1)) == Stop(StopReason.OOM_GROUP)


def test_a_limit_that_is_lowered_meanwhile_ends_it(tmp_path: Path) -> None:
    machine = Recorded("swap_v2", tmp_path)
    first = machine.read(0)
    machine.write(OWN + "memory.max", str(first.usage_bytes + MIB))
    machine.write(OWN + "memory.stat", "inactive_file 0\nactive_file 0\n")
    assert decided(first, machine.read(1)) == Stop(StopReason.RESERVE)


def test_the_clock_alone_ends_it_at_the_deadline(tmp_path: Path) -> None:
    machine = Recorded("swap_v2", tmp_path)
    first, request = machine.read(100.0), ProbeRequest(deadline_s=30)
    assert isinstance(decided(first, machine.read(129.99), request), Step)
    assert decided(first, machine.read(130.0), request) == Stop(StopReason.DEADLINE)
