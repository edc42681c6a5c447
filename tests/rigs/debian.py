"""Where the rig comes from: tools and kernels of Debian's archive.

Tools are installed as usual. Kernels are only downloaded, through an apt folder of their own:
the machine's package sources stay as they are, only the address of its mirror is taken from them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

KERNELS = {"6.1": "bookworm", "6.12": "trixie"}
"""Kernel versions and the Debian releases that ship them.

6.1 still has the memory controller of cgroup v1, which Debian's 6.12 is built without;
6.12 can reset ``memory.peak``.
"""

TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "zstd": "zstd",
}
"""Programs that the rig calls, and the packages that bring them."""

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class DebianError(Exception):
    """Raised when this machine cannot install or fetch Debian packages; the message says why."""


def install_tools() -> None:
    """Installs what `TOOLS` names and is not there yet; needs root only then."""
    missing = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0:
        raise DebianError(f"installing {', '.join(missing)} needs root: run `make rig` as root once")
    _apt_get("update")
    _apt_get("install", "--yes", "--no-install-recommends", *missing)


def download_kernel(release: str, directory: Path) -> Path:
    """Downloads the kernel package that `release` ships into `directory`; returns the file's path."""
    options = _private_apt(release, directory)
    _apt_get(*options, "update")
    depends = _output("apt-cache", *options, "depends", "linux-image-amd64")
    package = next(
        (line.split()[1] for line in depends.splitlines() if "Depends: linux-image-" in line), None
    )
    if package is None:
        raise DebianError(f"Debian {release} names no kernel package behind linux-image-amd64")
    _apt_get(*options, "download", package, directory=directory)
    return next(directory.glob(f"{package}_*.deb"))


def _private_apt(release: str, directory: Path) -> list[str]:
    """Options that make apt see `release` alone and keep all its state in `directory`."""
    lists, cache = directory / "lists", directory / "cache"
    (lists / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    sources = directory / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {release} main\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "Dir::State::status": "/dev/null",
        "Dir::Cache": cache,
        # The default, user _apt, cannot read a folder that belongs to us alone.
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _mirror() -> str:
    """The address of the Debian archive that this machine is set up to use."""
    if shutil.which("apt-get") is None:
        raise DebianError("the kernels come from Debian packages, and there is no apt-get here")
    main_packages = ("Identifier: Packages", "Component: main")
    targets = _output("apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", *main_packages)
    for line in targets.splitlines():
        address, _, label = line.partition(" ")
        if label == "Debian":
            return address
    raise DebianError("no package source of this machine is Debian's main archive (see apt-get indextargets)")


def _apt_get(*arguments: str, directory: Path | None = None) -> None:
    command = ["apt-get", "-qq", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DebianError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
