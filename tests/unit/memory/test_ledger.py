"""The locked sections are straight lines: nothing in them lets CPython run code of somebody else."""

from __future__ import annotations

import ast
import dis
import inspect

import pytest

from oomproof.memory import eviction, ledger, records, reservation

# What may call, loop, allocate a container that the cycle collector counts, or raise.
CROOKED = (
    *(ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.For, ast.AsyncFor, ast.While, ast.With, ast.Try),
    *(ast.Raise, ast.Assert, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Lambda, ast.JoinedStr),
    *(ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.FunctionDef, ast.Import, ast.ImportFrom),
)


def locked_sections(source: str) -> list[ast.With]:
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.With) and ast.unparse(node.items[0]) in ("self._lock", "self._guard")
    ]


@pytest.mark.parametrize(("module", "least"), [(ledger, 14), (eviction, 1)])
def test_a_locked_section_is_a_straight_line(module: object, least: int) -> None:
    sections = locked_sections(inspect.getsource(module))  # type: ignore[arg-type]
    assert len(sections) >= least
    crooked = {
        f"line {inner.lineno}: {ast.unparse(inner)}"
        for section in sections
        for statement in section.body
        for inner in ast.walk(statement)
        if isinstance(inner, CROOKED)
    }
    assert crooked == set()


def test_a_section_is_found_crooked() -> None:
    (section,) = locked_sections("with self._lock:\n    self.peak = max(self.peak, self.used)")
    assert any(isinstance(inner, CROOKED) for inner in ast.walk(section.body[0]))


def test_a_locked_section_reads_no_property() -> None:
    """It would be a call that does not look like one."""
    properties = {
        name
        for kind in (
            ledger.Ledger,
            records.Account,
            records.Holding,
            records.Request,
            reservation.Reservation,
        )
        for name in dir(kind)
        if isinstance(inspect.getattr_static(kind, name), property)
    }
    assert "bytes" in properties
    read = {
        f"line {inner.lineno}: {ast.unparse(inner)}"
        for section in locked_sections(inspect.getsource(ledger))
        for statement in section.body
        for inner in ast.walk(statement)
        # An account's `bytes` is a slot, and the only thing in these sections that is so called.
        if isinstance(inner, ast.Attribute) and inner.attr in properties - {"bytes", "owner"}
    }
    assert read == set()
    assert "holding.bytes" not in inspect.getsource(ledger)
    assert "holding.owner" not in inspect.getsource(ledger)


def test_the_ledger_jumps_back_nowhere_and_makes_no_container() -> None:
    """The same, as this interpreter compiled it."""
    for name, method in vars(ledger.Ledger).items():
        if not inspect.isfunction(method) or name in ("__init__", "account", "reset_line"):
            continue
        opcodes = [instruction.opname for instruction in dis.get_instructions(method)]
        assert not [opcode for opcode in opcodes if opcode.startswith(("JUMP_BACKWARD", "BUILD_", "MAKE_"))]
        assert {"BEFORE_WITH", "LOAD_SPECIAL"} & set(opcodes), name
