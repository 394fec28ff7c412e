"""Faults that a job file may have in its vertices. For `test_single_faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]


KAFKA = {"format": "kafka", "options": {"kafka.bootstrap.servers": "host:9092", "topic": "out"}}


def jdbc(**options: str) -> Document:
    return {"format": "jdbc", "options": {"url": "jdbc:postgresql://host/db", "dbtable": "out"} | options}


# Faults by name: the change to a good document, the path of the fault, and a part of its text.
FAULTS_OF_VERTICES: dict[str, tuple[Callable[[Document], object], str, str]] = {
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
    "a complete result that is kept apart from its aggregate for two reasons": (
        lambda d: (
            d["vertices"]["flights"].update({"slot-sharing-group": "blue"}),
            d["vertices"]["out"].update(
                {
                    "sink": {"format": "console"},
                    "output-mode": "complete",
                    "slot-sharing-group": "red",
                    "inputs": [{"id": "delays", "exchange": True}],
                }
            ),
        ),
        "vertices.out.output-mode",
        'there is an exchange (their slot sharing groups are "default" and "red", exchange: true) '
        "(give out slot-sharing-group: default and leave exchange: true out; or",
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
    "a python vertex without inputs": (
        lambda d: d["vertices"].update(delays={"python": "a:b"}),
        "vertices.delays",
        "the python vertex has no inputs",
    ),
    "SQL without a word": (
        lambda d: d["vertices"]["delays"].update(sql=" "),
        "vertices.delays.sql",
        "the SQL is empty",
    ),
    "a param of a job that has none": (
        lambda d: d.pop("params"),
        "vertices.delays.sql",
        "the job has no params",
    ),
    "a param without a value in an option": (
        lambda d: d["vertices"]["flights"]["source"].update(options={"lineSep": "${end}"}),
        "vertices.flights.source.options.lineSep",
        "${end} has no value in params",
    ),
    "a python source with a format": (
        lambda d: d["vertices"]["flights"].update(source={"python": "a:b", "format": "json"}),
        "vertices.flights.source.format",
        "a python source has no format",
    ),
    "a python source with a path": (
        lambda d: d["vertices"]["flights"].update(source={"python": "a:b", "path": "/x"}),
        "vertices.flights.source.path",
        "a python source has no path",
    ),
    "a python source with a schema": (
        lambda d: d["vertices"]["flights"].update(source={"python": "a:b", "schema": "a INT"}),
        "vertices.flights.source.schema",
        "a python source has no schema",
    ),
    "a python source that is no reference": (
        lambda d: d["vertices"]["flights"].update(source={"python": "a:class"}),
        "vertices.flights.source.python",
        "is not module:function",
    ),
    "a source of nothing": (
        lambda d: d["vertices"]["flights"].update(source={}),
        "vertices.flights.source",
        "neither a format nor a python function",
    ),
    "a files source without a path": (
        lambda d: d["vertices"]["flights"]["source"].pop("path"),
        "vertices.flights.source",
        "a json source needs a path",
    ),
    "a source with a relative path": (
        lambda d: d["vertices"]["flights"]["source"].update(path="flights"),
        "vertices.flights.source.path",
        "not an absolute path or URI",
    ),
    "a watermark of a sink": (
        lambda d: d["vertices"]["out"].update(watermark={"column": "w", "delay": "1 day"}),
        "vertices.out.watermark",
        "a sink has no watermark",
    ),
    "a delay in a misspelt unit": (
        lambda d: d["vertices"]["flights"]["watermark"].update(delay="5 minuts"),
        "vertices.flights.watermark.delay",
        "did you mean 5 minutes?",
    ),
    "a delay that is no time": (
        lambda d: d["vertices"]["flights"]["watermark"].update(delay="soon"),
        "vertices.flights.watermark.delay",
        "2 hours, 30 seconds, 1 day 12 hours",
    ),
    "a delay with a param that has no value": (
        lambda d: d["vertices"]["flights"]["watermark"].update(delay="${late}"),
        "vertices.flights.watermark.delay",
        "${late} has no value in params",
    ),
    "a reference to a word of Python": (
        lambda d: d["vertices"]["delays"].update(sql=None, python="flights:class"),
        "vertices.delays.python",
        "such as flights:clean",
    ),
    "readers of one exchange in two modes": (
        lambda d: d["vertices"].update(
            out={
                "inputs": [{"id": "delays", "exchange": True, "output-mode": "append"}],
                "sink": {"format": "console"},
            },
            more={
                "inputs": [{"id": "delays", "exchange": True, "output-mode": "update"}],
                "sink": {"format": "console"},
            },
        ),
        "vertices.more.inputs[0].output-mode",
        "more reads delays in mode update, and out in mode append",
    ),
    "an output mode of an edge where there is no exchange": (
        lambda d: d["vertices"]["delays"].update(inputs=[{"id": "flights", "output-mode": "append"}]),
        "vertices.delays.inputs[0].output-mode",
        "is a setting of exchanges",
    ),
}

FAULTS_OF_SINKS: dict[str, tuple[Callable[[Document], object], str, str]] = {
    "an unknown sink format": (
        lambda d: d["vertices"]["out"]["sink"].update(format="parqet"),
        "vertices.out.sink.format",
        "did you mean parquet?",
    ),
    "an exactly-once sink with at-least-once checkpoints": (
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
        lambda d: d["vertices"]["out"].update(sink=jdbc(url="jdbc:sqlserver://host")),
        "vertices.out.sink.options.url",
        "only PostgreSQL and MySQL",
    ),
    "a database by a param without a value": (
        lambda d: d["vertices"]["out"].update(sink=jdbc(url="${db}")),
        "vertices.out.sink.options.url",
        "${db} has no value in params",
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
    "an option that is minflinkd's": (
        lambda d: d["vertices"]["out"]["sink"].update(options={"checkpointLocation": "/x"}),
        "vertices.out.sink.options.checkpointLocation",
        "minflinkd keeps the checkpoints",
    ),
    "a param without a value in a path": (
        lambda d: d["vertices"]["out"]["sink"].update(path="${target}/x"),
        "vertices.out.sink.path",
        "${target} has no value in params",
    ),
    "partitions of what is no file": (
        lambda d: d["vertices"]["out"].update(sink={"format": "console", "partition-by": ["a"]}),
        "vertices.out.sink.partition-by",
        "only files and tables are partitioned",
    ),
    "a python sink with a format": (
        lambda d: d["vertices"]["out"].update(sink={"python": "a:b", "format": "json"}),
        "vertices.out.sink.format",
        "a python sink has no format",
    ),
    "a python sink with options": (
        lambda d: d["vertices"]["out"].update(sink={"python": "a:b", "options": {"x": 1}}),
        "vertices.out.sink.options",
        "a python sink has no options",
    ),
    "an option that kafka does not get": (
        lambda d: d["vertices"]["out"].update(
            sink=KAFKA | {"options": KAFKA["options"] | {"checkpointLocation": "/x"}}  # type: ignore[operator]
        ),
        "vertices.out.sink.options.checkpointLocation",
        "minflinkd keeps the checkpoints",
    ),
    "a misspelt option of a files sink": (
        lambda d: d["vertices"]["out"]["sink"].update(options={"mergeShema": "true"}),
        "vertices.out.sink.options.mergeShema",
        "did you mean mergeSchema?",
    ),
    "a sink format like no other": (
        lambda d: d["vertices"]["out"]["sink"].update(format="xyzzy"),
        "vertices.out.sink.format",
        "one of: collect, console",
    ),
    "a sink of nothing": (
        lambda d: d["vertices"]["out"].update(sink={}),
        "vertices.out.sink",
        "the sink has no format",
    ),
}
