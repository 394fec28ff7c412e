"""Each planted fault replaces something that minflinkd has today; otherwise the shapes would look for nothing."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

from tests.shapes.drawing import draw
from tests.shapes.planted import FAULTS, SHAPES, chosen


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_replaces_what_the_module_defines(name: str) -> None:
    """If the name had moved, the patch would define a new one beside the code, and nothing would break."""
    fault = FAULTS[name]
    module = importlib.import_module(fault.module)
    for node in ast.parse(fault.patch).body:
        if isinstance(node, ast.FunctionDef):
            replaced = getattr(module, node.name)
            assert replaced.__module__ == fault.module, node.name
            if node.args.vararg is None:
                assert [a.arg for a in node.args.args] == list(inspect.signature(replaced).parameters), node.name
        else:
            assert isinstance(node, ast.Assign)
            assert all(isinstance(target, ast.Name) and hasattr(module, target.id) for target in node.targets)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_has_shapes_that_may_show_it(name: str) -> None:
    seeds = chosen(FAULTS[name])
    assert len(seeds) == SHAPES
    assert all(FAULTS[name].fits(draw(seed)) for seed in seeds)
