"""`Reconciler`: compares what the kernel charges with the ledger, and tells what the ledger misses.

Not covered: what the numbers mean (`drift`), when they are worth telling (`alarm`), reading them (`limits`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from oomproof.limits.accounts import read_cgroup_accounts, read_process_accounts
from oomproof.limits.files import Tree
from oomproof.memory.alarm import Alarm, TotalFollower
from oomproof.memory.arguments import pause, plain_count
from oomproof.memory.budget import MemoryBudget
from oomproof.memory.drift import REMEDIES, DriftReport, Observation, compare
from oomproof.memory.heap import read_heap
from oomproof.memory.registry import pools_of
from oomproof.units import MIB, format_size

_log = logging.getLogger("oomproof.memory")

Metric = Callable[[str, int], object]
"""Called on every look with a name (``drift_KIND_bytes``, ``drift_total_bytes``, ``ledger_bytes``,
``slack_bytes``) and the size."""


class Reconciler:
    """Compares `budget` with the kernel's accounts, every `interval_seconds` once it is started.

    Make it before memory is reserved: what is charged now is the baseline. Kinds of drift of at least
    `threshold_bytes` for `looks` looks in a row are named: in the log, to `on_drift`, and, with
    `adjust_total`, by a total that is lower by their sum (not below `min_total_bytes`) until they are gone.
    `metric` is told every size at every look. What a hook raises is logged, counted in `failures`, and does
    not end the watch.
    Use it as a context manager, or `start` and `stop`.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        interval_seconds: float = 1.0,
        threshold_bytes: int = 64 * MIB,
        looks: int = 2,
        on_drift: Callable[[DriftReport], object] | None = None,
        metric: Metric | None = None,
        adjust_total: bool = False,
        min_total_bytes: int = 0,
        root: Path | str = "/",
    ) -> None:
        self._budget = budget
        self._tree = Tree(root)
        self._interval = pause(interval_seconds, "interval_seconds")
        self._on_drift = on_drift
        self._metric = metric
        self._alarm = Alarm(plain_count(threshold_bytes, "threshold_bytes"), plain_count(looks, "looks"))
        self._follower = TotalFollower(min_total_bytes) if adjust_total else None
        self._looking = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.failures = 0
        """Looks and hooks that raised."""
        self.baseline = self._observe(exact=True)
        self.report = compare(self.baseline, self.baseline)
        """Of the last look."""

    @property
    def named(self) -> dict[str, int]:
        """Kinds of drift that are named now, with their sizes in bytes when they were last told."""
        return dict(self._alarm.named)

    def look(self) -> DriftReport:
        """Look once now, and tell what there is to tell. The total is left alone after `stop`."""
        with self._looking:
            report = compare(self.baseline, self._observe(exact=False))
            before = self.named
            if self._alarm.would_tell(report.sizes):
                # The kernel's quick counters may be off by some pages for each processor.
                report = compare(self.baseline, self._observe(exact=True))
            if self._alarm.update(report.sizes):
                self._tell(before, report)
            self.report = report
            self._adjust()
            self._measure(report)
            return report

    def start(self) -> Self:
        """Look again and again, in a daemon thread."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="oomproof-reconciler", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the watch and its effect on the total. Safe to call twice and from a hook."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._follower is not None:
            total = self._follower.restored(self._budget.total_bytes)
            if total is not None:
                self._budget.set_total(total)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - told, and the watch goes on
                self._failed("a look at the kernel's accounts failed")

    def _observe(self, *, exact: bool) -> Observation:
        # The ledger before and after: what is reserved or released meanwhile must not look like drift.
        before, locked = self._budget.used_bytes, self._pool_locked()
        process = read_process_accounts(self._tree, exact)
        return Observation(
            pool_locked_bytes=max(locked, self._pool_locked()),
            process=process,
            cgroup=read_cgroup_accounts(self._tree),
            heap=read_heap(),
            ledger_bytes=max(before, self._budget.used_bytes),
        )

    def _pool_locked(self) -> int:
        return sum(pool.locked_bytes for pool in pools_of(self._budget))

    def _tell(self, before: dict[str, int], report: DriftReport) -> None:
        for name, size in self._alarm.named.items():
            if before.get(name) != size:
                _log.warning(
                    "drift: %s of %s is charged beyond the ledger's %s: %s",
                    format_size(size),
                    name,
                    format_size(report.ledger_bytes),
                    REMEDIES[name],
                )
        for name in before.keys() - self._alarm.named.keys():
            _log.info("drift: %s is gone", name)
        if self._on_drift is not None:
            try:
                self._on_drift(report)
            except Exception:  # noqa: BLE001 - somebody else's code: told, and the watch goes on
                self._failed("the hook on_drift failed")

    def _adjust(self) -> None:
        if self._follower is None or self._stopped.is_set():
            return
        total = self._follower.next_total(self._budget.total_bytes, sum(self._alarm.named.values()))
        if total is not None:
            _log.warning("drift: the total of budget %r is now %s", self._budget.name, format_size(total))
            self._budget.set_total(total)

    def _measure(self, report: DriftReport) -> None:
        if self._metric is None:
            return
        sizes = {f"drift_{name}_bytes": report.bytes_of(name) for name in REMEDIES}
        sizes |= {
            "drift_total_bytes": report.total_bytes,
            "ledger_bytes": report.ledger_bytes,
            "slack_bytes": report.slack_bytes,
        }
        try:
            for name, size in sizes.items():
                self._metric(name, size)
        except Exception:  # noqa: BLE001 - as above
            self._failed("the hook metric failed")

    def _failed(self, what: str) -> None:
        self.failures += 1
        _log.exception("reconciler: %s", what)
