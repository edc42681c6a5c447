"""Writes cpio archives in the ``newc`` format, the one that the kernel unpacks as initramfs.

Covers what an initramfs needs: directories, regular files, device nodes. Does not read archives.
Format: Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

_ALIGNMENT = 4
# The kernel accepts archives one after another; this padding keeps each next one aligned.
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an archive; `mode` holds type and permissions, `device` a node's major and minor."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str) -> Entry:
    return Entry(name, stat.S_IFDIR | 0o755)


def executable(name: str, data: bytes) -> Entry:
    return Entry(name, stat.S_IFREG | 0o755, data)


def character_device(name: str, major: int, minor: int) -> Entry:
    return Entry(name, stat.S_IFCHR | 0o600, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive that holds `entries`, in their order: a directory goes before what it holds."""
    packed = bytearray()
    for number, entry in enumerate([*entries, Entry("TRAILER!!!", 0)], start=1):
        name = entry.name.encode() + b"\0"
        links = 1
        owner = group = modified = directory_major = directory_minor = checksum = 0
        fields = (
            number,
            entry.mode,
            owner,
            group,
            links,
            modified,
            len(entry.data),
            directory_major,
            directory_minor,
            *entry.device,
            len(name),
            checksum,
        )
        packed += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        _pad(packed, _ALIGNMENT)
        packed += entry.data
        _pad(packed, _ALIGNMENT)
    _pad(packed, _BLOCK)
    return bytes(packed)


def _pad(packed: bytearray, alignment: int) -> None:
    packed += b"\0" * (-len(packed) % alignment)
