"""What others leave where we can look: marks on a cgroup, a full tmpfs, pressure on the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomproof.launch.counters import host_pressure_percent
from oomproof.launch.leftovers import full_tmpfs, userspace_killer


@pytest.mark.parametrize("attribute", ["user.oomd_ooms", "user.oomd_kill"])
def test_systemd_oomd_marks_the_cgroup_before_and_after_it_kills(tmp_path: Path, attribute: str) -> None:
    (tmp_path / "nested").mkdir()
    try:
        os.setxattr(tmp_path / "nested", attribute, b"2")
    except OSError as error:
        pytest.skip(f"no user attributes in {tmp_path}: {error.strerror}")
    sentence = userspace_killer([tmp_path, tmp_path / "nested"])
    assert sentence is not None
    assert f"{attribute} of {tmp_path / 'nested'} is 2" in sentence
    os.setxattr(tmp_path / "nested", attribute, b"0")
    assert userspace_killer([tmp_path, tmp_path / "nested", tmp_path / "gone"]) is None


def test_pressure_is_the_share_of_the_last_ten_seconds(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text(
        "some avg10=42.50 avg60=7.00 avg300=1.00 total=8\nfull avg10=1.00 avg60=0.17 avg300=0.47 total=6\n"
    )
    assert host_pressure_percent(file) == 42.5
    assert host_pressure_percent(tmp_path / "no such file") is None


def test_only_a_tmpfs_that_could_grow_is_full(tmp_path: Path) -> None:
    """None of these can be full: not mounted there, read-only, another file system, room left."""
    mounts = tmp_path / "mounts"
    (tmp_path / "a b").mkdir()
    (tmp_path / "данные").mkdir()
    mounts.write_text(
        f"tmpfs /no/such/place tmpfs rw,nosuid 0 0\n"
        f"tmpfs /proc/acpi tmpfs ro,relatime 0 0\n"
        f"proc /proc proc rw 0 0\n"
        f"tmpfs {tmp_path}/a\\040b tmpfs rw 0 0\n"
        f"tmpfs {tmp_path}/данные tmpfs rw 0 0\n"
    )
    assert full_tmpfs(mounts) == ()
