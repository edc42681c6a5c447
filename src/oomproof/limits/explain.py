"""Every kind of row and every notice in plain words, with the kernel's document that it comes from.

docs/limits.md says the same at more length; a test keeps both complete.
"""

from __future__ import annotations

from collections.abc import Iterator

from oomproof.limits.model import Kind, LimitReport, Status
from oomproof.units import format_size

KINDS: dict[Kind, str] = {
    Kind.HOST: "The machine's own memory; huge pages set aside are no use to ordinary allocations."
    " [proc_meminfo(5), admin-guide/mm/hugetlbpage.rst]",
    Kind.NUMA: "cpuset.mems holds this process to some of the machine's memory nodes."
    " [cpuset(7), admin-guide/mm/numaperf.rst]",
    Kind.CGROUP: "A cgroup's hard limit; all memory of all processes in and below it counts, and the kernel"
    " kills when it cannot stay under it. [admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/memory.rst]",
    Kind.LEAF: "The limit that oomproof itself puts on the cgroup of an attempt.",
    Kind.SOFT: "memory.high slows processes down and reclaims, v1's soft limit only says who gives first;"
    " neither kills. [admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/memory.rst]",
    Kind.SWAP: "Swap that may be used besides memory: v2 counts swap alone, v1 memory and swap together."
    " [admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/memory.rst]",
    Kind.ADDRESS_SPACE: "Limits addresses, not memory: mmap fails with ENOMEM, nothing is killed."
    " [getrlimit(2)]",
    Kind.LOCKED: "How much this process may page-lock; CAP_IPC_LOCK lifts it. [getrlimit(2), mlock(2)]",
}

_CGROUP_DOC = "admin-guide/cgroup-v2.rst"
_V1_DOC = "admin-guide/cgroup-v1/memory.rst"

NOTICES: dict[str, tuple[str, str]] = {
    "above_memory_high": (
        "Usage stands at memory.high: allocations are being slowed down now.",
        _CGROUP_DOC,
    ),
    "ancestors_hidden": (
        "Only part of the hierarchy is mounted here; a level above it may limit more tightly.",
        "cgroup_namespaces(7)",
    ),
    "cgroup_deleted": (
        "The cgroup was removed while the process is still in it; its own limit can no longer be read.",
        "cgroups(7)",
    ),
    "cgroup_not_visible": (
        "The directory of the process's own cgroup is on no mount that can be seen.",
        "cgroup_namespaces(7)",
    ),
    "hierarchy_separate": (
        "v1 with use_hierarchy=0: a cgroup's memory is not charged to the levels above, so their limits do"
        " not apply.",
        _V1_DOC,
    ),
    "limit_above_host": ("The limit is larger than the machine, so it limits nothing.", _CGROUP_DOC),
    "limit_unreadable": (
        "The limit file is there but cannot be read or holds no size. What it enforces is not known, and a"
        " looser level above does not stand in for it.",
        _CGROUP_DOC,
    ),
    "meminfo_unreadable": (
        "/proc/meminfo is missing, cannot be read, or says that there is no memory (lxcfs does, at times).",
        "proc_meminfo(5)",
    ),
    "meminfo_virtualised": (
        "lxcfs shows the container's memory as the machine's; the real machine may be larger.",
        "proc_meminfo(5)",
    ),
    "memory_controller_absent": (
        "The hierarchy is mounted without the memory controller; on Raspberry Pi cgroup_enable=memory"
        " on the kernel's command line brings it.",
        _CGROUP_DOC,
    ),
    "memory_pressure": ("Processes here wait for memory instead of working.", "accounting/psi.rst"),
    "mount_above_namespace": (
        "A mount shows levels above this process's cgroup namespace; they count where they can be told.",
        "cgroup_namespaces(7)",
    ),
    "no_cgroupfs": (
        "No cgroup filesystem is mounted (gVisor, bubblewrap, a masked /sys): the host's memory is all"
        " that can be seen.",
        "cgroups(7)",
    ),
    "no_proc": (
        "/proc/self/cgroup is missing; the topmost cgroup found at /sys/fs/cgroup stands in.",
        "proc_pid_cgroup(5)",
    ),
    "oom_kill_disabled": (
        "memory.oom_control says oom_kill_disable 1: at the limit processes hang until memory is freed.",
        _V1_DOC,
    ),
    "oom_killed_before": ("The OOM killer has struck in this cgroup since it was made.", _CGROUP_DOC),
    "outside_namespace": (
        "The process was moved to a cgroup that its cgroup namespace does not contain.",
        "cgroup_namespaces(7)",
    ),
    "page_cache_unreadable": (
        "memory.stat tells no page cache, so all of it counts as in use: less headroom, never more.",
        _CGROUP_DOC,
    ),
    "soft_limit_unreadable": ("memory.high is there but cannot be understood.", _CGROUP_DOC),
    "swap_limit_unreadable": ("The swap limit is there but cannot be understood.", _CGROUP_DOC),
    "throttled_before": ("memory.events counts how often memory.high slowed this cgroup.", _CGROUP_DOC),
    "usage_above_limit": (
        "The limit was lowered below what is in use; nothing more can be had until it is freed.",
        _CGROUP_DOC,
    ),
    "usage_unreadable": (
        "A level has a limit but its usage cannot be read: headroom there may be the smallest, so none"
        " is given.",
        _CGROUP_DOC,
    ),
}

PINNED_BLIND_SPOTS = (
    "Memory that a device driver pins (CUDA host allocations, RDMA) may escape the cgroup's charge or"
    " RLIMIT_MEMLOCK, and registered memory is counted once for each user."
)


def explain(report: LimitReport) -> Iterator[str]:
    """Lines of prose: the answer, then each kind of row, then each notice."""
    yield _answer(report)
    shown = [kind for kind in Kind if any(row.kind is kind for row in report.candidates)]
    for kind in shown:
        names = [row.name for row in report.candidates if row.kind is kind]
        yield f"{', '.join(names)}: {KINDS[kind]}"
    yield (
        "Headroom counts clean, inactive page cache as free; dirty or written-back pages, active file pages,"
        " shmem and tmpfs are in use. 'If cache drops' counts all clean file pages as free."
    )
    if report.pinned_limit_bytes is not None:
        yield f"Page-locked: at most {format_size(report.pinned_limit_bytes)}. {PINNED_BLIND_SPOTS}"
    for notice in report.notices:
        meaning, document = NOTICES[notice.code]
        yield f"{notice.code}: {meaning} [{document}]"


def _answer(report: LimitReport) -> str:
    if report.status is Status.UNKNOWN:
        return "The limit is unknown: no file tells it, or one that would cannot be read or understood."
    limit = f"The limit is {format_size(report.limit_bytes)}, set by {report.limit_bound_by}."
    if report.available_bytes is None:
        return f"{limit} What is left of it cannot be told."
    left = f"{format_size(report.available_bytes)} of memory can still be had"
    return f"{limit} {left}, held down by {report.available_bound_by}."
