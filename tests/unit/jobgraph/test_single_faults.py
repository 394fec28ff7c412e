"""Each fault that a job file may have, alone: where it is, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minflinkd.jobgraph.faults import GraphFault

FindFaults = Callable[[object], dict[str, GraphFault]]
Document = dict[str, Any]


KAFKA = {"format": "kafka", "options": {"kafka.bootstrap.servers": "host:9092", "topic": "out"}}


def jdbc(**options: str) -> Document:
    return {"format": "jdbc", "options": {"url": "jdbc:postgresql://host/db", "dbtable": "out"} | options}


# Faults by name: the change to a good document, the path of the fault, and a part of its text.
SINGLE_FAULTS: dict[str, tuple[Callable[[Document], object], str, str]] = {
    "an unknown key has the nearest known one": (
        lambda d: d.update(paralelism=3),
        "paralelism",
        "did you mean parallelism?",
    ),
    "a key with underscores is one with dashes": (
        lambda d: d.update(max_parallelism=3),
        "max_parallelism",
        "did you mean max-parallelism?",
    ),
    "an empty name": (lambda d: d.update(name=" "), "name", "the name is empty"),
    "a wrong type": (lambda d: d.update(parallelism="two"), "parallelism", '"two" is not a whole number, at least 1'),
    "parallelism of nothing": (lambda d: d.update(parallelism=0), "parallelism", "at least 1"),
    "parallelism above the maximum": (
        lambda d: d.update({"max-parallelism": 1}),
        "parallelism",
        "2 is more than max-parallelism, 1",
    ),
    "a vertex above the maximum": (
        lambda d: (d.update({"max-parallelism": 4}), d["vertices"]["delays"].update(parallelism=5)),
        "vertices.delays.parallelism",
        "more than max-parallelism",
    ),
    "a vertex of no parallelism": (
        lambda d: d["vertices"]["delays"].update(parallelism=0),
        "vertices.delays.parallelism",
        "at least 1",
    ),
    "a wrong unit": (
        lambda d: d["checkpointing"].update(interval="5 parsecs"),
        "checkpointing.interval",
        "a duration such as",
    ),
    "a wrong choice": (
        lambda d: d.update(mode="batsch"),
        "mode",
        "did you mean batch?",
    ),
    "no checkpoints for an exactly-once sink": (
        lambda d: d["checkpointing"].update(interval=0),
        "checkpointing.interval",
        "0 turns checkpoints off",
    ),
    "a missing field": (
        lambda d: d["vertices"]["flights"]["watermark"].pop("delay"),
        "vertices.flights.watermark.delay",
        "delay is missing",
    ),
    "an unknown input": (
        lambda d: d["vertices"]["out"].update(inputs=["delay"]),
        "vertices.out.inputs[0]",
        "did you mean delays?",
    ),
    "an input twice": (
        lambda d: d["vertices"]["delays"].update(inputs=["flights", "flights"]),
        "vertices.delays.inputs[1]",
        "flights is an input twice",
    ),
    "a sink without input": (
        lambda d: d["vertices"].update(more={"sink": {"format": "json", "path": "/x"}}),
        "vertices.more",
        "the sink has no input",
    ),
    "a sink with two inputs": (
        lambda d: d["vertices"]["out"].update(inputs=["delays", "flights"]),
        "vertices.out.inputs",
        "a sink has one input, not 2",
    ),
    "a sink that is read": (
        lambda d: d["vertices"].update(
            more={"inputs": ["out"], "sql": "SELECT * FROM out"},
            last={"inputs": ["more"], "sink": {"format": "json", "path": "/x"}},
        ),
        "vertices.more.inputs[0]",
        "out is a sink",
    ),
    "a vertex that leads nowhere": (
        lambda d: d["vertices"].update(more={"inputs": ["flights"], "sql": "SELECT * FROM flights"}),
        "vertices.more",
        "the sql vertex leads nowhere",
    ),
    "a source with inputs": (
        lambda d: d["vertices"]["flights"].update(inputs=["delays"]),
        "vertices.flights.inputs",
        "a source has no inputs",
    ),
    "a transform without inputs": (
        lambda d: d["vertices"]["delays"].pop("inputs"),
        "vertices.delays",
        "the sql vertex has no inputs",
    ),
    "a vertex that does nothing": (
        lambda d: d["vertices"]["delays"].pop("sql"),
        "vertices.delays",
        "the vertex does nothing",
    ),
    "a vertex that does two things": (
        lambda d: d["vertices"]["delays"].update(python="a:b"),
        "vertices.delays",
        "sql and python at once",
    ),
    "a file name for a python reference": (
        lambda d: d["vertices"]["delays"].update(sql=None, python="pkg/flights.py:clean"),
        "vertices.delays.python",
        "did you mean pkg.flights:clean?",
    ),
    "a dot for a colon": (
        lambda d: d["vertices"]["delays"].update(sql=None, python="pkg.flights.clean"),
        "vertices.delays.python",
        "did you mean pkg.flights:clean?",
    ),
    "an unknown sink format": (
        lambda d: d["vertices"]["out"]["sink"].update(format="parqet"),
        "vertices.out.sink.format",
        "did you mean parquet?",
    ),
    "a kafka sink that cannot be exactly-once": (
        lambda d: d["vertices"]["out"].update(sink=KAFKA | {"delivery": "exactly-once"}),
        "vertices.out.sink.delivery",
        "a kafka sink is at-least-once",
    ),
    "an exactly-once sink behind at-least-once checkpoints": (
        lambda d: d["checkpointing"].update(mode="at-least-once"),
        "vertices.out.sink.delivery",
        "not exactly-once where the checkpoints are at-least-once",
    ),
    "a kafka sink without a broker": (
        lambda d: d["vertices"]["out"].update(sink={"format": "kafka", "options": {"topic": "out"}}),
        "vertices.out.sink",
        "needs the option kafka.bootstrap.servers",
    ),
    "a kafka sink that gets the whole result each time": (
        lambda d: d["vertices"]["out"].update({"sink": KAFKA, "output-mode": "complete"}),
        "vertices.out.output-mode",
        "the whole result with each micro-batch",
    ),
    "a jdbc sink without a table": (
        lambda d: d["vertices"]["out"].update(sink=jdbc(dbtable="")),
        "vertices.out.sink",
        "needs the option dbtable",
    ),
    "another database, exactly-once": (
        lambda d: d["vertices"]["out"].update(sink=jdbc(url="jdbc:mysql://host/db")),
        "vertices.out.sink.options.url",
        "only PostgreSQL",
    ),
    "updates without a key": (
        lambda d: d["vertices"]["out"].update({"sink": jdbc(), "output-mode": "update"}),
        "vertices.out.output-mode",
        "without a key a jdbc sink cannot take back",
    ),
    "a key of no column": (
        lambda d: d["vertices"]["out"].update(sink=jdbc(key=" , ")),
        "vertices.out.sink.options.key",
        "names no column",
    ),
    "a key that shall not count": (
        lambda d: d["vertices"]["out"].update(sink=jdbc(key="carrier") | {"delivery": "at-least-once"}),
        "vertices.out.sink.delivery",
        "known by a key",
    ),
    "more rows than a collect sink keeps": (
        lambda d: d["vertices"]["out"].update(sink={"format": "collect", "options": {"rows": 10_001}}),
        "vertices.out.sink.options.rows",
        "from 1 to 10000",
    ),
    "an option that console does not have": (
        lambda d: d["vertices"]["out"].update(sink={"format": "console", "options": {"rows": 3}}),
        "vertices.out.sink.options.rows",
        "numRows",
    ),
    "a python sink with a path": (
        lambda d: d["vertices"]["out"].update(sink={"python": "a:b", "path": "/x"}),
        "vertices.out.sink.path",
        "a python sink has no path",
    ),
    "a python sink that is no reference": (
        lambda d: d["vertices"]["out"].update(sink={"python": "a.b"}),
        "vertices.out.sink.python",
        "is not module:function",
    ),
    "a files sink without a path": (
        lambda d: d["vertices"]["out"]["sink"].pop("path"),
        "vertices.out.sink",
        "a parquet sink needs a path",
    ),
    "a relative path": (
        lambda d: d["vertices"]["out"]["sink"].update(path="out"),
        "vertices.out.sink.path",
        "not an absolute path or URI",
    ),
    "a files source without a schema": (
        lambda d: d["vertices"]["flights"]["source"].pop("schema"),
        "vertices.flights.source",
        "needs a schema",
    ),
    "a misspelt option": (
        lambda d: d["vertices"]["flights"]["source"].update(options={"maxFilePerTrigger": 1}),
        "vertices.flights.source.options.maxFilePerTrigger",
        "did you mean maxFilesPerTrigger?",
    ),
    "an option that would delete what a restore needs": (
        lambda d: d["vertices"]["flights"]["source"].update(options={"cleanSource": "delete"}),
        "vertices.flights.source.options.cleanSource",
        "a restored job must read again",
    ),
    "an option that is minflinkd's": (
        lambda d: d["vertices"]["out"]["sink"].update(options={"checkpointLocation": "/x"}),
        "vertices.out.sink.options.checkpointLocation",
        "minflinkd keeps the checkpoints",
    ),
    "an option that is no text": (
        lambda d: d["vertices"]["flights"]["source"].update(options={"mode": ["a"]}),
        "vertices.flights.source.options.mode",
        "a list is not a text",
    ),
    "a param without a value in SQL": (
        lambda d: d.update(params={"minute": 60}),
        "vertices.delays.sql",
        "did you mean minute?",
    ),
    "a param without a value in a path": (
        lambda d: d["vertices"]["out"]["sink"].update(path="${target}/x"),
        "vertices.out.sink.path",
        "${target} has no value in params",
    ),
    "an output mode that files cannot have": (
        lambda d: d["vertices"]["out"].update({"output-mode": "update"}),
        "vertices.out.output-mode",
        "cannot take back",
    ),
    "an output mode of a transform": (
        lambda d: d["vertices"]["delays"].update({"output-mode": "append"}),
        "vertices.delays.output-mode",
        "a setting of sinks",
    ),
    "a delay that Spark does not read": (
        lambda d: d["vertices"]["flights"]["watermark"].update(delay="2h"),
        "vertices.flights.watermark.delay",
        "did you mean 2 hours?",
    ),
    "a setting of the whole JVM": (
        lambda d: d.update(spark={"spark.sql.streaming.stateStore.maintenanceInterval": "1s"}),
        'spark["spark.sql.streaming.stateStore.maintenanceInterval"]',
        "acts on the whole JVM",
    ),
    "a setting of the driver": (
        lambda d: d.update(spark={"spark.driver.memory": "1g"}),
        'spark["spark.driver.memory"]',
        "acts on the whole JVM",
    ),
    "a setting that minflinkd owns": (
        lambda d: d.update(spark={"spark.sql.shuffle.partitions": 4}),
        'spark["spark.sql.shuffle.partitions"]',
        "set `parallelism`",
    ),
    "a setting with which rows are lost": (
        lambda d: d.update(spark={"spark.sql.exchange.reuse": "true"}),
        'spark["spark.sql.exchange.reuse"]',
        "would lose rows",
    ),
    "an artifact that cannot be loaded": (
        lambda d: d.update(artifacts=["native.so"]),
        "artifacts[0]",
        "cannot be loaded",
    ),
    "an artifact with the name of a standard module": (
        lambda d: d.update(artifacts=["queue.py"]),
        "artifacts[0]",
        '"queue.py" has the name of a module that is never replaced',
    ),
    "an artifact with the name of pyspark": (
        lambda d: d.update(artifacts=[{"name": "pyspark.py", "path": "x.py"}]),
        "artifacts[0]",
        '"pyspark.py" has the name of a module that is never replaced',
    ),
    "an artifact with a path for a name": (
        lambda d: d.update(artifacts=[{"name": "../x.py", "path": "x.py"}]),
        "artifacts[0]",
        "is not a file name",
    ),
    "two artifacts of one name": (
        lambda d: d.update(artifacts=["a/x.py", "b/x.py"]),
        "artifacts[1]",
        "the name of two artifacts",
    ),
    "a setting of an exchange where there is none": (
        lambda d: d["vertices"]["delays"].update(inputs=[{"id": "flights", "idle-timeout": "5 s"}]),
        "vertices.delays.inputs[0].idle-timeout",
        "is a setting of exchanges",
    ),
    "a complete result in another slot sharing group than its aggregate": (
        lambda d: d["vertices"]["out"].update(
            {"sink": {"format": "console"}, "output-mode": "complete", "slot-sharing-group": "red"}
        ),
        "vertices.out.output-mode",
        'between delays and out there is an exchange (their slot sharing groups are "default" and "red") '
        "(give out slot-sharing-group: default; or",
    ),
    "a complete result that goes through an exchange": (
        lambda d: d["vertices"]["out"].update(
            {"sink": {"format": "console"}, "output-mode": "complete", "inputs": [{"id": "delays", "exchange": True}]}
        ),
        "vertices.out.output-mode",
        "there is an exchange (exchange: true) (leave exchange: true out; or",
    ),
    "a vertex id that is no name": (
        lambda d: d["vertices"].update({"a-b": {"inputs": ["flights"], "sink": {"format": "json", "path": "/x"}}}),
        "vertices.a-b.id",
        "is not a vertex id",
    ),
    "no vertices": (lambda d: d.update(vertices={}), "vertices", "the job has no vertices"),
}


@pytest.mark.parametrize("case", SINGLE_FAULTS)
def test_a_single_fault_is_the_only_one_reported(case: str, document: Document, faults: FindFaults) -> None:
    """A fault has the path, what is wrong and what would be right.

    Faults that only follow from it are not reported (J4).
    """
    change, path, text = SINGLE_FAULTS[case]
    assert not faults(document)
    change(document)
    found = faults(document)
    assert list(found) == [path]
    assert text in str(found[path])
