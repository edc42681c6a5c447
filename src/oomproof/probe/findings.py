"""How far a probe has come, and the answer that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from oomproof.probe.decide import (
    GROWTH_WINDOW_S,
    SMALLEST_STEP_BYTES,
    Readings,
    Reserves,
    others_growth,
    room_above,
    with_room_for_others,
)
from oomproof.probe.extrapolate import extrapolate
from oomproof.probe.model import Part, PartResult, ProbeRequest, ProbeResult, Shape, StopReason
from oomproof.probe.overhead import kernel_causes, split_overhead
from oomproof.probe.readings import Accounts, Reading
from oomproof.units import format_size


@dataclass(slots=True)
class Findings:
    """What was touched, and the readings that matter; sizes in bytes."""

    before: Reading
    """Taken before anything was started."""
    ready: Reading
    """Taken when the toucher was ready."""
    notices: list[str]
    parts: tuple[Part, ...] = (Part(Shape.ANON),)
    """What is touched, in order."""
    error_bytes: int = 0
    """How far the answer may be off."""
    allocated_by_part: list[int] = field(init=False)
    kernel_by_part: list[int] = field(init=False)
    recent: list[Reading] = field(init=False)
    """The latest readings, in order: as many as `readings` looks at."""
    chunks: int = 0
    peak_bytes: int = field(init=False)
    stop_reason: StopReason = StopReason.INTERRUPTED
    points: list[tuple[int, int]] = field(default_factory=list)
    """(allocated, kernel overhead) after each step."""

    def __post_init__(self) -> None:
        self.recent = [self.ready]
        self.allocated_by_part = [0] * len(self.parts)
        self.kernel_by_part = [0] * len(self.parts)
        self.peak_bytes = max(self.before.usage_bytes, self.ready.usage_bytes)

    @property
    def allocated_bytes(self) -> int:
        """All that was touched."""
        return sum(self.allocated_by_part)

    def allocated_to(self, *shapes: Shape) -> int:
        """The part of it that is of these kinds."""
        sizes = zip(self.parts, self.allocated_by_part, strict=True)
        return sum(size for part, size in sizes if part.shape in shapes)

    @property
    def shared_bytes(self) -> int:
        """The part of it that belongs to a file or to shared memory."""
        return self.allocated_to(Shape.FILE, Shape.SHMEM)

    @property
    def file_is_shared_memory(self) -> bool:
        """Whether the pages of the file turned out to be no page cache."""
        file = self.allocated_to(Shape.FILE)
        grown = self.last.toucher.shared - self.ready.toucher.shared - self.allocated_to(Shape.SHMEM)
        return file > 0 and grown > file // 2

    def of_file(self, toucher: Accounts) -> int:
        """How much of the file is resident page cache, by the accounts of the toucher."""
        if all(part.shape is not Shape.FILE for part in self.parts):
            return 0
        return max(toucher.file - self.ready.toucher.file, 0)

    @property
    def last(self) -> Reading:
        """The latest reading."""
        return self.recent[-1]

    def readings(self, started_s: float, now: Reading | None = None) -> Readings:
        """What a decision looks at; `now`, where given, is one in the middle of a step."""
        seen = [*self.recent, *([] if now is None else [now])]
        return Readings(
            first=replace(self.ready, at_s=started_s),
            previous=seen[-2] if len(seen) > 1 else seen[-1],
            now=seen[-1],
            earlier=seen[0] if _is_old(seen[0], seen[-1]) else self.ready,
        )

    def add(self, size: int, reading: Reading, part: int = 0) -> None:
        """Count a step of a part that was touched (0: it was refused), and the reading after it."""
        self.recent.append(reading)
        while len(self.recent) > 2 and _is_old(self.recent[1], reading):
            self.recent.pop(0)
        self.peak_bytes = max(self.peak_bytes, reading.usage_bytes)
        if size:
            self.allocated_by_part[part] += size
            self.chunks += 1
            kernel = sum(kernel_causes(self.ready, reading, self.allocated_to(Shape.FILE)).values())
            self.kernel_by_part[part] += kernel - (self.points[-1][1] if self.points else 0)
            self.points.append((self.allocated_bytes, kernel))

    def result(self, duration_s: float) -> ProbeResult:
        """The answer from what was touched."""
        overhead = split_overhead(
            self.before,
            self.ready,
            self.last,
            peak_bytes=self.peak_bytes,
            allocated_bytes=self.allocated_bytes,
            mapped_bytes=self.allocated_to(Shape.FILE),
        )
        notices = self.notices
        if self.last.limit_bytes != self.before.limit_bytes:
            was, now = format_size(self.before.limit_bytes), format_size(self.last.limit_bytes)
            notices = [*notices, f"The limit changed from {was} to {now} while the probe ran."]
        if growth := round(others_growth(self.readings(self.ready.at_s))):
            notices = [
                *notices,
                f"Others in the cgroup grew by {format_size(growth)}/s, so the probe left them more room.",
            ]
        return ProbeResult(
            cgroup_limit_bytes=self.last.limit_bytes,
            usage_before_bytes=self.before.usage_bytes,
            allocated_bytes=self.allocated_bytes,
            usage_peak_bytes=self.peak_bytes,
            probe_chunks=self.chunks,
            stop_reason=self.stop_reason,
            duration_seconds=duration_s,
            kernel_overhead_bytes=overhead.kernel_bytes,
            others_bytes=overhead.others_bytes,
            overhead_by_cause=overhead.by_cause,
            error_bytes=self.error_bytes,
            parts=tuple(
                PartResult(part.shape, part.asked_bytes, allocated, kernel)
                for part, allocated, kernel in zip(
                    self.parts, self.allocated_by_part, self.kernel_by_part, strict=True
                )
            ),
            notices=tuple(notices),
        )

    def extrapolated_result(
        self, request: ProbeRequest, keep: Reserves, charge_batches_bytes: int, duration_s: float
    ) -> ProbeResult:
        """The answer for all that is left, from the part that was touched.

        `request` is the whole that was asked for; `charge_batches_bytes` is what the kernel's
        counters may be ahead by.
        """
        touched = self.result(duration_s)
        room, reason = room_above(with_room_for_others(keep, self.readings(self.ready.at_s)), self.last)
        if not self.points or room is None:
            return touched
        unexplained = (
            SMALLEST_STEP_BYTES
            + charge_batches_bytes
            + abs(touched.others_bytes)
            + abs(touched.overhead_by_cause.get("charged_ahead", 0))
        )
        whole = extrapolate(self.points, room, unexplained)
        if request.max_bytes is not None and request.max_bytes <= whole.allocated_bytes:
            left = request.max_bytes - self.allocated_bytes
            # Up to a size that the room exceeds, whatever the slope.
            whole = replace(extrapolate(self.points, left, unexplained), allocated_bytes=request.max_bytes)
            reason = StopReason.MAXIMUM
        more_kernel = whole.kernel_bytes - touched.kernel_overhead_bytes
        causes = dict(touched.overhead_by_cause)
        causes["page_tables"] = causes.get("page_tables", 0) + more_kernel
        return replace(
            touched,
            allocated_bytes=whole.allocated_bytes,
            touched_bytes=self.allocated_bytes,
            usage_peak_bytes=self.peak_bytes + whole.allocated_bytes - self.allocated_bytes + more_kernel,
            kernel_overhead_bytes=whole.kernel_bytes,
            overhead_by_cause=causes,
            stop_reason=reason,
            extrapolated=True,
            error_bytes=whole.error_bytes,
            parts=(PartResult(self.parts[0].shape, None, whole.allocated_bytes, whole.kernel_bytes),),
        )


def _is_old(reading: Reading, now: Reading) -> bool:
    return now.at_s - reading.at_s >= GROWTH_WINDOW_S
