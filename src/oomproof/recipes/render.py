"""Configuration files filled in with the budget: ``--render SRC:DST``.

The file is complete or not there at all: it is written beside its place and renamed. One that
is replaced keeps its mode and owner; a new one gets those of the template, as far as we may give it away.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oomproof.config import read_whole
from oomproof.errors import ConfigError
from oomproof.template import fields, fill, is_field


@dataclass(frozen=True, slots=True)
class Rendering:
    """A template and the file that is made of it."""

    source: Path
    target: Path


def render(rendering: Rendering, values: Mapping[str, int]) -> None:
    """Make the target of the template. Raises ConfigError that names the file at fault."""
    source = rendering.source
    try:
        template = read_whole(source).decode("utf-8", "surrogateescape")
        like = source.stat()
    except OSError as error:
        raise ConfigError(f"--render {source}: {error.strerror}: give a template that can be read") from error
    if not any(is_field(field, values) for field in fields(template)):
        raise ConfigError(
            f"--render {source}: the template uses none of {', '.join(f'{{{name}}}' for name in values)}:"
            " write one where the size belongs"
        )
    # A link stays one: its target is what is replaced.
    target = rendering.target.resolve()
    try:
        is_new = not target.exists()
        if not is_new:
            like = target.stat()
            if not stat.S_ISREG(like.st_mode):
                raise ConfigError(
                    f"--render {rendering.target}: it exists and is no file: give another place"
                )
            if os.path.samestat(like, source.stat()):
                raise ConfigError(
                    f"--render {source}: it would replace itself: give another file after the :"
                )
        _replace(target, fill(template, values).encode("utf-8", "surrogateescape"), like, is_new=is_new)
    except OSError as error:
        raise ConfigError(
            f"--render {rendering.target}: {error.strerror}: give a place that can be written to"
        ) from error


def _replace(target: Path, content: bytes, like: os.stat_result, *, is_new: bool) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                # Templates mostly belong to root, and whoever may not give files away keeps the new one.
                with contextlib.suppress(OSError) if is_new else contextlib.nullcontext():
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
