"""Installs the rig: tools through apt, kernels into the cache. Instant where all of it is there."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rigs.debian import KERNELS, DebianError, download_kernel, install_tools
from rigs.guest import machine_problem
from rigs.image import ImageError, image, make_image


def main() -> int:
    if problem := machine_problem():
        print(f"rig: {problem}", file=sys.stderr)
        return 1
    try:
        install_tools()
        for kernel, release in KERNELS.items():
            _install_kernel(kernel, release)
    except (DebianError, ImageError) as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    return 0


def _install_kernel(kernel: str, release: str) -> None:
    if image(kernel).is_current():
        print(f"rig: kernel {kernel} is there")
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        made = make_image(kernel, download_kernel(release, Path(scratch)))
    print(f"rig: kernel {kernel} made in {time.monotonic() - started:.0f} s: {made.directory}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
