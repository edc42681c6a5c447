"""Conditions in the readings that whoever relies on the answer should know, under stable codes."""

from __future__ import annotations

from collections.abc import Iterator

from oomproof.limits.candidates import charged_levels, clean_inactive, effective_limit, finite
from oomproof.limits.files import State, printable
from oomproof.limits.model import Notice
from oomproof.limits.raw import Host, Level, Readings
from oomproof.units import format_size

PRESSURE_HUNDREDTHS = 1000
"""Stalled for 10 % of the last 10 seconds: worth a word."""


def notices_of(readings: Readings) -> tuple[Notice, ...]:
    """All notices that follow from the readings; those about places come from `discovery`."""
    charged = charged_levels(readings.levels)
    notices = list(_host_notices(readings.host))
    for level in charged:
        notices += _level_notices(level, readings.host)
    if len(charged) < len(readings.levels):
        notices.append(
            Notice(
                "hierarchy_separate",
                f"use_hierarchy=0: what is charged to {printable(charged[-1].path)} is not charged above it.",
                f"{charged[-1].directory}/memory.use_hierarchy",
            )
        )
    notices += _history_notices(readings)
    return tuple(notices)


def _host_notices(host: Host) -> Iterator[Notice]:
    if host.problem:
        known = (
            f"MemTotal is taken from {host.total.source}"
            if host.total.value
            else "the host's size is unknown"
        )
        yield Notice("meminfo_unreadable", f"/proc/meminfo {host.problem}; {known}.", "/proc/meminfo")
    if host.virtualised:
        yield Notice(
            "meminfo_virtualised",
            "lxcfs shows this container's memory in place of the host's.",
            host.total.source,
        )


def _level_notices(level: Level, host: Host) -> Iterator[Notice]:
    path = printable(level.path)
    total = host.total.value
    limit = effective_limit(level, total)
    for code, fact, what in (
        ("limit_unreadable", level.limit, "limit"),
        ("soft_limit_unreadable", level.soft, "soft limit"),
        ("swap_limit_unreadable", level.swap, "swap limit"),
    ):
        if fact.state is State.UNREADABLE:
            yield Notice(
                code, f"The {what} of {path} cannot be understood: {fact.source} {fact.problem}.", fact.source
            )
    if limit is None:
        return
    if total is not None and limit > total:
        yield Notice(
            "limit_above_host",
            f"The limit of {path} ({format_size(limit)}) is above the host's {format_size(total)}.",
            level.limit.source,
        )
    if level.usage.value is None:
        yield Notice(
            "usage_unreadable",
            f"The usage of {path} cannot be read, so what is left of its limit is not known.",
            level.usage.source,
        )
    elif level.page_cache is None:
        yield Notice(
            "page_cache_unreadable",
            f"The page cache of {path} cannot be read, so all of it counts as in use.",
            level.stat.source,
        )
    elif level.usage.value > limit:
        yield Notice(
            "usage_above_limit",
            f"{path} uses {format_size(level.usage.value)}, more than its limit of {format_size(limit)}.",
            level.usage.source,
        )


def _history_notices(readings: Readings) -> Iterator[Notice]:
    facts = readings.history
    source = readings.levels[0].directory if readings.levels else None
    if kills := facts.get("oom_kill", 0):
        times = "once" if kills == 1 else "twice" if kills == 2 else f"{kills} times"
        yield Notice("oom_killed_before", f"The kernel has killed in this cgroup {times} before.", source)
    if facts.get("oom_kill_disable"):
        yield Notice(
            "oom_kill_disabled",
            "At the limit processes here are stopped, not killed (memory.oom_control).",
            source,
        )
    if facts.get("pressure_full_avg10_hundredths", 0) >= PRESSURE_HUNDREDTHS:
        share = facts["pressure_full_avg10_hundredths"] / 100
        yield Notice(
            "memory_pressure",
            f"This cgroup stood still for {share:.0f} % of the last 10 s, waiting for memory.",
            source,
        )
    if facts.get("high", 0):
        yield Notice(
            "throttled_before",
            f"memory.high has throttled this cgroup {facts['high']} times before.",
            source,
        )
    for level in readings.levels:
        high = finite(level.soft) if level.version == 2 else None
        usage = level.usage.value
        if high is not None and usage is not None and usage - clean_inactive(level.page_cache) >= high:
            yield Notice(
                "above_memory_high",
                f"{printable(level.path)} is at or above its memory.high of {format_size(high)}:"
                " already throttled.",
                level.soft.source,
            )
