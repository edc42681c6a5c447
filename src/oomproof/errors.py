"""Every error that oomproof raises on purpose, in one tree.

OomproofError                   exit 125
├── UsageError                  exit 2
│   ├── InvalidSize
│   ├── InvalidPolicy
│   └── ConfigError
├── LimitsError
├── LeafUnavailable
├── ProbeError
├── PlanError
├── HistoryError
├── BudgetError
│   ├── BudgetExceeded
│   ├── ReserveTimeout          also a TimeoutError
│   ├── OverRelease
│   └── ReservationReleased
├── PoolError
│   ├── PinningUnavailable
│   └── BufferReturned
├── LoadError
│   └── LoadCancelled
└── CommandError
    ├── CommandNotExecutable    exit 126
    └── CommandNotFound         exit 127

A message is one line: the cause (file, value), then the way out (flag, step).
The exit codes of 125 and above are those of ``env``, ``timeout`` and
``docker run``: they say that the launcher failed, not the program.
"""

from __future__ import annotations

from typing import ClassVar


class OomproofError(Exception):
    """Base of all errors; raised directly only where no branch below fits."""

    exit_code: ClassVar[int] = 125


class UsageError(OomproofError):
    """Raised when what the caller asked for makes no sense or cannot be granted."""

    exit_code = 2


class InvalidSize(UsageError):
    """Raised when a text is not a size such as ``512MiB``, ``1.5G`` or ``1073741824``."""


class InvalidPolicy(UsageError):
    """Raised when an ``--on-oom`` policy is unknown or its percentage is out of range."""


class ConfigError(UsageError):
    """Raised when a configuration file or an ``OOMPROOF_*`` variable cannot be used."""


class LimitsError(OomproofError):
    """Raised when the memory limit is needed but no file of the kernel tells it."""


class LeafUnavailable(OomproofError):
    """Raised when no leaf cgroup can be made below the own one; the message says why."""


class ProbeError(OomproofError):
    """Raised when the probe could not start or its child broke the protocol."""


class PlanError(OomproofError):
    """Raised when nothing is left to give once the margin is taken off."""


class HistoryError(OomproofError):
    """Raised when the history was asked for explicitly and cannot be opened or written."""


class BudgetError(OomproofError):
    """Base of the errors of a `MemoryBudget`; raised directly for a use that can never be right."""


class BudgetExceeded(BudgetError):
    """Raised when more is asked for than the whole budget: waiting for it would never end."""


class ReserveTimeout(BudgetError, TimeoutError):
    """Raised when the bytes asked for did not become free before the deadline."""


class OverRelease(BudgetError):
    """Raised when more bytes are released from (or split off) a reservation than it holds."""


class ReservationReleased(BudgetError):
    """Raised when a reservation is used, or released again, after it has been released."""


class PoolError(OomproofError):
    """Base of the errors of `oomproof.memory.PinnedPool`; raised directly for a use that cannot be right."""


class PinningUnavailable(PoolError):
    """Raised when memory cannot be page-locked here; the message names the limit and the remedy."""


class BufferReturned(PoolError):
    """Raised when a buffer is used, or returned again, after it was returned to its pool."""


class LoadError(OomproofError):
    """Raised when a file cannot be loaded: unreadable, changed meanwhile, of another checksum, too large."""


class LoadCancelled(LoadError):
    """Raised when loading was cancelled by its caller; nothing is kept."""


class CommandError(OomproofError):
    """Base of the errors that say that the program itself could not be started."""


class CommandNotExecutable(CommandError):
    """Raised when the command exists but the kernel refuses to execute it."""

    exit_code = 126


class CommandNotFound(CommandError):
    """Raised when the command does not exist."""

    exit_code = 127
