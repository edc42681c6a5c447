"""Which number of a benchmark's output its rate is."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.launch.rate import KEPT_BYTES, Capture, find_rate, parse_expression, parse_path


@pytest.mark.parametrize(
    ("path", "output", "rate"),
    [
        (".rate", b'{"rate": 12.5}', 12.5),
        (".a.b[1]", b'{\n "a": {"b": [1, 2]}\n}\n', 2),
        ("[-1].rps", b'[{"rps": 1}, {"rps": 3}]', 3),
        (".a.1", b'{"a": [4, 5]}', 5),
        ('.["requests/s"]', b'{"requests/s": 1e3}', 1000),
        (".p-99", b'{"p-99": 7}', 7),
        (".rate", b'log line\n{"rate": 1}\n{"rate": 2}\nbye {"rate": 3}\n', 2),
        (".rate", b'{"rate": 1}\n{"other": 2}\n', 1),
        (".rate", b'\xff\xfe\n{"rate": 6}', 6),
    ],
)
def test_rates_in_json(path: str, output: bytes, rate: float) -> None:
    assert find_rate(parse_path(path), output) == rate


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (b"", "no JSON"),
        (b"fast", "no JSON"),
        (b'{"rats": 1}', "nothing at 'rate'"),
        (b'{"rate": "5"}', "a str and no number"),
        (b'{"rate": true}', "a bool and no number"),
        (b'{"rate": null}', "a NoneType and no number"),
        (b'{"rate": NaN}', "not finite"),
        (b'{"rate": 1' + b"0" * 400 + b"}", "not finite"),
        (b"[" * 100000, "no JSON"),
    ],
)
def test_why_json_has_no_rate(output: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_rate(parse_path(".rate"), output)


@pytest.mark.parametrize("path", ["", ".", "rate", ".a..b", ".a[b]", ".a[", '.["a]', ".a b"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ValueError, match="write a path"):
        parse_path(path)


@pytest.mark.parametrize(
    ("expression", "output", "rate"),
    [
        (r"rate: ([\d.]+)", b"rate: 1.5\nrate: 2.5 MB/s\n", 2.5),
        (r"^[0-9]+$", b"x\n17\ny", 17),
        (r"(?:ops|rps)=(\S+)", b"ops=1e3", 1000),
    ],
)
def test_rates_by_expression(expression: str, output: bytes, rate: float) -> None:
    assert find_rate(parse_expression(expression), output) == rate


@pytest.mark.parametrize(
    ("expression", "output", "reason"),
    [
        ("rate: (.*)", b"none", "nothing in it matches"),
        ("rate: (.*)", b"rate: fast", "'fast' is no number"),
        ("rate: (.*)", b"rate: inf", "is no number"),
        ("rate(: .*)?", b"rate", "'' is no number"),
    ],
)
def test_why_there_is_no_match(expression: str, output: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_rate(parse_expression(expression), output)


@pytest.mark.parametrize(("expression", "words"), [("(", "no regular expression"), ("(a)(b)", "2 groups")])
def test_what_is_no_expression(expression: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_expression(expression)


@given(st.binary(max_size=300), st.sampled_from([".a", "[0]", ".a[0].b"]))
def test_no_output_raises_anything_but_a_value_error(output: bytes, path: str) -> None:
    try:
        assert isinstance(find_rate(parse_path(path), output), float)
    except ValueError:
        pass


def test_the_end_of_a_long_output_is_kept() -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    capture = Capture(sink)
    for number in range(3 * KEPT_BYTES // 1000):
        capture.look(b"%0999d\n" % number)
    assert len(capture.output) == KEPT_BYTES
    assert capture.output.endswith(b"%d\n" % (3 * KEPT_BYTES // 1000 - 1))
    capture.close()
    os.close(sink)
