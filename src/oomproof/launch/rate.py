"""The rate that a benchmark prints: which number of its output it is, by a rule of the user's.

``--rate-json .results[0].rps`` looks into the output as one JSON document, else into its last
line that is one and has such a number; ``--rate-regex 'rate: ([0-9.]+)'`` takes the last match.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from oomproof.launch.relay import Relay

KEPT_BYTES = 1 << 20
"""Of the output, from its end: a benchmark's result comes last."""

_STEP = re.compile(r'\.(?P<name>[\w-]+)|\.?\["(?P<quoted>[^"]*)"\]|\.?\[(?P<index>-?[0-9]{1,9})\]', re.ASCII)


class RateRule(NamedTuple):
    """Where the number is."""

    text: str
    """As it was written: a path such as ``.a.b[0]``, or a regular expression."""
    path: tuple[str | int, ...] | None = None
    """The steps of a path into JSON; None: `text` is a regular expression."""


def parse_path(text: str) -> RateRule:
    """``.a.b[0]["a key"]`` -> a rule; raises ValueError."""
    steps: list[str | int] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            break
        steps.append(int(match["index"]) if match["index"] else match["name"] or match["quoted"] or "")
        position = match.end()
    if not steps or position < len(text):
        raise ValueError('write a path such as .requests.per_second, .results[0].rate or .["a key"]')
    return RateRule(text, tuple(steps))


def parse_expression(text: str) -> RateRule:
    """A regular expression with the number as its one group (or as a whole); raises ValueError."""
    try:
        groups = re.compile(text.encode()).groups
    except re.error as error:
        raise ValueError(f"it is no regular expression, {error}") from error
    if groups > 1:
        raise ValueError(f"it has {groups} groups: put the number alone in parentheses, others in (?:...)")
    return RateRule(text)


def find_rate(rule: RateRule, output: bytes) -> float:
    """The number in `output`; raises ValueError with the reason when there is none."""
    if rule.path is None:
        return _by_expression(rule.text, output)
    reason = "it is no JSON, and no line of it is"
    for document in _documents(output):
        try:
            return _number(_at(document, rule.path))
        except ValueError as error:
            reason = str(error)
    raise ValueError(reason)


def _by_expression(text: str, output: bytes) -> float:
    matches = list(re.finditer(text.encode(), output, re.MULTILINE))
    if not matches:
        raise ValueError("nothing in it matches")
    expression = matches[-1].re
    word = (matches[-1][expression.groups] or b"").decode(errors="replace")
    try:
        return _number(float(word))
    except ValueError:
        raise ValueError(f"{word!r} is no number") from None


def _documents(output: bytes) -> Iterator[object]:
    """The whole output if it is JSON; else its lines that are, the last one first."""
    for text in (output, *reversed(output.splitlines())):
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            continue


def _at(document: object, path: tuple[str | int, ...]) -> object:
    found = document
    for step in path:
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and str(step).lstrip("-").isdecimal() and _has(found, int(step)):
            found = found[int(step)]
        else:
            raise ValueError(f"its JSON has nothing at {step!r} of the path")
    return found


def _has(found: list[object], index: int) -> bool:
    return -len(found) <= index < len(found)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"what stands there is a {type(value).__name__} and no number")  # noqa: TRY004
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("what stands there is not finite")
    return number


class Capture(Relay):
    """Passes a program's stdout on and keeps its end."""

    def __init__(self, target: int = 1) -> None:
        super().__init__(target)
        self._kept = bytearray()

    @property
    def output(self) -> bytes:
        """The last KEPT_BYTES."""
        return bytes(self._kept[-KEPT_BYTES:])

    def look(self, data: bytes) -> None:
        """See `Relay.look`."""
        self._kept += data
        if len(self._kept) > 2 * KEPT_BYTES:
            del self._kept[:-KEPT_BYTES]
