"""The host's memory, NUMA nodes, huge pages, resource limits, hints and history."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.limits.fit import pinned_share
from oomproof.limits.host import parse_list
from oomproof.limits.model import Kind, LimitReport, Status
from oomproof.limits.process import has_capability, parse_limits
from oomproof.limits.v2 import parse_pressure
from oomproof.units import GIB, KIB, MIB
from unit.limits.machines import HOST_TOTAL, V2_MOUNT, Machine, codes, verdict_of

CG = "/sys/fs/cgroup"
NODES = "/sys/devices/system/node"


@pytest.mark.parametrize(
    "content", ["MemTotal: 0 kB\nMemFree: 0 kB", "MemTotal: junk kB", "", "\xff", "MemTotal 5 kB"]
)
def test_without_memtotal_only_a_cgroup_limit_is_an_answer(machine: Machine, content: str) -> None:
    machine.v2("/").level_v2(CG, limit=GIB).file("/proc/meminfo", content)
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.host_total_bytes) == (Status.LIMITED, GIB, None)
    assert "meminfo_unreadable" in codes(report)
    machine.file(f"{CG}/memory.max", "max")
    assert machine.detect().status is Status.UNKNOWN


def test_proc_subset_pid_hides_meminfo_but_not_the_nodes(machine: Machine) -> None:
    machine.member("0::/").mounts("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 c rw").level_v2(CG)
    machine.file(f"{NODES}/online", "0-1")
    for node in (0, 1):
        machine.file(f"{NODES}/node{node}/meminfo", f"Node {node} MemTotal: {4 * GIB // KIB} kB")
    report = machine.detect()
    assert (report.status, report.limit_bytes) == (Status.UNLIMITED, 8 * GIB)
    assert codes(report) == {"meminfo_unreadable"}


def test_one_bad_line_does_not_cost_meminfo(machine: Machine) -> None:
    machine.v2("/").level_v2(CG).host()
    good = (machine.root / "proc/meminfo").read_bytes()
    machine.file("/proc/meminfo", b"\n:\n\xff\xfe: 1 kB\nMemTotal\nMem" + b"x" * 200_000 + b"\n" + good)
    assert machine.detect().limit_bytes == HOST_TOTAL


def test_lxcfs_shows_the_containers_memory_as_the_hosts(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB).host(total=GIB)
    machine.mounts(
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 c rw",
        "700 22 0:60 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw",
    )
    report = machine.detect()
    assert (report.status, report.limit_bytes) == (Status.LIMITED, GIB)
    assert codes(report) == {"meminfo_virtualised"}


LXCFS = "700 22 0:60 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw"


@pytest.mark.parametrize(
    ("shown", "machine_total", "left"),
    [
        (4 * GIB, None, 4 * GIB),
        (4 * GIB, 64 * GIB, 4 * GIB),
        (60 * GIB, 64 * GIB, 48 * GIB),
        (64 * GIB, 64 * GIB, 48 * GIB),
    ],
)
def test_huge_pages_of_the_machine_are_not_the_containers_of_lxcfs(
    machine: Machine, shown: int, machine_total: int | None, left: int
) -> None:
    machine.v2("/").mounts(V2_MOUNT, LXCFS).level_v2(CG)
    machine.host(shown, more=f"HugePages_Total: 8192\nHugepagesize: 2048 kB\nHugetlb: {16 * GIB // KIB} kB\n")
    if machine_total is not None:
        machine.file(f"{NODES}/node0/meminfo", f"Node 0 MemTotal: {machine_total // KIB} kB")
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.host_total_bytes) == (Status.UNLIMITED, left, shown)


def test_available_memory_that_lxcfs_counts_below_zero_is_no_more_than_there_is(machine: Machine) -> None:
    machine.v2("/").mounts(V2_MOUNT, LXCFS).level_v2(CG)
    machine.file("/proc/meminfo", f"MemTotal: {GIB // KIB} kB\nMemAvailable: {(1 << 64) - 4096} kB")
    assert machine.detect().host_available_bytes == GIB


def test_only_the_host_limits_and_memavailable_is_what_is_left(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG).host(available=5 * GIB).detect()
    assert (report.available_bytes, report.available_bound_by) == (5 * GIB, "host MemTotal")
    assert report.host_available_bytes == 5 * GIB


def test_memavailable_is_beside_a_cgroups_headroom_and_not_in_it(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG, limit=4 * GIB).host(available=GIB).detect()
    assert (report.available_bytes, report.host_available_bytes) == (4 * GIB, GIB)


@pytest.mark.parametrize(
    ("lines", "reserved"),
    [
        (f"HugePages_Total: 512\nHugepagesize: 2048 kB\nHugetlb: {3 * GIB // KIB} kB\n", 3 * GIB),
        ("HugePages_Total: 512\nHugepagesize: 2048 kB\n", GIB),
        ("HugePages_Total: 0\nHugepagesize: 2048 kB\nHugetlb: 0 kB\n", 0),
    ],
)
def test_huge_pages_are_taken_off_the_host(machine: Machine, lines: str, reserved: int) -> None:
    report = machine.v2("/").level_v2(CG).host(more=lines).detect()
    assert report.limit_bytes == HOST_TOTAL - reserved
    assert report.host_total_bytes == HOST_TOTAL
    assert report.status is Status.UNLIMITED
    if reserved:
        assert report.limit_bound_by == "host less huge pages"


def test_huge_pages_of_another_size_are_found_where_meminfo_counts_the_default_size_alone(
    machine: Machine,
) -> None:
    machine.v2("/").level_v2(CG).host(more="HugePages_Total: 0\nHugepagesize: 2048 kB\n")
    machine.file("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", 8)
    assert machine.detect().limit_bytes == HOST_TOTAL - 8 * GIB


def numa(machine: Machine, allowed: str) -> LimitReport:
    machine.v2("/").level_v2(CG).file(f"{NODES}/has_memory", "0-1")
    machine.file("/proc/self/status", f"Mems_allowed_list:\t{allowed}")
    for node in (0, 1):
        fields = {"MemTotal": 8 * GIB, "MemFree": 2 * GIB, "Inactive(file)": GIB, "Dirty": MIB}
        lines = "".join(f"Node {node} {name}: {size // KIB} kB\n" for name, size in fields.items())
        machine.file(f"{NODES}/node{node}/meminfo", lines)
    return machine.detect()


def test_the_numa_nodes_of_the_cpuset_limit(machine: Machine) -> None:
    report = numa(machine, "1")
    assert (report.status, report.limit_bytes) == (Status.LIMITED, 8 * GIB)
    assert report.limit_bound_by == "NUMA nodes 1"
    assert report.available_bytes == 3 * GIB - MIB


def test_huge_pages_of_a_node_are_taken_off_it(machine: Machine) -> None:
    machine.file(f"{NODES}/node1/hugepages/hugepages-2048kB/nr_hugepages", 512)
    assert numa(machine, "1").limit_bytes == 7 * GIB


@pytest.mark.parametrize("allowed", ["0-1", "0-7", "junk", "", "1-0", "0-99999999999"])
def test_all_nodes_or_no_telling_list_is_no_candidate(machine: Machine, allowed: str) -> None:
    assert not [row for row in numa(machine, allowed).candidates if row.kind is Kind.NUMA]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [(b"0", {0}), (b"0-2,5\n", {0, 1, 2, 5}), (b"", None), (b"a", None), (b"3-1", None), (b"1-", None)],
)
def test_lists_of_nodes(text: bytes, numbers: set[int] | None) -> None:
    assert parse_list(text) == numbers


def test_resource_limits_are_rows_and_never_the_limit(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=4 * GIB)
    machine.file("/proc/self/status", f"VmSize: {MIB // KIB} kB\nVmData: 4 kB\nVmLck: 4 kB")
    report = machine.detect(rlimits={"AS": GIB, "DATA": 2 * GIB, "MEMLOCK": 8 * MIB})
    assert report.limit_bytes == 4 * GIB
    rows = {row.name: row for row in report.candidates}
    assert rows["RLIMIT_AS"].available_bytes == GIB - MIB
    assert rows["RLIMIT_DATA"].limit_bytes == 2 * GIB
    assert report.pinned_limit_bytes == 8 * MIB - 4 * KIB


@pytest.mark.parametrize("unlimited", [None, -1, (1 << 64) - 1, (1 << 63) - 1])
def test_unlimited_resources_are_no_rows(machine: Machine, unlimited: int | None) -> None:
    report = machine.v2("/").level_v2(CG, limit=GIB).detect(rlimits={"AS": unlimited, "MEMLOCK": unlimited})
    assert not [row for row in report.candidates if row.kind in (Kind.ADDRESS_SPACE, Kind.LOCKED)]
    assert report.pinned_limit_bytes == GIB


def test_cap_ipc_lock_lifts_the_memlock_limit(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB).file("/proc/self/status", "CapEff:\t0000000000004000")
    report = machine.detect(rlimits={"MEMLOCK": MIB})
    assert report.pinned_limit_bytes == GIB
    assert verdict_of(report, "RLIMIT_MEMLOCK") == "does not apply: CAP_IPC_LOCK"


@pytest.mark.parametrize(("workers", "share"), [(1, 8 * MIB), (100, 8 * MIB), (256, 4 * MIB)])
def test_pinned_memory_splits_headroom_and_not_memlock(machine: Machine, workers: int, share: int) -> None:
    report = machine.v2("/").level_v2(CG, limit=GIB).detect(rlimits={"MEMLOCK": 8 * MIB})
    assert pinned_share(report, workers) == share


def test_pinned_memory_is_unknown_where_headroom_is(machine: Machine) -> None:
    report = machine.v2("/../x").level_v2(CG).detect(rlimits={"MEMLOCK": MIB})
    assert pinned_share(report) is None


def test_recorded_resource_limits_are_read_from_their_file(machine: Machine) -> None:
    machine.v2("/").level_v2(CG).file(
        "/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         8388608              8388608              bytes     \n"
        "Max address space         unlimited            unlimited            bytes     ",
    )
    assert [row.name for row in machine.detect().candidates if row.kind is Kind.LOCKED] == ["RLIMIT_MEMLOCK"]


@pytest.mark.parametrize(
    ("content", "limits"),
    [
        (b"Max data size   unlimited  unlimited bytes", {"DATA": None}),
        (b"Max data size   5  6 bytes\nMax data size 7 8 bytes", {"DATA": 5}),
        (b"Max data size   junk\nMax data size\n\xff", {}),
    ],
)
def test_parse_limits(content: bytes, limits: dict[str, int | None]) -> None:
    assert parse_limits(content) == limits


@pytest.mark.parametrize(
    ("status", "has"),
    [(b"CapEff:\t4000", True), (b"CapEff:\t3fff", False), (b"CapEff:\tzz", False), (b"", False)],
)
def test_capabilities(status: bytes, has: bool) -> None:
    assert has_capability(status, 14) is has


@pytest.mark.parametrize(
    ("variable", "value", "size"),
    [
        ("SLURM_MEM_PER_NODE", "4096", 4 * GIB),
        ("SLURM_MEM_PER_NODE", "4G", 4 * GIB),
        ("MEMORY_LIMIT", "1073741824", GIB),
        ("MEMORY_LIMIT", "512Mi", 512 * MIB),
        ("MY_MEM_LIMIT", "1073741824", GIB),
        ("MEMORY_LIMIT", "lots", None),
        ("ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4/x", None),
    ],
)
def test_limits_declared_elsewhere_are_hints(
    machine: Machine, variable: str, value: str, size: int | None
) -> None:
    report = machine.v2("/").level_v2(CG).detect(environment={variable: value, "HOME": "/root"})
    assert [(hint.code, hint.value_bytes) for hint in report.hints] == [(variable.lower(), size)]
    assert report.limit_bytes == HOST_TOTAL


def test_fargate_is_recognised(machine: Machine) -> None:
    report = machine.v2("/").level_v2(CG).detect(environment={"AWS_EXECUTION_ENV": "AWS_ECS_FARGATE"})
    assert [hint.code for hint in report.hints] == ["aws_fargate"]


def test_the_history_of_the_place_is_told(machine: Machine) -> None:
    machine.v2("/").level_v2(
        CG,
        limit=GIB,
        events="low 0\nhigh 7\nmax 9\noom 3\noom_kill 2\noom_group_kill 0",
        peak=GIB,
        oom_group=1,
        pressure="some avg10=20.00 avg60=0 avg300=0 total=5\nfull avg10=12.34 avg60=0 avg300=0 total=4",
    )
    report = machine.detect()
    assert (report.facts["oom_kill"], report.facts["max"], report.facts["high"]) == (2, 9, 7)
    assert (report.facts["peak"], report.facts["pressure_full_total_us"]) == (GIB, 4)
    assert codes(report) == {"oom_killed_before", "throttled_before", "memory_pressure"}
    assert "twice before" in next(n.message for n in report.notices if n.code == "oom_killed_before")


def test_the_history_of_v1_is_told(machine: Machine) -> None:
    machine.v1("/").level_v1(
        f"{CG}/memory",
        oom_control="oom_kill_disable 1\nunder_oom 0\noom_kill 1",
        failcnt=5,
        max_usage_in_bytes=GIB,
    )
    report = machine.detect()
    assert (report.facts["oom_kill"], report.facts["failcnt"], report.facts["peak"]) == (1, 5, GIB)
    assert codes(report) == {"oom_killed_before", "oom_kill_disabled"}


@pytest.mark.parametrize(
    "content", [b"", b"some", b"some avg10=x total=-1", b"full avg10=1 total=\xff", b"none avg10=1.00"]
)
def test_odd_pressure_files_tell_nothing(content: bytes) -> None:
    assert parse_pressure(content) == {}


def test_the_root_may_be_a_string(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB)
    other = Machine(Path(str(machine.root) + "/"))
    assert other.detect().limit_bytes == GIB
