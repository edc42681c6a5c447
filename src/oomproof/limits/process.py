"""What concerns this process alone: resource limits, capabilities, what it uses of them.

Sources: getrlimit(2), proc_pid_status(5), proc_pid_limits(5), mlock(2).
"""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.limits.files import NO_LIMIT_FROM, Tree, keyed_pattern, parse_keyed
from oomproof.limits.raw import Process

STATUS = "/proc/self/status"
LIMITS = "/proc/self/limits"
CAP_IPC_LOCK = 14

_SIZES = keyed_pattern(("VmSize", "VmData", "VmLck"), between=":")

_NAMES = {b"Max address space": "AS", b"Max data size": "DATA", b"Max locked memory": "MEMLOCK"}


def parse_limits(content: bytes) -> dict[str, int | None]:
    """Soft limits in bytes by name; None: unlimited.

    A line of /proc/self/limits: name padded with blanks, soft limit, hard limit, unit::

        Max locked memory         8388608              8388608              bytes
    """
    limits: dict[str, int | None] = {}
    for line in content.split(b"\n"):
        for label, name in _NAMES.items():
            words = line.removeprefix(label).split() if line.startswith(label) else []
            if words and words[0] == b"unlimited":
                limits.setdefault(name, None)
            elif words and words[0].isdigit() and len(words[0]) <= 20:
                limits.setdefault(name, int(words[0]))
    return limits


def read_process(tree: Tree, status: bytes | None, rlimits: Mapping[str, int | None] | None) -> Process:
    """`rlimits` (negative, RLIM_INFINITY or None: unlimited) stand in for what the kernel would say."""
    source = "rlimits"
    if rlimits is None and tree.is_live:
        rlimits, source = _own_limits(), "getrlimit(2)"
    elif rlimits is None:
        rlimits, source = parse_limits(tree.read_or_none(LIMITS) or b""), LIMITS
    values = parse_keyed(status or b"", _SIZES)
    return Process(
        rlimits={
            name: value if value is not None and 0 <= value < NO_LIMIT_FROM else None
            for name, value in rlimits.items()
        },
        source=source,
        address_space=values.get("VmSize"),
        data=values.get("VmData"),
        locked=values.get("VmLck"),
        may_lock_all=has_capability(status or b"", CAP_IPC_LOCK),
    )


def _own_limits() -> dict[str, int | None]:
    import resource  # noqa: PLC0415 - an extension module that recorded machines do without

    return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in _NAMES.values()}


def has_capability(status: bytes, number: int) -> bool:
    """Whether the effective set (``CapEff`` of /proc/self/status) holds capability `number`."""
    for line in status.split(b"\n"):
        if line.startswith(b"CapEff:"):
            try:
                return bool(int(line[7:].strip()[:32], 16) >> number & 1)
            except ValueError:
                return False
    return False
