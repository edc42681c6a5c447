"""What the kernel log says about processes killed for lack of memory, where it can be read.

It names victims, which no counter does. Readable by root of the host as a rule, and hardly
ever in a container; its pids are those of the host.
Not covered: what they mean, see `oomproof.launch.verdict`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

from oomproof.launch.model import KernelKill
from oomproof.leaf import Leaf

_DEVICE = "/dev/kmsg"
_RECORD_BYTES = 8192
_INIT_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO: the pid namespace in which the kernel log counts."""

# mm/oom_kill.c, since Linux 4.20; the path of oom_memcg is missing when the host itself was short.
_SUMMARY = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+),.*?(?:oom_memcg=(?P<oom>.*?)|global_oom),"
    r"task_memcg=(?P<task>.*?),task=(?P<comm>.*),pid=(?P<pid>\d+),uid=\d+$"
)
_KILLED = re.compile(r"Killed process (?P<pid>\d+) \((?P<comm>.*)\) total-vm:")


class KernelLog:
    """The kernel log from the moment of `open` on."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls) -> KernelLog | None:
        """None where it cannot be read."""
        try:
            fd = os.open(_DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(fd, 0, os.SEEK_END)
        except OSError:
            return None  # no such device in a container, or kernel.dmesg_restrict
        return cls(fd)

    def kills(self) -> tuple[KernelKill, ...]:
        """Kills that were logged since the last call."""
        return tuple(parse_kills(self._messages()))

    def kills_in(self, leaf: Leaf | None) -> tuple[KernelKill, ...]:
        """Those in an attempt's leaf; without one, all of them."""
        kills = self.kills()
        if leaf is None:
            return kills
        name = leaf.directory.name
        return tuple(kill for kill in kills if name in (kill.task_memcg or "").split("/"))

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def _messages(self) -> Iterable[str]:
        while True:
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:  # EPIPE: records were overwritten before we read them
                    raise
                continue
            # "priority,sequence,time,flags;message", then lines of its dictionary
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]


def parse_kills(messages: Iterable[str]) -> Iterable[KernelKill]:
    """The victims, each once: the one that was chosen, and those killed along with it."""
    seen: set[int] = set()
    last: re.Match[str] | None = None
    for message in messages:
        match = _SUMMARY.search(message)
        if match is not None:
            last = match
        else:
            match = _KILLED.search(message)
        if match is None or int(match["pid"]) in seen:
            continue
        seen.add(int(match["pid"]))
        yield KernelKill(
            pid=int(match["pid"]),
            comm=match["comm"],
            constraint=last["constraint"] if last else "CONSTRAINT_UNKNOWN",
            oom_memcg=last["oom"] if last else None,
            task_memcg=last["task"] if last else None,
        )


def pids_are_the_hosts() -> bool:
    """Whether our pids are those of the kernel log."""
    try:
        return os.readlink("/proc/self/ns/pid") == _INIT_PID_NAMESPACE  # noqa: PTH115  not a path
    except OSError:
        return False
