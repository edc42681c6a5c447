"""cgroup v1: what one level's memory files say.

Source: Documentation/admin-guide/cgroup-v1/memory.rst. The ``total_*`` lines of memory.stat
count a level's subtree, as its usage does.
"""

from __future__ import annotations

from oomproof.limits.files import (
    NO_LIMIT_FROM,
    Fact,
    State,
    Tree,
    keyed_pattern,
    parse_keyed,
    read_value,
    usage_beside,
)
from oomproof.limits.raw import Level, PageCache

_PAGES = ("inactive_file", "active_file", "dirty", "writeback")
_STAT = keyed_pattern((*_PAGES, *(f"total_{name}" for name in _PAGES), "hierarchical_memory_limit"))
_OOM_CONTROL = keyed_pattern(("oom_kill_disable", "under_oom", "oom_kill"))
_UNLIMITED = (b"-1",)
"""What is written to lift a limit; some emulations hand it back when read."""


def read_level(tree: Tree, path: str, directory: str, own: bool = True) -> Level:
    """The level `path`, whose files are in `directory`; `own`: the process's own cgroup."""
    limit = read_value(tree, f"{directory}/memory.limit_in_bytes", _UNLIMITED)
    stat, values = Fact(f"{directory}/memory.stat", State.ABSENT), {}
    # Summing up memory.stat is the kernel's dearest answer here: it is asked for where there is a use for it.
    if own or (limit.value is not None and limit.value < NO_LIMIT_FROM):
        content = tree.read_or_none(stat.source)
        values = parse_keyed(content or b"", _STAT)
        stat = Fact(stat.source, State.ABSENT if content is None else State.VALUE)
    swap = read_value(tree, f"{directory}/memory.memsw.limit_in_bytes", _UNLIMITED)
    return Level(
        version=1,
        path=path,
        directory=directory,
        limit=limit,
        soft=read_value(tree, f"{directory}/memory.soft_limit_in_bytes", _UNLIMITED),
        swap=swap,
        usage=read_value(tree, f"{directory}/memory.usage_in_bytes"),
        swap_usage=usage_beside(tree, swap, f"{directory}/memory.memsw.usage_in_bytes"),
        stat=stat,
        page_cache=_page_cache(values),
        separate=read_value(tree, f"{directory}/memory.use_hierarchy").value == 0,
        hierarchical_limit=values.get("hierarchical_memory_limit"),
    )


def _page_cache(values: dict[str, int]) -> PageCache | None:
    def of(key: str) -> int:
        # Without use_hierarchy there is no subtree to sum up, and very old kernels have no total_ lines.
        return values.get(f"total_{key}", values.get(key, 0))

    if "total_inactive_file" not in values and "inactive_file" not in values:
        return None
    return PageCache(*(of(name) for name in _PAGES))


def read_history(tree: Tree, directory: str) -> dict[str, int]:
    """What happened in the cgroup before, by the kernel's names.

    ``oom_kill`` counts victims that were members of this very cgroup, not of those below it.
    """
    facts = parse_keyed(tree.read_or_none(f"{directory}/memory.oom_control") or b"", _OOM_CONTROL)
    for fact, name in (("failcnt", "memory.failcnt"), ("peak", "memory.max_usage_in_bytes")):
        value = read_value(tree, f"{directory}/{name}").value
        if value is not None:
            facts[fact] = value
    return facts
