"""Tries out whether Spark accepts the options of sources and sinks, before anything starts (J4).

Spark reads most options only when a query starts: a wrong value passes the analysis, and then fails in each attempt. So
a source is made as the query would make it, a file of two lines is read, and an empty result is written, all in a
temporary directory. None of Spark's rules is repeated here. Only vertices with options are tried, as each takes some
tenths of a second, and only Spark's own sources that do not connect to anything when they are made.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.faults import GraphFault, show
from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.jobgraph.model import Sink, Source, Task
from minflinkd.jobgraph.params import resolve
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.secrets import is_sensitive
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.sinks.databases.connections import is_no_driver, writer_options
from minflinkd.taskmanager.session.spark.failures import build_failure, session_is_lost
from minflinkd.taskmanager.session.spark.session import Session

Options = Mapping[str, str]

_TRIED = (*FILE_FORMATS, "kafka", "rate", "rate-micro-batch")
_TEXTS = ("json", "csv", "text")
_OF_THE_PLACE = {"basepath", "path", "modifiedbefore", "modifiedafter"}  # not meant for a file in another place
_OF_THE_STREAM = frozenset(  # read when the source is made: if there are no other options, no file need be read
    ["maxfilespertrigger", "maxbytespertrigger", "maxfileage", "latestfirst", "filenameonly", "maxcachedfiles"]
)
_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_HINT = "Spark's documentation of the format lists its options and their values"


def check(session: Session, plan: Plan, job: JobContext, task: Task) -> None:
    """Add faults in options to the plan's, for all sources and sinks of a task that have no other faults. Blocks.

    Spark reads some options when the plan is built. Its message then says what is wrong, but not in which option: such
    a fault is replaced by one that names the option.
    """
    at_fault = {fault.path for fault in plan.faults}
    for written in task.vertices:
        path = f"vertices.{written.id}.source"
        if written.source is None or written.source.format not in _TRIED:
            continue
        if not written.source.options and written.source.format in FILE_FORMATS:
            continue
        if f"vertices.{written.id}" in at_fault or any(other.startswith(f"{path}.") for other in at_fault):
            continue
        source = resolve(written, job.params, session.secrets).source
        assert source is not None
        found = [
            *_mode(source, path),
            *refused_options(path, source.options, _Reading(session, plan.spark, source).attempt),
        ]
        if _has(plan, path) and any(fault.path != path for fault in found):
            plan.faults[:] = [fault for fault in plan.faults if fault.path != path]
        if not _has(plan, path):
            plan.faults.extend(found)
    for vertex in plan.sinks:
        path = f"vertices.{vertex.id}"
        if any(f"{other}.".startswith(f"{path}.") for other in at_fault):
            continue
        rows = plan.rows_for(vertex)
        if rows is None or vertex.sink is None or not vertex.sink.options:
            continue
        writing = _Writing(session, rows, vertex.sink)
        plan.faults += refused_options(f"{path}.sink", vertex.sink.options, writing.attempt)


def _has(plan: Plan, path: str) -> bool:
    return any(fault.path == path for fault in plan.faults)


def refused_options(path: str, options: Options, attempt: Callable[[Options], None]) -> Iterator[GraphFault]:
    """Yield a fault for each option that Spark refuses together with those that it accepts.

    If Spark does not work without any options, only one fault is yielded: for the first option that it works without.
    None is yielded if something else is wrong.
    """
    if (problem := _problem(attempt, options)) is None:
        return
    if _problem(attempt, {}) is None:  # no option is required, so each can be judged apart
        for name, why in _one_by_one(options, attempt).items():
            yield GraphFault(path=f"{path}.options.{name}", problem=_said(name, options[name], why), hint=_HINT)
        return
    for name, value in options.items():  # some of them are needed
        if _problem(attempt, _without(options, name)) is None:
            yield GraphFault(path=f"{path}.options.{name}", problem=_said(name, value, problem), hint=_HINT)
            return


def _one_by_one(options: Options, attempt: Callable[[Options], None]) -> dict[str, str]:
    """Return what Spark says of each option that it refuses. A refused one is tried again: it may need a later one."""
    taken: dict[str, str] = {}
    refused = dict(options)
    while True:
        problems: dict[str, str] = {}
        for name, value in refused.items():
            problem = _problem(attempt, taken | {name: value})
            if problem is None:
                taken[name] = value
            else:
                problems[name] = problem
        if len(problems) in (0, len(refused)):
            return problems
        refused = {name: options[name] for name in problems}


def _without(options: Options, left_out: str) -> Options:
    return {name: value for name, value in options.items() if name != left_out}


def _said(name: str, value: str, problem: str) -> str:
    """Describe the problem. For a secret, show neither the value nor Spark's message, which may quote it."""
    if is_sensitive(name):
        return "Spark does not accept the value (not shown, because it looks like a secret)"
    return problem if name.lower() in problem.lower() else f"Spark does not accept {show(value)}: {problem}"


def _problem(attempt: Callable[[Options], None], options: Options) -> str | None:
    """Return what Spark says about the options, in one line; None if it accepts them."""
    try:
        attempt(options)
    except (PySparkException, Py4JError) as error:
        if session_is_lost(error):
            raise
        cause = _root(error.java_exception) if isinstance(error, Py4JJavaError) else None
        return " ".join((cause or build_failure(error).message).split())[:500]
    return None


def _root(exception: Any) -> str:
    """Return the message of the innermost cause: the outer ones only say where it was met."""
    while (cause := exception.getCause()) is not None:
        exception = cause
    return str(exception.getMessage() or exception.toString())


def _mode(source: Source, path: str) -> Iterator[GraphFault]:
    """Yield a fault for an unknown `mode`: Spark replaces it by another one, and says so only in its log."""
    for name, value in source.options.items():
        if name.lower() == "mode" and source.format in ("json", "csv") and value.upper() not in _MODES:
            hint = f"one of {', '.join(_MODES)}"
            yield GraphFault(path=f"{path}.options.{name}", problem=f"{show(value)} is not a mode", hint=hint)


class _Reading:
    """Tries to read a source as a query would."""

    def __init__(self, session: Session, spark: SparkSession, source: Source) -> None:
        self._session, self._spark, self._source = session, spark, source

    def attempt(self, options: Options) -> None:
        source = replace(self._source, options=dict(options))
        with tempfile.TemporaryDirectory(prefix="options-", dir=self._session.config.working_directory) as directory:
            place = Path(directory)
            frame = _stream(self._spark, source)
            _make_source(frame, place / "sources")
            if self._session.config.on_cluster or source.format not in FILE_FORMATS:
                return  # executors on other machines do not see a file of this one
            if not _OF_THE_STREAM.issuperset(name.lower() for name in options):
                self._read(source, place, frame.columns)

    def _read(self, source: Source, place: Path, columns: list[str]) -> None:
        """Read a file with a text in each column, because Spark looks at some options only when it parses a value.

        A text that does not fit its column must become NULL. So `mode` is left out, and so are options that compare the
        columns of the file with the schema.
        """
        left_out = {*_OF_THE_PLACE, "mode", *(("pathglobfilter",) if source.format in _TEXTS else ())}
        kept = {name: value for name, value in source.options.items() if name.lower() not in left_out}
        kept = {
            name: value for name, value in kept.items() if (name.lower(), value.lower()) != ("enforceschema", "false")
        }
        (place / "files").mkdir()
        if source.format in _TEXTS:
            (place / "files" / "lines.txt").write_text(_lines(source, columns))
        reader = self._spark.read.format(source.format).options(**kept)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        frame = reader.load(f"file://{place / 'files'}")
        if source.format in _TEXTS:
            frame.collect()
        else:
            frame._jdf.queryExecution().toRdd()


def _lines(source: Source, columns: list[str]) -> str:
    """Return two lines of text, as the first one may be taken for a header."""
    given = {name.lower(): value for name, value in source.options.items()}
    texts = dict.fromkeys(columns, "x")
    line = json.dumps(texts) if source.format == "json" else (given.get("sep") or ",").join(texts.values())
    return f"{line}\n{line}\n"


def _stream(spark: SparkSession, source: Source) -> DataFrame:
    reader = spark.readStream.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    return reader.load(source.path) if source.path is not None else reader.load()


def _make_source(frame: DataFrame, place: Path) -> None:
    """Make the source of a stream, with a directory for its log: Spark reads the stream's options then."""
    leaf: Any = frame._jdf.queryExecution().analyzed().collectLeaves().head()
    if str(leaf.nodeName()) == "StreamingRelation":
        leaf.dataSource().createSource(f"file://{place}")
    else:
        leaf.table().newScanBuilder(leaf.extraOptions()).build().toMicroBatchStream(f"file://{place}").stop()


class _Writing:
    """Tries to write no rows to a sink."""

    def __init__(self, session: Session, frame: DataFrame, sink: Sink) -> None:
        self._session, self._frame, self._sink = session, frame, sink

    def attempt(self, options: Options) -> None:
        if self._sink.format in FILE_FORMATS:
            if not self._session.config.on_cluster:
                self._write(options)
        elif self._sink.format == "jdbc":
            needed = {"url", "dbtable"} - options.keys()
            _jdbc(self._session, dict(options) | {name: self._sink.options[name] for name in needed})

    def _write(self, options: Options) -> None:
        rows = self._frame.sparkSession.createDataFrame([], self._frame.schema)
        with tempfile.TemporaryDirectory(prefix="options-", dir=self._session.config.working_directory) as directory:
            rows.write.format(self._sink.format).options(**options).save(f"file://{directory}/nothing")


def _jdbc(session: Session, options: dict[str, str]) -> None:
    """Check the options of the JDBC writer and its connections. Does not connect."""
    jvm: Any = session.jvm
    given = jvm.java.util.HashMap()
    for name, value in writer_options(options).items():
        given.put(name, value)
    scala = jvm.PythonUtils.toScalaMap(given)
    try:
        jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcOptionsInWrite(scala)
    except Py4JJavaError as error:
        if not is_no_driver(error):  # `sink_targets` reports a missing driver, and says what to do
            raise
