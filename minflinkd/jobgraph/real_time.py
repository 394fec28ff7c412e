"""What a job with `execution: real-time` may consist of (T1). Pure.

In Spark's real-time mode a query hands each row on at once, and has no micro-batches in which a sink could be called or
an exchange written. So each task reads Kafka and writes Kafka. What only Spark knows (operators and functions that the
mode does not have) is found when the task is analysed.
"""

from __future__ import annotations

from collections.abc import Iterable

from minflinkd.jobgraph.chaining import chain, cut_reasons
from minflinkd.jobgraph.delivery import delivery_of
from minflinkd.jobgraph.faults import Faults, GraphFault, at, show, vertex_path
from minflinkd.jobgraph.model import (
    Delivery,
    Execution,
    JobGraph,
    OutputMode,
    Recovery,
    RuntimeMode,
    Sink,
    Source,
    Task,
    Vertex,
)
from minflinkd.jobgraph.records import record_formats

# Options of Kafka's source that it refuses in real-time mode, once a query runs.
_OF_BATCHES = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions", "endingtimestamp")
_INSTEAD = "leave `execution` out: micro-batches can do it"


def check_real_time(graph: JobGraph, faults: Faults) -> None:
    """Check a job that is to run in real-time mode. Call it when the graph has no other faults that it could repeat."""
    if graph.execution is not Execution.REAL_TIME:
        return
    _check_settings(graph, faults)
    _check_vertices(graph.vertices, faults)
    if graph.script is None and not faults.touch("vertices"):
        _check_tasks(graph, faults)


def _check_settings(graph: JobGraph, faults: Faults) -> None:
    if graph.mode is not RuntimeMode.STREAMING:
        problem = "a batch job ends with its input, and in real-time mode a query has no end of its input"
        faults.add("execution", problem, _INSTEAD)
    if graph.trigger_interval:
        problem = "in real-time mode there are no micro-batches between which to wait"
        faults.add("trigger-interval", problem, "leave one of the two out")
    if graph.recovery is Recovery.HOT_STANDBY:
        problem = "a hot standby rehearses micro-batches, and in real-time mode there are none"
        faults.add("recovery", problem, "leave one of the two out")
    if graph.autoscaler is not None:
        problem = "in real-time mode a query holds its slots for as long as it runs, and is busy all the time"
        faults.add("autoscaler", problem, "leave one of the two out")
    if graph.script is not None:
        faults.add("execution", "the queries of a script run in micro-batches", "write the job as a job file")


def execution_of(graph: JobGraph) -> Execution:
    """Return how the tasks of a valid job are to run: `auto` means micro-batches if its settings allow nothing else."""
    if graph.execution is Execution.AUTO:
        faults = Faults()
        _check_settings(graph, faults)
        if any(map(faults.touch, ("execution", "trigger-interval", "recovery", "autoscaler"))):
            return Execution.MICRO_BATCH
    return graph.execution


def why_not(task: Task) -> GraphFault | None:
    """Return why this task of a valid job cannot run in real-time mode; None if only Spark may know a reason."""
    faults = Faults()
    _check_vertices(task.vertices, faults)
    if faults.found:
        return faults.found[0]
    for edges in (task.inputs, task.readers):
        if edges:
            return GraphFault(path=vertex_path(task.end), problem="in real-time mode there are no exchanges")
    if len(task.result_sinks) > 1:
        return GraphFault(path=vertex_path(task.result_sinks[1].id), problem="in real-time mode a query has one sink")
    return None


def _check_vertices(vertices: Iterable[Vertex], faults: Faults) -> None:
    for vertex in vertices:
        path = vertex_path(vertex.id)
        if vertex.on_bad_record is not None:
            faults.add(at(path, "on-bad-record"), "in real-time mode bad records cannot be told from others", _INSTEAD)
        if vertex.source is not None:
            _check_source(vertex.source, at(path, "source"), faults)
        if vertex.sink is not None:
            _check_sink(vertex, vertex.sink, path, faults)


def _check_source(source: Source, path: str, faults: Faults) -> None:
    if source.python is not None:
        faults.add(at(path, "python"), "in real-time mode a source is kafka", _INSTEAD)
    elif source.format != "kafka":
        faults.add(at(path, "format"), f"in real-time mode a source is kafka, not {show(source.format)}", _INSTEAD)
    for name in source.options:
        if name.lower() in _OF_BATCHES:
            problem = "it limits what a micro-batch reads, and real-time mode does not take it"
            faults.add(at(at(path, "options"), name), problem, "leave one of the two out")


def _check_sink(vertex: Vertex, sink: Sink, path: str, faults: Faults) -> None:
    where = at(path, "sink")
    if sink.python is not None:
        faults.add(at(where, "python"), "in real-time mode a sink is kafka", _INSTEAD)
    elif sink.format != "kafka":
        faults.add(at(where, "format"), f"in real-time mode a sink is kafka, not {show(sink.format)}", _INSTEAD)
    elif delivery_of(sink) is Delivery.EXACTLY_ONCE:
        problem = "rows that appear at once cannot wait for a checkpoint, so they are written at least once"
        faults.add(at(where, "delivery"), problem, "delivery: at-least-once, or leave `execution` out")
    elif formats := record_formats(sink):
        problem = "in real-time mode a sink does not write with a Schema Registry"
        faults.add(at(where, next(iter(formats))), problem, _INSTEAD)
    if vertex.output_mode not in (None, OutputMode.UPDATE):
        problem = f"in real-time mode a result is written whenever it changes, not in mode {vertex.output_mode}"
        faults.add(at(path, "output-mode"), problem, "output-mode: update, or leave it out")


def _check_tasks(graph: JobGraph, faults: Faults) -> None:
    """Check that each part of the job is one query with one sink."""
    for (upstream, downstream), why in cut_reasons(graph).items():
        problem = f"in real-time mode there are no exchanges, and between {upstream} and {downstream} is one: {why}"
        faults.add(at(vertex_path(downstream), "inputs"), problem, "make it one query, or leave `execution` out")
    for task in chain(graph):
        if len(task.result_sinks) > 1:
            sinks = " and ".join(sink.id for sink in task.result_sinks)
            problem = f"in real-time mode a query has one sink, and {sinks} read the same vertex"
            hint = "give the second sink a source and a query of its own, or leave `execution` out"
            faults.add(vertex_path(task.result_sinks[1].id), problem, hint)
