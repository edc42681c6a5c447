"""The margin below what the limits leave, when nobody states one. Pure arithmetic."""

from __future__ import annotations

from oomproof.units import MIB

DEFAULT_FLOOR_PERCENT = 3
DEFAULT_FLOOR_BYTES = 32 * MIB


def default_margin_floor(allowed_bytes: int) -> int:
    """The smallest margin when nobody states one: 3 %, at least 32 MiB, at most a quarter.

    A guess, and the only one: it stands for what the program adds beside its own ledger
    (thread stacks, allocator arenas, page tables) until attempts show the real number.
    """
    share = allowed_bytes * DEFAULT_FLOOR_PERCENT // 100
    return max(share, min(DEFAULT_FLOOR_BYTES, allowed_bytes // 4))
