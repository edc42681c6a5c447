"""The parsers of /proc/self/cgroup and /proc/self/mountinfo, and where one path lies below another."""

from __future__ import annotations

import pytest

from oomproof.limits.mounts import (
    Membership,
    Mount,
    Route,
    parse_cgroup,
    parse_mountinfo,
    route,
    split_path,
)


@pytest.mark.parametrize(
    ("content", "v1", "v2"),
    [
        (b"0::/svc\n", None, "/svc"),
        (b"7:memory:/a\n1:name=systemd:/b\n0::/c\n", "/a", "/c"),
        (b"4:cpu,net_cls,memory,hugetlb:/a\n", "/a", None),
        (b"4:memory,cpu:/a\n", "/a", None),
        (b"4:name=memory:/a\n", None, None),
        (b"4:memory_tagging:/a\n", None, None),
        (b"4:memory:/with:colon:in it\n", "/with:colon:in it", None),
        (b"0::/ends in blank \n", None, "/ends in blank "),
        (b"0::/carriage\rreturn\n", None, "/carriage\rreturn"),
        (b"0::/tail (deleted)\n", None, "/tail (deleted)"),
        (b"0::/no newline", None, "/no newline"),
        (b"\n\nnot a line\n::\n0::relative\n0::\n0::/a\n0::/second\n", None, "/a"),
        (b"5::/not zero\n", None, None),
        (b"0::/nul\0byte\n0::/a\n", None, "/a"),
        (b"0::/\xff\xfe\n", None, "/\udcff\udcfe"),
        (b"0::/" + b"x" * 100_000 + b"\n7:memory:/a\n", "/a", "/" + "x" * 100_000),
        (b"", None, None),
    ],
)
def test_cgroup_lines(content: bytes, v1: str | None, v2: str | None) -> None:
    assert parse_cgroup(content) == (
        None if v1 is None else Membership(1, v1),
        None if v2 is None else Membership(2, v2),
    )


@pytest.mark.parametrize(
    ("line", "mount"),
    [
        (b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", Mount(2, "/", "/sys/fs/cgroup")),
        (b"30 23 0:26 / /c rw shared:1 - cgroup2 none rw", Mount(2, "/", "/c")),
        (b"30 23 0:26 / /c rw shared:1 master:2 propagate_from:3 - cgroup2 c rw", Mount(2, "/", "/c")),
        (b"35 31 0:31 /docker/x /m ro - cgroup cgroup rw,memory", Mount(1, "/docker/x", "/m")),
        (b"35 31 0:31 / /m ro - cgroup cgroup rw,hugetlb,memory,cpu", Mount(1, "/", "/m")),
        (b"35 31 0:31 / /m ro - cgroup my source rw,memory", Mount(1, "/", "/m")),
        (b"30 23 0:26 / /a\\040b\\011c\\012d\\134e rw - cgroup2 c rw", Mount(2, "/", "/a b\tc\nd\\e")),
        (b"30 23 0:26 /x\\134040y /c rw - cgroup2 c rw", Mount(2, "/x\\040y", "/c")),
        (b"30 23 0:26 /\xff /c\xfe rw - cgroup2 c rw", Mount(2, "/\udcff", "/c\udcfe")),
        (b"30 23 0:26 / /c rw - cgroup2", Mount(2, "/", "/c")),
        (b"35 31 0:31 / /m ro - cgroup cgroup rw,cpu", None),
        (b"35 31 0:31 / /m ro - cgroup cgroup rw,name=memory", None),
        (b"35 31 0:31 / /m ro - tmpfs cgroup2 rw", None),
        (b"35 31 0:31 / /m ro cgroup2 c rw", None),
        (b"30 23 0:26 cgroup2 - cgroup2 c rw", None),
        (b"- - - - - - - cgroup2 c rw", None),
        (b"", None),
    ],
)
def test_mountinfo_lines(line: bytes, mount: Mount | None) -> None:
    assert parse_mountinfo(line + b"\n") == ([] if mount is None else [mount])


def test_one_bad_mount_line_does_not_cost_the_others() -> None:
    good = b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    bad = b"1391 1160 0:151 / /Docker/cgroup rw - 9p C:\\134Program Files dirsync;path=C:\\x y"
    assert parse_mountinfo(b"\n".join([bad, b"cgroup" * 50_000, good, b"\xff cgroup"])) == [
        Mount(2, "/", "/sys/fs/cgroup")
    ]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("/", (0, ())),
        ("/a/b", (0, ("a", "b"))),
        ("//a//b/", (0, ("a", "b"))),
        ("/../..", (2, ())),
        ("/../a", (1, ("a",))),
        ("/..a/b", (0, ("..a", "b"))),
    ],
)
def test_paths_climb_from_the_namespace_root(path: str, split: tuple[int, tuple[str, ...]]) -> None:
    assert split_path(path) == split


@pytest.mark.parametrize(
    ("own", "root", "way"),
    [
        ("/a/b", "/", (0, ("a", "b"))),
        ("/a/b", "/a", (0, ("b",))),
        ("/a/b", "/a/b", (0, ())),
        ("/a/bc", "/a/b", None),
        ("/", "/a", None),
        ("/../a", "/", None),
        ("/..", "/", None),
        ("/..", "/..", (0, ())),
        ("/../a", "/..", (0, ("a",))),
        ("/../a/b", "/../a", (0, ("b",))),
        ("/../b", "/../a", None),
        ("/", "/..", (1, ())),
        ("/a", "/../..", (2, ("a",))),
        ("/../a", "/../../..", (2, ("a",))),
        ("/", "/../a", None),
        ("/a/../b", "/", None),
    ],
)
def test_a_mount_shows_the_own_cgroup_or_not(
    own: str, root: str, way: tuple[int, tuple[str, ...]] | None
) -> None:
    mount = Mount(2, root, "/m")
    assert route(own, mount) == (None if way is None else Route(mount, *way))
