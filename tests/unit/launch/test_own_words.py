"""The program's own words about a lack of memory, and its stderr passed on unchanged."""

from __future__ import annotations

import os
import threading

import pytest

from oomproof.launch.model import Confidence, Exit, OwnWords
from oomproof.launch.own_words import StderrRelay, judge_words

RULES = OwnWords(frozenset({3, 134}), ("MemoryError",))


@pytest.mark.parametrize(
    ("exit_", "found", "confidences"),
    [
        (Exit(1), (), []),
        (Exit(3), (), [Confidence.MEDIUM]),
        (Exit(1), ("MemoryError",), [Confidence.HIGH]),
        (Exit(0), ("MemoryError",), [Confidence.LOW]),
        (Exit(3), ("MemoryError",), [Confidence.HIGH, Confidence.MEDIUM]),
        (Exit(signal=6), ("MemoryError",), [Confidence.HIGH, Confidence.MEDIUM]),
        (Exit(134), (), [Confidence.MEDIUM]),
        (Exit(signal=9), (), []),
    ],
)
def test_rules(exit_: Exit, found: tuple[str, ...], confidences: list[Confidence]) -> None:
    assert [confidence for _, confidence in judge_words(RULES, exit_, found)] == confidences


def _relay(data: bytes, piece: int, patterns: tuple[str, ...]) -> tuple[bytes, tuple[str, ...]]:
    """What arrives when a program writes `data` in pieces, and what was found in it."""
    reader, target = os.pipe()
    relay = StderrRelay(patterns, target)
    program = os.dup(relay.writer)
    relay.started()
    arrived = bytearray()

    def read() -> None:
        while chunk := os.read(reader, 1000):
            arrived.extend(chunk)

    listener = threading.Thread(target=read)
    listener.start()
    for start in range(0, len(data), piece):
        os.write(program, data[start : start + piece])
        relay.turn()
    os.close(program)
    while (want := relay.wants()) is not None:
        assert want[0] in (relay.reader, target)
        relay.turn()
    os.close(target)
    listener.join()
    os.close(reader)
    relay.close()
    return bytes(arrived), relay.found


@pytest.mark.parametrize("piece", [1, 7, 4096, 60000])
def test_all_is_passed_on_and_a_pattern_is_found_across_pieces(piece: int) -> None:
    data = b"line\n" * 400 + b"CUDA out of memory\n" + bytes(range(256))
    assert _relay(data, piece, ("CUDA out .. memory", "bad_alloc")) == (data, ("CUDA out .. memory",))


def test_when_our_own_stderr_is_gone_the_search_goes_on() -> None:
    reader, target = os.pipe()
    os.close(reader)
    relay = StderrRelay(("bad_alloc",), target)
    program = os.dup(relay.writer)
    relay.started()
    os.write(program, b"first\n")
    relay.turn()
    relay.turn()
    os.write(program, b"std::bad_alloc\n")
    os.close(program)
    relay.drain()
    assert relay.found == ("bad_alloc",)
    relay.close()
    os.close(target)


def test_a_survivor_that_holds_stderr_open_is_not_waited_for() -> None:
    relay = StderrRelay(("x",), os.open(os.devnull, os.O_WRONLY))
    survivor = os.dup(relay.writer)
    relay.started()
    relay.drain()
    os.close(survivor)
    relay.close()


@pytest.mark.parametrize(
    ("rules", "exit_", "full", "said"),
    [
        (OwnWords(full_tmpfs=True), Exit(signal=7), ("/a/tmpfs",), True),
        (OwnWords(full_tmpfs=True), Exit(135), ("/a/tmpfs",), True),
        (OwnWords(full_tmpfs=True), Exit(signal=7), (), False),
        (OwnWords(full_tmpfs=True), Exit(signal=11), ("/a/tmpfs",), False),
        (OwnWords(), Exit(signal=7), ("/a/tmpfs",), False),
    ],
    ids=["SIGBUS", "SIGBUS of a shell's child", "room left", "another signal", "not asked for"],
)
def test_sigbus_on_a_full_tmpfs(rules: OwnWords, exit_: Exit, full: tuple[str, ...], said: bool) -> None:
    expected = (("SIGBUS, and the tmpfs at /a/tmpfs is full", Confidence.HIGH),) if said else ()
    assert judge_words(rules, exit_, (), full) == expected
