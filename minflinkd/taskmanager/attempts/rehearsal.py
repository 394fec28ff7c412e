"""What a hot standby runs to be warm: a task as it will be deployed, but with nothing that anybody else can see (R32).

A rehearsal reads the task's sources from the last checkpoint on, in a Spark query of its own, and throws its rows away.
So afterwards the session has loaded the job's code and modules, compiled what Spark generates for the plan, and used
the state. What a rehearsal reads the task will read again: the job's offsets and state are not touched.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.jobgraph.model import Input, Sink, Source, Task, Vertex
from minflinkd.rpc.messages import StandbyTask
from minflinkd.runtime.ids import VertexId

_READ_BY_SPARK = frozenset({*FILE_FORMATS, "avro", "kafka", "rate", "rate-micro-batch"})
_ACTS_ON_FILES = frozenset({"cleansource"})  # files that were read are moved or deleted
_SHARED = frozenset({"kafka.group.id"})  # a second reader of the group takes partitions from the first
NOWHERE = Sink(format="noop")  # Spark computes all rows and drops them
END = VertexId("rehearsed")


def cannot_rehearse(task: Task) -> str:
    """Return why nobody but the task itself may read its inputs; empty if somebody else may."""
    if task.inputs:
        return "it reads another task"
    for vertex in task.vertices:
        if vertex.source is not None and (why := _acts(vertex.source)):
            return f"{vertex.id} {why}"
    return ""


def _acts(source: Source) -> str:
    if source.python is not None:
        return "is a function, which may do more than read"
    if source.format not in _READ_BY_SPARK:
        return f"reads {source.format}, which may do more than read"
    options = {name.lower() for name in source.options}
    return next((f"has the option {name}" for name in sorted(options & (_ACTS_ON_FILES | _SHARED))), "")


def rehearsed(standby: StandbyTask, directory: Path) -> StandbyTask:
    """Return the task with sinks that write into `directory` or nowhere, and without readers.

    Files are written as in the job: that is what takes longest to become fast. What the checkpoint has staged is the
    job's own, and left alone.
    """
    vertices = tuple(_without_effect(vertex, directory) for vertex in standby.task.vertices)
    if not standby.task.result_sinks:
        vertices = (*vertices, Vertex(id=END, inputs=(Input(id=standby.task.end),), sink=NOWHERE))
    snapshot = replace(standby.restore.snapshot, transactions=())
    return replace(
        standby,
        task=replace(standby.task, vertices=vertices, readers=()),
        restore=replace(standby.restore, snapshot=snapshot),
    )


def _without_effect(vertex: Vertex, directory: Path) -> Vertex:
    sink = vertex.sink
    if sink is None:
        return vertex
    if sink.format in FILE_FORMATS:
        return replace(vertex, sink=replace(sink, path=str(directory / vertex.id)))
    return replace(vertex, sink=NOWHERE)
