"""oomproof: programs that live in the memory they really have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomproof.limits import detect_limits as detect_limits

__version__ = "0.1.0"

__all__ = ["__version__", "detect_limits"]


def __getattr__(name: str) -> object:
    # Imported when first asked for: a launcher that only wants the version must stay small.
    if name == "detect_limits":
        from oomproof.limits import detect_limits  # noqa: PLC0415

        return detect_limits
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
