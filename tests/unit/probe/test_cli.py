"""What ``oomproof probe`` says to people; what it measures is tested on real kernels."""

from __future__ import annotations

import pytest

from oomproof.cli import main
from oomproof.cli.probe import progress_line
from oomproof.units import GIB, MIB


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chunk", "0"], "--chunk 0 leaves nothing to probe"),
        (["--max", "12 parsecs"], "'12 parsecs' is not a size"),
        (["--reserve=-1"], "'-1' is not a size"),
        (["--deadline", "soon"], "--deadline soon is no time"),
        (["--deadline", "nan"], "--deadline nan is no time"),
        (["--limit", "0"], "--limit 0 leaves nothing to probe"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_the_progress_line_tells_share_rate_and_time_left() -> None:
    line = progress_line(touched=GIB, left=3 * GIB, seconds=0.5)
    assert line == "[#####...............] 1.00 GiB of 4.00 GiB touched, 2.00 GiB/s, 2 s left"


def test_the_progress_line_goes_without_what_is_not_known() -> None:
    assert progress_line(touched=64 * MIB, left=None, seconds=1) == "64.00 MiB touched, 64.00 MiB/s"
    assert progress_line(touched=0, left=0, seconds=0).endswith("0 B of 0 B touched")
