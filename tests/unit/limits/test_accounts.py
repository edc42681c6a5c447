"""What the kernel charges, from trees as v1 and v2 show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.limits.accounts import read_cgroup_accounts, read_process_accounts
from oomproof.limits.files import Tree
from oomproof.units import KIB

STATUS = """Name:\tengine
VmLck:\t      64 kB
VmPin:\t       8 kB
RssAnon:\t    1024 kB
RssFile:\t     512 kB
RssShmem:\t      16 kB
VmPTE:\t      52 kB
VmSwap:\t       4 kB
"""
SMAPS = """55-7f ---p 00000000 00:00 0  [rollup]
Anonymous:          1000 kB
AnonHugePages:         0 kB
"""
V2 = ("0::/svc\n", "31 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "sys/fs/cgroup/svc")
V1 = (
    "4:memory:/svc\n0::/\n",
    "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "sys/fs/cgroup/memory/svc",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(STATUS)
    return tmp_path


def show(root: Path, where: tuple[str, str, str], files: dict[str, str]) -> None:
    cgroup, mountinfo, directory = where
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    (root / directory).mkdir(parents=True)
    for name, content in files.items():
        (root / directory / name).write_text(content)


def test_the_process_by_kind(root: Path) -> None:
    accounts = read_process_accounts(Tree(root))
    assert accounts == tuple(size * KIB for size in (1024, 512, 16, 4, 52, 64, 8))


def test_exactly_where_the_kernel_counts_anew(root: Path) -> None:
    assert read_process_accounts(Tree(root), exact=True).anonymous == 1024 * KIB, "no smaps_rollup here"
    (root / "proc/self/smaps_rollup").write_text(SMAPS)
    assert read_process_accounts(Tree(root), exact=True).anonymous == 1000 * KIB


def test_v2(root: Path) -> None:
    stat = "anon 100\nfile 40\nkernel 30\npagetables 20\nshmem 10\nslab 5\n"
    show(root, V2, {"memory.current": "1000\n", "memory.max": "max\n", "memory.stat": stat})
    accounts = read_cgroup_accounts(Tree(root))
    assert accounts == (2, "/sys/fs/cgroup/svc", 1000, 100, 40, 10, 30, 20)


def test_v1_counts_the_subtree(root: Path) -> None:
    stat = "rss 1\ncache 2\nshmem 3\ntotal_rss 100\ntotal_cache 40\ntotal_shmem 10\n"
    files = {"memory.usage_in_bytes": "1000\n", "memory.kmem.usage_in_bytes": "30\n", "memory.stat": stat}
    show(root, V1, {**files, "memory.limit_in_bytes": "9223372036854771712\n"})
    accounts = read_cgroup_accounts(Tree(root))
    assert accounts == (1, "/sys/fs/cgroup/memory/svc", 1000, 100, 40, 10, 30, None)


def test_what_is_not_told_is_none(root: Path) -> None:
    assert read_cgroup_accounts(Tree(root)) is None
    (root / "proc/self/status").write_text("Name:\tgvisor\nVmRSS:\t 12 kB\n")
    assert read_process_accounts(Tree(root)) == (None,) * 7
    show(root, V2, {"memory.max": "max\n"})
    assert read_cgroup_accounts(Tree(root)) == (2, "/sys/fs/cgroup/svc", *(None,) * 6)
