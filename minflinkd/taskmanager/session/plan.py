"""From the vertices of a task to one streaming DataFrame (J2, J5), or to everything that is wrong with them (J4).

A task is built in a session of its own, so that views and settings of two tasks never meet (J7). Building analyses
and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.delivery import refused_mode
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import OutputMode, Source, Task, Vertex
from minflinkd.jobgraph.params import resolve
from minflinkd.rpc.messages import JobContext
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.errors import ErrorInfo, MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session import operators, watermarks
from minflinkd.taskmanager.session.code import JobCode
from minflinkd.taskmanager.session.exchange_sink import not_storable
from minflinkd.taskmanager.session.exchange_source import ExchangeSource
from minflinkd.taskmanager.session.failures import build_failure, session_is_lost, session_lost
from minflinkd.taskmanager.session.sink_checks import check_code, check_rows
from minflinkd.taskmanager.session.spark import Session

FILE_FORMATS = frozenset({"parquet", "json", "csv", "text", "orc"})


class TaskNotBuilt(MinflinkError):
    """Carries the faults; its message names the first."""

    code = "task-not-built"

    def __init__(self, faults: list[GraphFault]) -> None:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"{first.path}: {first.problem}{more}", hint=first.hint)
        self.faults = faults

    def info(self) -> ErrorInfo:
        return msgspec.structs.replace(super().info(), traceback=self.faults[0].traceback)


@dataclass
class Plan:
    """A task as Spark sees it. `frame` is what its sinks get."""

    spark: SparkSession
    faults: list[GraphFault] = field(default_factory=list)
    frames: dict[VertexId, DataFrame] = field(default_factory=dict)
    frame: DataFrame | None = None
    sinks: tuple[Vertex, ...] = ()  # with the job's params filled in
    output_mode: OutputMode = OutputMode.APPEND
    operators: tuple[PlanNode, ...] = ()
    source_names: dict[int, str] = field(default_factory=dict)  # number of a source -> vertex
    exchanges: dict[int, VertexId] = field(default_factory=dict)  # line of the offset log -> exchange
    watermarks: dict[VertexId, Any] = field(default_factory=dict)  # input -> key in Spark's watermark tracker
    inputs: list[ExchangeSource] = field(default_factory=list)

    def release(self) -> None:
        """No query of it runs, or will. Idempotent."""
        for source in self.inputs:
            source.release()

    def require(self) -> DataFrame:
        """Raises TaskNotBuilt."""
        if self.faults:
            raise TaskNotBuilt(self.faults)
        assert self.frame is not None
        return self.frame

    @property
    def schema(self) -> str:
        """Of `frame`, as Spark's JSON: with marks on its event time."""
        assert self.frame is not None
        return str(self.frame._jdf.schema().json())


def build(
    session: Session, job: JobContext, task: Task, code: JobCode, inputs: Mapping[VertexId, str] | None = None
) -> Plan:
    """Never raises for what the user wrote: that is in the plan's faults, as many as can be found at once.

    `inputs`: the schemas of exchanges, as the plans upstream say them. One that is missing has faults of its own, which
    are named elsewhere. Raises SessionLost.
    """
    try:
        spark = session.spark.newSession()
        with code.in_session(spark):
            return _build(session, spark, job, task, code, inputs or {})
    except Exception as error:
        if session_is_lost(error):
            raise session_lost(error) from error
        raise


def activate(session: Session, spark: SparkSession) -> None:
    """On this thread: what asks for the active session gets that of its own task (J7)."""
    getattr(session.jvm, "org.apache.spark.sql.SparkSession").setActiveSession(spark._jsparkSession)


def _build(
    session: Session,
    spark: SparkSession,
    job: JobContext,
    task: Task,
    code: JobCode,
    inputs: Mapping[VertexId, str],
) -> Plan:
    activate(session, spark)
    plan = Plan(spark)
    for key, value in job.spark.items():
        _attempt(plan, f"spark.{key}", lambda key=key, value=value: spark.conf.set(key, value))  # type: ignore[misc]
    spark.conf.set("spark.sql.shuffle.partitions", str(task.parallelism))
    for edge in task.inputs:
        if edge.id in inputs:
            _read_exchange(session, plan, edge.id, inputs[edge.id])
    for written in task.vertices:
        vertex = _attempt(plan, f"vertices.{written.id}", lambda written=written: resolve(written, job.params))  # type: ignore[misc]
        if vertex is None:
            continue
        if vertex.sink is None:
            _build_vertex(plan, vertex, job, code)
            continue
        plan.sinks += (vertex,)
        if vertex.sink.python is not None:
            _attempt(plan, f"vertices.{vertex.id}.sink.python", lambda sink=vertex.sink: check_code(sink, code))  # type: ignore[misc]
    _join_ends(plan, task)
    if task.readers and plan.frame is not None and (columns := not_storable(session, plan.frame)):
        path, names = f"vertices.{task.end}", ", ".join(columns)
        problem = f"what other tasks read cannot be stored: {names}"
        plan.faults.append(GraphFault(path=path, problem=problem, hint="cast it, or leave it out"))
    for sink in plan.sinks if plan.frame is not None else ():
        _attempt(plan, f"vertices.{sink.id}.sink", lambda sink=sink.sink: check_rows(session, sink, plan.frame))  # type: ignore
    if plan.frame is not None:
        _choose_output_mode(session, plan, task)
        plan.operators = operators.nodes(session, plan.frame)
        plan.source_names = operators.source_names(plan.operators)
        read = {edge.id for edge in task.inputs}  # an exchange that is read twice is two sources to Spark
        lines = operators.source_lines(plan.operators)
        plan.exchanges = {line: VertexId(leaf.vertex) for line, leaf in lines.items() if leaf.vertex in read}
    return plan


def _read_exchange(session: Session, plan: Plan, vertex: VertexId, written: str) -> None:
    schema, event_time = watermarks.without_marks(written)
    source = ExchangeSource(session, plan.spark, vertex, schema)
    plan.inputs.append(source)
    frame = source.frame()
    if event_time is not None:
        frame, plan.watermarks[vertex] = watermarks.mark(frame, event_time)
    plan.frames[vertex] = operators.mark(frame, vertex)


def _attempt(plan: Plan, path: str, action: Callable[[], Any]) -> Any:
    """The action's result, or None with a fault. User code may raise anything, SystemExit as well."""
    try:
        return action()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if session_is_lost(error):
            raise
        info = build_failure(error)
        trace = info.traceback if path.endswith(".python") else ""  # of the user's code; Spark's says what is wrong
        plan.faults.append(GraphFault(path=path, problem=info.message, hint=info.hint, traceback=trace))
        return None


def _build_vertex(plan: Plan, vertex: Vertex, job: JobContext, code: JobCode) -> None:
    path = f"vertices.{vertex.id}"
    inputs: dict[str, DataFrame] = {}
    for edge in vertex.inputs:
        if edge.id not in plan.frames:
            return  # its own fault is named already
        inputs[edge.id] = plan.frames[edge.id]
    if vertex.source is not None:
        source, path = vertex.source, f"{path}.source"
        frame = _attempt(plan, path, lambda: _source(plan.spark, source, job.params, code))
    elif vertex.sql is not None:
        text, path = vertex.sql, f"{path}.sql"
        frame = _attempt(plan, path, lambda: _sql(plan.spark, text, inputs))
    elif vertex.python is not None:
        reference, path = vertex.python, f"{path}.python"
        frame = _attempt(plan, path, lambda: code.function(reference)(dict(inputs), dict(job.params)))
    else:
        plan.faults.append(GraphFault(path=path, problem="is neither source, sql, python nor sink"))
        return
    if frame is None:
        if not any(fault.path == path for fault in plan.faults):
            plan.faults.append(GraphFault(path=path, problem="the function returns None", hint="return a DataFrame"))
        return
    if not isinstance(frame, DataFrame):
        plan.faults.append(
            GraphFault(path=path, problem=f"a {type(frame).__name__} is returned", hint="return a DataFrame")
        )
        return
    if not frame.isStreaming:
        plan.faults.append(
            GraphFault(path=path, problem="the DataFrame is not a streaming one", hint="read it with spark.readStream")
        )
        return
    if vertex.watermark is not None:
        watermark = vertex.watermark
        marked = _attempt(
            plan, f"vertices.{vertex.id}.watermark", lambda: frame.withWatermark(watermark.column, watermark.delay)
        )
        if marked is None:
            return
        frame = marked
    plan.frames[vertex.id] = operators.mark(frame, vertex.id)


def _source(spark: SparkSession, source: Source, params: dict[str, Any], code: JobCode) -> Any:
    if source.python is not None:
        return code.function(source.python)(spark, dict(params))
    reader = spark.readStream.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    return reader.load(source.path) if source.path is not None else reader.load()


def _sql(spark: SparkSession, text: str, inputs: dict[str, DataFrame]) -> DataFrame:
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(text)


def _join_ends(plan: Plan, task: Task) -> None:
    """Set the one frame that all sinks of a task, and its exchange, read."""
    if task.sinks or task.readers:
        plan.frame = plan.frames.get(task.end)
    else:
        last = task.vertices[-1].id
        plan.faults.append(GraphFault(path=f"vertices.{last}", problem=f"task {task.id} ends in no sink"))


def _choose_output_mode(session: Session, plan: Plan, task: Task) -> None:
    asked = {sink.output_mode for sink in task.sinks if sink.output_mode is not None}
    if task.exchange_mode is not None:
        asked.add(task.exchange_mode)
    if len(asked) > 1:
        plan.faults.append(
            GraphFault(
                path=_mode_path(task),
                problem=f"what reads {task.end} asks for the output modes {' and '.join(sorted(asked))}",
                hint="a micro-batch is computed once: give all readers one output mode",
            )
        )
        return
    if asked:
        modes = [next(iter(asked))]
        for other in plan.sinks:  # what one sink asks for all sinks of the task get
            if other.sink is not None and (refused := refused_mode(other.sink, modes[0])) is not None:
                path = f"vertices.{other.id}.output-mode"
                plan.faults.append(GraphFault(path=path, problem=refused[0], hint=refused[1]))
    else:  # the first that the query allows, of those that every sink can be written in
        modes = [mode for mode in OutputMode if not any(refused_mode(v.sink, mode) for v in plan.sinks if v.sink)]
        if task.readers:  # nobody expects all rows again and again from an exchange, unless they ask for it
            modes = [mode for mode in modes if mode is not OutputMode.COMPLETE]
    problems = []
    for mode in modes:
        try:
            _check_mode(session, plan, mode)
        except AnalysisException as error:
            problems.append(build_failure(error))
        else:
            plan.output_mode = mode
            return
    plan.faults.append(GraphFault(path=_mode_path(task), problem=problems[0].message, hint=_mode_hint(problems[0])))


def _mode_path(task: Task) -> str:
    asking = next((sink.id for sink in task.sinks if sink.output_mode is not None), None)
    return f"vertices.{asking}.output-mode" if asking else f"vertices.{task.sinks[0].id if task.sinks else task.end}"


def _mode_hint(problem: ErrorInfo) -> str:
    if "watermark" in problem.message:
        return "give the event time a watermark, or the sink another output mode"
    if "multiple" in problem.message.lower() or "chain" in problem.message.lower():
        return "let the second of them begin a new task: inputs: [{id: ..., exchange: true}]"
    return ""


def _check_mode(session: Session, plan: Plan, mode: OutputMode) -> None:
    assert plan.frame is not None
    modes = session.jvm.org.apache.spark.sql.streaming.OutputMode
    java_mode = {
        OutputMode.APPEND: modes.Append,
        OutputMode.UPDATE: modes.Update,
        OutputMode.COMPLETE: modes.Complete,
    }[mode]()
    checker = session.jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    analyzed = plan.frame._jdf.queryExecution().analyzed()
    checker.checkForStreaming(analyzed, java_mode)
    checker.checkStreamingQueryGlobalWatermarkLimit(analyzed, java_mode)
