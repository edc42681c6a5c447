"""What a guest boots from: an unpacked kernel and an initramfs with the modules it needs.

Made once from a Debian kernel package, of which nothing is installed, and kept below
`image_root`. The kernel is stored as plain ELF, which QEMU starts directly (PVH): under
emulation, boot loader and decompression would cost more than the rest of the boot.
The guest's first process (``init.sh``) is not part of the image: `guest` adds it at each boot.

Sources: Documentation/arch/x86/boot.rst (setup header, payload), modinfo sections of ``.ko`` files.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from rigs import cpio

BUSYBOX = Path("/bin/busybox")
"""Statically linked (package busybox-static): it runs in the initramfs, without libraries."""

# Part of the recipe: another number makes images anew.
_FORMAT = "1"

# Modules that a guest needs, as far as its kernel does not have them built in.
_MODULES = (
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "zram",
)

# Mount points, most of them used by the guest's first process.
_DIRECTORIES = ("bin", "control", "dev", "host", "modules", "proc", "sys", "root", "writable")


class ImageError(Exception):
    """Raised when a kernel package does not hold what an image is made from."""


@dataclass(frozen=True, slots=True)
class Image:
    """The files of one bootable kernel; `kernel` is its version, such as ``6.12``."""

    kernel: str
    directory: Path

    @property
    def vmlinux(self) -> Path:
        return self.directory / "vmlinux"

    @property
    def initramfs(self) -> Path:
        return self.directory / "initramfs"

    @property
    def recipe(self) -> Path:
        """Says what the image was made of, so that an outdated one is noticed."""
        return self.directory / "recipe"

    def is_current(self) -> bool:
        try:
            return self.recipe.read_text() == _recipe()
        except FileNotFoundError:
            return False


def image_root() -> Path:
    """Where images are kept: ``OOMPROOF_RIG_DIR``, else a folder in the user's cache."""
    if chosen := os.environ.get("OOMPROOF_RIG_DIR"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "oomproof-rig"


def image(kernel: str) -> Image:
    """The image of a kernel, whether it has been made or not."""
    return Image(kernel, image_root() / kernel)


def make_image(kernel: str, package: Path) -> Image:
    """Makes the image of `kernel` from the Debian package file `package`; replaces an older one."""
    made = image(kernel)
    made.directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.directory.parent) as scratch:
        unpacked = Path(scratch, "unpacked")
        subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
        staged = Image(kernel, Path(scratch, "image"))
        staged.directory.mkdir()
        staged.vmlinux.write_bytes(extract_vmlinux(_only(unpacked, "boot/vmlinuz-*").read_bytes()))
        modules = _modules(unpacked)
        staged.initramfs.write_bytes(cpio.archive(_initramfs_entries(modules)))
        staged.recipe.write_text(_recipe())
        shutil.rmtree(made.directory, ignore_errors=True)
        staged.directory.rename(made.directory)
    return made


def extract_vmlinux(boot_image: bytes) -> bytes:
    """The ELF kernel inside a ``bzImage``; raises ImageError where there is none."""
    if boot_image[0x202:0x206] != b"HdrS":
        raise ImageError("no x86 boot image: the setup header is missing")
    setup_sectors = boot_image[0x1F1] or 4
    start = (setup_sectors + 1) * 512 + int.from_bytes(boot_image[0x248:0x24C], "little")
    length = int.from_bytes(boot_image[0x24C:0x250], "little")
    kernel = _decompress(boot_image[start : start + length])
    if not kernel.startswith(b"\x7fELF"):
        raise ImageError("the payload of the boot image is no ELF file")
    return kernel


def _decompress(payload: bytes) -> bytes:
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=31).decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        # The kernel's build appends the unpacked size in four bytes, which zstd would refuse.
        return subprocess.run(["zstd", "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
    raise ImageError(f"unknown compression of the kernel: it begins with {payload[:6].hex()}")


def _modules(unpacked: Path) -> dict[str, bytes]:
    """The wanted modules and all they depend on, by name, in an order in which they can be loaded."""
    files = {
        _module_name(path.name): path
        for folder in ("lib/modules", "usr/lib/modules")
        for path in (unpacked / folder).rglob("*.ko*")
    }
    loadable: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in loadable or name not in files:
            return
        data = files[name].read_bytes()
        if files[name].suffix == ".xz":
            data = lzma.decompress(data)
        for dependency in _dependencies(data):
            add(dependency)
        loadable[name] = data

    for name in _MODULES:
        add(_module_name(name))
    return loadable


def _dependencies(module: bytes) -> list[str]:
    hard = re.search(rb"\0depends=([^\0]*)\0", module)
    soft = re.findall(rb"\0softdep=pre: ([^\0]*)\0", module)
    names = hard[1].decode().split(",") if hard and hard[1] else []
    for line in soft:
        names += line.decode().split(" post:")[0].split()
    return [_module_name(name) for name in names]


def _module_name(file_name: str) -> str:
    return file_name.split(".ko", maxsplit=1)[0].replace("-", "_")


def _initramfs_entries(modules: dict[str, bytes]) -> list[cpio.Entry]:
    return [
        *(cpio.directory(name) for name in _DIRECTORIES),
        cpio.character_device("dev/console", 5, 1),
        cpio.executable("bin/busybox", BUSYBOX.read_bytes()),
        *(
            cpio.executable(f"modules/{number:02}-{name}.ko", data)
            for number, (name, data) in enumerate(modules.items())
        ),
    ]


def _recipe() -> str:
    return " ".join((_FORMAT, *_MODULES, *_DIRECTORIES))


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise ImageError(f"the kernel package holds {len(found)} files {pattern}, not one")
    return found[0]
