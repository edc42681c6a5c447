"""cgroup v2: what one level's memory files say.

Source: Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files". ``memory.low`` and
``memory.min`` are protections, not limits, and are not read.
"""

from __future__ import annotations

from oomproof.limits.files import Fact, State, Tree, keyed_pattern, parse_keyed, read_value, usage_beside
from oomproof.limits.raw import Level, PageCache

_MAX = (b"max",)
_STAT = keyed_pattern(("inactive_file", "active_file", "file_dirty", "file_writeback"))
_EVENTS = keyed_pattern(("low", "high", "max", "oom", "oom_kill", "oom_group_kill"))


def read_level(tree: Tree, path: str, directory: str, own: bool = True) -> Level:  # noqa: ARG001 - as v1's
    """The level `path`, whose files are in `directory`; `own`: the process's own cgroup."""
    limit = read_value(tree, f"{directory}/memory.max", _MAX)
    usage = read_value(tree, f"{directory}/memory.current")
    stat, cache = Fact(f"{directory}/memory.stat", State.ABSENT), None
    # Summing up memory.stat is the kernel's dearest answer here: only a limit has a use for it.
    if limit.state is State.VALUE:
        stat, cache = _read_page_cache(tree, stat.source)
    swap = read_value(tree, f"{directory}/memory.swap.max", _MAX)
    return Level(
        version=2,
        path=path,
        directory=directory,
        limit=limit,
        soft=read_value(tree, f"{directory}/memory.high", _MAX),
        swap=swap,
        usage=usage,
        swap_usage=usage_beside(tree, swap, f"{directory}/memory.swap.current"),
        stat=stat,
        page_cache=cache,
    )


def _read_page_cache(tree: Tree, path: str) -> tuple[Fact, PageCache | None]:
    content = tree.read_or_none(path)
    values = parse_keyed(content or b"", _STAT)
    if "inactive_file" not in values:
        return Fact(path, State.UNREADABLE if content is not None else State.ABSENT), None
    return Fact(path, State.VALUE), PageCache(
        inactive_file=values["inactive_file"],
        active_file=values.get("active_file", 0),
        dirty=values.get("file_dirty", 0),
        writeback=values.get("file_writeback", 0),
    )


def read_history(tree: Tree, directory: str) -> dict[str, int]:
    """What happened in the cgroup before, by the kernel's names: events, peak, pressure (microseconds)."""
    facts = parse_keyed(tree.read_or_none(f"{directory}/memory.events") or b"", _EVENTS)
    for fact, name in (("peak", "memory.peak"), ("oom_group", "memory.oom.group")):
        value = read_value(tree, f"{directory}/{name}").value
        if value is not None:
            facts[fact] = value
    facts.update(parse_pressure(tree.read_or_none(f"{directory}/memory.pressure") or b""))
    return facts


def parse_pressure(content: bytes) -> dict[str, int]:
    """Pressure stall totals in microseconds, and the 10 s average in hundredths of a percent.

    A line of memory.pressure (Documentation/accounting/psi.rst)::

        some avg10=1.50 avg60=0.30 avg300=0.00 total=123456
    """
    facts = {}
    for line in content.split(b"\n"):
        kind, _, rest = line.partition(b" ")
        if kind not in (b"some", b"full"):
            continue
        for word in rest.split(b" "):
            key, _, text = word.partition(b"=")
            whole, _, part = text.partition(b".")
            if key == b"total" and text.isdigit() and len(text) <= 20:
                facts[f"pressure_{kind.decode()}_total_us"] = int(text)
            elif (
                key == b"avg10" and whole.isdigit() and part.isdigit() and len(whole) <= 3 and len(part) == 2
            ):
                facts[f"pressure_{kind.decode()}_avg10_hundredths"] = int(whole) * 100 + int(part)
    return facts
