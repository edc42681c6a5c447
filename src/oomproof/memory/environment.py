"""The budget of this process: what the launcher passed, else what the limits leave less a margin.

The arithmetic is that of ``oomproof plan --no-probe``. Not covered: probing, and budgets learned from
earlier attempts, which only the launcher has.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.errors import ConfigError, InvalidSize, PlanError
from oomproof.limits.detect import detect_limits
from oomproof.limits.margin import default_margin_floor
from oomproof.limits.model import LimitReport
from oomproof.units import MIB, format_size, parse_size

VARIABLE = "OOMPROOF_BUDGET_BYTES"
"""Set by ``oomproof run``, ``bench`` and ``entrypoint`` for the program they start."""


def budget_bytes(environ: Mapping[str, str]) -> int:
    """The variable's bytes, else the plan's. Raises ConfigError and PlanError."""
    passed = environ.get(VARIABLE)
    if not passed:
        return planned_bytes(detect_limits())
    try:
        return parse_size(passed)
    except InvalidSize as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error


def planned_bytes(limits: LimitReport) -> int:
    """What can be had now less the default margin, in whole MiB. Raises PlanError."""
    allowed = limits.available_bytes if limits.available_bytes is not None else limits.limit_bytes
    if allowed is None:
        raise PlanError(f"no file tells how much memory is allowed here: state it with {VARIABLE}")
    if limits.host_available_bytes is not None:
        allowed = min(allowed, limits.host_available_bytes)
    left = allowed - default_margin_floor(allowed)
    if left <= 0:
        raise PlanError(
            f"nothing is left: {format_size(allowed)} can be had and the margin is"
            f" {format_size(allowed - left)}: free memory, raise the limit, or set {VARIABLE}"
        )
    return left - left % MIB if left >= MIB else left
