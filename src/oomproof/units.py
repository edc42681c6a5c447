"""Sizes as people write them, and the plain ``int`` bytes used everywhere inside.

``K M G T P E`` and ``KiB MiB ...`` are powers of 1024, as in the kernel, JVM and
container tools; ``kB MB GB ...`` are powers of 1000, as the SI says.
Not covered: percentages and negative sizes, which no caller has a use for.
"""

from __future__ import annotations

import re

from oomproof.errors import InvalidSize

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

MAX_SIZE = (1 << 63) - 1
"""Largest size accepted, in bytes: what a signed 64-bit field of the kernel can hold."""

_PREFIXES = "kmgtpe"
_SIZE = re.compile(
    r"(?P<whole>\d{1,20})(?:\.(?P<part>\d{1,20}))?\s*(?P<unit>[a-z]*)", re.IGNORECASE | re.ASCII
)


def _multiplier(unit: str) -> int | None:
    """Bytes per ``unit``; None when it is no unit of ours."""
    unit = unit.lower()
    if unit in ("", "b"):
        return 1
    exponent = _PREFIXES.find(unit[0]) + 1
    if exponent == 0:
        return None
    if unit[1:] in ("", "i", "ib"):
        return 1 << (10 * exponent)
    if unit[1:] == "b":
        thousands: int = 1000**exponent
        return thousands
    return None


def parse_size(text: str) -> int:
    """Turn ``"90GiB"``, ``"1.5G"``, ``"500MB"`` or ``"4096"`` into bytes, rounding down.

    Raises InvalidSize for anything else: a sign, an unknown unit, more than MAX_SIZE.
    """
    match = _SIZE.fullmatch(text.strip())
    multiplier = _multiplier(match["unit"]) if match else None
    if match is None or multiplier is None:
        raise InvalidSize(
            f"{text!r} is not a size: write a number from 0 up with one of B, K, M, G, T, P, E"
            " (1024s; also KiB, MiB, ...) or kB, MB, GB, ... (1000s), for example 512MiB"
        )
    part = match["part"] or ""
    scale: int = 10 ** len(part)
    size = int(match["whole"] + part) * multiplier // scale
    if size > MAX_SIZE:
        raise InvalidSize(f"{text!r} is larger than any memory: the largest size is {MAX_SIZE} bytes")
    return size


def format_size(size: int | None) -> str:
    """``1610612736`` -> ``"1.50 GiB"``; None -> ``"unknown"``. For people, not for parsing back."""
    if size is None:
        return "unknown"
    sign, size = ("-", -size) if size < 0 else ("", size)
    if size < KIB:
        return f"{sign}{size} B"
    exponent = min((size.bit_length() - 1) // 10, len(_PREFIXES))
    return f"{sign}{size / (1 << 10 * exponent):.2f} {_PREFIXES[exponent - 1].upper()}iB"


def count(number: int, noun: str) -> str:
    """``1, "attempt"`` -> ``"1 attempt"``; ``3`` -> ``"3 attempts"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
