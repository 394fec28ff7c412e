"""Assigns row counts to the tasks of another version of a job.

Counts stay with the vertices that read or wrote the rows. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minflinkd.jobgraph.model import Task
from minflinkd.rpc.snapshot import NO_ROWS, RowCounts, TaskSnapshot
from minflinkd.runtime.ids import TaskId


def row_counts(snapshots: Iterable[TaskSnapshot], tasks: Mapping[TaskId, Task]) -> dict[TaskId, RowCounts]:
    """Return the counts that each task begins with. Counts of a vertex that the job no longer has are dropped.

    A source, a sink and the vertex at a task's end are in only one task of each version. Several tasks may read an
    exchange: its rows stay with the task that has the same id as the task that read them.
    """
    by_task = {snapshot.task_id: snapshot for snapshot in snapshots}
    everything = sum((_without_exchanges(snapshot) for snapshot in by_task.values()), NO_ROWS)
    found = {}
    for task_id, task in tasks.items():
        own = {vertex.id for vertex in task.vertices}
        inputs = {edge.id for edge in task.inputs}
        before = by_task[task_id].rows if task_id in by_task else NO_ROWS
        read = {vertex: rows for vertex, rows in everything.read.items() if vertex in own}
        read |= {vertex: rows for vertex, rows in before.read.items() if vertex in inputs}
        ends = {vertex.id for vertex in task.sinks} | ({task.end} if task.readers else set())
        found[task_id] = RowCounts(
            read,
            {vertex: rows for vertex, rows in everything.written.items() if vertex in ends},
            {vertex: rows for vertex, rows in everything.rejected.items() if vertex in own},
        )
    return found


def _without_exchanges(snapshot: TaskSnapshot) -> RowCounts:
    """Leave out rows read from inputs: the task that wrote them has counted them under the same vertex."""
    read = {vertex: rows for vertex, rows in snapshot.rows.read.items() if vertex not in snapshot.inputs}
    return RowCounts(read, snapshot.rows.written, snapshot.rows.rejected)


def source_rows(task: Task, rows: RowCounts) -> int:
    """Return the number of rows that the task has read from outside the job."""
    inputs = {edge.id for edge in task.inputs}
    return sum(count for vertex, count in rows.read.items() if vertex not in inputs)


def bad_records(task: Task, rows: RowCounts) -> dict[str, int]:
    """Return the number of bad records of each vertex that looks for them, also if there were none."""
    return {v.id: rows.rejected.get(v.id, 0) for v in task.vertices if v.on_bad_record is not None}


def sink_rows(task: Task, rows: RowCounts) -> int:
    """Return the number of rows that the task has written to outside the job."""
    sinks = {vertex.id for vertex in task.sinks}
    return sum(count for vertex, count in rows.written.items() if vertex in sinks)
