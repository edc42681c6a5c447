"""What callers pass, checked and made plain."""

from __future__ import annotations

import math
import operator
import threading
import time

from oomproof.errors import UsageError


def plain_size(size: int, name: str = "size") -> int:
    """`size` as a plain int of bytes; TypeError for what is no integer, UsageError below 0."""
    plain = int(operator.index(size))
    if plain < 0:
        raise UsageError(f"{name}={plain} makes no sense: give bytes from 0 up")
    return plain


def plain_count(count: int, name: str) -> int:
    """`count` as a plain int from 1 up; TypeError for what is no integer, UsageError below 1."""
    plain = int(operator.index(count))
    if plain < 1:
        raise UsageError(f"{name}={plain} makes no sense: give a number from 1 up")
    return plain


def pause(seconds: float, name: str) -> float:
    """Something to sleep for between two looks; UsageError for what would not be slept at all."""
    if not 0 < seconds <= threading.TIMEOUT_MAX:  # not a number is neither
        raise UsageError(f"{name}={seconds} makes no sense: give seconds above 0, such as 1 or 0.5")
    return seconds


def plain_owner(owner: str) -> str:
    """`owner` as a plain string: hashing a subclass could run its code inside the ledger."""
    if not isinstance(owner, str) or not owner:
        raise UsageError(f"owner={owner!r} names nobody: give the consumer's name, such as 'srs:porep'")
    return owner if type(owner) is str else "".join(owner)


def deadline(timeout: float | None) -> float:
    """When `timeout` seconds are over, by `time.monotonic`; None: never."""
    if timeout is None:
        return math.inf
    if math.isnan(timeout):
        raise UsageError("timeout=nan makes no sense: give seconds, or None to wait for ever")
    return time.monotonic() + timeout


def sooner(left: float, look_again: float | None) -> float | None:
    """How long to sleep with `left` seconds to the deadline; None: until woken."""
    soonest = left if look_again is None else min(left, look_again)
    return None if math.isinf(soonest) else soonest
