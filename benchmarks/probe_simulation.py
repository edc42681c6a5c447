"""How long a probe of a machine takes that nobody here has: real decisions, neither memory nor clock.

    python benchmarks/probe_simulation.py [LIMIT [GIB_PER_SECOND]]          (default: 342GiB 5)

The decisions of `oomproof.probe.decide` on readings of a quiet cgroup whose memory is touched at
that rate, with what a reading and a step cost here besides. Prints steps and seconds, full and quick.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from oomproof.limits.model import Status
from oomproof.probe import ProbeRequest
from oomproof.probe.decide import QUICK_STEPS, Progress, Readings, Step, decide, quick_part, reserves
from oomproof.probe.readings import Reading
from oomproof.units import GIB, format_size, parse_size

LARGE = 342 * GIB
STEP_COST_S = 0.002
"""To read everything anew and to tell the toucher; measured: 0.6 ms to read, 1 ms for a step of a page."""
PAGE_TABLES_PER_BYTE = 1 / 512


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a probe would come to."""

    allocated_bytes: int
    steps: int
    seconds: float


def simulate(limit: int, rate: float, quick: bool = False) -> Simulated:
    """A probe of `limit` bytes on a host with a ninth more, touched at `rate` bytes a second."""
    first = Reading(
        status=Status.LIMITED,
        level="cgroup v2 /simulated",
        limit_bytes=limit,
        usage_bytes=0,
        headroom_bytes=limit,
        host_total_bytes=limit * 10 // 9,
        host_available_bytes=limit * 10 // 9,
    )
    keep = reserves(ProbeRequest(), first)
    request = ProbeRequest()
    if quick:
        part = quick_part(limit - keep.cgroup_bytes)
        request = ProbeRequest(max_bytes=part, chunk_bytes=min(part // QUICK_STEPS, request.chunk_bytes))
    progress, previous, now, steps = Progress(0, request.chunk_bytes), first, first, 0
    while isinstance(step := decide(request, keep, progress, Readings(first, previous, now, first)), Step):
        steps += 1
        taken = step.bytes + round(step.bytes * PAGE_TABLES_PER_BYTE)
        previous, now = (
            now,
            replace(
                now,
                usage_bytes=now.usage_bytes + taken,
                headroom_bytes=(now.headroom_bytes or 0) - taken,
                host_available_bytes=(now.host_available_bytes or 0) - taken,
                leaf_usage_bytes=now.usage_bytes + taken,
                at_s=now.at_s + step.bytes / rate + STEP_COST_S,
            ),
        )
        progress = replace(
            progress, allocated_bytes=progress.allocated_bytes + step.bytes, last_step_bytes=step.bytes
        )
    return Simulated(progress.allocated_bytes, steps, now.at_s)


def main(limit: int = LARGE, gib_per_second: float = 5.0) -> None:
    rate = gib_per_second * GIB
    print(
        f"{format_size(limit)} at {gib_per_second:.2f} GiB/s; on paper {limit / rate:.1f} s to touch it all"
    )
    for name, quick in (("full", False), ("quick", True)):
        run = simulate(limit, rate, quick)
        print(
            f"  simulated, {name:5}: {format_size(run.allocated_bytes):>10} touched"
            f" in {run.steps} steps, {run.seconds:.2f} s"
        )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*(parse_size(text) for text in arguments[:1]), *(float(text) for text in arguments[1:2]))
