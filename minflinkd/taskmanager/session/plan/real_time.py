"""What real-time mode changes about the plan of a task (T1): its sources, and what Spark has for this mode.

Spark says what it does not have only when the query runs, and the query fails in each attempt. So this is found out
when the job is analysed: by Spark's list of operators, over the plan of a first micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import OutputMode, Task
from minflinkd.taskmanager.session.spark import first_batch
from minflinkd.taskmanager.session.spark.failures import build_failure, session_is_lost
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state import operators

if TYPE_CHECKING:
    from minflinkd.taskmanager.session.plan.plan import Plan

# Of a query's session. Offsets are written with each batch: a checkpoint must find them. A batch may end at once.
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1",
    "spark.sql.execution.sortBeforeRepartition": "false",
}

# In the plan of a micro-batch, but not of a batch in real-time mode: Spark has others there that do the same.
_REPLACED = frozenset(
    {
        "HashAggregateExec",
        "ObjectHashAggregateExec",
        "SortAggregateExec",
        "SortExec",
        "StreamingRelationExec",
        "EventTimeWatermarkExec",
        "UpdateEventTimeColumnExec",
    }
)
_ALLOWS = "org$apache$spark$sql$execution$streaming$runtime$RealTimeModeAllowlist$$isAllowed"
_LIST = "org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist$"
_PER_ROW = ("Aggregate", "Distinct")  # operators that write for each row what micro-batches write once
_INSTEAD = "leave `execution` out: micro-batches can do it"


def prepare(spark: SparkSession) -> None:
    """Set what a query needs in real-time mode. Call it after all code that may have changed settings."""
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)


def differs(session: Session, plan: Plan, task: Task) -> Iterator[GraphFault]:
    """Yield why a task would write something else in real-time mode than in micro-batches, where it chooses its mode.

    In micro-batches an aggregate is written once, or once for each micro-batch; in real-time mode, for each row. And
    Spark takes the begin of a batch for the present time.
    """
    assert plan.frame is not None
    kinds = {node.kind for node in operators.nodes(session, plan.frame)}
    asked = any(sink.output_mode is OutputMode.UPDATE for sink in task.result_sinks)
    if not asked and not kinds.isdisjoint(_PER_ROW):
        problem = "in real-time mode a result is written again for each row that changes it"
        yield GraphFault(path=f"vertices.{task.end}", problem=problem, hint="give the sink output-mode: update")
    pattern = session.jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    if plan.frame._jdf.queryExecution().analyzed().containsPattern(pattern):
        problem = "in real-time mode the present time is when the batch began, perhaps a minute ago"
        yield GraphFault(path=f"vertices.{task.end}", problem=problem, hint="use the time of the records")


def note(plan: Plan, task: Task) -> str:
    """Return for people how a task runs, if the job leaves that open."""
    if plan.real_time is not None:
        return f"task {task.id} runs in real-time mode"
    return f"task {task.id} runs in micro-batches: {plan.not_real_time}"


def faults(session: Session, plan: Plan, task: Task) -> Iterator[GraphFault]:
    """Yield what Spark does not have in real-time mode. `plan` has its frame, and no output mode yet."""
    end = f"vertices.{task.end}"
    if session.config.on_cluster:
        problem = "real-time mode needs a session whose Spark runs on its TaskManager alone (spark.master local)"
        yield GraphFault(path="execution", problem=problem, hint=_INSTEAD)
        return
    frame = plan.frame
    assert frame is not None
    plan.output_mode = OutputMode.UPDATE
    checker = session.jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    mode = first_batch.java_mode(session, OutputMode.UPDATE)
    try:
        analyzed = frame._jdf.queryExecution().analyzed()
        checker.checkForStreaming(analyzed, mode)
        checker.checkAdditionalRealTimeModeConstraints(analyzed, mode)
        planned = first_batch.plan_without_state(session, plan.spark, frame, OutputMode.UPDATE, compares=False)
    except (AnalysisException, PySparkException, Py4JError) as error:
        if session_is_lost(error):
            raise
        info = build_failure(error)
        yield GraphFault(path=end, problem=info.message, hint=info.hint or _INSTEAD)
        return
    times = operators.reads(session, frame)
    for vertex in task.vertices:
        if vertex.source is not None and times[vertex.id] > 1:
            problem = f"real-time mode reads a source once, and the task reads {vertex.id} {times[vertex.id]} times"
            hint = f"give the job a second source of the same topic, or {_INSTEAD}"
            yield GraphFault(path=f"vertices.{vertex.id}", problem=problem, hint=hint)
    nodes = list(_nodes(planned))
    shuffles = (node for node in nodes if str(node.getClass().getSimpleName()) == "ShuffleExchangeExec")
    plan.shuffled = tuple(int(shuffle.outputPartitioning().numPartitions()) for shuffle in shuffles)
    allowed = getattr(getattr(session.jvm, _LIST), "MODULE$")
    missing = sorted({name for node in nodes if (name := _missing(allowed, node)) is not None})
    if missing:
        problem = f"Spark's real-time mode does not have {', '.join(missing)}"
        yield GraphFault(path=_origin(session, plan, task, missing), problem=problem, hint=_INSTEAD)


def _nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan through which rows of a stream go."""
    rest = [plan]
    while rest:
        node = rest.pop()
        if "StreamingRelation" in str(node.toString()):
            yield node
            children = node.children()
            rest.extend(children.apply(i) for i in range(int(children.length())))


def _missing(allowed: Any, node: Any) -> str | None:
    """Return the name of a node that real-time mode does not have; None if it has it, or another in its place."""
    kind = str(node.getClass().getSimpleName())
    if kind in _REPLACED or getattr(allowed, _ALLOWS)(node):
        return None
    return kind.removesuffix("Exec")


def _origin(session: Session, plan: Plan, task: Task, missing: list[str]) -> str:
    """Return the path of the first vertex, in the direction of the rows, in whose plan something of this is."""
    for vertex in task.vertices:
        if (frame := plan.frames.get(vertex.id)) is not None and _has(session, frame, missing):
            return f"vertices.{vertex.id}.{vertex.kind}"
    return f"vertices.{task.end}"


def _has(session: Session, frame: DataFrame, names: list[str]) -> bool:
    spark: Any = frame.sparkSession
    try:
        planned = first_batch.plan_without_state(session, spark, frame, OutputMode.UPDATE, compares=False)
    except (PySparkException, Py4JError) as error:
        if session_is_lost(error):
            raise
        return True
    found = {str(node.getClass().getSimpleName()).removesuffix("Exec") for node in _nodes(planned)}
    return not found.isdisjoint(names)
