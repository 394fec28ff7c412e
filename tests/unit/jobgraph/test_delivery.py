"""The guarantee of each kind of sink (J13)."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.jobgraph.delivery import delivery_in, stages
from minflinkd.jobgraph.model import Checkpointing, CheckpointMode, Delivery, JobGraph, Sink
from minflinkd.jobgraph.validation import parse_job

ONCE, LEAST = Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE
EXACT = JobGraph(name="job", vertices=())
LOOSE = JobGraph(name="job", vertices=(), checkpointing=Checkpointing(mode=CheckpointMode.AT_LEAST_ONCE))
GUARANTEES = {
    "files": (Sink(format="parquet", path="/x"), ONCE, LEAST, True),
    "kafka": (Sink(format="kafka"), LEAST, LEAST, False),
    "console": (Sink(format="console"), LEAST, LEAST, False),
    "collect": (Sink(format="collect"), LEAST, LEAST, False),
    "a python function": (Sink(python="a:b"), LEAST, LEAST, False),
    "a python class that commits": (Sink(python="a:B", delivery=ONCE), ONCE, LEAST, True),
    "jdbc by checkpoints": (Sink(format="jdbc"), ONCE, LEAST, True),
    "jdbc by key": (Sink(format="jdbc", options={"key": "a, b"}), ONCE, ONCE, False),
    "jdbc that appends": (Sink(format="jdbc", delivery=LEAST), LEAST, LEAST, False),
}


@pytest.mark.parametrize("kind", GUARANTEES)
def test_each_sink_has_a_guarantee(kind: str) -> None:
    """The guarantee depends on the mode of checkpoints, and says whether rows wait for a checkpoint (J13)."""
    sink, exact, loose, staged = GUARANTEES[kind]
    assert (delivery_in(EXACT, sink), delivery_in(LOOSE, sink), stages(sink)) == (exact, loose, staged)


@pytest.mark.parametrize(
    ("sink", "mode"),
    [
        ({"format": "console"}, "complete"),
        ({"format": "collect", "options": {"rows": 50}}, "complete"),
        ({"format": "kafka", "options": {"kafka.bootstrap.servers": "h:1", "topic": "t"}}, "update"),
        ({"format": "jdbc", "options": {"url": "${db}", "dbtable": "t", "key": "carrier"}}, "update"),
        ({"format": "jdbc", "options": {"url": "jdbc:mysql://h/d", "dbtable": "t"}, "delivery": "at-least-once"}, None),
        ({"python": "flights:write"}, "update"),
        ({"python": "flights:Sink", "delivery": "exactly-once"}, None),
    ],
)
def test_sinks_of_all_kinds_are_accepted(document: dict[str, Any], sink: dict[str, Any], mode: str | None) -> None:
    """J2, J8a"""
    document["params"] = (document.get("params") or {}) | {"db": "jdbc:postgresql://h/d"}
    document["vertices"]["out"] = {"inputs": ["delays"], "sink": sink, "output-mode": mode}
    assert parse_job(document).vertex("out").sink is not None
