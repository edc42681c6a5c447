"""What a user gets who asks for something that makes no sense: one line, and the documented exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.cli import VERBS, main

# name: arguments, words of the message
REFUSED = {
    "unknown unit": (["run", "--limit", "5 parsecs", "--", "true"], "'5 parsecs' is not a size"),
    "negative size": (["run", "--limit", "-5", "--", "true"], "'-5' is not a size"),
    "negative size in plan": (["plan", "--no-probe", "--cap=-1GiB"], "--cap: '-1GiB' is not a size"),
    "negative size in probe": (["probe", "--max=-1"], "'-1' is not a size"),
    "huge size": (["run", "--limit", "99EiB", "--", "true"], "larger than any memory"),
    "budget above the limit": (
        ["run", "--limit", "64MiB", "--budget", "65MiB", "--history", "none", "--", "true"],
        "--budget 65.00 MiB is above the limit of 64.00 MiB",
    ),
    "no command": (["run"], "no command"),
    "no command after the dashes": (["run", "--limit", "1GiB", "--"], "no command"),
    "unknown policy": (["run", "--on-oom", "pray:10%", "--", "true"], "--on-oom: 'pray:10%' is not a policy"),
    "retries": (["run", "--retries", "-1", "--", "true"], "--retries: '-1' cannot be used"),
    "signal map": (["run", "--signal-map", "TERM:NOPE", "--", "true"], "'NOPE' is no signal"),
    "exit code": (["run", "--oom-exit-code", "256", "--", "true"], "0 to 255"),
    "restart": (["run", "--restart", "sometimes", "--", "true"], "never, on-failure, always"),
    "pattern": (["run", "--oom-pattern", "(", "--", "true"], "--oom-pattern: '(' cannot be used"),
    "oom codes": (["run", "--oom-codes", "3,x", "--", "true"], "--oom-codes: '3,x' cannot be used"),
    "oom score": (["run", "--oom-score-adj", "2000", "--", "true"], "-1000 to 1000"),
    "events descriptor": (["run", "--events", "fd:99", "--", "true"], "not open for writing"),
    "events file": (["run", "--events", "/nowhere/events", "--", "true"], "No such file or directory"),
    "no such configuration": (["entrypoint", "--config", "/nowhere.toml", "--", "true"], "/nowhere.toml"),
    "probe result": (["plan", "--probe-result", "/etc/hostname"], "is no result of a probe"),
    "empty benchmark": (["entrypoint", "--bench", "", "--", "true"], "write a command"),
}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OOMPROOF_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("oomproof: error: ")
    assert words in err


def test_a_misspelt_variable_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OOMPROOF_LIMITT", "1GiB")
    main(["run", "--budget", "99TiB", "--", "true"])
    assert "warning: OOMPROOF_LIMITT is no setting" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert f"oomproof {verb}" in capsys.readouterr().out


def test_an_unknown_verb_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["frobnicate"])
    assert caught.value.code == 2
    assert "frobnicate" in capsys.readouterr().err


def test_a_history_that_was_asked_for_and_cannot_be_kept_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    history = tmp_path / "file" / "history"
    assert main(["run", "--history", str(history), "--no-leaf", "--", "true"]) == 125
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert str(history) in line
    assert "--history none" in line


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "oomproof", "check"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 141
