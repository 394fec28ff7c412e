"""What the reading end of an exchange answers to Spark; tested without Spark."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql.types import StructType

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.exchange.reading import ExchangeSource


class Answer:
    """Stands for an object of the JVM."""


CALLS: dict[str, Callable[[ExchangeSource], Any]] = {
    "initialOffset": lambda source: source.initialOffset(),
    "deserializeOffset": lambda source: source.deserializeOffset('{"position": 3}'),
    "latestOffset": lambda source: source.latestOffset(None, MagicMock()),
    "getBatch": lambda source: source.getBatch(MagicMock(), MagicMock()),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_to_spark_is_kept_until_the_next_call(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """py4j lets Java drop what Python has dropped, even before Java has read the answer. Java would then read null."""
    source = ExchangeSource(MagicMock(), MagicMock(), VertexId("v"), StructType([]))
    monkeypatch.setattr(source, "_channels", MagicMock())
    monkeypatch.setattr(source, "_offset", lambda _: Answer())
    monkeypatch.setattr(source, "_batch", lambda *_: Answer())
    answer = weakref.ref(CALLS[call](source))
    assert answer() is not None
    source.initialOffset()
    assert answer() is None
