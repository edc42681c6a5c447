"""The whole machine: /proc/meminfo, huge pages, NUMA nodes.

Sources: proc_meminfo(5); Documentation/admin-guide/mm/hugetlbpage.rst;
Documentation/ABI/stable/sysfs-devices-node; cpuset(7), "Mems_allowed_list".
"""

from __future__ import annotations

import os

from oomproof.limits.files import Fact, State, Tree, parse_number
from oomproof.limits.raw import Host, Nodes, PageCache
from oomproof.units import KIB

MEMINFO = "/proc/meminfo"
NODES = "/sys/devices/system/node"
MAX_NODES = 4096


def parse_meminfo(content: bytes) -> dict[str, int]:
    """Sizes in bytes by field (``MemTotal``), plain counts as they are; other lines are skipped.

    Also the form of a NUMA node's file, whose lines begin with ``Node 0``.
    """
    values: dict[str, int] = {}
    for line in content.split(b"\n"):
        name, _, rest = line.partition(b":")
        number, _, unit = rest.strip().partition(b" ")
        value = parse_number(number)
        if value is None or unit.strip() not in (b"kB", b""):
            continue
        words = name.split()
        if words:
            key = words[-1].decode("ascii", "backslashreplace")
            values.setdefault(key, value * KIB if unit else value)
    return values


def read_host(tree: Tree, virtualised: bool = False) -> Host:
    """MemTotal and what the machine has set aside; `virtualised`: lxcfs answers for the kernel."""
    try:
        content = tree.read(MEMINFO)
    except OSError as error:
        return Host(Fact(MEMINFO, State.UNREADABLE, problem=os.strerror(error.errno or 0).lower()))
    if content is None:
        return Host(Fact(MEMINFO, State.ABSENT))
    values = parse_meminfo(content)
    total = values.get("MemTotal", 0)
    if not total:
        return Host(Fact(MEMINFO, State.UNREADABLE, problem="has no MemTotal above 0"))
    return Host(
        total=Fact(MEMINFO, State.VALUE, total),
        available=_available(values),
        huge_pages=_huge_pages(values),
        swap_total=values.get("SwapTotal"),
        virtualised=virtualised,
    )


def _available(values: dict[str, int]) -> int | None:
    if "MemAvailable" in values:
        return values["MemAvailable"]
    # Kernels before 3.14 do not estimate it: free pages are the part that is certain.
    return values.get("MemFree")


def _huge_pages(values: dict[str, int]) -> int:
    """``Hugetlb`` counts all sizes (since 4.14); before, the default size is all that is told."""
    if "Hugetlb" in values:
        return values["Hugetlb"]
    return values.get("HugePages_Total", 0) * values.get("Hugepagesize", 0)


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
    with_memory = parse_list(
        tree.read_or_none(f"{NODES}/has_memory") or tree.read_or_none(f"{NODES}/online") or b""
    )
    if not allowed or not with_memory or with_memory <= allowed:
        return None
    total = huge = used = 0
    cache = [0, 0, 0, 0]
    for node in sorted(allowed & with_memory):
        values = parse_meminfo(tree.read_or_none(f"{NODES}/node{node}/meminfo") or b"")
        if not values.get("MemTotal"):
            return None
        total += values["MemTotal"]
        used += values.get("MemUsed", values["MemTotal"] - values.get("MemFree", 0))
        huge += _node_huge_pages(tree, node, values)
        for index, key in enumerate(("Inactive(file)", "Active(file)", "Dirty", "Writeback")):
            cache[index] += values.get(key, 0)
    shown = listed.strip().decode("ascii")
    return Nodes(shown, total, huge, used, PageCache(*cache), f"{NODES}/node*/meminfo")


def _node_huge_pages(tree: Tree, node: int, values: dict[str, int]) -> int:
    directory = f"{NODES}/node{node}/hugepages"
    total = 0
    for name in tree.directories(directory):
        size = parse_number(name.removeprefix("hugepages-").removesuffix("kB").encode())
        count = parse_number(tree.read_or_none(f"{directory}/{name}/nr_hugepages") or b"")
        total += (size or 0) * KIB * (count or 0)
    return total


def _status_field(status: bytes | None, name: bytes) -> bytes:
    for line in (status or b"").split(b"\n"):
        key, _, value = line.partition(b":")
        if key == name:
            return value.strip()
    return b""
