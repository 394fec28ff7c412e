"""What a job in real-time mode may consist of (T1, J4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Execution
from minflinkd.jobgraph.real_time import execution_of, why_not
from minflinkd.jobgraph.validation import parse_job

SERVERS = {"kafka.bootstrap.servers": "broker:9092"}


def document() -> dict[str, Any]:
    """Return two queries from Kafka to Kafka; the first one reads two topics."""
    kafka = {"format": "kafka", "options": SERVERS | {"subscribe": "clicks"}}
    to = {"format": "kafka", "options": SERVERS | {"topic": "counts"}}
    return {
        "name": "counts",
        "execution": "real-time",
        "vertices": {
            "clicks": {"source": dict(kafka)},
            "orders": {"source": dict(kafka)},
            "counts": {"inputs": ["clicks", "orders"], "sql": "SELECT value FROM clicks UNION ALL TABLE orders"},
            "out": {"inputs": ["counts"], "sink": dict(to), "output-mode": "update"},
            "others": {"source": dict(kafka)},
            "copies": {"inputs": ["others"], "sink": dict(to)},
        },
    }


def test_a_job_may_have_several_queries_from_kafka_to_kafka() -> None:
    """Each of them is a task of its own (T1)."""
    assert parse_job(document()).execution is Execution.REAL_TIME


Change = Callable[[dict[str, Any]], object]

FAULTS: dict[str, tuple[Change, str, str]] = {
    "a batch job": (lambda d: d.update(mode="batch"), "execution", "a query has no end of its input"),
    "an autoscaler": (lambda d: d.update(autoscaler={"max": 4}), "autoscaler", "busy all the time"),
    "a pause": (lambda d: d.update({"trigger-interval": "1 s"}), "trigger-interval", "no micro-batches"),
    "a hot standby": (lambda d: d.update(recovery="hot-standby"), "recovery", "rehearses micro-batches"),
    "files": (
        lambda d: d["vertices"]["others"].update(source={"format": "parquet", "path": "/in", "schema": "v LONG"}),
        "vertices.others.source.format",
        'a source is kafka, not "parquet"',
    ),
    "an option of micro-batches": (
        lambda d: d["vertices"]["others"]["source"].update(options=SERVERS | {"maxOffsetsPerTrigger": "10"}),
        "vertices.others.source.options.maxOffsetsPerTrigger",
        "it limits what a micro-batch reads",
    ),
    "a python source": (
        lambda d: d["vertices"]["others"].update(source={"python": "acme:read"}),
        "vertices.others.source.python",
        "a source is kafka",
    ),
    "a files sink": (
        lambda d: d["vertices"]["copies"].update(sink={"format": "parquet", "path": "/out"}),
        "vertices.copies.sink.format",
        'a sink is kafka, not "parquet"',
    ),
    "a python sink": (
        lambda d: d["vertices"]["copies"].update(sink={"python": "acme:write"}),
        "vertices.copies.sink.python",
        "a sink is kafka",
    ),
    "exactly-once": (
        lambda d: d["vertices"]["copies"]["sink"].update(delivery="exactly-once"),
        "vertices.copies.sink.delivery",
        "written at least once",
    ),
    "an output mode": (
        lambda d: d["vertices"]["out"].update({"output-mode": "append"}),
        "vertices.out.output-mode",
        "whenever it changes, not in mode append",
    ),
    "an exchange": (
        lambda d: d["vertices"]["copies"].update(inputs=[{"id": "others", "exchange": True}]),
        "vertices.copies.inputs",
        "between others and copies is one: the job asks for it",
    ),
    "two sinks": (
        lambda d: d["vertices"].update(more={"inputs": ["counts"], "sink": d["vertices"]["out"]["sink"]}),
        "vertices.out",
        "a query has one sink, and more and out read the same vertex",
    ),
    "bad records": (
        lambda d: d["vertices"]["counts"].update({"on-bad-record": "drop"}),
        "vertices.counts.on-bad-record",
        "bad records cannot be told from others",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_real_time_mode_cannot_do_is_refused_with_what_can(
    case: str, faults: Callable[[object], dict[str, GraphFault]]
) -> None:
    """Each fault has its place and a hint. The same job in micro-batches has no fault (T1, J4)."""
    change, path, text = FAULTS[case]
    changed = document()
    change(changed)
    found = faults(changed)
    assert list(found) == [path]
    assert text in str(found[path])
    assert found[path].hint
    del changed["execution"]
    assert not faults(changed)


@pytest.mark.parametrize("case", FAULTS)
def test_with_auto_nothing_is_refused_and_only_what_cannot_be_runs_in_micro_batches(
    case: str, faults: Callable[[object], dict[str, GraphFault]]
) -> None:
    """Settings of the job concern all of its tasks, a vertex only its own (T1)."""
    change, path, _ = FAULTS[case]
    changed = document() | {"execution": "auto"}
    change(changed)
    assert not faults(changed)
    graph = parse_job(changed)
    if not path.startswith("vertices"):
        assert execution_of(graph) is Execution.MICRO_BATCH
        return
    assert execution_of(graph) is Execution.AUTO
    vertex = path.split(".")[1]
    for task in chain(graph):
        concerned = any(vertex == other.id for other in task.vertices)
        assert (why_not(task) is not None) is concerned or case == "an exchange"
    assert any(why_not(task) is not None for task in chain(graph))
