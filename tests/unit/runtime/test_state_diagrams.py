"""docs/state-machines.md shows the tables that the code has."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from minflinkd.runtime.machine import name_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "state-machines.md").read_text("utf-8")
DIAGRAM = re.compile(r"<!-- (?P<module>[\w.]+) (?P<name>\w+) -->\n```mermaid\nstateDiagram-v2\n(?P<moves>.*?)```", re.S)
SHOWN = {(found["module"], found["name"]): found["moves"] for found in DIAGRAM.finditer(PAGE)}


def tables() -> list[tuple[str, str]]:
    """Return module and name of each table of legal moves in the code."""
    found = []
    for path in sorted((ROOT / "minflinkd").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(call := node.value, ast.Call):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(call.func, ast.Name) and call.func.id == "table" and isinstance(target, ast.Name):
                    found.append((module, target.id))
    return found


def test_there_is_a_diagram_for_each_table_and_for_nothing_else() -> None:
    assert set(SHOWN) == set(tables())


@pytest.mark.parametrize(("module", "name"), tables())
def test_a_diagram_shows_the_legal_moves_and_no_others(module: str, name: str) -> None:
    legal = getattr(importlib.import_module(module), name)
    moves = re.findall(r"^    (\S+) --> ([^\s:]+)", SHOWN[module, name], re.M)
    assert len(moves) == len(set(moves)), "none twice"
    expected = {(name_of(source), name_of(target)) for source, targets in legal.items() for target in targets}
    assert {move for move in moves if "[*]" not in move} == expected
    assert {source for source, target in moves if target == "[*]"} == {
        name_of(row) for row, to in legal.items() if not to
    }
