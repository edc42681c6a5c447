"""Talking with the toucher, and what it does to its memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import ProbeError
from oomproof.probe import Shape, toucher
from oomproof.probe.child import Outcome, Toucher, parse_answer
from oomproof.probe.readings import Accounts
from oomproof.units import MIB


def test_an_answer_carries_the_accounts_of_the_kernel() -> None:
    answer = parse_answer("done VmPTE=4096 RssAnon=8192 RssShmem=1 VmSwap=0")
    assert answer.outcome is Outcome.DONE
    assert answer.accounts == Accounts(page_tables=4096, anonymous=8192, shared=1, swapped=0)


@given(st.text())
def test_whatever_the_toucher_says_is_an_answer_or_a_fault_of_the_probe(line: str) -> None:
    try:
        parse_answer(line)
    except ProbeError as error:
        assert repr(line) in str(error)


def test_it_touches_what_it_is_told_and_ends_when_the_pipe_is_closed() -> None:
    process = Toucher(threads=2)
    try:
        before = process.join(None)
        answer = process.touch(40 * MIB, Shape.ANON)
        assert answer.outcome is Outcome.DONE
        assert 40 * MIB <= answer.accounts.anonymous - before.anonymous < 42 * MIB
        assert answer.accounts.page_tables - before.page_tables >= 40 * MIB // 512
    finally:
        process.finish()
    # Of this thread alone: others may run guests meanwhile.
    assert Path("/proc/thread-self/children").read_text() == ""


def test_shared_memory_is_accounted_as_shared() -> None:
    process = Toucher(threads=1)
    try:
        process.join(None)
        assert process.touch(8 * MIB, Shape.SHMEM).accounts.shared >= 8 * MIB
    finally:
        process.finish()


def test_a_mapping_that_cannot_be_is_refused_and_the_next_one_is_not() -> None:
    process = Toucher(threads=1)
    try:
        process.join(None)
        refused = process.touch(1 << 60, Shape.ANON)
        assert (refused.outcome, refused.reason) == (Outcome.REFUSED, "Cannot allocate memory")
        assert process.touch(MIB, Shape.ANON).outcome is Outcome.DONE
    finally:
        process.finish()


def open_descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


def test_an_interpreter_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python3")
    open_before = open_descriptors()
    with pytest.raises(ProbeError, match=r"^/nonexistent/python3 cannot be started"):
        Toucher(threads=1)
    assert open_descriptors() == open_before


def test_no_descriptor_is_left_open() -> None:
    before = open_descriptors()
    process = Toucher(threads=1)
    process.join(None)
    process.finish()
    process.finish()
    assert open_descriptors() == before


def test_on_kernels_without_populate_every_page_is_touched_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toucher, "_MADV_POPULATE_WRITE", 9999)  # EINVAL, as on Linux before 5.14
    with mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view = ctypes.c_char.from_buffer(memory)
        before = resident()
        assert toucher._populate(ctypes.addressof(view), 8 * MIB) == 0
        assert resident() - before >= 8 * MIB
        del view


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_pieces_of_threads_cover_every_byte_once() -> None:
    pieces: list[tuple[int, int]] = []

    def populate(start: int, size: int) -> int:
        pieces.append((start, size))
        return 0

    size = 101 * MIB + 4096
    assert toucher._in_parallel(0, size, 5, populate) == 0
    assert sorted(pieces)[0][0] == 0
    ends = [start + length for start, length in sorted(pieces)]
    assert [start for start, _ in sorted(pieces)[1:]] == ends[:-1]
    assert ends[-1] == size


def test_threads_populate_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=60)

    def populate(*_: int) -> int:
        together.wait()
        return 0

    assert toucher._in_parallel(0, 3 * toucher._PIECE, 3, populate) == 0


def test_threads_that_cannot_be_had_leave_their_pieces_to_the_others() -> None:
    pieces: list[int] = []

    def populate(start: int, _: int) -> int:
        pieces.append(start)
        return 0

    before = threading.stack_size(1 << 47)  # more than there are addresses
    try:
        with pytest.raises(RuntimeError):
            threading.Thread(target=print).start()
        assert toucher._in_parallel(0, 8 * toucher._PIECE, 4, populate) == 0
    finally:
        threading.stack_size(before)
    assert pieces == [number * toucher._PIECE for number in range(8)]


def test_the_first_error_ends_all_threads() -> None:
    pieces: list[int] = []

    def populate(start: int, _: int) -> int:
        pieces.append(start)
        return errno.ENOMEM

    assert toucher._in_parallel(0, 64 * toucher._PIECE, 2, populate) == errno.ENOMEM
    assert len(pieces) <= 2
