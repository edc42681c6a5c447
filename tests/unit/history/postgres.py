"""A PostgreSQL server for a test: Debian's, in a folder of its own, on no port."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 60.0
_HOMES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))


def problem() -> str | None:
    """Why no server can be started here; None when one can."""
    if not _HOMES:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and setpriv is not there to run it as another"
    return None


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Its address; it is gone afterwards, and so is all that it kept."""
    home = _HOMES[-1].parent
    # Not pytest's own folder, which others may not enter; short, for a socket's path.
    with tempfile.TemporaryDirectory(prefix="oomproof-pg-") as scratch:
        as_owner: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(scratch, "nobody")
            as_owner = ["setpriv", "--reuid", "nobody", "--clear-groups", "--"]
        data = f"{scratch}/data"
        subprocess.run(
            [*as_owner, home / "initdb", "-D", data, "-A", "trust", "-U", "oomproof", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=scratch,
        )
        process = subprocess.Popen(
            [*as_owner, home / "postgres", "-D", data, "-k", scratch, "-c", "listen_addresses=", "-F"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
        )
        try:
            _wait_until_ready(home, scratch, process)
            yield f"postgresql://oomproof@/postgres?host={scratch}"
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: nothing is worth keeping
            process.wait(PATIENCE_S)


def _wait_until_ready(home: Path, scratch: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        ready = subprocess.run([home / "pg_isready", "-h", scratch], check=False, capture_output=True)
        if ready.returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"the server did not come up, exit code {process.poll()}")
