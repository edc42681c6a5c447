"""What a program says itself about a lack of memory: exit codes and lines on its stderr.

Only by rules that the user asked for, since no rule is right for every program.
Not covered: kills by the kernel, see `counters`; how stderr is passed on, see `relay`.
"""

from __future__ import annotations

import re

from oomproof.launch.model import Confidence, Exit, OwnWords
from oomproof.launch.relay import Relay

_OVERLAP = 4096
"""A pattern that spans two reads is found if it is no longer than this."""


def judge_words(rules: OwnWords, exit_: Exit, found: tuple[str, ...]) -> tuple[tuple[str, Confidence], ...]:
    """Sentences with a confidence; `found` are the patterns that stderr matched."""
    failed = exit_.status != 0
    said = [
        (f"stderr matched {pattern!r}", Confidence.HIGH if failed else Confidence.LOW) for pattern in found
    ]
    if exit_.code in rules.exit_codes:
        # With a matching line both agree; alone the code may have other reasons.
        said.append((f"exit code {exit_.code} stands for a lack of memory by rule", Confidence.MEDIUM))
    return tuple(said)


class StderrRelay(Relay):
    """Passes the program's stderr on and looks for patterns in it."""

    def __init__(self, patterns: tuple[str, ...], target: int = 2) -> None:
        super().__init__(target)
        self._patterns = {pattern: re.compile(pattern.encode()) for pattern in patterns}
        self._found: list[str] = []
        self._tail = b""

    @property
    def found(self) -> tuple[str, ...]:
        """Patterns that matched so far, in the order of their appearance."""
        return tuple(self._found)

    def look(self, data: bytes) -> None:
        """See `Relay.look`."""
        text = self._tail + data
        self._found += [
            pattern
            for pattern, expression in self._patterns.items()
            if pattern not in self._found and expression.search(text)
        ]
        self._tail = text[-_OVERLAP:]
