"""Builds the vertices of a task into one streaming DataFrame (J2, J5), or finds all that is wrong with them (J4).

A task is built in a Spark session of its own, so that tasks do not share views or settings (J7). Building analyses the
task and starts nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.bad_records import bad_record_sink
from minflinkd.jobgraph.delivery import key_of
from minflinkd.jobgraph.faults import GraphFault, nearest
from minflinkd.jobgraph.model import Execution, RuntimeMode, Sink, Source, Task, Vertex
from minflinkd.jobgraph.params import resolve
from minflinkd.jobgraph.real_time import why_not
from minflinkd.jobgraph.records import record_formats
from minflinkd.rpc import plan_sources
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.code.libraries import JobCode
from minflinkd.taskmanager.session.exchange.reading import ExchangeSource
from minflinkd.taskmanager.session.exchange.writing import not_storable
from minflinkd.taskmanager.session.plan import bad_records, input_range, real_time, records, watermarks
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.plan.sink_checks import check_code, check_rows
from minflinkd.taskmanager.session.plan.streamable import choose_output_mode
from minflinkd.taskmanager.session.spark import real_time_source, steady_plans
from minflinkd.taskmanager.session.spark.failures import build_failure, session_is_lost, session_lost
from minflinkd.taskmanager.session.spark.session import Session, activate
from minflinkd.taskmanager.session.state import operators


def build(
    session: Session, job: JobContext, task: Task, code: JobCode, inputs: Mapping[VertexId, str] | None = None
) -> Plan:
    """Build a task. What the user did wrong is not raised but in the plan's faults, as many as can be found at once.

    `inputs`: the schemas of exchanges, from the plans of the tasks upstream. If one is missing, the task that yields it
    has faults, which are reported there. Raises SessionLost.
    """
    try:
        if job.execution is not Execution.AUTO:
            in_real_time = job.execution is Execution.REAL_TIME
            return _in_new_session(session, job, task, code, inputs or {}, in_real_time=in_real_time)
        if (why := why_not(task)) is None:
            plan = _in_new_session(session, job, task, code, inputs or {}, in_real_time=True)
            if plan.faults != plan.unfit:
                return plan  # it has faults in either mode, or may have had bad luck: another try decides the same
            if not plan.unfit:
                return plan
            why = plan.unfit[0]
            plan.release()
        plan = _in_new_session(session, job, task, code, inputs or {}, in_real_time=False)
        plan.not_real_time = f"{why.path}: {why.problem}"
        return plan
    except Exception as error:
        if session_is_lost(error):
            raise session_lost(error) from error
        raise


def _in_new_session(
    session: Session,
    job: JobContext,
    task: Task,
    code: JobCode,
    inputs: Mapping[VertexId, str],
    *,
    in_real_time: bool,
) -> Plan:
    plan = Plan(session.spark.newSession(), real_time=real_time_source.new_key() if in_real_time else None)
    with code.in_session(plan.spark):
        _build(session, plan, job, task, code, inputs)
    return plan


def _build(
    session: Session,
    plan: Plan,
    job: JobContext,
    task: Task,
    code: JobCode,
    inputs: Mapping[VertexId, str],
) -> None:
    spark = plan.spark
    activate(session, spark)
    for key, value in job.spark.items():
        _attempt(plan, f"spark.{key}", lambda key=key, value=value: spark.conf.set(key, value))  # type: ignore[misc]
    spark.conf.set("spark.sql.shuffle.partitions", str(task.parallelism))
    for edge in task.inputs:
        if edge.id in inputs:
            _read_exchange(session, plan, edge.id, inputs[edge.id])
    for written in task.vertices:
        vertex = _attempt(plan, f"vertices.{written.id}", partial(resolve, written, job.params, session.secrets))
        if vertex is None:
            continue
        if vertex.sink is None:
            _build_vertex(session, plan, task, vertex, job, code)
            continue
        plan.sinks += (vertex,)
        if vertex.sink.python is not None:
            _attempt(plan, f"vertices.{vertex.id}.sink.python", lambda sink=vertex.sink: check_code(sink, code))  # type: ignore[misc]
    # After all that may have changed settings: the job's own, and user code of vertices. State is looked for below.
    steady_plans.hold(spark, stateful=False)
    if plan.real_time is not None:
        real_time.prepare(spark)
    _join_ends(plan, task)
    if task.readers and plan.frame is not None and (columns := not_storable(session, plan.frame)):
        path, names = f"vertices.{task.end}", ", ".join(columns)
        problem = f"columns that other tasks read cannot be stored: {names}"
        plan.faults.append(GraphFault(path=path, problem=problem, hint="cast it, or leave it out"))
    for sink in plan.sinks:
        if sink.sink is not None and (rows := plan.rows_for(sink)) is not None:
            _attempt(plan, f"vertices.{sink.id}.sink", partial(_check_sink, session, plan, sink, sink.sink, rows))
    if plan.frame is not None:
        plan.faults.extend(_sent_twice(session, plan, task))
        if plan.real_time is not None:
            if job.execution is Execution.AUTO:
                plan.unfit.extend(real_time.differs(session, plan, task))
            plan.unfit.extend(real_time.faults(session, plan, task))
            plan.faults.extend(plan.unfit)
        else:
            choose_output_mode(session, plan, task)
        plan.operators = operators.nodes(session, plan.frame)
        plan.faults.extend(input_range.faults_within(plan.operators, job.limits))
        keys = {sink.id: key_of(sink.sink) for sink in plan.sinks if sink.inputs and sink.sink is not None}
        plan.faults.extend(input_range.keys_without_time(plan.frame, keys, job.limits))
        plan.faults.extend(input_range.windows_cut(plan.frames, job.limits))
        if plan.keeps_state:
            steady_plans.hold(spark, stateful=True)
        else:
            steady_plans.allow_reuse(spark)
        plan.source_names = plan_sources.source_names(plan.operators)
        plan.scans = operators.scans(plan.operators, [v.id for v in task.vertices if v.source and not v.source.python])
        read = {edge.id for edge in task.inputs}  # an exchange that is read twice has two lines in the offset log
        lines = plan_sources.source_lines(plan.operators)
        plan.exchanges = {line: VertexId(leaf.vertex) for line, leaf in lines.items() if leaf.vertex in read}


def _check_sink(session: Session, plan: Plan, vertex: Vertex, sink: Sink, rows: DataFrame) -> None:
    if record_formats(sink):
        plan.encoders[vertex.id] = records.encoder(session, plan, vertex, sink, rows)
        rows = plan.encoders[vertex.id](rows)
    check_rows(session, sink, rows)


def _read_exchange(session: Session, plan: Plan, vertex: VertexId, written: str) -> None:
    schema, event_time = watermarks.without_marks(written)
    source = ExchangeSource(session, plan.spark, vertex, schema)
    plan.inputs.append(source)
    frame = source.frame()
    if event_time is not None:
        frame, plan.watermarks[vertex] = watermarks.mark(frame, event_time)
    plan.frames[vertex] = operators.mark(frame, vertex)


def _attempt(plan: Plan, path: str, action: Callable[[], Any]) -> Any:
    """Return the action's result, or None and add a fault. User code may raise anything, even SystemExit."""
    try:
        return action()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if session_is_lost(error):
            raise
        info = build_failure(error)
        trace = info.traceback if path.endswith(".python") else ""  # only for user code: Spark's message says enough
        plan.faults.append(GraphFault(path=path, problem=info.message, hint=info.hint, traceback=trace))
        return None


def _sent_twice(session: Session, plan: Plan, task: Task) -> Iterator[GraphFault]:
    """Yield the vertices whose bad records would go to their sink twice, as the task computes them twice."""
    senders = [vertex.id for vertex in task.vertices if bad_record_sink(vertex) is not None]
    if senders and plan.frame is not None:
        times = operators.reads(session, plan.frame)
        for vertex in senders:
            if times[vertex] > 1:
                problem = f"the task reads {vertex} {times[vertex]} times, so each bad record would be sent as often"
                hint = (
                    f"read it through an exchange: inputs: [{{id: {vertex}, exchange: true}}]; or on-bad-record: drop"
                )
                yield GraphFault(path=f"vertices.{vertex}.on-bad-record", problem=problem, hint=hint)


def _build_vertex(session: Session, plan: Plan, task: Task, vertex: Vertex, job: JobContext, code: JobCode) -> None:
    path, rejects = f"vertices.{vertex.id}", vertex.on_bad_record is not None
    inputs: dict[str, DataFrame] = {}
    for edge in vertex.inputs:
        if edge.id not in plan.frames:
            return  # the input's own fault is reported already
        inputs[edge.id] = plan.frames[edge.id]
    if vertex.source is not None:
        source, path = vertex.source, f"{path}.source"
        if source.format == "kafka" and job.mode is RuntimeMode.STREAMING and job.limits is None:
            plan.kafka_sources[vertex.id] = source
        rejects = rejects and not record_formats(source)  # these are told from others where they are read
        frame = _attempt(plan, path, lambda: _source(session, plan, vertex, source, job, code))
        if frame is None and any(fault.path == path for fault in plan.faults):
            frame, rejects = _stand_in(plan.spark, source), False
            if frame is None:
                return
    elif vertex.sql is not None:
        text, path = vertex.sql, f"{path}.sql"
        known = {other.id for other in task.vertices} | {edge.id for edge in task.inputs}
        frame = _attempt(plan, path, lambda: _sql(plan.spark, text, inputs, known))
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
    if rejects:
        given = frame
        frame = _attempt(
            plan, f"vertices.{vertex.id}.on-bad-record", lambda: bad_records.good_rows(session, vertex, given)
        )
        if frame is None:
            return
    if input_range.sets_watermark(session, frame, job.limits):
        problem = "it sets a watermark itself, and a range is of the event time that the job file names"
        hint = "set it in the job file: watermark: {column: ..., delay: ...} of this vertex, or of one before it"
        plan.faults.append(GraphFault(path=path, problem=problem, hint=hint))
        return
    watermark = vertex.watermark
    if watermark is not None:
        path = f"vertices.{vertex.id}.watermark"
        given = _attempt(plan, path, lambda: input_range.happened_within(frame, vertex.id, job.limits))
        if given is None:
            return
        frame = given
    plan.computed[vertex.id] = frame
    if watermark is not None:
        delay = input_range.delay_within(watermark.delay, job.limits)
        marked = _attempt(plan, path, lambda: frame.withWatermark(watermark.column, delay))
        if marked is None:
            return
        frame = marked
    plan.frames[vertex.id] = operators.mark(frame, vertex.id)


def _source(session: Session, plan: Plan, vertex: Vertex, source: Source, job: JobContext, code: JobCode) -> Any:
    spark, key = plan.spark, plan.real_time
    if source.python is not None:
        return code.function(source.python)(spark, dict(job.params))
    written = record_formats(source)
    if vertex.on_bad_record is not None and not written:
        frame = bad_records.reader(spark, source).load(source.path)
        return input_range.written_within(frame, source, vertex.id, job.limits)
    format = source.format
    reader = spark.readStream.format(format) if key is None else real_time_source.reader(spark, format, key)
    reader = reader.options(**input_range.options_within(source, vertex.id, job.limits))
    if source.schema is not None:
        reader = reader.schema(source.schema)
    frame = reader.load(source.path) if source.path is not None else reader.load()
    frame = input_range.written_within(frame, source, vertex.id, job.limits)
    return records.readable(session, plan, vertex, source, frame) if written else frame


def _stand_in(spark: SparkSession, source: Source) -> DataFrame | None:
    """Return a stand-in with the schema of a faulty source, so that faults downstream are found at the same time.

    Returns None if the schema is not known, or is faulty itself.
    """
    if source.schema is None:
        return None
    with tempfile.TemporaryDirectory(prefix="no-source-") as nothing:
        try:
            return spark.readStream.format("json").schema(source.schema).load(nothing)
        except AnalysisException:
            return None


class NotAnInput(MinflinkError):
    """The SQL of a vertex reads another vertex that is not among its inputs."""

    code = "not-an-input"


def _sql(spark: SparkSession, text: str, inputs: dict[str, DataFrame], known: Collection[str]) -> DataFrame:
    """Run the SQL of a vertex with its inputs, and nothing else, as views.

    `known`: the vertices that could be inputs. Raises NotAnInput.
    """
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    try:
        return spark.sql(text)
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
        raise _missing(name, list(inputs), known) from None
    finally:
        for name in inputs:
            spark.catalog.dropTempView(name)


def _missing(name: str, inputs: list[str], known: Collection[str]) -> NotAnInput:
    add = f"add it: inputs: [{', '.join([*inputs, name])}]"
    if any(name.lower() == vertex.lower() for vertex in known):
        return NotAnInput(f"the SQL reads {name}, which is not among its inputs", hint=add)
    if (close := nearest(name, inputs)) is not None:
        return NotAnInput(f"the SQL reads {name}, which is not among its inputs", hint=f"did you mean {close}?")
    problem = f"the SQL reads {name}, which is neither a table nor among its inputs"
    return NotAnInput(problem, hint=f"if it is a vertex, {add}")


def _join_ends(plan: Plan, task: Task) -> None:
    """Set the one frame that all sinks of a task read, and its exchange."""
    if task.result_sinks or task.readers:
        plan.frame = plan.frames.get(task.end)
    else:
        last = task.vertices[-1].id
        plan.faults.append(GraphFault(path=f"vertices.{last}", problem=f"task {task.id} ends in no sink"))
