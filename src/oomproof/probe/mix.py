"""``--mix``: several kinds of memory at once, as an engine that pins, maps and heaps has them.

    MIX    = PART *("," PART)
    PART   = SHAPE ["=" AMOUNT]
    AMOUNT = SIZE | PERCENT "%"

Parts are touched in the order written. A percentage is of the room that there is at the start,
above the reserve; the part without an amount, which is the last, takes all that is left.
Not covered: touching them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from oomproof.errors import UsageError
from oomproof.probe.decide import PAGE_BYTES
from oomproof.probe.model import Part, Shape
from oomproof.units import parse_size

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%")
_EXAMPLE = "for example pinned=2GiB,file=25%,anon"


def parse_mix(text: str) -> tuple[Part, ...]:
    """The parts of ``--mix``; raises UsageError."""
    parts = tuple(_parse_part(word.strip(), text) for word in text.split(","))
    shapes = [part.shape for part in parts]
    if doubled := next((shape for shape in shapes if shapes.count(shape) > 1), None):
        raise UsageError(f"--mix {text} names {doubled.value} twice: give each kind one amount")
    if any(part.asked_bytes is None and part.percent is None for part in parts[:-1]):
        raise UsageError(f"--mix {text}: a part without an amount takes all that is left, so put it last")
    if (percent := sum(part.percent or 0 for part in parts)) > 100:
        raise UsageError(f"--mix {text}: {percent:g} % of the room is more than there is, ask for less")
    return parts


def _parse_part(word: str, text: str) -> Part:
    name, equals, amount = (field.strip() for field in word.partition("="))
    try:
        shape = Shape(name)
    except ValueError:
        names = ", ".join(shape.value for shape in Shape)
        raise UsageError(f"--mix {text}: {name!r} is no kind of memory: write {names}, {_EXAMPLE}") from None
    if not equals:
        return Part(shape)
    if match := _PERCENT.fullmatch(amount):
        part = Part(shape, percent=float(match[1]))
    else:
        part = Part(shape, parse_size(amount))
    if not (part.asked_bytes or part.percent):
        raise UsageError(
            f"--mix {text}: {word} asks for nothing: leave it out, or give an amount, {_EXAMPLE}"
        )
    return part


def in_bytes(parts: Sequence[Part], room_bytes: int) -> tuple[Part, ...]:
    """`parts` with each percentage as a size, when `room_bytes` can be had."""
    return tuple(
        part
        if part.percent is None
        else Part(part.shape, int(max(room_bytes, 0) * part.percent / 100) // PAGE_BYTES * PAGE_BYTES)
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """Which part is touched next."""

    number: int
    """Of the part, from 0 up."""
    shape: Shape
    left_bytes: int | None
    """Until it has what was asked for; None: whatever can be had."""


def next_turn(parts: Sequence[Part], allocated: Sequence[int]) -> Turn | None:
    """The first part that has less than was asked for; None: each has that."""
    for number, (part, size) in enumerate(zip(parts, allocated, strict=True)):
        if part.asked_bytes is None:
            return Turn(number, part.shape, None)
        if size < part.asked_bytes:
            return Turn(number, part.shape, part.asked_bytes - size)
    return None
