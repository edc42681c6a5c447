"""``check capture``: exactly the files that were read for an answer, anonymised, as a tar bundle.

The bundle replays with ``--root`` and is checked to give the same answer before it is written.
Not covered: files that no answer depends on; nothing else is ever put in.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.limits.anonymise import Names
from oomproof.limits.bundle import unpack
from oomproof.limits.detect import ENVIRON_FILE, detect_limits, read_report
from oomproof.limits.files import Tree, keyed_pattern, parse_keyed
from oomproof.limits.hints import VARIABLES
from oomproof.limits.model import LimitReport
from oomproof.limits.process import LIMITS, STATUS
from oomproof.limits.report import report_as_json

ANSWER_FILE = "answer.json"
"""The answer that the bundle gave when it was made, beside the recorded files."""

_PID = keyed_pattern(("Pid",), between=":")


def capture(file: str | Path, root: Path | str = "/") -> LimitReport:
    """Write the bundle (``.gz`` or ``.tgz``: compressed); returns the answer it gives when replayed.

    Raises OomproofError when the file cannot be written; nothing half-written is left behind.
    """
    # A link's target is written, not put in the place of the link.
    target = Path(os.path.realpath(file))
    if target.exists() and not target.is_file():
        raise OomproofError(f"cannot write the bundle {target}: it is no plain file; name a new one")
    record: dict[str, bytes | None] = {}
    tree = Tree(root, record)
    answer = read_report(tree)
    tree.read_or_none(LIMITS)
    if tree.is_live:
        record[ENVIRON_FILE] = _environment()
    try:
        with tempfile.TemporaryDirectory(prefix=".oomproof-capture-", dir=target.parent) as directory:
            draft = Path(directory, target.name)
            return _write_checked(draft, target, anonymised(record), answer)
    except OSError as error:
        raise OomproofError(
            f"cannot write the bundle {target}: {error.strerror}; name a file in a directory you may write to"
        ) from error


def anonymised(record: dict[str, bytes | None]) -> dict[str, bytes]:
    """What goes into the bundle, by path; a path that ends in a slash is a directory."""
    names = Names()
    status = record.get(STATUS) or b""
    pid = str(parse_keyed(status, _PID).get("Pid", 0)).encode()
    # The cgroup's own path first: its pseudonyms are then the low numbers, which people look at.
    ordered = sorted(record.items(), key=lambda item: (item[0] != "/proc/self/cgroup", item[0]))
    files = {}
    for path, content in ordered:
        if content is None:
            continue
        shown = names.content(path, content, pid)
        files[names.path(path.rstrip("/")) + ("/" if path.endswith("/") else "")] = shown
    return files


def _environment() -> bytes:
    return b"\0".join(
        os.fsencode(f"{name}={value}") for name, value in os.environ.items() if name in VARIABLES
    )


def _write_checked(draft: Path, target: Path, files: dict[str, bytes], answer: LimitReport) -> LimitReport:
    _write(draft, target, files)
    replayed_in = draft.parent / "replay"
    replayed_in.mkdir()
    unpack(draft, replayed_in)
    replayed = detect_limits(replayed_in)
    # Where /proc/meminfo is hidden, sysinfo(2) told the total: a bundle of files cannot repeat that.
    same = any(row.source == "sysinfo(2)" for row in answer.candidates) or (
        replayed.status is answer.status
        and replayed.limit_bytes == answer.limit_bytes
        and replayed.available_bytes == answer.available_bytes
    )
    if not same:
        raise OomproofError(
            f"the bundle would not replay (limit {replayed.limit_bytes} in place of {answer.limit_bytes}):"
            " please report the output of oomproof check --json --explain instead"
        )
    document = report_as_json(replayed)
    document["cgroup"] = None  # its directory names the place of the replay, not of the machine
    files[f"/{ANSWER_FILE}"] = json.dumps(document, indent=2).encode() + b"\n"
    _write(draft, target, files)
    draft.replace(target)
    return replayed


def _write(draft: Path, target: Path, files: dict[str, bytes]) -> None:
    mode = "w:gz" if target.suffix in (".gz", ".tgz") else "w"
    with tarfile.open(draft, mode, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for path, content in files.items():
            member = tarfile.TarInfo(path.strip("/"))
            if path.endswith("/"):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
