"""The probe of each kind of memory, and of several at once, on the running kernel."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kernel.probing import (
    LIMIT,
    PROBE,
    in_cgroup,
    own_leaf,
    probe_in,
)
from oomproof.errors import ProbeError
from oomproof.leaf import Leaf
from oomproof.probe import ProbeRequest, ProbeResult, Shape, StopReason, run_probe
from oomproof.probe.decide import Progress
from oomproof.probe.mix import parse_mix
from oomproof.probe.readings import Reading
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

FAKE_CUDA = Path(__file__).with_name("fake_cuda")
ON_DISK = Path("/var/tmp")  # noqa: S108 - what is made there has no name
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - as above


@pytest.mark.parametrize("shape", [shape for shape in Shape if shape is not Shape.CUDA_PINNED])
def test_every_kind_ends_at_the_reserve(shape: Shape) -> None:
    result = run_probe(ProbeRequest(limit_bytes=LIMIT, shape=shape))
    assert result.stop_reason is StopReason.RESERVE
    assert LIMIT - 16 * MIB < result.allocated_bytes < LIMIT
    assert abs(result.kernel_overhead_bytes - result.allocated_bytes // 512) < MIB
    [part] = result.parts
    assert (part.shape, part.asked_bytes, part.allocated_bytes) == (shape, None, result.allocated_bytes)


def test_a_mapped_file_takes_no_disk_and_stays_resident() -> None:
    seen: list[tuple[int, int]] = []

    def look(progress: Progress, _: Reading) -> None:
        [toucher] = own_leaf().processes()
        file = Path(f"/proc/{toucher}/fd/4").stat()
        seen.append((file.st_size, file.st_blocks))
        assert file.st_nlink == 0
        assert file.st_size >= progress.allocated_bytes

    result = run_probe(ProbeRequest(limit_bytes=LIMIT, shape=Shape.FILE, file_directory=ON_DISK), look)
    needs_a_disk(result)
    assert result.stop_reason is StopReason.RESERVE
    assert seen[-1][0] == result.allocated_bytes
    assert {blocks for _, blocks in seen} == {0}


def needs_a_disk(result: ProbeResult) -> None:
    if any("is in memory" in notice for notice in result.notices):
        pytest.skip("what looks like a disk here is in memory, as in a guest")


def test_in_a_container_pages_of_the_file_do_not_count_as_free(container: Leaf) -> None:
    """To the kernel they are clean page cache: without that, the probe would go on until it reclaims."""
    reclaimed_before = container.events().max
    document = probe_in(container, "--as", "file")
    assert document["stop_reason"] == "reserve"
    assert LIMIT - 32 * MIB < document["allocated_bytes"] < LIMIT
    assert container.events().max == reclaimed_before


def test_pages_of_the_file_that_the_kernel_takes_back_end_it() -> None:
    def take_back(progress: Progress, _: Reading) -> None:
        if progress.allocated_bytes >= LIMIT // 4:
            evict(own_leaf())

    result = run_probe(ProbeRequest(max_bytes=LIMIT, chunk_bytes=8 * MIB, shape=Shape.FILE), take_back)
    needs_a_disk(result)
    assert result.stop_reason is StopReason.LIMIT
    assert LIMIT // 4 <= result.allocated_bytes < LIMIT


def test_cache_of_others_is_there_to_be_had(container: Leaf, tmp_path: Path) -> None:
    """The kernel drops what others have read before it drops what is mapped, and so it counts as free."""
    read_before = tmp_path / "read_before"
    with read_before.open("wb") as file:
        file.write(b"\1" * (LIMIT // 3))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    subprocess.run(in_cgroup(container, "cat", str(read_before)), stdout=subprocess.DEVNULL, check=True)
    if container.usage_bytes() < LIMIT // 4:
        pytest.skip(f"{tmp_path} is in memory here, so what is read is not cached")
    document = probe_in(container, "--as", "file", "--file-dir", str(tmp_path))
    assert document["stop_reason"] == "reserve"
    assert document["allocated_bytes"] > LIMIT - 32 * MIB


def evict(leaf: Leaf) -> None:
    """Have the kernel reclaim what it can; pages that were used lately survive the first rounds."""
    for name, text in (("memory.reclaim", str(LIMIT)), ("memory.force_empty", "0")):
        if (leaf.directory / name).exists():
            for _ in range(4):
                try:
                    (leaf.directory / name).write_text(text)
                except OSError:
                    pass  # less was there than asked for
            return
    pytest.skip("this kernel has neither memory.reclaim nor memory.force_empty")


def test_a_file_size_limit_ends_it_with_what_the_kernel_gave() -> None:
    blocks = 32 * MIB // 512
    command = [
        "sh",
        "-c",
        f'ulimit -f {blocks} && exec "$@"',
        "sh",
        *PROBE,
        "--as",
        "file",
        "--limit",
        "96MiB",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["stop_reason"] == "limit"
    assert 32 * MIB - MIB // 2 <= document["allocated_bytes"] <= 32 * MIB


def test_a_file_on_tmpfs_is_shared_memory_and_is_said_to_be() -> None:
    request = ProbeRequest(limit_bytes=LIMIT, shape=Shape.FILE, file_directory=IN_MEMORY)
    result = run_probe(request)
    assert result.stop_reason is StopReason.RESERVE
    assert result.notices[-1].startswith(f"{IN_MEMORY} is in memory (tmpfs)")
    assert LIMIT - 16 * MIB < result.allocated_bytes < LIMIT


def test_a_directory_without_files_is_named_before_anything_is_touched() -> None:
    with pytest.raises(ProbeError, match=r"^/proc: no file to map can be made there .* --file-dir$"):
        run_probe(ProbeRequest(shape=Shape.FILE, file_directory=Path("/proc")))


def test_a_mix_has_each_part_and_then_all_that_is_left() -> None:
    request = ProbeRequest(limit_bytes=LIMIT, mix=parse_mix("pinned=8MiB,file=25%,shmem=4MiB,anon"))
    result = run_probe(request)
    assert result.stop_reason is StopReason.RESERVE
    assert LIMIT - 16 * MIB < result.allocated_bytes < LIMIT
    assert [part.shape for part in result.parts] == [Shape.PINNED, Shape.FILE, Shape.SHMEM, Shape.ANON]
    pinned, file, shmem, anon = result.parts
    assert (pinned.allocated_bytes, shmem.allocated_bytes) == (8 * MIB, 4 * MIB)
    assert abs(file.allocated_bytes - (LIMIT - 4 * MIB) // 4) < MIB
    assert (file.asked_bytes, anon.asked_bytes) == (file.allocated_bytes, None)
    assert sum(part.allocated_bytes for part in result.parts) == result.allocated_bytes
    assert sum(part.kernel_overhead_bytes for part in result.parts) == pytest.approx(
        result.kernel_overhead_bytes, abs=MIB // 4
    )


def test_a_mix_that_can_be_had_in_full_ends_there() -> None:
    result = run_probe(ProbeRequest(limit_bytes=LIMIT, mix=parse_mix("anon=8MiB,hugepage=6MiB")))
    assert (result.stop_reason, result.allocated_bytes) == (StopReason.MAXIMUM, 14 * MIB)


def test_a_share_of_nothing_is_nothing() -> None:
    result = run_probe(ProbeRequest(limit_bytes=LIMIT, reserve_bytes=LIMIT, mix=parse_mix("pinned=50%")))
    assert (result.stop_reason, result.allocated_bytes) == (StopReason.RESERVE, 0)
    assert result.notices[-1].startswith("Nothing was touched")


def test_a_part_that_may_not_be_locked_ends_the_mix_and_is_told_apart_from_the_others() -> None:
    without_right = ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", "sh", "-c"]
    mix = ["--mix", "anon=8MiB,pinned=16MiB,shmem", "--limit", "96MiB"]
    command = [*without_right, 'ulimit -l 8192 && exec "$@"', "sh", *PROBE, *mix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["stop_reason"] == "memlock"
    anon, pinned, shmem = document["parts"]
    assert anon["allocated_bytes"] == 8 * MIB
    assert 8 * MIB - MIB // 2 <= pinned["allocated_bytes"] <= 8 * MIB
    assert shmem["allocated_bytes"] == 0


def probe_with_fake_cuda(log: Path, *arguments: str, refuse_above: int | None = None) -> tuple[int, str, str]:
    """The probe's exit code, output and errors, where `cuda` is tests/kernel/fake_cuda."""
    environ = {**os.environ, "PYTHONPATH": str(FAKE_CUDA), "FAKE_CUDA_LOG": str(log)}
    if refuse_above is not None:
        environ["FAKE_CUDA_REFUSES_ABOVE"] = str(refuse_above)
    command = [*PROBE, "--as", "cuda-pinned", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout, done.stderr


def test_cuda_pins_in_the_toucher_and_frees_before_it_ends(tmp_path: Path) -> None:
    code, out, err = probe_with_fake_cuda(tmp_path / "log", "--limit", "96MiB")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["stop_reason"] == "reserve"
    assert LIMIT - 24 * MIB < document["allocated_bytes"] < LIMIT
    calls = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len({pid for pid, *_ in calls}) == 1, "one process has the driver"
    pinned = [int(size) for _, name, size in calls if name == "pin"]
    assert sum(pinned) == document["allocated_bytes"] == sum(int(s) for _, name, s in calls if name == "free")


def test_a_driver_that_refused_once_is_not_asked_again(tmp_path: Path) -> None:
    code, out, _ = probe_with_fake_cuda(tmp_path / "log", "--limit", "96MiB", refuse_above=32 * MIB)
    document = json.loads(out)
    assert (code, document["stop_reason"]) == (0, "limit")
    calls = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    [refused] = [int(size) for _, name, size in calls if name == "refuse"]
    assert document["allocated_bytes"] <= 32 * MIB < document["allocated_bytes"] + refused
    assert document["error_bytes"] == refused
    assert "CUDA's driver refused" in document["notices"][-1]


def test_memory_that_the_driver_takes_outside_the_cgroup_ends_at_the_room_of_the_start(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    environ = {"FAKE_CUDA_OUTSIDE": "1"}
    command = [*PROBE, "--as", "cuda-pinned", "--limit", "96MiB"]
    environ = {**os.environ, **environ, "PYTHONPATH": str(FAKE_CUDA), "FAKE_CUDA_LOG": str(log)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode, document["stop_reason"]) == (0, "reserve")
    assert LIMIT - 24 * MIB < document["allocated_bytes"] < LIMIT


def test_without_a_gpu_the_way_out_is_named(tmp_path: Path) -> None:
    code, out, err = probe_with_fake_cuda(tmp_path / "log", "--limit", "96MiB", refuse_above=-1)
    assert (code, out) == (125, "")
    assert "CUDA finds no GPU, no NVIDIA driver: probe where one is, or with --as pinned" in err
    assert err.count("\n") == 1


def test_without_the_package_the_way_out_is_named() -> None:
    """The package is of an extra that nothing here installs."""
    done = subprocess.run([*PROBE, "--as", "cuda-pinned"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert "pip install 'oomproof[cuda]', or probe with --as pinned" in done.stderr
    assert done.stderr.count("\n") == 1
