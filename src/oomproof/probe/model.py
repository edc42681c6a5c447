"""What the probe found, as frozen data: nothing is allocated here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from oomproof.units import GIB

SCHEMA_VERSION = 1


class StopReason(StrEnum):
    """Why the probe stopped allocating."""

    RESERVE = "reserve"
    """Headroom came down to the reserve: the normal end."""
    MAXIMUM = "maximum"
    """``--max`` was reached first."""
    LIMIT = "limit"
    """The kernel refused the allocation (ENOMEM, RLIMIT_AS)."""
    MEMLOCK = "memlock"
    THROTTLED = "throttled"
    SWAPPING = "swapping"
    OOM_GROUP = "oom_group"
    DEADLINE = "deadline"
    KILLED = "killed"
    """The toucher was killed; what it had touched until then is the answer."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one process could really allocate and touch here. Sizes in bytes.

    ``overhead_bytes = usage_peak_bytes - usage_before_bytes - allocated_bytes``: all growth
    that is not the allocation itself. ``kernel_overhead_bytes`` is the part that the probe
    caused (page tables and the like); growth of others is in ``others_bytes``.
    """

    cgroup_limit_bytes: int | None
    usage_before_bytes: int
    allocated_bytes: int
    usage_peak_bytes: int
    probe_chunks: int
    stop_reason: StopReason
    duration_seconds: float
    kernel_overhead_bytes: int
    others_bytes: int = 0
    overhead_by_cause: dict[str, int] = field(default_factory=dict)
    extrapolated: bool = False
    error_bytes: int = 0
    notices: tuple[str, ...] = ()

    @property
    def overhead_bytes(self) -> int:
        """May be negative when others gave memory back meanwhile."""
        return self.usage_peak_bytes - self.usage_before_bytes - self.allocated_bytes

    def as_json(self) -> dict[str, object]:
        """The public JSON document; field names and meaning are a contract."""
        seconds = self.duration_seconds
        return {
            "schema_version": SCHEMA_VERSION,
            "cgroup_limit_bytes": self.cgroup_limit_bytes,
            "usage_before_bytes": self.usage_before_bytes,
            "allocated_bytes": self.allocated_bytes,
            "allocated_gib": round(self.allocated_bytes / GIB, 3),
            "usage_peak_bytes": self.usage_peak_bytes,
            "overhead_bytes": self.overhead_bytes,
            "overhead_gib": round(self.overhead_bytes / GIB, 3),
            "probe_chunks": self.probe_chunks,
            "stop_reason": self.stop_reason.value,
            "duration_seconds": round(seconds, 6),
            "bytes_per_second": round(self.allocated_bytes / seconds) if seconds > 0 else None,
            "kernel_overhead_bytes": self.kernel_overhead_bytes,
            "overhead_by_cause": dict(self.overhead_by_cause),
            "others_bytes": self.others_bytes,
            "extrapolated": self.extrapolated,
            "error_bytes": self.error_bytes,
            "notices": list(self.notices),
        }
