"""Keys set in somebody's TOML file: the right ones, and nothing else."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.recipes.toml_edit import set_keys

EXAMPLE = """\
# how much
listen = "0.0.0.0:9820"

[daemon]
total_budget = "not this one"

[memory] # of the host
# total_budget = "8GiB"
total_budget = "auto"   # the machine's
safety_margin = "5GiB"

[[gpus]]
total_budget = 1
"""
KEY = {"memory.total_budget": "1024MiB"}


def test_the_key_of_that_table_and_nothing_else() -> None:
    edited = set_keys(EXAMPLE, KEY)
    expected = tomllib.loads(EXAMPLE)
    expected["memory"]["total_budget"] = "1024MiB"
    assert tomllib.loads(edited) == expected
    unchanged = [line for line in EXAMPLE.splitlines() if line in edited.splitlines()]
    assert len(unchanged) == len(EXAMPLE.splitlines()) - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a = 1",
        "[other]\na = 1\n",
        "[memory]\n",
        "[memory]\nmargin = 1",
        "[[x]]\na = 1\n[ memory ]\n[y]\n",
    ],
)
def test_a_key_that_is_not_there_is_added(text: str) -> None:
    document: dict[str, Any] = tomllib.loads(text)
    document.setdefault("memory", {})["total_budget"] = "1024MiB"
    assert tomllib.loads(set_keys(text, KEY)) == document


def test_a_key_of_no_table() -> None:
    assert tomllib.loads(set_keys("[memory]\na = 1\n", {"limit": "1"})) == {"limit": "1", "memory": {"a": 1}}


@pytest.mark.parametrize(
    "text",
    [
        "memory = { total_budget = 1 }\n",
        "memory.total_budget = 1\n",
        '[memory]\ntotal_budget = """\nauto\n"""\n',
        '[x]\ntext = """\n[memory]\ntotal_budget = 1\n"""\n',
        "memory = 5\n",
        "[memory\n",
    ],
)
def test_what_lines_do_not_show_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be set|Cannot|Expected|Invalid|Unclosed"):
        set_keys(text, KEY)


names = st.sampled_from(["memory", "total_budget", "a", "b"])
scalars = st.one_of(st.integers(), st.booleans(), st.text('ab# []="\\', max_size=8))


@given(st.lists(st.tuples(names, scalars), unique_by=lambda pair: pair[0]), names, names, scalars)
def test_the_result_is_right_or_refused(
    pairs: list[tuple[str, object]], table: str, key: str, value: object
) -> None:
    import json

    text = f"[{table}]\n" + "".join(f"{name} = {json.dumps(scalar)}\n" for name, scalar in pairs)
    document = tomllib.loads(text)
    try:
        edited = set_keys(text, {f"memory.{key}": str(value)})
    except ValueError:
        return
    document.setdefault("memory", {})[key] = str(value)
    assert tomllib.loads(edited) == document
