"""``oomproof recipes``: the list, one recipe explained, and both for programs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from oomproof.cli import main
from oomproof.recipes.load import BUNDLED

NAMES = sorted(path.stem for path in BUNDLED.glob("*.toml"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_CONFIG_HOME", "OOMPROOF_RECIPE_DIR"):
        monkeypatch.delenv(variable, raising=False)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == NAMES
    assert main(["recipes", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)["recipes"]] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_explanation_has_the_knobs_what_they_leave_out_and_the_sources(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", name]) == 0
    capsys.readouterr()
    assert main(["recipes", name, "--budget", "32GiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["budget_bytes"]) == (1, 32 << 30)
    assert main(["recipes", name, "--budget", "32GiB"]) == 0
    said = capsys.readouterr().out
    for text in (*document["left_out"], *document["sources"], document["tried"]):
        assert text in said
    for value in document["values"]:
        assert value["expression"] in said
        assert value["why"] in said
    assert document["environment"] or document["config"] or len(document["command"]) > 1
    quoted = map(shlex.quote, document["command"][1:])
    for word in (*document["environment"].values(), *document["config"].values(), *quoted):
        assert word in said


@pytest.mark.parametrize("line", ['floor = "much"', 'oom-codes = "zero"', "grace = [1]"])
def test_a_setting_that_makes_no_sense_is_named_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'summary = "ours"\n[settings]\n{line}\n')
    assert main(["recipes", str(path)]) == 2
    assert f"{path}: settings.{line.split(maxsplit=1)[0]}: " in capsys.readouterr().err


def test_a_recipe_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text('summary = "ours"\n[environment]\nLIMIT = "{budget_mib}"\n')
    assert main(["recipes", str(path)]) == 0
    assert "LIMIT=4096" in capsys.readouterr().out
    assert main(["recipes", "--recipe-dir", str(tmp_path), "own"]) == 0
    assert "ours" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nonsense"], 2, "there is no recipe 'nonsense'"),
        (["/no/file.toml"], 2, "/no/file.toml: No such file"),
        (["jvm", "--budget", "64MiB"], 125, "nothing is left for heap in a budget of 64.00 MiB"),
        (["jvm", "--budget", "much"], 2, "not a size"),
    ],
)
def test_what_cannot_be_explained(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipes", *arguments]) == status
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_file_with_a_mistake_is_named_in_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text('sumary = "oops"')
    assert main(["recipes", "--recipe-dir", str(tmp_path)]) == 2
    assert f"{tmp_path}/bad.toml: sumary" in capsys.readouterr().err
