"""The plan of a job in the JSON of Flink's `/jobs/:jobid/plan`.

As in Flink, a node is a task, which may chain several vertices, and an input is an edge between tasks. What a task
chains is under `operators`, an addition for those who want to draw it.
"""

from __future__ import annotations

from typing import Any

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph, RuntimeMode, Task, Vertex
from minflinkd.runtime.ids import JobId


def plan_json(graph: JobGraph, job_id: JobId) -> dict[str, Any]:
    """The value of `plan`. Raises InvalidJobGraph for a graph that cannot be chained."""
    tasks = chain(graph)
    task_of = {vertex.id: task for task in tasks for vertex in task.vertices}
    return {
        "jid": job_id,
        "name": graph.name,
        "type": "BATCH" if graph.mode is RuntimeMode.BATCH else "STREAMING",
        "nodes": [_node(task, task_of) for task in tasks],
    }


def _node(task: Task, task_of: dict[Any, Task]) -> dict[str, Any]:
    upstream = [task_of[edge.id].id for v in task.vertices for edge in v.inputs if task_of[edge.id] is not task]
    return {
        "id": task.id,
        "parallelism": task.parallelism,
        "operator": "",
        "operator_strategy": "",
        "description": task.name,
        "inputs": [
            {"num": i, "id": source, "ship_strategy": "FORWARD", "exchange": "pipelined_bounded"}
            for i, source in enumerate(dict.fromkeys(upstream))
        ],
        "optimizer_properties": {},
        "operators": [
            {"id": v.id, "kind": v.kind, "description": describe(v), "inputs": [edge.id for edge in v.inputs]}
            for v in task.vertices
        ],
    }


def describe(vertex: Vertex) -> str:
    """What a vertex does, on one line."""
    if vertex.source is not None:
        return vertex.source.python or " ".join(filter(None, (vertex.source.format, vertex.source.path)))
    if vertex.sink is not None:
        return vertex.sink.python or " ".join(filter(None, (vertex.sink.format, vertex.sink.path)))
    return " ".join((vertex.sql or vertex.python or "").split())
