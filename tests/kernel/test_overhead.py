"""What `oomproof run` costs while a program runs: the verb itself, with its history, as users start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernel.launching import HOG, PATIENCE_S, wait_until
from oomproof.units import MIB

pytestmark = pytest.mark.kernel

IDLE_S = float(os.environ.get("OOMPROOF_SOAK_IDLE_S", "3"))
"""A soak takes a minute."""


@pytest.mark.soak
def test_the_verb_with_its_history_stays_below_18_mib_and_is_never_woken(tmp_path: Path) -> None:
    settings = ["--limit", "64MiB", "--budget", "32MiB"]
    environ = {"PATH": os.environ["PATH"], "OOMPROOF_STATE_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "oomproof", "run", *settings, "--", *HOG, str(MIB), "600", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
    )

    def status(field: str) -> int:
        text = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s*(\d+)", text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def settled() -> bool:
        """The program runs, and nothing has woken its supervisor for a second."""
        before = status("voluntary_ctxt_switches")
        time.sleep(1)
        return (tmp_path / "history.sqlite3").exists() and status("voluntary_ctxt_switches") == before

    try:
        wait_until(settled, "an idle second")
        before = status("voluntary_ctxt_switches")
        time.sleep(IDLE_S)
        assert status("voluntary_ctxt_switches") == before
        assert status("VmRSS") < 18 * 1024, "KiB"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
