"""``oomproof need``: 0 it fits, 1 it does not, 2 cannot be told."""

from __future__ import annotations

import json

import pytest

from oomproof.cli import main
from oomproof.units import GIB, MIB
from unit.limits.machines import Machine

CG = "/sys/fs/cgroup"


@pytest.fixture
def four_gib(machine: Machine) -> Machine:
    """4 GiB limit, 1 GiB in use, 8 MiB lockable, 12 GiB available on the host."""
    return (
        machine.v2("/")
        .level_v2(CG, limit=4 * GIB, usage=GIB)
        .file(
            "/proc/self/limits", "Max locked memory         8388608              8388608              bytes"
        )
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("3GiB",), 0),
        (("0",), 0),
        (("3221225473",), 1),
        (("1GiB", "--workers", "3"), 0),
        (("1GiB", "--workers", "4"), 1),
        (("8MiB", "--pinned"), 0),
        (("9MiB", "--pinned"), 1),
        (("8MiB", "--pinned", "--workers", "300"), 0),
        (("8MiB", "--pinned", "--workers", "400"), 1),
        (("lots",), 2),
        (("-1",), 2),
        (("1GiB", "--workers", "0"), 2),
        (("1GiB", "--root", "/nowhere"), 2),
    ],
)
def test_the_exit_code_is_the_answer(
    four_gib: Machine, arguments: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    root = () if "--root" in arguments else ("--root", str(four_gib.root))
    try:
        got = main(["need", *arguments, *root])
    except SystemExit as stop:  # argparse's way out for wrong usage
        got = int(stop.code or 0)
    assert got == code


def test_the_reason_names_what_is_needed_what_is_left_and_who_says_so(
    four_gib: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["need", "5GiB", "--root", str(four_gib.root)])
    assert capsys.readouterr().out == "does not fit: 5.00 GiB needed, 3.00 GiB left (cgroup v2 /)\n"


def test_what_the_host_can_still_give_is_respected(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.v2("/").level_v2(CG, limit=8 * GIB).host(available=GIB)
    assert main(["need", "2GiB", "--root", str(machine.root)]) == 1
    assert "host MemAvailable" in capsys.readouterr().out


def test_unknown_headroom_is_2_and_yet_never_more_than_the_limit(machine: Machine) -> None:
    machine.v2("/").level_v2(CG, limit=GIB, usage=None)
    assert main(["need", "1MiB", "--root", str(machine.root)]) == 2
    assert main(["need", "2GiB", "--root", str(machine.root)]) == 1


def test_an_unknown_machine_is_2(machine: Machine) -> None:
    assert main(["need", "1", "--root", str(machine.root)]) == 2


def test_pinned_says_its_blind_spots(four_gib: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    main(["need", "1MiB", "--pinned", "--root", str(four_gib.root)])
    assert "may escape the cgroup's charge" in capsys.readouterr().err


def test_json(four_gib: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    main(["need", "1MiB", "--json", "--root", str(four_gib.root)])
    document = json.loads(capsys.readouterr().out)
    assert document["fits"] is True
    assert (document["need_bytes"], document["have_bytes"]) == (MIB, 3 * GIB)
