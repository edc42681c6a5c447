"""Where this process's cgroup is looked for, on whole machines made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomproof.limits import find_memory_cgroup
from oomproof.limits.model import Status
from oomproof.units import GIB, MIB
from unit.limits.machines import HOST_TOTAL, V1_MOUNT, V2_MOUNT, Machine, codes

CG = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    "path", [b"/a:b", b"/a b", b"/back\\slash", b"/\xff\xfe", b"/tab\tbed", b"/(deleted)", b"/ends "]
)
def test_any_bytes_in_the_path_lead_to_the_own_directory(machine: Machine, path: bytes) -> None:
    machine.host().mounts(V2_MOUNT).member(b"0::" + path).root_v2()
    machine.level_v2(CG.encode() + path, limit=GIB, usage=MIB)
    report = machine.detect()
    assert (report.status, report.limit_bytes) == (Status.LIMITED, GIB)
    assert report.cgroup is not None
    assert os.fsencode(report.cgroup.directory).endswith(path)


def test_escaped_mount_point_and_root_are_undone(machine: Machine) -> None:
    machine.host().member(b"0::/x y/\\w/leaf").mounts(
        b"30 23 0:26 /x\\040y /mnt/c\\134g\\011s rw - cgroup2 none rw"
    )
    machine.level_v2(b"/mnt/c\\g\ts", limit=4 * GIB).level_v2(b"/mnt/c\\g\ts/\\w/leaf", limit=GIB)
    assert machine.detect().limit_bytes == GIB


def test_memory_on_v1_in_a_hybrid_is_read_from_v1(machine: Machine) -> None:
    machine.host().member("0::/u", "3:memory,cpu:/m").mounts(
        V1_MOUNT, "31 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    )
    machine.root_v2(f"{CG}/unified", "cpu").file(f"{CG}/unified/u/cgroup.procs", "")
    machine.level_v1(f"{CG}/memory").level_v1(f"{CG}/memory/m", limit=GIB)
    assert (machine.detect().limit_bytes, machine.detect().limit_bound_by) == (GIB, "cgroup v1 /m")


def test_memory_on_v2_in_a_hybrid_is_read_from_v2(machine: Machine) -> None:
    machine.host().member("2:cpu,cpuacct:/c", "1:name=systemd:/s", "0::/u").mounts(
        "35 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
        "31 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    machine.root_v2(f"{CG}/unified").level_v2(f"{CG}/unified/u", limit=GIB)
    assert machine.detect().limit_bound_by == "cgroup v2 /u"


def test_v1_memory_without_its_mount_is_not_answered_by_v2(machine: Machine) -> None:
    machine.host().member("0::/u", "3:memory:/m").mounts(V2_MOUNT)
    machine.root_v2(controllers="cpu").file(f"{CG}/u/cgroup.procs", "")
    report = machine.detect()
    assert report.limit_bytes == HOST_TOTAL
    assert "no_cgroupfs" in codes(report)


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_mounts_the_one_that_covers_the_process_wins(machine: Machine, order: int) -> None:
    machine.host().member("7:memory:/ours/leaf").mounts(
        *(
            "40 31 0:31 /not/ours /other rw - cgroup cgroup rw,memory",
            "41 31 0:31 /ours /part rw - cgroup cgroup rw,memory",
            V1_MOUNT,
        )[::order]
    )
    machine.level_v1("/other", limit=MIB).level_v1("/part", limit=4 * GIB).level_v1(
        "/part/leaf", limit=3 * GIB
    )
    machine.level_v1(f"{CG}/memory").level_v1(f"{CG}/memory/ours", limit=2 * GIB)
    machine.level_v1(f"{CG}/memory/ours/leaf", limit=3 * GIB)
    assert machine.detect().limit_bytes == 2 * GIB  # only the whole mount shows the tighter ancestor


def test_what_is_mounted_later_on_a_point_hides_the_earlier(machine: Machine) -> None:
    machine.host().member("0::/a").mounts("30 23 0:26 /b /sys/fs/cgroup rw - cgroup2 c rw", V2_MOUNT)
    machine.root_v2().level_v2(f"{CG}/a", limit=GIB)
    assert machine.detect().limit_bytes == GIB


def test_limit_only_on_an_ancestor(machine: Machine) -> None:
    machine.v2("/a/b/c").root_v2().level_v2(f"{CG}/a", limit=GIB).level_v2(f"{CG}/a/b").level_v2(
        f"{CG}/a/b/c"
    )
    assert machine.detect().limit_bound_by == "cgroup v2 /a"


def test_limit_only_at_the_mount_root_whose_path_is_the_hosts(machine: Machine) -> None:
    machine.v1("/docker/0123").level_v1(f"{CG}/memory", limit=GIB, usage=MIB)
    report = machine.detect()
    assert (report.limit_bytes, report.available_bytes) == (GIB, GIB - MIB)
    assert "cgroup_not_visible" in codes(report)
    assert report.cgroup is None


def test_levels_above_a_bind_mount_are_said_to_be_hidden(machine: Machine) -> None:
    machine.host().member("0::/pod/c/w").mounts("30 23 0:26 /pod/c /sys/fs/cgroup rw - cgroup2 c rw")
    machine.level_v2(CG, limit=2 * GIB).level_v2(f"{CG}/w", limit=GIB)
    report = machine.detect()
    assert report.limit_bound_by == "cgroup v2 /pod/c/w"
    assert "ancestors_hidden" in codes(report)


def test_a_process_outside_its_namespace_gets_no_answer_from_strangers(machine: Machine) -> None:
    machine.v2("/../sibling").level_v2(CG, limit=GIB)
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.available_bytes) == (Status.UNKNOWN, None, None)
    assert {"outside_namespace", "cgroup_not_visible"} <= codes(report)
    assert report.host_total_bytes == HOST_TOTAL


def test_a_process_outside_its_namespace_is_found_through_a_mount_above_it(machine: Machine) -> None:
    machine.host().member("0::/../sibling").mounts(V2_MOUNT, "31 23 0:26 /.. /host rw - cgroup2 cgroup2 rw")
    machine.level_v2(CG, limit=MIB).root_v2("/host").level_v2("/host/sibling", limit=GIB)
    report = machine.detect()
    assert (report.limit_bytes, report.limit_bound_by) == (GIB, "cgroup v2 /../sibling")
    assert {"outside_namespace", "mount_above_namespace"} <= codes(report)


def test_a_mount_above_the_namespace_adds_the_ancestors_it_shows(machine: Machine) -> None:
    machine.host().member("0::/w").mounts(V2_MOUNT, "31 23 0:26 /../.. /host rw - cgroup2 cgroup2 rw")
    machine.level_v2(CG, limit=4 * GIB).level_v2(f"{CG}/w", limit=3 * GIB)
    machine.root_v2("/host").level_v2("/host/pod", limit=GIB).level_v2("/host/pod/c", limit=4 * GIB)
    machine.level_v2("/host/pod/c/w", limit=3 * GIB)
    report = machine.detect()
    assert (report.limit_bytes, report.limit_bound_by) == (GIB, "cgroup v2 /..")
    assert report.cgroup is not None
    assert report.cgroup.directory == machine.root / "sys/fs/cgroup/w"


def test_the_own_cgroup_below_a_mount_above_is_told_by_its_members(machine: Machine) -> None:
    machine.host().member("0::/").mounts("31 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    machine.root_v2().level_v2(f"{CG}/ours", limit=2 * GIB).level_v2(f"{CG}/theirs", limit=GIB)
    assert machine.detect().status is Status.UNKNOWN  # two could be it
    machine.file("/proc/self/status", "Name:\tx\nPid:\t4711").file(f"{CG}/ours/cgroup.procs", "1\n4711")
    assert machine.detect().limit_bytes == 2 * GIB


def test_the_own_cgroup_below_a_mount_above_is_told_by_being_the_same_directory(machine: Machine) -> None:
    machine.host().member("0::/").mounts(V2_MOUNT, "31 23 0:26 /.. /host rw - cgroup2 cgroup2 rw")
    machine.root_v2("/host").level_v2("/host/ours", limit=2 * GIB).level_v2("/host/theirs", limit=GIB)
    machine.file("/host/memory.max", GIB)  # above both
    Path(machine.root, "sys/fs").mkdir(parents=True)
    Path(machine.root, "sys/fs/cgroup").symlink_to(Path(machine.root, "host/ours"))
    assert machine.detect().limit_bound_by == "cgroup v2 /.."


def test_the_root_of_a_mount_above_counts_even_where_the_levels_between_cannot_be_told(
    machine: Machine,
) -> None:
    machine.host().member("0::/").mounts(V2_MOUNT, "31 23 0:26 /../.. /host rw - cgroup2 cgroup2 rw")
    machine.level_v2(CG, limit=2 * GIB).level_v2("/host", limit=GIB)
    assert machine.detect().limit_bound_by == "cgroup v2 /../.."
    for name in "ab":
        machine.level_v2(f"/host/pods/{name}", limit=MIB)
    assert machine.detect().limit_bound_by == "cgroup v2 /../.."


def test_a_mount_above_that_does_not_show_the_own_level_answers_as_the_nearest_level(
    machine: Machine,
) -> None:
    machine.host().member("0::/").mounts("31 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    machine.level_v2(CG, limit=GIB)
    report = machine.detect()
    assert report.limit_bytes == GIB
    assert {"mount_above_namespace", "cgroup_not_visible", "ancestors_hidden"} <= codes(report)


def test_a_removed_cgroup_is_answered_by_the_nearest_level_left(machine: Machine) -> None:
    machine.v2("/slice/gone (deleted)").root_v2().level_v2(f"{CG}/slice", limit=GIB)
    report = machine.detect()
    assert report.limit_bytes == GIB
    assert "cgroup_deleted" in codes(report)


def test_a_new_cgroup_with_the_name_of_the_removed_one_is_a_stranger(machine: Machine) -> None:
    machine.v2("/slice/x (deleted)").root_v2().level_v2(f"{CG}/slice", limit=2 * GIB)
    machine.level_v2(f"{CG}/slice/x", limit=GIB)
    report = machine.detect()
    assert report.limit_bound_by == "cgroup v2 /slice"
    assert "cgroup_deleted" in codes(report)


def test_a_removed_cgroup_that_is_itself_what_is_mounted_is_read(machine: Machine) -> None:
    machine.host().member("0::/pod/c (deleted)").mounts("30 23 0:26 /pod/c /sys/fs/cgroup rw - cgroup2 c rw")
    assert machine.level_v2(CG, limit=GIB).detect().limit_bytes == GIB


def test_a_cgroup_that_is_only_named_deleted_is_read(machine: Machine) -> None:
    machine.v2("/x (deleted)").root_v2().level_v2(f"{CG}/x (deleted)", limit=GIB)
    report = machine.detect()
    assert (report.limit_bytes, codes(report)) == (GIB, set())


def test_without_any_cgroup_filesystem_the_host_limits(machine: Machine) -> None:
    machine.host().member("0::/").mounts()
    report = machine.detect()
    assert (report.status, report.limit_bytes) == (Status.UNLIMITED, HOST_TOTAL)
    assert codes(report) == {"no_cgroupfs"}


def test_a_masked_cgroup_filesystem_is_no_cgroup_filesystem(machine: Machine) -> None:
    machine.v2("/").file(f"{CG}/placeholder", "")
    assert codes(machine.detect()) == {"no_cgroupfs"}


@pytest.mark.parametrize("version", [1, 2])
def test_without_proc_self_the_usual_place_answers(machine: Machine, version: int) -> None:
    machine.host()
    if version == 1:
        machine.level_v1(f"{CG}/memory", limit=GIB)
    else:
        machine.root_v2().level_v2(CG, limit=GIB)
    report = machine.detect()
    assert report.limit_bytes == GIB
    assert codes(report) == {"no_proc"}


def test_without_mountinfo_the_usual_place_and_the_own_path_answer(machine: Machine) -> None:
    machine.host().member("0::/svc").root_v2().level_v2(f"{CG}/svc", limit=GIB)
    assert machine.detect().limit_bytes == GIB


def test_no_file_at_all_is_unknown_and_no_error(machine: Machine) -> None:
    report = machine.detect()
    assert (report.status, report.limit_bytes, report.candidates[-1].verdict) == (
        Status.UNKNOWN,
        None,
        "unreadable",
    )
    assert codes(report) == {"no_proc", "no_cgroupfs", "meminfo_unreadable"}


def test_a_hierarchy_without_the_memory_controller_leaves_the_host(machine: Machine) -> None:
    machine.v2("/user").root_v2(controllers="cpu pids").file(f"{CG}/user/cgroup.procs", "")
    report = machine.detect()
    assert report.limit_bytes == HOST_TOTAL
    assert codes(report) == {"memory_controller_absent"}


def test_v1_without_the_memory_controller_leaves_the_host(machine: Machine) -> None:
    machine.host().member("3:cpu,cpuacct:/a", "1:name=systemd:/a").mounts(
        "36 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
    )
    report = machine.file(f"{CG}/cpu/a/cgroup.procs", "").detect()
    assert (report.status, report.limit_bytes) == (Status.UNLIMITED, HOST_TOTAL)
    assert codes(report) == {"memory_controller_absent"}


def test_a_limit_on_the_only_level_with_files_is_found(machine: Machine) -> None:
    machine.v2("/a/b/c").file(f"{CG}/a/b/memory.max", GIB)
    assert machine.detect().limit_bytes == GIB


def test_the_true_root_of_v2_is_no_missing_controller(machine: Machine) -> None:
    assert codes(machine.v2("/").root_v2().detect()) == set()


def test_find_memory_cgroup_names_the_directory_below_the_root(machine: Machine) -> None:
    machine.v2("/svc").root_v2().level_v2(f"{CG}/svc")
    found = find_memory_cgroup(machine.root)
    assert found is not None
    assert (found.version, found.path) == (2, "/svc")
    assert found.directory == machine.root / "sys/fs/cgroup/svc"
    assert found.mount_point == machine.root / "sys/fs/cgroup"


def test_find_memory_cgroup_is_none_where_the_directory_cannot_be_seen(machine: Machine) -> None:
    assert find_memory_cgroup(machine.v2("/../x").level_v2(CG).root) is None
    assert find_memory_cgroup(machine.v2("/gone (deleted)").root) is None
