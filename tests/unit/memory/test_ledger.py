"""The locked sections are straight lines: nothing in them lets CPython run code of somebody else."""

from __future__ import annotations

import ast
import dis
import inspect
from types import CodeType

import pytest

from oomproof.memory import eviction, ledger

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


def test_the_ledger_jumps_back_nowhere_and_the_only_calls_are_the_lock_and_a_new_account() -> None:
    """The same, as this interpreter compiled it."""

    def names_called(code: CodeType) -> int:
        return sum(instruction.opname.startswith("CALL") for instruction in dis.get_instructions(code))

    for name, method in vars(ledger.Ledger).items():
        if not inspect.isfunction(method) or name in ("__init__", "account", "reset_line"):
            continue
        opcodes = [instruction.opname for instruction in dis.get_instructions(method)]
        assert not [opcode for opcode in opcodes if opcode.startswith(("JUMP_BACKWARD", "BUILD_", "MAKE_"))]
        # A with statement leaves once for each way out of it, and calls nothing but __exit__ for that.
        exits = sum(opcode in ("BEFORE_WITH", "LOAD_SPECIAL") for opcode in opcodes)
        assert exits >= 1, name
