"""The part of a job without faults, as tasks that Spark can analyse (J4).

Example: in `events -> delays -> out`, `out` has an unknown format. That leaves `events -> delays`, which ends in no
sink. It gets a sink that takes all rows, so that Spark reports what is wrong with the SQL, and nothing about the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import GraphFault, vertex_path
from minflinkd.jobgraph.model import Input, JobGraph, Sink, Task, Vertex
from minflinkd.runtime.ids import VertexId

_END = "__end_of_sound_part"  # no user is likely to choose such a name


def sound_tasks(sound: JobGraph) -> tuple[Task, ...]:
    """Return the tasks of the vertices without faults. `sound` has these, and everything that they read."""
    read = {edge.id for vertex in sound.vertices for edge in vertex.inputs}
    open_ends = [vertex for vertex in sound.vertices if vertex.sink is None and vertex.id not in read]
    ends = [
        Vertex(
            id=VertexId(vertex.id + _END),
            inputs=(Input(id=vertex.id),),
            sink=Sink(format="console"),
            slot_sharing_group=vertex.slot_sharing_group,
        )
        for vertex in open_ends
    ]
    return chain(replace(sound, vertices=(*sound.vertices, *ends)))


def of_the_job(faults: Iterable[GraphFault], tasks: Iterable[Task]) -> tuple[GraphFault, ...]:
    """Leave out faults of the ends that the user has not written."""
    ends = tuple(vertex_path(v.id) for task in tasks for v in task.sinks if v.id.endswith(_END))
    return tuple(fault for fault in faults if not fault.path.startswith(ends))
