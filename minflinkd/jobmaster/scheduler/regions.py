"""Failover regions (R16): tasks that exchange data restart together, and no others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minflinkd.jobgraph.model import Task
from minflinkd.runtime.ids import TaskId


def regions(tasks: Collection[Task]) -> Mapping[TaskId, frozenset[TaskId]]:
    """Return for each task all tasks that it is connected to by exchanges, including itself."""
    owner = {vertex.id: task.id for task in tasks for vertex in task.vertices}
    found = {task.id: frozenset((task.id,)) for task in tasks}
    for task in tasks:
        for source in (owner[edge.id] for vertex in task.vertices for edge in vertex.inputs if edge.id in owner):
            merged = found[source] | found[task.id]
            found |= dict.fromkeys(sorted(merged), merged)
    return found
