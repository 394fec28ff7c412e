"""Which tasks restart together (R16): what follows from the exchanges between them. Pure.

Example: `a` writes an exchange that `b` reads, and `b` one that `c` reads. If `b` fails, `b` and `c` restart from the
latest checkpoint, and `a` runs on: its exchange still has what `b` had read since that checkpoint. If `a` does not have
it any more, `a` restarts as well. Tasks that no exchange connects with these are never disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from minflinkd.jobgraph.model import Task
from minflinkd.runtime.ids import TaskId


@dataclass(frozen=True)
class Exchanges:
    """For each task: those whose exchanges it reads, and itself with all that depend on its output."""

    sources: Mapping[TaskId, frozenset[TaskId]]
    downstream: Mapping[TaskId, frozenset[TaskId]]

    def affected(self, failed: Collection[TaskId], can_run_on: Callable[[TaskId], bool]) -> frozenset[TaskId]:
        """Return the tasks that restart when those in `failed` have failed.

        A restarted task writes its output again, divided differently, so all tasks downstream restart as well. What a
        restarted task reads comes again, either from a task that restarts or from one that `can_run_on`.
        """
        found = self._with_downstream(failed)
        while needed := {s for task in found for s in self.sources[task]} - found:
            if not (also := {task for task in needed if not can_run_on(task)}):
                break
            found |= self._with_downstream(also)
        return found

    def _with_downstream(self, tasks: Collection[TaskId]) -> frozenset[TaskId]:
        return frozenset(t for task in tasks for t in self.downstream[task])


def exchanges(tasks: Collection[Task]) -> Exchanges:
    """Return the exchanges between the tasks of a job."""
    owner = {vertex.id: task.id for task in tasks for vertex in task.vertices}
    sources = {
        task.id: frozenset(owner[edge.id] for edge in task.inputs if owner.get(edge.id, task.id) != task.id)
        for task in tasks
    }
    downstream = {task.id: {task.id} for task in tasks}
    changed = True
    while changed:
        changed = False
        for task, read in sources.items():
            for source in read:
                changed = changed or not downstream[task] <= downstream[source]
                downstream[source] |= downstream[task]
    return Exchanges(sources, {task: frozenset(found) for task, found in downstream.items()})
