"""Reading the kernel's small text files below any root, and the numbers in them.

Covered: telling an absent file from one that cannot be read, bytes that are not UTF-8,
files that would block or never end. Not covered: what the values mean (see `judgement`).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from oomproof.units import KIB

MAX_FILE_BYTES = 32 << 20
"""Nothing that is read here is longer; a longer file is cut, so that no file can hang the answer."""

NO_LIMIT_FROM = 1 << 62
"""Larger values are "no limit": PAGE_COUNTER_MAX with 4, 16 and 64 KiB pages, LLONG_MAX, ULLONG_MAX."""

_CHUNK = 1 << 16
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENAMETOOLONG})
_UINT64_MAX = (1 << 64) - 1


class State(Enum):
    """What became of reading one value."""

    VALUE = "value"
    MAX = "max"
    """The file's own word for "no limit"."""
    ABSENT = "absent"
    UNREADABLE = "unreadable"
    """The file is there but cannot be read, or holds nothing that can be understood."""


class Fact(NamedTuple):
    """One value as its file has it, unfiltered, with the file as the process sees it."""

    source: str
    state: State
    value: int | None = None
    problem: str = ""
    """Why it is unreadable, in words."""


class Tree:
    """The filesystem below `root`, read as though `root` were ``/``.

    With `record`, every file's content (None: absent) is kept there under its path,
    so that exactly what was read can be bundled.
    """

    __slots__ = ("_prefix", "_record", "root")

    def __init__(self, root: Path | str = "/", record: dict[str, bytes | None] | None = None) -> None:
        self.root = Path(root)
        self._prefix = "" if self.is_live else os.fspath(self.root)
        self._record = record

    @property
    def is_live(self) -> bool:
        """Whether this is the running machine, and not a recorded one."""
        return os.fspath(self.root) == "/"

    @property
    def records(self) -> bool:
        """Whether what is read is kept."""
        return self._record is not None

    def real(self, path: str) -> str:
        """Where `path` (absolute, as the process sees it) lies for this program."""
        return self._prefix + path

    def read(self, path: str, *, one_value: bool = False) -> bytes | None:
        """The file; None when there is none. Raises OSError when it is there but cannot be read.

        A file of `one_value` comes whole with the first read, which spares a second.
        """
        try:
            content: bytes | None = _read(self._prefix + path, one_value)
        except OSError as error:
            if error.errno not in _ABSENT:
                self._note(path, found=True)  # an empty file replays as one that tells nothing
                raise
            content = None
        except ValueError:  # a NUL byte in the path: no such file can exist
            content = None
        if self._record is not None:
            self._record[path] = content
        return content

    def read_or_none(self, path: str) -> bytes | None:
        """As `read`, for files that only add detail: an unreadable one counts as absent."""
        try:
            return self.read(path)
        except OSError:
            return None

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory that can be seen."""
        try:
            found = os.path.isdir(self._prefix + path)  # noqa: PTH112 - called for every level: speed counts
        except ValueError:
            return False
        return self._note(f"{path.rstrip('/')}/", found)

    def exists(self, path: str) -> bool:
        """Whether `path` can be seen."""
        try:
            found = os.path.exists(self._prefix + path)  # noqa: PTH110
        except ValueError:
            return False
        return self._note(path, found)

    def _note(self, path: str, found: bool) -> bool:
        if found and self._record is not None:
            self._record.setdefault(path, b"")  # that it is there was all that mattered
        return found

    def directories(self, path: str) -> list[str]:
        """Names of the directories in `path`, sorted; empty when it cannot be listed."""
        try:
            with os.scandir(self._prefix + (path or "/")) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (OSError, ValueError):
            return []
        for name in names:
            self._note(f"{path.rstrip('/')}/{name}/", found=True)
        return names

    def identity(self, path: str) -> tuple[int, int] | None:
        """Device and inode: equal for one cgroup seen through two mounts."""
        try:
            status = os.stat(self._prefix + path)  # noqa: PTH116
        except (OSError, ValueError):
            return None
        return status.st_dev, status.st_ino


def _read(path: str, one_value: bool) -> bytes:
    # O_NONBLOCK: a pipe put in the place of a file must not stop the answer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        content = os.read(descriptor, _CHUNK)
        if one_value or not content:
            return content
        chunks = [content]
        length = len(content)
        while chunks[-1] and length < MAX_FILE_BYTES:
            chunks.append(os.read(descriptor, _CHUNK))
            length += len(chunks[-1])
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def parse_number(text: bytes) -> int | None:
    """Decimal digits of at most 64 bits, with blanks around them; None for anything else."""
    digits = text.strip(b" \t\n")
    if not digits.isdigit() or len(digits) > 20:
        return None
    number = int(digits)
    return number if number <= _UINT64_MAX else None


def read_value(tree: Tree, path: str, no_limit_words: tuple[bytes, ...] = ()) -> Fact:
    """The single number in the file `path`, or one of `no_limit_words`."""
    try:
        content = tree.read(path, one_value=True)
    except OSError as error:
        return Fact(path, State.UNREADABLE, problem=os.strerror(error.errno or 0).lower())
    if content is None:
        return Fact(path, State.ABSENT)
    if content.strip(b" \t\n") in no_limit_words:
        return Fact(path, State.MAX)
    number = parse_number(content)
    if number is None:
        shown = content[:40].decode("ascii", "backslashreplace").strip()
        return Fact(path, State.UNREADABLE, problem=f"holds {shown!r}, which is no size")
    return Fact(path, State.VALUE, number)


def usage_beside(tree: Tree, limit: Fact, path: str) -> Fact:
    """The usage in `path`, asked for only where `limit` is a limit."""
    if limit.value is None or limit.value >= NO_LIMIT_FROM:
        return Fact(path, State.ABSENT)
    return read_value(tree, path)


def keyed_pattern(keys: Iterable[str], before: str = "", between: str = " ") -> re.Pattern[bytes]:
    """A pattern for `parse_keyed` that finds the lines of `keys` only: most of memory.stat is of no use."""
    names = "|".join(re.escape(key) for key in keys)
    return re.compile(rf"^{before}({names}){between}[ \t]*(\d{{1,20}})( kB)?[ \t]*$".encode(), re.MULTILINE)


def parse_keyed(content: bytes, pattern: re.Pattern[bytes]) -> dict[str, int]:
    """The numbers of the lines that `pattern` (see `keyed_pattern`) finds, kB turned into bytes.

    All other lines are skipped; the first of a key counts.
    """
    values: dict[str, int] = {}
    for key, digits, unit in pattern.findall(content):
        if (number := parse_number(digits)) is not None:
            values.setdefault(key.decode("ascii"), number * KIB if unit else number)
    return values


def printable(text: str) -> str:
    """`text` with bytes that are not UTF-8 as ``\\xff`` and control characters escaped."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
