"""Threads of a session parse Python code beside each other."""

from __future__ import annotations

import ast
import gc
import inspect
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from minflinkd.taskmanager.session.code.parsing import parse_one_at_a_time

CODE = "def f(a, b=(1, [2, {3: 4}])):\n" + "    c = ((a + 1) * b) ** [a, {'k': b}]\n" * 20


@pytest.fixture
def finalizers_that_let_others_in() -> Iterator[None]:
    """Do at each garbage collection what py4j's finalizers do: wait, so that other threads run."""

    def wait(phase: str, info: dict[str, int]) -> None:
        time.sleep(0.0001)

    before = gc.get_threshold()
    gc.callbacks.append(wait)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(wait)


@pytest.mark.usefixtures("finalizers_that_let_others_in")
def test_threads_that_parse_at_the_same_time_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of two jobs parses as if it were alone in the process (B30)."""
    monkeypatch.setattr(ast, "parse", ast.parse)  # restores it in the end
    parse_one_at_a_time()
    with ThreadPoolExecutor(4) as threads:
        trees = list(threads.map(ast.parse, [CODE] * 40))
    assert len({ast.dump(tree) for tree in trees}) == 1
    assert "source" in inspect.signature(ast.parse).parameters
