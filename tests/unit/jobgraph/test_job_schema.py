"""The JSON Schema of a job document says what the reader takes (E5)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import reduce
from operator import delitem, getitem, setitem
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from minflinkd.jobgraph.faults import DOCUMENT, Faults, InvalidJobGraph
from minflinkd.jobgraph.job_schema import job_schemas
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.reading import Reader
from tests.unit.jobgraph.conftest import CARRIER_DELAYS

SCHEMA = Draft202012Validator({"$ref": "#/$defs/JobGraph", "$defs": job_schemas("#/$defs/{name}")})

# Every field of every struct, with a value that fits.
FULL: dict[str, Any] = {
    **CARRIER_DELAYS,
    "vertices": {
        **CARRIER_DELAYS["vertices"],
        "lake": {
            "inputs": [next(iter(CARRIER_DELAYS["vertices"]))],
            "sink": {
                "format": "delta",
                "path": "/lake/flights",
                "compaction": {"target": "64 MiB", "every": "5 min", "expire": 604_800},
            },
        },
    },
    "params": {"minutes": 5, "deep": {"list": [1, None]}},
    "max-parallelism": 8,
    "min-parallelism": 1,
    "checkpointing": {
        "interval": "5 s",
        "mode": "exactly-once",
        "timeout": 600,
        "min-pause": 0.5,
        "max-concurrent-checkpoints": 1,
        "num-retained": 3,
        "tolerable-failed-checkpoints": 0,
        "alignment-timeout": "1 min",
        "master-hooks": ["ledger"],
        "externalized": "retain",
        "on-damage": "refuse",
    },
    "restart-strategy": {"kind": "failure-rate", "max-failures-per-interval": 3, "jitter-factor": 0.1, "delay": "1 s"},
    "restore": {"path": "/savepoints/1", "mode": "claim", "allow-changed-state": True, "offsets": "latest"},
    "isolation": "session",
    "recovery": "hot-standby",
    "artifacts": ["flights.py", {"path": "src/x.py", "name": "y.py"}, {"name": "z.py", "key": "p-1", "size": 3}],
    "spark": {"spark.sql.ansi.enabled": True, "spark.sql.files.maxPartitionBytes": 1024},
    "trigger-interval": "2 Min",
    "autoscaler": {"max": 4, "target-utilization": 0.8, "cool-down": "2 Min", "enabled": False},
}
VALUES: list[Any] = [None, True, -1, 0, 3, 2**70, 0.5, -0.5, "", "a", "b c", "1 s", "5 parsecs", " 7 ", "-1", "x" * 65]
VALUES += ["claim", "batch", "none", [], [None], ["a"], ["b c"], [1], {}, {"id": "a"}, {"path": "a"}, {"path": 1}]
VALUES += [{"path": "a", "name": None}, {"name": "a"}, {"kind": "none"}, {"a": {}}, {"9": {}}, {"a": None}, {"a": [1]}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every part of a document."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def as_list(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with its vertices as a list, each with its id."""
    return {**document, "vertices": [{"id": name, **vertex} for name, vertex in document["vertices"].items()]}


def changed(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield documents that differ in one part: it is another value, is left out, or is new."""
    for *way, last in filter(None, places(document)):

        def change(make: Callable[[Any], None], way: list[Any] = way) -> dict[str, Any]:
            copied = copy.deepcopy(document)
            make(reduce(getitem, way, copied))
            return copied

        for value in VALUES:
            yield change(lambda part, last=last, value=value: setitem(part, last, value))
        yield change(lambda part, last=last: delitem(part, last))
        if isinstance(last, str):
            yield change(lambda part: setitem(part, "new", 1))


def faults(document: Any) -> list[str]:
    found = Faults()
    Reader(found).fields(JobGraph, document, DOCUMENT)
    try:
        found.raise_if_any()
    except InvalidJobGraph as error:
        return [fault.problem for fault in error.faults]
    return []


@pytest.mark.parametrize("document", [FULL, as_list(FULL)])
def test_a_job_with_every_field_fits(document: dict[str, Any]) -> None:
    assert not faults(document)
    SCHEMA.validate(document)


@pytest.mark.parametrize("document", [FULL, as_list(CARRIER_DELAYS)], ids=["by id", "as a list"])
def test_the_schema_and_the_reader_agree_about_what_a_job_is_made_of(document: dict[str, Any]) -> None:
    """Only the reader sees that two ids are the same."""
    fitting = 0
    for other in changed(document):
        found = [text for text in faults(other) if "is the id of two" not in text and "differs from" not in text]
        assert SCHEMA.is_valid(other) is (not found), (found, next(SCHEMA.iter_errors(other), None), other)
        fitting += not found
    assert fitting > 100
