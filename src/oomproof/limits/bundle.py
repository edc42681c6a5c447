"""Recorded machines as roots: a directory as it is, or a tar bundle unpacked for as long as it is needed.

Imported only where ``--root`` or ``check capture`` is used. A bundle may come from anybody:
only plain files below the root are unpacked, and only so many and so large.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oomproof.errors import UsageError

MAX_MEMBERS = 20_000
MAX_BYTES = 256 << 20


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
    with tempfile.TemporaryDirectory(prefix="oomproof-root-") as directory:
        unpack(source, Path(directory))
        yield Path(directory)


def unpack(bundle: Path, directory: Path) -> None:
    """The bundle's directories and plain files below `directory`; links and devices are left out."""
    try:
        with tarfile.open(bundle) as archive:
            left = MAX_BYTES
            for members, member in enumerate(archive):
                left -= member.size
                if left < 0 or members >= MAX_MEMBERS:
                    raise UsageError(f"--root {bundle} is too large for a captured bundle")
                _unpack_member(archive, member, directory)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise UsageError(f"--root {bundle} is no bundle that can be read ({error})") from error


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
