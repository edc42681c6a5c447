"""The file that Shape.FILE maps: unlinked from the start, all hole, never written.

Reading a hole gives a page of the page cache and no block of the disk, so that the file may
be larger than the disk is. Whatever dies, the file is gone with the last process that has it.
Not covered: mapping it, see `toucher`; pages that are written, which would go to the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from oomproof.errors import ProbeError

_TRIAL_BYTES = 1 << 20
"""The most that is ever taken of the disk, on a filesystem that turns out to have no holes."""
_BLOCK_BYTES = 512


def default_directory() -> Path:
    """``$TMPDIR``, or else ``/var/tmp``, which is rarely in memory."""
    return Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108 - nothing there has a name


def open_backing_file(directory: Path) -> int:
    """A descriptor of a new, nameless, empty file in `directory`.

    Raises ProbeError when none can be made, or when it would take up disk.
    """
    descriptor = -1
    try:
        descriptor = _open_nameless(directory)
        os.ftruncate(descriptor, _TRIAL_BYTES)
        taken = os.fstat(descriptor).st_blocks * _BLOCK_BYTES
        os.ftruncate(descriptor, 0)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise ProbeError(
            f"{directory}: no file to map can be made there ({error.strerror}):"
            " name a directory with --file-dir"
        ) from error
    if taken >= _TRIAL_BYTES:
        os.close(descriptor)
        raise ProbeError(
            f"{directory}: the filesystem has no holes, so what is mapped would take up disk:"
            " name a directory on another one with --file-dir"
        )
    return descriptor


def _open_nameless(directory: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if not directory.is_dir():
            raise
        reason = error
    # Not every filesystem can make a nameless file.
    path = directory / f".oomproof-probe-{os.getpid()}"
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise error from reason
    path.unlink()
    return descriptor
