"""What a program says itself about a lack of memory: exit codes, lines on its stderr, SIGBUS.

Only by rules that the user asked for, since no rule is right for every program.
Not covered: kills by the kernel, see `counters`; how stderr is passed on, see `relay`.
"""

from __future__ import annotations

import re
import signal

from oomproof.launch.leftovers import full_tmpfs
from oomproof.launch.model import Confidence, Exit, OwnWords
from oomproof.launch.relay import Relay

_OVERLAP = 4096
"""A pattern that spans two reads is found if it is no longer than this."""
_SHELL_SIGBUS = 128 + signal.SIGBUS


def judge_words(
    rules: OwnWords, exit_: Exit, found: tuple[str, ...], full_tmpfs: tuple[str, ...] = ()
) -> tuple[tuple[str, Confidence], ...]:
    """Sentences with a confidence; `found` are the patterns that stderr matched, `full_tmpfs` where
    a tmpfs was full at the end."""
    failed = exit_.status != 0
    said = [
        (f"stderr matched {pattern!r}", Confidence.HIGH if failed else Confidence.LOW) for pattern in found
    ]
    # As a shell reports it: 134 is SIGABRT, by which Node ends itself.
    if exit_.status in rules.exit_codes:
        # With a matching line both agree; alone the code may have other reasons.
        said.append((f"exit code {exit_.status} stands for a lack of memory by rule", Confidence.MEDIUM))
    if rules.full_tmpfs and full_tmpfs and exit_.status == _SHELL_SIGBUS:
        said.append((f"SIGBUS, and the tmpfs at {', '.join(full_tmpfs)} is full", Confidence.HIGH))
    return tuple(said)


def own_words(
    rules: OwnWords | None, exit_: Exit, relay: StderrRelay | None
) -> tuple[tuple[str, Confidence], ...]:
    """As `judge_words`, from what can be seen now, right after the end of the program."""
    if rules is None:
        return ()
    return judge_words(
        rules, exit_, relay.found if relay is not None else (), full_tmpfs() if rules.full_tmpfs else ()
    )


class StderrRelay(Relay):
    """Passes the program's stderr on and looks for patterns in it."""

    def __init__(self, patterns: tuple[str, ...], target: int = 2) -> None:
        super().__init__(target)
        self._patterns = {pattern: re.compile(pattern.encode(), re.MULTILINE) for pattern in patterns}
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
