"""What the probe is asked and what it found, as frozen data: nothing is allocated here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from oomproof.errors import ProbeError, UsageError
from oomproof.units import GIB, MIB

SCHEMA_VERSION = 1

DEFAULT_CHUNK_BYTES = 256 * MIB


class Shape(StrEnum):
    """What kind of memory to ask for."""

    ANON = "anon"
    """Private memory as malloc gives it, on huge pages where the host's policy is so."""
    HUGEPAGE = "hugepage"
    """Private memory that asks for transparent huge pages."""
    PINNED = "pinned"
    """Private memory that is page-locked (mlock), as buffers for devices are."""
    FILE = "file"
    """Pages of a mapped file that are read and never written, as a loaded parameter file has them."""
    SHMEM = "shmem"
    """Shared memory, as tmpfs and /dev/shm hold it."""
    CUDA_PINNED = "cuda-pinned"
    """Memory that CUDA's driver page-locks (cuMemAllocHost); needs a GPU and cuda-core."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of memory, and how much of it: a size, a share of the room, or else all that is left."""

    shape: Shape
    asked_bytes: int | None = None
    percent: float | None = None
    """Of what can be had at the start."""


class StopReason(StrEnum):
    """Why the probe stopped allocating."""

    RESERVE = "reserve"
    """Headroom came down to the reserve: the normal end."""
    MAXIMUM = "maximum"
    """``--max`` was reached first."""
    LIMIT = "limit"
    """The kernel refused the allocation (ENOMEM, RLIMIT_AS)."""
    MEMLOCK = "memlock"
    """RLIMIT_MEMLOCK allows no more, though memory is left."""
    THROTTLED = "throttled"
    """memory.high is near or has throttled, or the cgroup stood still for a fifth of a step."""
    SWAPPING = "swapping"
    """Memory of the toucher or its cgroup was swapped out."""
    OOM_GROUP = "oom_group"
    """The larger reserve was reached that memory.oom.group calls for."""
    DEADLINE = "deadline"
    """``--deadline`` was reached."""
    KILLED = "killed"
    """The toucher was killed; what it had touched until then is the answer."""
    INTERRUPTED = "interrupted"
    """Ctrl-C or SIGTERM."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What to probe, and how far to go; sizes in bytes, None: no wish.

    Raises UsageError for values that make no sense.
    """

    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    """The first and largest step; it says nothing about the precision of the answer."""
    max_bytes: int | None = None
    """Never touch more than this."""
    reserve_bytes: int | None = None
    """Headroom to leave untouched; None: from the limit, see `decide.reserves`."""
    deadline_s: float | None = None
    """Stop after so many seconds with what was touched until then."""
    shape: Shape = Shape.ANON
    mix: tuple[Part, ...] = ()
    """Several kinds at once, touched in this order, in place of `shape`; see `mix.parse_mix`."""
    file_directory: Path | None = None
    """Where the file of Shape.FILE is made; None: see `backing.default_directory`."""
    quick: bool = False
    """Touch a small part only (1/20 of what is left, at most 2 GiB) and extrapolate from it."""
    limit_bytes: int | None = None
    """Limit of the leaf cgroup that the probe makes for itself, as though a container had it."""

    def __post_init__(self) -> None:
        for name, value in (
            ("--chunk", self.chunk_bytes),
            ("--max", self.max_bytes),
            ("--deadline", self.deadline_s),
            ("--limit", self.limit_bytes),
        ):
            if value is not None and value <= 0:
                raise UsageError(f"{name} {value} leaves nothing to probe: give a value above 0")
        if self.reserve_bytes is not None and self.reserve_bytes < 0:
            raise UsageError(f"--reserve {self.reserve_bytes} is negative: give a size from 0 up")
        if self.file_directory is not None and all(part.shape is not Shape.FILE for part in self.parts):
            raise UsageError(
                "--file-dir is where a file to map is made: ask for one, for example with --as file"
            )
        if self.quick and self.mix:
            raise UsageError("--mix touches the sizes that it names: leave out --quick, which touches a part")

    @property
    def parts(self) -> tuple[Part, ...]:
        """What to touch, in order; the last one alone may take all that is left."""
        return self.mix or (Part(self.shape),)


@dataclass(frozen=True, slots=True)
class PartResult:
    """What became of one part of the request; sizes in bytes."""

    shape: Shape
    asked_bytes: int | None
    """None: all that is left."""
    allocated_bytes: int
    kernel_overhead_bytes: int

    def as_json(self) -> dict[str, object]:
        """Part of the public JSON document."""
        return {
            "shape": self.shape.value,
            "asked_bytes": self.asked_bytes,
            "allocated_bytes": self.allocated_bytes,
            "kernel_overhead_bytes": self.kernel_overhead_bytes,
        }


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one process could really allocate and touch here. Sizes in bytes.

    Usage is that of the level whose limit is ``cgroup_limit_bytes``.
    ``overhead_bytes = usage_peak_bytes - usage_before_bytes - allocated_bytes``: all growth
    that is not the allocation itself. It is also ``sum(overhead_by_cause) + others_bytes``:
    growth with a known cause, and growth of others. ``kernel_overhead_bytes`` is the part
    that grows with the allocation (page tables and the like), without what the toucher's
    process itself takes (``toucher``) and what the kernel charges ahead (``charged_ahead``).
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
    """Only `touched_bytes` were touched; allocation, peak and overhead follow from them."""
    error_bytes: int = 0
    """How far `allocated_bytes` may be off, either way, because it is extrapolated."""
    touched_bytes: int | None = None
    """What was really touched; None: all of `allocated_bytes`."""
    own_bytes: int = 0
    """What oomproof itself held of the limit meanwhile. A process that is started when oomproof has ended
    can have it beside `allocated_bytes`."""
    parts: tuple[PartResult, ...] = ()
    """`allocated_bytes` and `kernel_overhead_bytes` by the kinds of memory that were asked for, in order."""
    notices: tuple[str, ...] = ()

    @property
    def overhead_bytes(self) -> int:
        """May be negative when others gave memory back meanwhile."""
        return self.usage_peak_bytes - self.usage_before_bytes - self.allocated_bytes

    @property
    def allocatable_bytes(self) -> int:
        """What a process can have that is started when oomproof has ended."""
        return self.allocated_bytes + self.own_bytes

    @classmethod
    def from_json(cls, document: object) -> ProbeResult:
        """The sizes that `as_json` wrote, without their explanation; raises ProbeError for anything else."""
        if not isinstance(document, dict):
            raise ProbeError("it is not a JSON object")
        if document.get("schema_version") != SCHEMA_VERSION:
            version = document.get("schema_version")
            raise ProbeError(f"its schema_version is {version!r} and not {SCHEMA_VERSION}")

        def size(name: str) -> int:
            value = document.get(name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ProbeError(f"its {name} is {value!r} and not a number of bytes")
            return value

        stop_reason, seconds = document.get("stop_reason"), document.get("duration_seconds")
        if stop_reason not in [reason.value for reason in StopReason]:
            raise ProbeError(f"its stop_reason is {stop_reason!r}")
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
            raise ProbeError(f"its duration_seconds is {seconds!r} and not a number")
        return cls(
            cgroup_limit_bytes=None
            if document.get("cgroup_limit_bytes") is None
            else size("cgroup_limit_bytes"),
            usage_before_bytes=size("usage_before_bytes"),
            allocated_bytes=size("allocated_bytes"),
            usage_peak_bytes=size("usage_peak_bytes"),
            probe_chunks=size("probe_chunks"),
            stop_reason=StopReason(stop_reason),
            duration_seconds=seconds,
            kernel_overhead_bytes=size("kernel_overhead_bytes"),
            others_bytes=size("others_bytes"),
            extrapolated=document.get("extrapolated") is True,
            error_bytes=size("error_bytes"),
        )

    def as_json(self) -> dict[str, object]:
        """The public JSON document; field names and meaning are a contract."""
        seconds = self.duration_seconds
        touched = self.allocated_bytes if self.touched_bytes is None else self.touched_bytes
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
            "bytes_per_second": round(touched / seconds) if seconds > 0 else None,
            "kernel_overhead_bytes": self.kernel_overhead_bytes,
            "overhead_by_cause": dict(self.overhead_by_cause),
            "others_bytes": self.others_bytes,
            "extrapolated": self.extrapolated,
            "error_bytes": self.error_bytes,
            "touched_bytes": touched,
            "own_bytes": self.own_bytes,
            "allocatable_bytes": self.allocatable_bytes,
            "parts": [part.as_json() for part in self.parts],
            "notices": list(self.notices),
        }
