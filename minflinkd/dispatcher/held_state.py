"""The state that the tasks of a job graph continue with, as a TaskManager needs it to compare types (C25). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minflinkd.checkpoint.state_matching import StateNotMatched, match_tasks
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.messages import HeldState
from minflinkd.rpc.snapshot import StateFile, TaskSnapshot
from minflinkd.runtime.ids import TaskId


def held_state(graph: JobGraph, snapshots: Sequence[TaskSnapshot], root: str) -> dict[TaskId, HeldState]:
    """Return the state of tasks that get a snapshot, if Spark has described its types.

    `root`: URI of the physical files.

    Empty if the snapshots do not match the graph: whoever compares them reports why.
    """
    vertices = {task.id: [vertex.id for vertex in task.vertices] for task in chain(graph)}
    try:
        matched = match_tasks(snapshots, vertices, allow_non_restored=True)
    except StateNotMatched:
        return {}
    held = {
        task: HeldState(operators=s.operators, described=tuple(filter(_describes, s.files)), root=root)
        for task, s in matched.items()
    }
    return {task: state for task, state in held.items() if state.described}


def _describes(file: StateFile) -> bool:
    return file.path.startswith("state/") and file.path.endswith("/_metadata/schema")
