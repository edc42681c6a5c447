"""oomproof: programs that live in the memory they really have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomproof.limits import detect_limits as detect_limits
    from oomproof.limits.watch import watch_limits as watch_limits

__version__ = "0.1.0"

__all__ = ["__version__", "detect_limits", "watch_limits"]

_HOMES = {"detect_limits": "oomproof.limits", "watch_limits": "oomproof.limits.watch"}


def __getattr__(name: str) -> object:
    # Imported when first asked for: a launcher that only wants the version must stay small.
    if name in _HOMES:
        import importlib  # noqa: PLC0415

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
