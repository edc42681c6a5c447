"""Memory that the CUDA driver page-locks, through `cuda-core` (extra ``cuda``), loaded when first asked for.

The driver may take such pages outside of what the kernel charges to the process or its cgroup, and they are
not in ``VmLck``: the ledger is the only place where they are counted for certain.
Source: cuda.core, LegacyPinnedMemoryResource (cuMemAllocHost).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from oomproof.errors import PinningUnavailable
from oomproof.memory.backends import Region
from oomproof.units import format_size

_HOMES = ("cuda.core", "cuda.core.experimental")
"""Where releases of cuda-core from 1.0 on, and those before, keep their names."""


class CudaBackend:
    """Host memory from the driver. Allocating makes device `device_id` current in the calling thread."""

    name = "cuda"

    def __init__(self, device_id: int = 0) -> None:
        """Raises PinningUnavailable when there is no cuda-core, no driver or no such device."""
        core = _core()
        try:
            self._device: Any = core.Device(device_id)
            self._device.set_current()
            self._memory: Any = core.LegacyPinnedMemoryResource()
        except Exception as error:  # the driver's errors have no base class of their own
            raise PinningUnavailable(
                f"CUDA device {device_id} cannot be used ({error}): check nvidia-smi,"
                " or use the backend 'mlock'"
            ) from error

    def allocate(self, size_bytes: int) -> Region:
        """Have the driver lock `size_bytes`; raises PinningUnavailable with the driver's reason."""
        try:
            self._device.set_current()
            buffer: Any = self._memory.allocate(size_bytes)
        except Exception as error:  # as above
            raise PinningUnavailable(
                f"the CUDA driver cannot lock {format_size(size_bytes)} ({error}): lower what is asked for,"
                " or use the backend 'mlock'"
            ) from error
        return Region(int(buffer.handle), size_bytes, True, self.name, buffer.close)


def _core() -> Any:
    for home in _HOMES:
        try:
            module = import_module(home)
        except ImportError as error:
            missing = error
            continue
        if hasattr(module, "LegacyPinnedMemoryResource"):
            return module
        missing = ImportError(f"{home} has no LegacyPinnedMemoryResource")
    raise PinningUnavailable(
        f"cuda-core cannot be loaded ({missing}): pip install 'oomproof[cuda]', or use the backend 'mlock'"
    ) from missing
