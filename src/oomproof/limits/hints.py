"""Limits declared elsewhere: what a scheduler or a platform says in the environment.

Shown, never enforced: the kernel does not know them, and they may be requests, not limits.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.errors import InvalidSize
from oomproof.limits.files import printable
from oomproof.limits.model import Notice
from oomproof.units import MIB, format_size, parse_size

# Variable -> (who sets it, bytes per unit where the value is a bare number).
_SIZES = {
    "SLURM_MEM_PER_NODE": ("Slurm, memory per node", MIB),
    "SLURM_MEM_PER_CPU": ("Slurm, memory per allocated CPU", MIB),
    "SLURM_MEM_PER_GPU": ("Slurm, memory per allocated GPU", MIB),
    "MEMORY_LIMIT": ("a MEMORY_LIMIT variable", 1),
    "MEM_LIMIT": ("a MEM_LIMIT variable", 1),
    "MY_MEM_LIMIT": ("the Kubernetes downward API", 1),
    "LIMITS_MEMORY": ("the Kubernetes downward API", 1),
    "CONTAINER_MEMORY_LIMIT": ("the Kubernetes downward API", 1),
    "K8S_MEMORY_LIMIT": ("the Kubernetes downward API", 1),
    "KUBERNETES_MEMORY_LIMIT": ("the Kubernetes downward API", 1),
    "POD_MEMORY_LIMIT": ("the Kubernetes downward API", 1),
    "NOMAD_MEMORY_LIMIT": ("Nomad", MIB),
    "NOMAD_MEMORY_MAX_LIMIT": ("Nomad", MIB),
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": ("AWS Lambda", MIB),
    "FLY_VM_MEMORY_MB": ("Fly.io", MIB),
}

_PRESENCE = {
    "ECS_CONTAINER_METADATA_URI_V4": "Amazon ECS offers task metadata with the task's memory limit",
    "ECS_CONTAINER_METADATA_URI": "Amazon ECS offers task metadata with the task's memory limit",
}

VARIABLES = frozenset(_SIZES) | frozenset(_PRESENCE) | {"AWS_EXECUTION_ENV"}
"""All that is ever looked at in the environment."""


def read_hints(environment: Mapping[str, str]) -> tuple[Notice, ...]:
    """One hint for each variable that is set; its code is the variable's name in lower case."""
    hints = []
    for name, (who, unit) in _SIZES.items():
        if value := environment.get(name, "").strip():
            hints.append(_size_hint(name, value, who, unit))
    for name, meaning in _PRESENCE.items():
        if environment.get(name):
            hints.append(Notice(name.lower(), f"{meaning} ({name} is set).", name))
    if environment.get("AWS_EXECUTION_ENV", "") == "AWS_ECS_FARGATE":
        hints.append(
            Notice(
                "aws_fargate",
                "AWS Fargate limits the whole task; the task's size is the machine that can be seen.",
                "AWS_EXECUTION_ENV",
            )
        )
    return tuple(hints)


def _size_hint(name: str, value: str, who: str, unit: int) -> Notice:
    try:
        size = parse_size(value) * (unit if value.isdigit() else 1)
    except InvalidSize:
        shown = printable(value[:40])
        return Notice(name.lower(), f"{name}={shown} is declared by {who}, but is no size.", name)
    return Notice(name.lower(), f"{name} declares {format_size(size)} ({who}).", name, size)
