"""The whole machine: /proc/meminfo, huge pages, NUMA nodes.

Sources: proc_meminfo(5); Documentation/admin-guide/mm/hugetlbpage.rst;
Documentation/ABI/stable/sysfs-devices-node; cpuset(7), "Mems_allowed_list".
"""

from __future__ import annotations

import os

from oomproof.limits.files import Fact, State, Tree, keyed_pattern, parse_keyed, parse_number
from oomproof.limits.raw import Host, Nodes, PageCache
from oomproof.units import KIB

MEMINFO = "/proc/meminfo"
NODES = "/sys/devices/system/node"
HUGE_PAGES = "/sys/kernel/mm/hugepages"
MAX_NODES = 4096


_FIELDS = keyed_pattern(
    (
        *("MemTotal", "MemFree", "MemUsed", "MemAvailable", "Hugetlb", "HugePages_Total", "Hugepagesize"),
        *("Inactive(file)", "Active(file)", "Dirty", "Writeback"),
    ),
    before=r"(?:Node \d+ )?",
    between=":",
)


def parse_meminfo(content: bytes) -> dict[str, int]:
    """Fields of /proc/meminfo or of a NUMA node's meminfo (``Node 0 MemTotal: 8 kB``); sizes in bytes."""
    return parse_keyed(content, _FIELDS)


def read_host(tree: Tree, virtualised: bool = False) -> Host:
    """MemTotal and what the machine has set aside; `virtualised`: lxcfs answers for the kernel.

    Where /proc/meminfo is hidden (``ProcSubset=pid``) or says 0, the NUMA nodes tell the total,
    or sysinfo(2).
    """
    values: dict[str, int] = {}
    state, problem = State.UNREADABLE, "has no MemTotal above 0"
    try:
        content = tree.read(MEMINFO)
    except OSError as error:
        problem = f"cannot be read ({os.strerror(error.errno or 0).lower()})"
    else:
        if content is None:
            state, problem = State.ABSENT, "is absent"
        values = parse_meminfo(content or b"")
    meminfo = Fact(MEMINFO, state, problem=problem)
    told = Fact(MEMINFO, State.VALUE, values["MemTotal"]) if values.get("MemTotal") else None
    total = told or _total_elsewhere(tree) or meminfo
    huge_pages = _huge_pages(tree, values)
    if huge_pages and virtualised and told:
        huge_pages = _share_of_huge_pages(huge_pages, values["MemTotal"], _nodes_total(tree))
    return Host(
        total=total,
        available=_available(values, total.value),
        huge_pages=huge_pages,
        virtualised=virtualised,
        problem="" if told else problem,
    )


def _total_elsewhere(tree: Tree) -> Fact | None:
    if total := _nodes_total(tree):
        return Fact(f"{NODES}/node*/meminfo", State.VALUE, total)
    if not tree.is_live:
        return None
    pages = os.sysconf("SC_PHYS_PAGES")
    return Fact("sysinfo(2)", State.VALUE, pages * os.sysconf("SC_PAGE_SIZE")) if pages > 0 else None


def _nodes_total(tree: Tree) -> int:
    """All nodes' memory in bytes; 0 when one of them does not tell."""
    sizes = [_node_meminfo(tree, node).get("MemTotal", 0) for node in _nodes_with_memory(tree)]
    return sum(sizes) if all(sizes) else 0


def _available(values: dict[str, int], total: int | None) -> int | None:
    # Kernels before 3.14 do not estimate it: free pages are the part that is certain.
    available = values.get("MemAvailable", values.get("MemFree"))
    # lxcfs subtracts without looking: where usage is above the limit, 2^64 comes out.
    return available if available is None or total is None else min(available, total)


def _huge_pages(tree: Tree, values: dict[str, int]) -> int:
    """``Hugetlb`` counts all sizes (since 4.14); before, each size has a directory of its own."""
    if "Hugetlb" in values:
        return values["Hugetlb"]
    default = values.get("HugePages_Total", 0) * values.get("Hugepagesize", 0)
    return max(default, _pools(tree, HUGE_PAGES))


def _share_of_huge_pages(huge_pages: int, shown: int, machine: int) -> int:
    """What the machine's huge pages take off the `shown` part of it.

    lxcfs hands them on as they are, beside the container's own MemTotal: what the rest of the
    machine has room for costs the container nothing. `machine`: its real size, 0 when not known.
    """
    return max(huge_pages - (machine - shown), 0) if machine >= shown else 0


def _pools(tree: Tree, directory: str) -> int:
    """Bytes in the huge-page pools of every size listed in `directory`."""
    total = 0
    for name in tree.directories(directory):
        size = parse_number(name.removeprefix("hugepages-").removesuffix("kB").encode("utf-8", "replace"))
        count = parse_number(tree.read_or_none(f"{directory}/{name}/nr_hugepages") or b"")
        total += (size or 0) * KIB * (count or 0)
    return total


def parse_list(text: bytes) -> set[int] | None:
    """``0-3,8`` as a set of numbers; None when it is not such a list."""
    numbers: set[int] = set()
    for part in text.strip().split(b","):
        first, dash, last = part.partition(b"-")
        if not (first.isdigit() and (last.isdigit() or not dash)) or len(first) > 6 or len(last) > 6:
            return None
        low, high = int(first), int(last or first)
        if high < low or high > MAX_NODES:
            return None
        numbers.update(range(low, high + 1))
    return numbers


def read_nodes(tree: Tree, status: bytes | None) -> Nodes | None:
    """The NUMA nodes allowed; None when all with memory are, or when the files do not tell."""
    listed = _status_field(status, b"Mems_allowed_list")
    allowed = parse_list(listed) if listed else None
    if not allowed:
        return None
    with_memory = _nodes_with_memory(tree)
    if not with_memory or with_memory <= allowed:
        return None
    total = huge = used = 0
    cache = [0, 0, 0, 0]
    for node in sorted(allowed & with_memory):
        values = _node_meminfo(tree, node)
        if not values.get("MemTotal"):
            return None
        total += values["MemTotal"]
        used += values.get("MemUsed", values["MemTotal"] - values.get("MemFree", 0))
        huge += _pools(tree, f"{NODES}/node{node}/hugepages")
        for index, key in enumerate(("Inactive(file)", "Active(file)", "Dirty", "Writeback")):
            cache[index] += values.get(key, 0)
    return Nodes(listed.decode("ascii"), total, huge, used, PageCache(*cache), f"{NODES}/node*/meminfo")


def _nodes_with_memory(tree: Tree) -> set[int]:
    listed = tree.read_or_none(f"{NODES}/has_memory") or tree.read_or_none(f"{NODES}/online")
    if listed is not None:
        return parse_list(listed) or set()
    names = [name.removeprefix("node") for name in tree.directories(NODES)]
    return {int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 6}


def _node_meminfo(tree: Tree, node: int) -> dict[str, int]:
    return parse_meminfo(tree.read_or_none(f"{NODES}/node{node}/meminfo") or b"")


def _status_field(status: bytes | None, name: bytes) -> bytes:
    for line in (status or b"").split(b"\n"):
        key, _, value = line.partition(b":")
        if key == name:
            return value.strip()
    return b""
