"""The controlling terminal, handed to the program and taken back as a shell does it.

Not covered: terminal modes, which the program sets and restores itself.
"""

from __future__ import annotations

import os
import signal


class Terminal:
    """Our controlling terminal. Use `find`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def find(cls) -> Terminal | None:
        """The controlling terminal; None when there is none."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError:
            return None  # ENXIO or ENOENT: a daemon, a container without a terminal

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def foreground(self) -> int | None:
        """The process group that gets the keys; None when the terminal hung up."""
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return None

    def is_ours(self) -> bool:
        """Whether our own process group is in the foreground."""
        return self.foreground() == os.getpgrp()

    def give_to(self, group: int) -> None:
        """Put `group` into the foreground; nothing happens when that is no longer possible."""
        # From the background the kernel would stop us with SIGTTOU.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            pass  # the terminal hung up or the group is gone: there is nobody to give it to
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def take_back_from(self, group: int) -> None:
        """Put our own group into the foreground if `group`, or nobody who is alive, holds it."""
        holder = self.foreground()
        if holder is not None and (holder == group or not _is_alive(holder)):
            self.give_to(os.getpgrp())


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
