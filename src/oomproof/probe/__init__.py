"""What can be had: a sacrificial child touches memory until it nears the limit.

The child (`toucher`) sits in a leaf cgroup where one can be made and is the kernel's first
choice at an OOM. This process reads anew before each step (`readings`), decides with a pure
function (`decide`) and splits what was used besides by cause (`overhead`).
Not covered: which limits there are, see `oomproof.limits`; the margin, see `oomproof.plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomproof.probe.model import ProbeRequest, ProbeResult, Shape, StopReason

if TYPE_CHECKING:
    from oomproof.probe.probing import run_probe

__all__ = ["ProbeRequest", "ProbeResult", "Shape", "StopReason", "run_probe"]


def __getattr__(name: str) -> object:
    # A plan only reads what a probe found: it need not carry the probe around.
    if name == "run_probe":
        from oomproof.probe.probing import run_probe  # noqa: PLC0415

        return run_probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
