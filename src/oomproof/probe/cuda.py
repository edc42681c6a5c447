"""Memory that CUDA's driver page-locks, through cuda-core (the extra ``oomproof[cuda]``).

The only module of the launcher that knows it. Runs in the toucher alone, a process of its own: a
page-lock that fails can leave the driver of its process unusable, so after one failure nothing
more is asked of it.
Not covered: memory of the GPU itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = ("cuda.core", "cuda.core.experimental")
"""Where releases of cuda-core from 1.0 on, and those before, keep their names."""


class DriverMissing(Exception):
    """Raised when there is no cuda-core package, no NVIDIA driver or no GPU."""


class Driver:
    """What was page-locked, and the way to more. CUDA_VISIBLE_DEVICES chooses the GPU."""

    def __init__(self) -> None:
        """Load the driver and make a context on the first GPU; raises DriverMissing."""
        core = _core()
        try:
            core.Device(0).set_current()
        except Exception as error:
            raise DriverMissing(
                f"CUDA finds no GPU, {_one_line(error)}: probe where one is, or with --as pinned"
            ) from error
        self._memory: Any = core.LegacyPinnedMemoryResource()
        self._buffers: list[Any] = []
        self._broken = ""

    def pin(self, size: int) -> str:
        """Page-lock `size` more bytes; returns "", or why the driver did not."""
        if not self._broken:
            try:
                self._buffers.append(self._memory.allocate(size))
            except Exception as error:  # noqa: BLE001 - as above
                self._broken = _one_line(error)
        return self._broken

    def release(self) -> None:
        """Unlock and free all."""
        while self._buffers:
            self._buffers.pop().close()


def _core() -> Any:
    for home in _HOMES:
        try:
            module = import_module(home)
        except ImportError as error:
            missing = _one_line(error)
            continue
        if hasattr(module, "LegacyPinnedMemoryResource"):
            return module
        missing = f"{home} has no LegacyPinnedMemoryResource"
    raise DriverMissing(
        f"cuda-core cannot be loaded, {missing}: pip install 'oomproof[cuda]', or probe with --as pinned"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
