"""The grammar of ``--mix``, and whose turn it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import UsageError
from oomproof.probe import ProbeRequest, Shape
from oomproof.probe.mix import Turn, in_bytes, next_turn, parse_mix
from oomproof.probe.model import Part
from oomproof.units import GIB, MIB


def test_sizes_shares_and_the_rest() -> None:
    assert parse_mix("pinned=2GiB, file = 12.5%,anon") == (
        Part(Shape.PINNED, 2 * GIB),
        Part(Shape.FILE, percent=12.5),
        Part(Shape.ANON),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no kind of memory: write anon, hugepage, pinned, file, shmem, cuda-pinned"),
        ("anon,", "'' is no kind of memory"),
        ("heap=1GiB", "'heap' is no kind of memory"),
        ("pinned=", "'' is not a size"),
        ("pinned=lots", "'lots' is not a size"),
        ("pinned=0", "asks for nothing"),
        ("pinned=0%", "asks for nothing"),
        ("pinned=-5%", "'-5%' is not a size"),
        ("pinned=1GiB,pinned=2GiB", "names pinned twice"),
        ("anon,pinned=1GiB", "so put it last"),
        ("pinned=60%,file=41%", "101 % of the room is more than there is"),
    ],
)
def test_what_cannot_be_understood_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_mix(text)
    assert message in str(caught.value)


@given(st.text(alphabet="anopied=,%0123456789GiB. ", max_size=40))
def test_any_text_is_a_mix_or_an_error_of_usage(text: str) -> None:
    try:
        parts = parse_mix(text)
    except UsageError:
        return
    assert parts
    assert all(part.asked_bytes or part.percent for part in parts[:-1])


def test_a_share_is_of_the_room_in_whole_pages() -> None:
    parts = in_bytes(parse_mix("pinned=1MiB,file=33.3%,anon"), GIB + 1)
    assert [part.asked_bytes for part in parts] == [MIB, int(GIB * 0.333) // 4096 * 4096, None]
    assert in_bytes(parse_mix("file=50%"), -5)[0].asked_bytes == 0


def test_parts_have_their_turn_in_order_each_until_it_has_enough() -> None:
    parts = (Part(Shape.PINNED, 10), Part(Shape.FILE, 20), Part(Shape.ANON))
    assert next_turn(parts, [4, 0, 0]) == Turn(0, Shape.PINNED, 6)
    assert next_turn(parts, [10, 0, 0]) == Turn(1, Shape.FILE, 20)
    assert next_turn(parts, [10, 20, 99]) == Turn(2, Shape.ANON, None)
    assert next_turn(parts[:2], [10, 20]) is None


def test_what_does_not_go_together_is_said() -> None:
    with pytest.raises(UsageError, match="leave out --quick"):
        ProbeRequest(mix=parse_mix("anon"), quick=True)
