"""Recorded machines as roots: a directory as it is, or a tar bundle unpacked for as long as it is needed.

Imported only where ``--root`` or ``check capture`` is used. A bundle may come from anybody:
only plain files below the root are unpacked, and only so many and so large.
Covered: what capture writes, tar and tar.gz. Not covered: other compressions.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oomproof.errors import UsageError

MAX_MEMBERS = 20_000
MAX_BYTES = 256 << 20
MAX_READ_BYTES = 1 << 20
"""No name or header of a bundle is longer, and contents are read in smaller pieces."""

_GZIP = b"\x1f\x8b"


@contextmanager
def open_root(path: str | Path) -> Iterator[Path]:
    """The directory to read as ``/``. Raises UsageError for what is neither directory nor bundle."""
    source = Path(path)
    if source.is_dir():
        yield source
        return
    if not source.exists():
        raise UsageError(
            f"--root {source} does not exist: name a directory or a file that check capture wrote"
        )
    if not source.is_file():
        raise UsageError(f"--root {source} is neither a directory nor a plain file")
    with tempfile.TemporaryDirectory(prefix="oomproof-root-") as directory:
        unpack(source, Path(directory))
        yield Path(directory)


def unpack(bundle: Path, directory: Path) -> None:
    """The bundle's directories and plain files below `directory`; links and devices are left out."""
    try:
        with _opened(bundle) as content, tarfile.open(fileobj=content, mode="r:") as archive:
            left = MAX_BYTES
            for members, member in enumerate(archive):
                left -= member.size
                if left < 0 or members >= MAX_MEMBERS:
                    raise UsageError(f"--root {bundle} is too large for a captured bundle")
                _unpack_member(archive, member, directory)
            content.read(MAX_READ_BYTES)  # a compressed file checks itself at its end
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, RecursionError) as error:
        raise UsageError(f"--root {bundle} is no bundle that can be read ({error})") from error


def _opened(bundle: Path) -> _Bounded:
    with bundle.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    return _Bounded(gzip.GzipFile(bundle) if packed else bundle.open("rb", buffering=0))


class _Bounded(io.BufferedReader):
    """Refuses to read a header that claims to be huge: tarfile would take all of it into memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MAX_READ_BYTES:
            raise ValueError(f"a header of {size} bytes")
        return super().read(size)


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, directory: Path) -> None:
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return
    target = directory.joinpath(*parts)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
    elif member.isreg() and (content := archive.extractfile(member)) is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, target.open("wb") as file:
            while chunk := content.read(1 << 16):
                file.write(chunk)
