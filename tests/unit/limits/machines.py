"""Machines made by hand: a tree of files as one process would see them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from oomproof.limits import detect_limits
from oomproof.limits.model import LimitReport
from oomproof.units import GIB, KIB

HOST_TOTAL = 16 * GIB
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:31 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"
NO_LIMIT_V1 = 0x7FFFFFFFFFFFF000

Content = str | bytes | int


class Machine:
    """A root directory that is filled step by step; each step returns the machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str | bytes, content: Content) -> Machine:
        target = Path(os.fsdecode(os.fsencode(self.root) + os.fsencode(path)))
        target.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else f"{content}\n".encode("utf-8", "surrogateescape")
        target.write_bytes(data)
        return self

    def host(self, total: int = HOST_TOTAL, available: int | None = 12 * GIB, more: str = "") -> Machine:
        lines = f"MemTotal: {total // KIB} kB\nMemFree: 1024 kB\n"
        if available is not None:
            lines += f"MemAvailable: {available // KIB} kB\n"
        return self.file("/proc/meminfo", lines + more)

    def member(self, *lines: Content) -> Machine:
        return self.file("/proc/self/cgroup", _lines(lines))

    def mounts(self, *lines: Content) -> Machine:
        first = ("22 27 0:21 / /proc rw - proc proc rw", "27 1 254:0 / / rw - ext4 /dev/vda rw")
        return self.file("/proc/self/mountinfo", _lines((*first, *lines)))

    def level_v2(
        self,
        directory: str | bytes,
        limit: Content = "max",
        usage: Content | None = 0,
        stat: str | None = "inactive_file 0\nactive_file 0\nfile_dirty 0\nfile_writeback 0",
        **files: Content,
    ) -> Machine:
        base = os.fsencode(directory)
        self.file(base + b"/memory.max", limit)
        self.file(base + b"/cgroup.procs", "")
        if usage is not None:
            self.file(base + b"/memory.current", usage)
        if stat is not None:
            self.file(base + b"/memory.stat", stat)
        for name, content in files.items():
            self.file(base + b"/memory." + name.replace("_", ".").encode(), content)
        return self

    def root_v2(self, directory: str = "/sys/fs/cgroup", controllers: str = "cpu memory pids") -> Machine:
        """The true root of v2: no limit file."""
        return self.file(f"{directory}/cgroup.controllers", controllers)

    def level_v1(
        self,
        directory: str | bytes,
        limit: Content = NO_LIMIT_V1,
        usage: Content = 0,
        stat: str = "total_inactive_file 0\ntotal_dirty 0\ntotal_writeback 0",
        **files: Content,
    ) -> Machine:
        base = os.fsencode(directory)
        self.file(base + b"/memory.limit_in_bytes", limit)
        self.file(base + b"/memory.usage_in_bytes", usage)
        self.file(base + b"/memory.stat", stat)
        for name, content in files.items():
            self.file(base + b"/memory." + name.encode(), content)
        return self

    def detect(self, **arguments: Any) -> LimitReport:
        return detect_limits(self.root, **arguments)

    def v2(self, path: str = "/") -> Machine:
        """An ordinary v2 machine with this process in `path`."""
        return self.host().member(f"0::{path}").mounts(V2_MOUNT)

    def v1(self, path: str = "/") -> Machine:
        """An ordinary v1 machine with this process in `path`."""
        return self.host().member(f"7:memory:{path}", "1:name=systemd:/").mounts(V1_MOUNT)


def _lines(lines: tuple[Content, ...]) -> bytes:
    return b"".join((line if isinstance(line, bytes) else str(line).encode()) + b"\n" for line in lines)


def codes(report: LimitReport) -> set[str]:
    return {notice.code for notice in report.notices}


def verdict_of(report: LimitReport, name: str) -> str:
    return next(row.verdict for row in report.candidates if row.name == name)
