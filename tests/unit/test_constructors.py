"""How much a class asks of whoever makes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MOST = 8
REPOSITORY = Path(__file__).parents[2]


def constructors() -> Iterator[tuple[str, int]]:
    """Yield each constructor that is written out, and how many arguments it takes."""
    for package in ("minflinkd", "plugins"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for method in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                        taken = method.args
                        count = len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1
                        yield f"{path.relative_to(REPOSITORY)}: {node.name}", count


def test_no_constructor_takes_more_than_eight_arguments() -> None:
    """Values that belong together are given as one frozen value, such as `JobStorage`."""
    found = dict(constructors())
    assert len(found) > 100
    assert {name: count for name, count in found.items() if count > MOST} == {}
