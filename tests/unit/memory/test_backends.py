"""Backends: what they hand out, and what they say where they cannot."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from oomproof.errors import PinningUnavailable
from oomproof.limits.accounts import read_process_accounts
from oomproof.limits.files import Tree
from oomproof.memory.backends import backend_named, mapped
from oomproof.memory.backends.cuda import CudaBackend
from oomproof.memory.budget import MemoryBudget
from oomproof.memory.pool import PinnedPool
from oomproof.units import KIB, MIB


def locked_bytes() -> int:
    return read_process_accounts(Tree()).locked or 0


@pytest.mark.parametrize("name", ["heap", "mlock"])
@pytest.mark.parametrize("size", [4 * KIB, 64 * KIB])
def test_memory_can_be_written_from_end_to_end_and_goes_back(name: str, size: int) -> None:
    before = locked_bytes()
    region = backend_named(name).allocate(size)
    assert (region.size_bytes, region.backend, region.locked) == (size, name, name == "mlock")
    assert region.address % 4096 == 0
    ctypes.memset(region.address, 0xA5, size)
    assert ctypes.string_at(region.address + size - 1, 1) == b"\xa5"
    assert locked_bytes() - before == (size if name == "mlock" else 0)
    region.free()
    assert locked_bytes() == before


@pytest.mark.parametrize("size", [2 * MIB, 6 * MIB, 6 * MIB + 4 * KIB])
def test_large_memory_begins_at_a_huge_page_and_nothing_is_mapped_beside_it(size: int) -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

    backend = backend_named("heap")
    backend.allocate(size).free()
    before = mapped()
    region = backend.allocate(size)
    assert region.address % (2 * MIB) == 0
    assert mapped() - before == size
    ctypes.memset(region.address, 1, size)
    region.free()
    assert mapped() == before


def test_an_interrupt_while_pages_are_locked_leaves_none_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that raises does so when the kernel is through with it."""

    class Struck(BaseException):
        pass

    lock = mapped._libc.mlock

    def interrupted(address: int, size: int) -> int:
        assert lock(address, size) == 0
        raise Struck

    monkeypatch.setattr(mapped._libc, "mlock", interrupted)
    before = locked_bytes()
    with pytest.raises(Struck):
        mapped.MlockBackend().allocate(16 * KIB)
    assert locked_bytes() == before


def test_more_than_the_address_space_is_a_memory_error_with_a_remedy() -> None:
    with pytest.raises(MemoryError, match="lower what is asked for"):
        backend_named("heap").allocate(1 << 60)


# As nobody and without capabilities, also where the tests run as root.
UNPRIVILEGED = """
import ctypes, os, resource, sys
from oomproof.errors import PinningUnavailable
from oomproof.memory import MemoryBudget, PinnedPool
from oomproof.memory.backends import mapped
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({soft}, {hard}))
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
budget = MemoryBudget(1 << 30)
with PinnedPool(budget, backend={backend!r}) as pool:
    with pool.take(64 << 10) as small:
        print(small.backend)
        try:
            with pool.take(1 << 20) as large:
                print(large.backend, [notice.message for notice in pool.notices])
        except PinningUnavailable as error:
            print(error)
        assert pool.statistics().in_use_count == 1
"""


def unprivileged(**settings: object) -> str:
    code = UNPRIVILEGED.format(**settings)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rlimit_memlock_is_named_with_what_is_locked_and_the_remedy() -> None:
    said = unprivileged(soft=512 << 10, hard=512 << 10, backend="mlock")
    assert said.startswith("mlock\n1.00 MiB cannot be page-locked: RLIMIT_MEMLOCK is 512.00 KiB")
    assert "64.00 KiB is locked already" in said
    for remedy in ("ulimit -l", "LimitMEMLOCK=", "--ulimit memlock=-1", "CAP_IPC_LOCK", "'heap'"):
        assert remedy in said


def test_where_the_hard_limit_allows_it_the_soft_limit_is_the_remedy() -> None:
    said = unprivileged(soft=512 << 10, hard=8 << 20, backend="mlock")
    assert "raise the soft limit (resource.setrlimit; the hard limit allows it)" in said


def test_without_any_right_to_lock_the_heap_serves_with_a_notice() -> None:
    said = unprivileged(soft=0, hard=0, backend=("mlock", "heap"))
    assert said.startswith("heap\nheap [")
    assert "RLIMIT_MEMLOCK is 0 B" in said


class FakeDriver(ModuleType):
    """Looks like cuda.core to the backend; its memory is ordinary. No GPU took part in these tests."""

    def __init__(self, most: int = 1 << 40) -> None:
        super().__init__("cuda.core")
        self.freed: list[int] = []
        self.current: list[int] = []
        driver = self

        class Device:
            def __init__(self, device_id: int) -> None:
                self.device_id = device_id
                if device_id > 0:
                    raise RuntimeError("CUDA_ERROR_INVALID_DEVICE")

            def set_current(self) -> None:
                driver.current.append(self.device_id)

        class Buffer:
            def __init__(self, size: int) -> None:
                self._memory = (ctypes.c_ubyte * size)()
                self.handle = ctypes.addressof(self._memory)
                self.size = size

            def close(self) -> None:
                driver.freed.append(self.size)

        class LegacyPinnedMemoryResource:
            def allocate(self, size: int) -> Buffer:
                if size > most:
                    raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
                return Buffer(size)

        self.Device = Device
        self.LegacyPinnedMemoryResource = LegacyPinnedMemoryResource


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver(most=4 * MIB)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", fake)
    return fake


def test_cuda_memory_is_lent_and_freed_by_its_own_close(driver: FakeDriver) -> None:
    budget = MemoryBudget(64 * MIB)
    with PinnedPool(budget, backend="cuda") as pool:
        with pool.take(MIB) as buffer:
            buffer.view()[:] = b"\x01" * MIB
            assert buffer.locked
            assert buffer.backend == "cuda"
        assert driver.freed == []
    assert driver.freed == [MIB]
    assert driver.current
    assert budget.used_bytes == 0


def test_a_driver_that_cannot_lock_more_is_told_and_nothing_is_kept(driver: FakeDriver) -> None:
    budget = MemoryBudget(64 * MIB)
    with PinnedPool(budget, backend="cuda") as pool:
        with pytest.raises(PinningUnavailable, match="CUDA_ERROR_OUT_OF_MEMORY"):
            pool.take(8 * MIB)
        assert budget.used_bytes == 0


def test_a_device_that_is_not_there_is_told(driver: FakeDriver) -> None:
    with pytest.raises(PinningUnavailable, match=r"CUDA device 1 .*INVALID_DEVICE.*'mlock'"):
        CudaBackend(device_id=1)


def test_without_cuda_core_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.core", "cuda.core.experimental"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PinningUnavailable, match=r"pip install 'oomproof\[cuda\]'"):
        PinnedPool(MemoryBudget(MIB), backend="cuda")


def test_without_cuda_core_the_next_backend_serves_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.core", "cuda.core.experimental"):
        monkeypatch.setitem(sys.modules, name, None)
    with PinnedPool(MemoryBudget(MIB), backend=("cuda", "heap")) as pool, pool.take(KIB) as buffer:
        assert buffer.backend == "heap"
        assert "cuda-core cannot be loaded" in pool.notices[0].message
