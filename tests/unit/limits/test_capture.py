"""Captured bundles: exactly the files read, nobody's names, the same answer again."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from oomproof.errors import OomproofError, UsageError
from oomproof.limits import detect_limits
from oomproof.limits.bundle import open_root
from oomproof.limits.capture import capture
from oomproof.units import GIB, MIB
from unit.limits.machines import Machine

CG = "/sys/fs/cgroup"
POD = "kubepods-burstable-pod5b0f6d5e_8b1d_4c4e_9c57_3b0e2f6f8a11.slice"
SECRETS = (
    b"5b0f6d5e",
    b"4f1c4f1c",
    b"alice",
    b"build-host-7",
    b"fileserver",
    b"hunter2",
    b"10.1.2.3",
    b"/data/x",
)


@pytest.fixture
def pod(machine: Machine) -> Machine:
    path = f"/kubepods.slice/{POD}/cri-4f1c4f1c4f1c.scope/alice's job"
    machine.host().member(f"0::{path}", "junk of alice").mounts(
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "31 27 0:50 / /home/alice rw - nfs fileserver:/data/x rw,addr=10.1.2.3",
        "broken line of build-host-7",
    )
    machine.root_v2().file("/proc/self/environ", b"PASSWORD=hunter2\0MEMORY_LIMIT=1GiB\0USER=alice")
    directory = CG
    for name in path.strip("/").split("/"):
        directory += f"/{name}"
        machine.level_v2(directory, limit=2 * GIB, usage=MIB)
    machine.file(f"{directory}/memory.max", GIB).file(f"{directory}/memory.events", "oom_kill 2")
    machine.file("/proc/self/status", "Name:\talice\nPid:\t77\nVmLck: 0 kB\nMems_allowed_list:\t0")
    return machine.file("/etc/passwd", "alice:x:1000").file(f"{directory}/cgroup.procs", "77\n78")


@pytest.mark.parametrize("name", ["m.tar", "m.tar.gz", "m.tgz"])
def test_a_bundle_replays_to_the_same_answer(pod: Machine, tmp_path: Path, name: str) -> None:
    bundle = tmp_path / name
    capture(bundle, pod.root)
    with open_root(bundle) as root:
        again = detect_limits(root)
    first = pod.detect()
    assert (
        (again.limit_bytes, again.available_bytes)
        == (first.limit_bytes, first.available_bytes)
        == (GIB, GIB - MIB)
    )
    assert [notice.code for notice in again.notices] == [notice.code for notice in first.notices]
    assert [hint.value_bytes for hint in again.hints] == [GIB]
    assert again.facts == first.facts


def contents(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as archive:
        return {
            member.name: file.read()
            for member in archive
            if member.isfile() and (file := archive.extractfile(member)) is not None
        }


def test_a_bundle_names_nobody(pod: Machine, tmp_path: Path) -> None:
    capture(tmp_path / "m.tar", pod.root)
    everything = (tmp_path / "m.tar").read_bytes()
    assert not [secret for secret in SECRETS if secret in everything]
    assert b"kubepods.slice/kubepods-burstable-" in everything


def test_names_are_the_same_in_contents_and_paths(pod: Machine, tmp_path: Path) -> None:
    capture(tmp_path / "m.tar", pod.root)
    files = contents(tmp_path / "m.tar")
    own = files["proc/self/cgroup"].splitlines()[0].removeprefix(b"0::/").decode()
    assert f"sys/fs/cgroup/{own}/memory.max" in files
    assert own.count("/") == 3


def test_a_bundle_holds_what_was_read_and_nothing_else(pod: Machine, tmp_path: Path) -> None:
    capture(tmp_path / "m.tar", pod.root)
    files = contents(tmp_path / "m.tar")
    assert "etc/passwd" not in files
    assert files["proc/self/environ"] == b"MEMORY_LIMIT=1GiB" or b"PASSWORD" not in files["proc/self/environ"]
    assert set(files["proc/self/status"].splitlines()) == {
        b"Pid:\t77",
        b"VmLck: 0 kB",
        b"Mems_allowed_list:\t0",
    }
    assert json.loads(files["answer.json"])["limit_bytes"] == GIB


def test_this_machine_can_be_captured(tmp_path: Path) -> None:
    report = capture(tmp_path / "m.tar.gz")
    assert report.limit_bytes == detect_limits().limit_bytes


def test_a_bundle_that_cannot_be_written_leaves_nothing(pod: Machine, tmp_path: Path) -> None:
    with pytest.raises(OomproofError, match="cannot write the bundle"):
        capture(tmp_path / "nowhere" / "m.tar", pod.root)
    (tmp_path / "a-directory").mkdir()
    with pytest.raises(OomproofError, match="cannot write the bundle"):
        capture(tmp_path / "a-directory", pod.root)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-directory", "machine"]


def test_what_could_not_be_told_replays_as_untold(machine: Machine, tmp_path: Path) -> None:
    machine.host().member("0::/").mounts("31 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    machine.root_v2().level_v2(f"{CG}/a", limit=GIB).level_v2(f"{CG}/b", limit=MIB)
    assert capture(tmp_path / "two-could-be-it.tar", machine.root).limit_bytes is None


def test_a_limit_that_cannot_be_read_replays_as_unreadable(machine: Machine, tmp_path: Path) -> None:
    machine.v2("/a").root_v2().level_v2(f"{CG}/a")
    (machine.root / "sys/fs/cgroup/a/memory.max").unlink()
    (machine.root / "sys/fs/cgroup/a/memory.max").mkdir()
    report = capture(tmp_path / "m.tar", machine.root)
    assert "limit_unreadable" in {notice.code for notice in report.notices}


def test_a_limit_between_blanks_and_the_nodes_out_of_reach_replay(machine: Machine, tmp_path: Path) -> None:
    machine.v2("/").level_v2(CG, limit=f"  {GIB} ").file("/proc/self/status", "Mems_allowed_list:\t0")
    for node in (0, 1):
        machine.file(f"/sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal: 524288 kB")
    assert capture(tmp_path / "m.tar", machine.root).limit_bytes == GIB // 2


def test_a_device_is_not_replaced_by_a_bundle(pod: Machine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OomproofError, match="no plain file"):
            capture(tmp_path / name, pod.root)
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_to_a_file_stays_a_link(pod: Machine, tmp_path: Path) -> None:
    (tmp_path / "link.tar").symlink_to("real.tar")
    capture(tmp_path / "link.tar", pod.root)
    assert (tmp_path / "link.tar").is_symlink()
    assert tarfile.is_tarfile(tmp_path / "real.tar")


def hostile(tmp_path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    bundle = tmp_path / "hostile.tar"
    with tarfile.open(bundle, "w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return bundle


def test_a_bundle_cannot_write_outside_its_root(tmp_path: Path) -> None:
    link = tarfile.TarInfo("out")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    bundle = hostile(
        tmp_path,
        (tarfile.TarInfo("../escaped"), b"x"),
        (tarfile.TarInfo("a/../../escaped"), b"x"),
        (link, b""),
        (tarfile.TarInfo("out/escaped"), b"x"),
        (tarfile.TarInfo("/proc/meminfo"), b"MemTotal: 1024 kB\n"),
    )
    with open_root(bundle) as root:
        assert (root / "proc/meminfo").exists()
        assert not (root / "out").is_symlink()
    assert not (tmp_path / "escaped").exists()


def test_a_bundle_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oomproof.limits.bundle.MAX_BYTES", 10)
    bundle = hostile(tmp_path, (tarfile.TarInfo("a"), b"x" * 11))
    with pytest.raises(UsageError, match="too large"), open_root(bundle):
        pass


def test_a_header_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.XHDTYPE, 1 << 33
    (tmp_path / "bomb.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(UsageError, match="8589934592 bytes"), open_root(tmp_path / "bomb.tar"):
        pass


def test_an_endless_chain_of_long_names_is_no_bundle(tmp_path: Path) -> None:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 2
    link = name.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")
    (tmp_path / "chain.tar").write_bytes(link * 3000)
    with pytest.raises(UsageError, match="no bundle"), open_root(tmp_path / "chain.tar"):
        pass


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_compressed_bundle_with_broken_bytes_is_no_bundle(
    pod: Machine, tmp_path: Path, place: float
) -> None:
    bundle = tmp_path / "m.tar.gz"
    capture(bundle, pod.root)
    content = bytearray(bundle.read_bytes())
    content[int(len(content) * place)] ^= 0xFF
    bundle.write_bytes(content)
    with pytest.raises(UsageError, match="no bundle"), open_root(bundle):
        pass


def test_a_pipe_is_no_bundle_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither"), open_root(tmp_path / "pipe"):
        pass


def test_what_is_no_bundle_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tar")
    with pytest.raises(UsageError, match="no bundle"), open_root(tmp_path / "text"):
        pass
    with pytest.raises(UsageError, match="does not exist"), open_root(tmp_path / "nothing"):
        pass
