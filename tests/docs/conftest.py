"""Surroundings that a reader may have."""

from __future__ import annotations

import os
import shutil

import pytest

from oomproof.limits.discovery import find_memory_cgroup


@pytest.fixture
def read_only_cgroupfs() -> tuple[str, ...]:
    """Put before a command: as in most containers, the cgroup filesystem cannot be written to."""
    own = find_memory_cgroup()
    if own is None or os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, unshare and a memory cgroup to hide")
    hide = f'mount -o remount,bind,ro "{own.mount_point}" && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", hide, "sh")
