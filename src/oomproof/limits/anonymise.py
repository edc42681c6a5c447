"""Names taken out of what was read, so that a bundle can be shown to anybody and still replays.

A word that is not in everybody's dictionary of cgroups and mounts becomes ``xN``, the same word
always the same N, in contents and in paths alike. Separators, blanks, escapes and bytes that are
not UTF-8 stay: they may be what is wrong. Sizes and counters stay: they are the answer.
"""

from __future__ import annotations

import os
import re

from oomproof.limits.hints import VARIABLES
from oomproof.limits.mounts import unescape

_WORD = re.compile(rb"[A-Za-z0-9]+")
_COUNTER = re.compile(rb"[ \t]*(?:[a-z_]+ )?[0-9]+[ \t]*$|(?:some|full)(?: [a-z0-9]+=[0-9.]+)+$")
_ESCAPED = re.compile(rb"[ \t\n\\]")
_OWN_NAMES_OF_THE_KERNEL = ("/proc/", "/sys/devices/", "/sys/kernel/")
_FILES_OF_A_CGROUP = ("memory.", "cgroup.", "cpuset.")
_STATUS_LINES = (b"Pid:", b"VmSize:", b"VmData:", b"VmLck:", b"CapEff:", b"Mems_allowed_list:")

_KNOWN = frozenset(
    b"""
    cgroup cgroup2 sys fs proc self dev run mnt unified memory cpu cpuacct cpuset blkio io pids devices
    freezer net cls prio perf event hugetlb rdma misc name systemd none max
    tmpfs sysfs devtmpfs devpts mqueue ext4 xfs btrfs overlay rootfs 9p nfs nfs4 fuse lxcfs lxc meminfo status
    slice scope service system user session init machine app background docker containerd podman libpod crio
    cri kubepods kubelet burstable besteffort guaranteed pod container ecs fargate slurm slurmd slurmstepd uid
    job step task batch extern payload supervisor nspawn buildkit actions runner workers worker leaf deleted
    ro rw nosuid nodev noexec relatime noatime dirsync nsdelegate recursiveprot favordynmods localevents
    shared master propagate from unbindable mode size
    """.split()
)
"""Words that say what a thing is, not whose."""


class Names:
    """The pseudonyms given so far; one instance for one bundle."""

    def __init__(self) -> None:
        self._given: dict[bytes, bytes] = {}

    def text(self, text: bytes) -> bytes:
        """`text` with every word that is not common knowledge replaced."""
        return _WORD.sub(lambda match: self._word(match[0]), text)

    def _word(self, word: bytes) -> bytes:
        if len(word) == 1 or word.lower() in _KNOWN:
            return word
        return self._given.setdefault(word, b"x%d" % (len(self._given) + 1))

    def path(self, path: str) -> str:
        """A file's own path in the bundle."""
        if path.startswith(_OWN_NAMES_OF_THE_KERNEL):
            return path
        directory, _, name = path.rpartition("/")
        if not name.startswith(_FILES_OF_A_CGROUP):
            directory, name = path, ""
        shown = os.fsdecode(self.text(os.fsencode(directory)))
        return f"{shown}/{name}" if name else shown

    def content(self, path: str, content: bytes, pid: bytes) -> bytes:
        """A file's content, by what the file is; `pid`: the own process, the only one that may show."""
        if path == "/proc/self/status":
            return b"".join(line for line in content.splitlines(True) if line.startswith(_STATUS_LINES))
        if path.endswith("/cgroup.procs"):
            return pid + b"\n" if pid in content.split() else b""
        for name, separator, part in (
            ("/proc/self/cgroup", b"\n", self._cgroup_line),
            ("/proc/self/mountinfo", b"\n", self._mount_line),
            ("/proc/self/environ", b"\0", self._variable),
        ):
            if path == name:
                return separator.join(part(line) for line in content.split(separator))
        if path.startswith(_OWN_NAMES_OF_THE_KERNEL):
            return content
        return b"\n".join(line if _COUNTER.match(line) else self.text(line) for line in content.split(b"\n"))

    def _cgroup_line(self, line: bytes) -> bytes:
        number, _, rest = line.partition(b":")
        controllers, colon, path = rest.partition(b":")
        if not (number.isdigit() and colon):
            return self.text(line)
        return b":".join((number, self.text(controllers), self.text(path)))

    def _mount_line(self, line: bytes) -> bytes:
        fields = line.split(b" ")
        return b" ".join((*fields[:3], *(self._field(field) for field in fields[3:])))

    def _field(self, field: bytes) -> bytes:
        shown = self.text(unescape(field))
        return _ESCAPED.sub(lambda match: b"\\%03o" % match[0][0], shown)

    def _variable(self, entry: bytes) -> bytes:
        name, _, value = entry.partition(b"=")
        if os.fsdecode(name) not in VARIABLES:
            return b""
        # Sizes are what a hint is about; addresses and tokens are not.
        return entry if value[:1].isdigit() or name == b"AWS_EXECUTION_ENV" else name + b"=set"
