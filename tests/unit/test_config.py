import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof import config
from oomproof.config import Setting, add_flags, parse_command, parse_count, parse_switch, resolve
from oomproof.errors import ConfigError, InvalidSize, UsageError
from oomproof.units import GIB, MIB

SETTINGS = (
    config.LIMIT,
    Setting("retries", parse_count, 3, "how often", "N"),
    Setting("keep_going", parse_switch, False, "a switch"),
    Setting("bench", parse_command, None, "a command", "COMMAND"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "oomproof.toml"
    path.write_text('limit = "1GiB"\nretries = 5\nkeep-going = true\nbench = ["sh", "-c", "exit 0"]\n')
    return path


def test_defaults_where_nobody_says_anything() -> None:
    assert resolve(SETTINGS, {}, {}) == {"limit": None, "retries": 3, "keep_going": False, "bench": None}


def test_file_wins_over_defaults(file: Path) -> None:
    assert resolve(SETTINGS, {"config": str(file)}, {}) == {
        "limit": GIB,
        "retries": 5,
        "keep_going": True,
        "bench": ("sh", "-c", "exit 0"),
    }


def test_environment_wins_over_file_and_flag_over_both(file: Path) -> None:
    environ = {"OOMPROOF_CONFIG": str(file), "OOMPROOF_RETRIES": "7", "OOMPROOF_KEEP_GOING": "no"}
    values = resolve(SETTINGS, {"retries": "9"}, environ)
    assert (values["limit"], values["retries"], values["keep_going"]) == (GIB, 9, False)


def test_the_flag_names_the_file_before_the_variable(file: Path) -> None:
    assert resolve(SETTINGS, {"config": str(file)}, {"OOMPROOF_CONFIG": "/nowhere"})["retries"] == 5


def test_flags_given_on_the_command_line_are_told_from_those_left_out() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, SETTINGS)
    given_flags = vars(parser.parse_args(["--limit", "2MiB", "--no-keep-going", "--bench", "a 'b c'"]))
    assert resolve(SETTINGS, given_flags, {"OOMPROOF_KEEP_GOING": "1"}) == {
        "limit": 2 * MIB,
        "retries": 3,
        "keep_going": False,
        "bench": ("a", "b c"),
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("limit =", "not TOML"),
        ('lmit = "1G"', "no setting 'lmit'"),
        ("retries = -1", "retries"),
        ("limit = true", "SIZE"),
        ("limit = ['1G']", "SIZE"),
        ("bench = []", "empty"),
        ("bench = [1]", "the words of a COMMAND are strings"),
        ("[limit]\nx = 1", "a table is no value for it"),
        ("limit = 2020-01-01", "a date is no value for it, write one string or number"),
        ("keep-going = 'perhaps'", "true or false"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_its_key(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as caught:
        resolve(SETTINGS, {"config": str(path)}, {})
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        resolve(SETTINGS, {"config": str(tmp_path / "none.toml")}, {})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not TOML"):
        resolve(SETTINGS, {"config": str(tmp_path / "binary.toml")}, {})


def test_a_bad_value_names_where_it_stands() -> None:
    with pytest.raises(ConfigError, match="OOMPROOF_RETRIES"):
        resolve(SETTINGS, {}, {"OOMPROOF_RETRIES": "many"})
    with pytest.raises(InvalidSize, match="--limit: '12 parsecs'"):
        resolve(SETTINGS, {"limit": "12 parsecs"}, {})
    with pytest.raises(ConfigError, match=r"--bench: .*quotation"):
        resolve(SETTINGS, {"bench": "sh -c 'oops"}, {})


def test_misspelt_variables_are_found_and_our_own_outputs_are_not() -> None:
    environ = {"OOMPROOF_RETRYS": "1", "OOMPROOF_LIMIT": "1G", "OOMPROOF_BUDGET_BYTES": "5", "PATH": "/bin"}
    assert config.unknown_variables(SETTINGS, environ) == ["OOMPROOF_RETRYS"]


@given(st.binary(max_size=200))
def test_no_file_content_raises_anything_but_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(content)
    try:
        resolve(SETTINGS, {"config": str(path)}, {})
    except UsageError as error:
        assert "fuzz.toml" in str(error)
