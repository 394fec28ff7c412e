"""Documents from which the tests of this directory start, and a fixture that reads the faults of wrong ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.validation import parse_job

CARRIER_DELAYS: dict[str, Any] = {
    "name": "carrier-delays",
    "parallelism": 2,
    "params": {"minutes": 60},
    "checkpointing": {"interval": "5s", "mode": "exactly-once"},
    "vertices": {
        "flights": {
            "source": {
                "format": "json",
                "path": "/data/flights",
                "schema": "carrier STRING, time TIMESTAMP, delay DOUBLE",
                "options": {"maxFilesPerTrigger": 1},
            },
            "watermark": {"column": "time", "delay": "2 hours"},
        },
        "delays": {
            "inputs": ["flights"],
            "sql": "SELECT window(time, '${minutes} minutes') AS w, count(*) AS n FROM flights GROUP BY 1",
        },
        "out": {"inputs": ["delays"], "sink": {"format": "parquet", "path": "/data/out", "delivery": "exactly-once"}},
    },
}


@pytest.fixture
def document() -> dict[str, Any]:
    """The example of the specification. Tests may change it."""
    return copy.deepcopy(CARRIER_DELAYS)


@pytest.fixture
def faults() -> Callable[[object], dict[str, GraphFault]]:
    """Return a function that finds the faults of a document by path."""

    def find(document: object) -> dict[str, GraphFault]:
        try:
            parse_job(document)
        except InvalidJobGraph as error:
            return {fault.path: fault for fault in error.faults}
        return {}

    return find
