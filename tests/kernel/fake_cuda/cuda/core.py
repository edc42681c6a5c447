"""What `oomproof.probe.cuda` uses of cuda.core, on plain memory; says in a log what was asked of it.

FAKE_CUDA_LOG: file of lines ``PID pin|refuse|free BYTES``. FAKE_CUDA_REFUSES_ABOVE: page-locks fail
that would go above so many bytes in all; below 0 there is no driver. FAKE_CUDA_OUTSIDE: takes no memory
at all, as drivers do not whose memory is not in the cgroup's books.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

LOG = Path(os.environ["FAKE_CUDA_LOG"])
LARGEST = int(os.environ.get("FAKE_CUDA_REFUSES_ABOVE", "9" * 18))


def log(what: str, size: int) -> None:
    with LOG.open("a") as file:
        file.write(f"{os.getpid()} {what} {size}\n")


class Device:
    def __init__(self, number: int) -> None:
        assert number == 0

    def set_current(self) -> None:
        if LARGEST < 0:
            raise RuntimeError("no NVIDIA\ndriver.")


class Buffer:
    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = None
        if "FAKE_CUDA_OUTSIDE" not in os.environ:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.memory.madvise(23)  # MADV_POPULATE_WRITE

    def close(self) -> None:
        log("free", self.size)
        if self.memory is not None:
            self.memory.close()


class LegacyPinnedMemoryResource:
    def __init__(self) -> None:
        self.locked = 0

    def allocate(self, size: int) -> Buffer:
        if self.locked + size > LARGEST:
            log("refuse", size)
            raise MemoryError("CUDA_ERROR_OUT_OF_MEMORY")
        log("pin", size)
        self.locked += size
        return Buffer(size)
