"""Configuration files of templates: whole or not at all, with the mode they had."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.cli.settings import parse_renderings
from oomproof.errors import ConfigError
from oomproof.recipes.render import Rendering, render
from oomproof.units import MIB

VALUES = {"budget": 512 * MIB, "heap": 300 * MIB}


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "engine.in"
    path.write_text('budget = "{budget_mib}MiB"\nheap = {heap}\nother = {x} ${budget} {{budget}}\n')
    path.chmod(0o640)
    return path


def test_sizes_are_filled_in_and_all_else_stays(template: Path, tmp_path: Path) -> None:
    target = tmp_path / "engine.toml"
    render(Rendering(template, target), VALUES)
    assert target.read_text() == (
        f'budget = "512MiB"\nheap = {300 * MIB}\nother = {{x}} ${{budget}} {{budget}}\n'
    )
    assert stat.S_IMODE(target.stat().st_mode) == 0o640, "that of the template"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine.in", "engine.toml"]


def test_a_file_that_is_replaced_keeps_its_mode_and_a_link_stays_one(template: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "real.toml", tmp_path / "link.toml"
    target.write_text("old")
    target.chmod(0o604)
    link.symlink_to(target)
    render(Rendering(template, link), VALUES)
    assert link.is_symlink()
    assert target.read_text().startswith('budget = "512MiB"')
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_is_replaced_keeps_its_owner(template: Path, tmp_path: Path) -> None:
    target = tmp_path / "engine.toml"
    target.write_text("old")
    os.chown(target, 1234, 4321)
    render(Rendering(template, target), VALUES)
    assert (target.stat().st_uid, target.stat().st_gid) == (1234, 4321)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_template_of_root_serves_those_who_are_not_root() -> None:
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        template, target = folder / "engine.in", folder / "engine.toml"
        template.write_text("{budget}")
        template.chmod(0o644)
        os.setegid(nobody)
        os.seteuid(nobody)
        try:
            render(Rendering(template, target), VALUES)
            render(Rendering(template, target), VALUES)
        finally:
            os.seteuid(0)
            os.setegid(0)
        found = target.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (nobody, nobody, 0o644)


def test_a_reader_sees_the_old_file_or_the_new_one(template: Path, tmp_path: Path) -> None:
    target = tmp_path / "engine.toml"
    target.write_text("old")
    with target.open() as reader:
        render(Rendering(template, target), VALUES)
        assert reader.read() == "old", "it was replaced, not written over"


def test_bytes_that_are_no_text_pass_through(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"\xff\r\n{budget}\x00")
    render(Rendering(source, target), VALUES)
    assert target.read_bytes() == b"\xff\r\n536870912\x00"


def test_places_that_cannot_be(template: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("nothing to fill in: {bugdet}")
    cases = {
        Rendering(tmp_path / "none", tmp_path / "out"): "none: No such file",
        Rendering(template, tmp_path / "no" / "folder"): "No such file",
        Rendering(template, tmp_path): "is no file",
        Rendering(template, Path("/dev/null")): "is no file",
        Rendering(template, template): "replace itself",
        Rendering(template, Path("/proc/engine.toml")): "engine.toml",
        Rendering(plain, tmp_path / "out"): "{budget}, {heap}",
    }
    for rendering, words in cases.items():
        with pytest.raises(ConfigError) as caught:
            render(rendering, VALUES)
        assert words in str(caught.value)
        assert str(caught.value).startswith("--render ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine.in", "plain"], "nothing half done"


def test_pairs_of_paths() -> None:
    assert parse_renderings("a:b, c.in:/d/e.toml") == (
        Rendering(Path("a"), Path("b")),
        Rendering(Path("c.in"), Path("/d/e.toml")),
    )
    for text in ("", "a", "a:", ":b", "a:b:c", "a:b,"):
        with pytest.raises(ValueError, match="SRC:DST"):
            parse_renderings(text)


@given(st.binary(max_size=80).filter(lambda text: b"{" not in text))
def test_only_fields_change(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    source, target = folder / "fuzz.in", folder / "fuzz.out"
    source.write_bytes(content + b" {budget}")
    render(Rendering(source, target), VALUES)
    assert target.read_bytes() == content + b" 536870912"
