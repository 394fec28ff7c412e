"""Finds out what Spark refuses of a whole query, and which vertex causes it (J4, J8a).

Spark refuses a query in the output mode of its sinks, in any output mode, or when it plans a micro-batch. If the output
mode does not matter, the cause is the first vertex that Spark refuses by itself with the same message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from minflinkd.jobgraph.delivery import refused_mode
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import OutputMode, Task, Vertex
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.taskmanager.session.spark import first_batch
from minflinkd.taskmanager.session.spark.failures import build_failure, condition_of, session_is_lost, session_lost
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state.operators import USER_STATE

if TYPE_CHECKING:
    from minflinkd.taskmanager.session.plan.plan import Plan

_NO_RECORD = "STDS_FAILED_TO_READ_OPERATOR_METADATA"  # there is no state yet, and Spark was told not to compare types
_MODE = re.compile(r"output mode|Detected pattern of possible 'correctness' issue")  # another mode may be accepted


def choose_output_mode(session: Session, plan: Plan, task: Task) -> None:
    """Set the plan's output mode, or add to its faults why there is none."""
    asked = {sink.output_mode for sink in task.result_sinks if sink.output_mode is not None}
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
        for other in plan.sinks:  # all sinks of the task get the mode that one of them asks for
            if other.inputs and other.sink is not None and (refused := refused_mode(other.sink, modes[0])) is not None:
                path = f"vertices.{other.id}.output-mode"
                plan.faults.append(GraphFault(path=path, problem=refused[0], hint=refused[1]))
    else:  # the candidates are the modes that every sink supports; the first one that the query allows is taken
        modes = [
            mode
            for mode in OutputMode
            if not any(refused_mode(v.sink, mode) for v in plan.sinks if v.inputs and v.sink)
        ]
        if task.readers:  # an exchange does not repeat all rows in every micro-batch, unless a reader asks for it
            modes = [mode for mode in modes if mode is not OutputMode.COMPLETE]
    assert plan.frame is not None
    problems = []
    for mode in modes:
        problem = _refusal(session, plan.frame, mode)
        if problem is None:
            plan.output_mode = mode
            return
        problems.append(problem)
    problem = problems[0]
    if _MODE.search(problem.message):
        path = _mode_path(task)
    else:
        path = _origin(plan, task, lambda frame: _says(_refusal(session, frame, modes[0]), problem))
    plan.faults.append(GraphFault(path=path, problem=problem.message, hint=problem.hint or _mode_hint(problem)))


def _mode_path(task: Task) -> str:
    sinks = task.result_sinks
    asking = next((sink.id for sink in sinks if sink.output_mode is not None), None)
    return f"vertices.{asking}.output-mode" if asking else f"vertices.{sinks[0].id if sinks else task.end}"


def _mode_hint(problem: ErrorInfo) -> str:
    if "watermark" in problem.message:
        return "give the event time a watermark, or the sink another output mode"
    if "multiple" in problem.message.lower() or "chain" in problem.message.lower():
        return "let the second of them begin a new task: inputs: [{id: ..., exchange: true}]"
    return ""


def _refusal(session: Session, frame: DataFrame, mode: OutputMode) -> ErrorInfo | None:
    checker = session.jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    analyzed, java_mode = frame._jdf.queryExecution().analyzed(), first_batch.java_mode(session, mode)
    try:
        checker.checkForStreaming(analyzed, java_mode)
        checker.checkStreamingQueryGlobalWatermarkLimit(analyzed, java_mode)
    except AnalysisException as error:
        return build_failure(error)
    return None


def when_planned(session: Session, plan: Plan, task: Task) -> Iterator[GraphFault]:
    """Yield what Spark refuses only when it plans a micro-batch. The plan has no other faults. Raises SessionLost."""
    if plan.frame is None:  # an input has a fault, which the task upstream reports
        return
    compares = not any(node.kind.startswith(USER_STATE) for node in plan.operators)

    def refused(frame: DataFrame) -> ErrorInfo | None:
        try:
            first_batch.plan_without_state(session, plan.spark, frame, plan.output_mode, compares=compares)
        except (PySparkException, Py4JError) as error:
            if session_is_lost(error):
                raise session_lost(error) from error
            if not compares and condition_of(error) == _NO_RECORD:
                return None  # this is what Spark checks last, and it only says that there is no state yet
            return build_failure(error)
        return None

    if (problem := refused(plan.frame)) is not None:
        path = _origin(plan, task, lambda frame: _says(refused(frame), problem))
        yield GraphFault(path=path, problem=problem.message, hint=problem.hint)


def _says(found: ErrorInfo | None, problem: ErrorInfo) -> bool:
    return found is not None and found.message == problem.message


def _origin(plan: Plan, task: Task, refused: Callable[[DataFrame], bool]) -> str:
    """Return the path of the first vertex, in the direction of the rows, that is refused by itself."""
    for vertex in task.vertices:
        if (frame := plan.frames.get(vertex.id)) is not None and refused(frame):
            return _place(plan, vertex, refused)
    return _mode_path(task)


def _place(plan: Plan, vertex: Vertex, refused: Callable[[DataFrame], bool]) -> str:
    """Return the path of the vertex's watermark if that is at fault, otherwise of what the vertex computes."""
    computed = plan.computed.get(vertex.id)
    own = vertex.watermark is not None and computed is not None and not refused(computed)
    return f"vertices.{vertex.id}.{'watermark' if own else vertex.kind}"
