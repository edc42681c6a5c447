"""The file that is mapped: no name, no disk, no surprise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.errors import ProbeError
from oomproof.probe import ProbeRequest, Shape
from oomproof.probe.backing import default_directory, open_backing_file


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    descriptor = open_backing_file(tmp_path)
    yield descriptor
    os.close(descriptor)


def test_it_has_no_name_and_no_size(opened: int, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    state = os.fstat(opened)
    assert (state.st_nlink, state.st_size, state.st_blocks) == (0, 0, 0)
    assert not os.get_inheritable(opened)


def test_where_files_need_a_name_it_loses_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # EISDIR, as where there are none
    descriptor = open_backing_file(tmp_path)
    assert list(tmp_path.iterdir()) == []
    os.ftruncate(descriptor, 4096)
    os.close(descriptor)


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"missing: no file to map can be made there .*--file-dir"):
        open_backing_file(tmp_path / "missing")


def test_a_filesystem_without_holes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(descriptor: int, size: int) -> None:  # as FAT does when a file is made longer
        os.pwrite(descriptor, b"\1" * size, 0)

    monkeypatch.setattr(os, "ftruncate", fill)
    with pytest.raises(ProbeError, match="has no holes, so what is mapped would take up disk"):
        open_backing_file(tmp_path)


def test_the_default_is_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/somewhere")
    assert default_directory() == Path("/somewhere")
    monkeypatch.setenv("TMPDIR", "")
    assert default_directory() == Path("/var/tmp")  # noqa: S108 - nothing is made there


def test_a_directory_for_no_file_is_an_error_of_usage(tmp_path: Path) -> None:
    from oomproof.errors import UsageError

    with pytest.raises(UsageError, match="--file-dir"):
        ProbeRequest(file_directory=tmp_path)
    assert ProbeRequest(shape=Shape.FILE, file_directory=tmp_path).file_directory == tmp_path
