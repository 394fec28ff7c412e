"""A job's tasks as Flink job vertices: their ids, their counts, and the edges between them.

Only what follows from the graph is here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from minflinkd.jobgraph.model import JobGraph, RuntimeMode, Task
from minflinkd.rest.schemas import Plan, PlanInput, PlanNode, StateCounts, TaskCounts
from minflinkd.rpc.jobs import JobDetails, TaskDetails
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import JobId, VertexId


@lru_cache(maxsize=4096)
def vertex_id(task_id: str) -> str:
    """Return 32 hex digits, as Flink's clients expect. As stable between versions as the task's own id."""
    return hashlib.md5(task_id.encode(), usedforsecurity=False).hexdigest()


def find_task(job: JobDetails, wanted: str) -> TaskDetails:
    """Return the task with this id: Flink's id of the vertex, or the task's own. Raises NotFound."""
    for task in job.tasks:
        if wanted in (task.task.id, vertex_id(task.task.id)):
            return task
    raise NotFound(f"job {job.job_id} has no vertex {wanted[:80]!r}", hint="GET /jobs/:jobid lists them")


def job_type(mode: RuntimeMode) -> str:
    return "BATCH" if mode is RuntimeMode.BATCH else "STREAMING"


def plan_of(details: JobDetails) -> Plan:
    return plan_of_tasks(details.job_id, details.graph, [task.task for task in details.tasks])


def plan_of_tasks(job_id: JobId, graph: JobGraph, tasks: Sequence[Task]) -> Plan:
    """Return the plan of a job that need not run."""
    owner = {vertex.id: task for task in tasks for vertex in task.vertices}
    nodes = (
        PlanNode(
            id=vertex_id(task.id),
            parallelism=task.parallelism,
            description=describe(task),
            inputs=tuple(
                PlanInput(num=num, id=vertex_id(upstream.id), ship_strategy="EXCHANGE", exchange="durable")
                for num, upstream in enumerate(_upstream(task, owner))
            ),
        )
        for task in tasks
    )
    return Plan(jid=job_id, name=graph.name, type=job_type(graph.mode), nodes=tuple(nodes))


def describe(task: Task) -> str:
    """Describe a task by its vertices' ids and kinds: ids are plain names, which a page may show unescaped."""
    return " -> ".join(f"{vertex.id} ({vertex.kind})" for vertex in task.vertices)


def state_counts(states: Iterable[str]) -> StateCounts:
    return StateCounts(**_counted(states))


def task_counts(tasks: dict[str, int]) -> TaskCounts:
    return TaskCounts(total=sum(tasks.values()), **{state.lower(): count for state, count in tasks.items()})


def _counted(states: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for state in states:
        counts[state.lower()] = counts.get(state.lower(), 0) + 1
    return counts


def _upstream(task: Task, owner: dict[VertexId, Task]) -> Iterable[Task]:
    """Return the tasks whose exchanges this one reads, once each, in the order of the inputs."""
    edges = (owner.get(edge.id, task) for vertex in task.vertices for edge in vertex.inputs)
    return {upstream.id: upstream for upstream in edges if upstream.id != task.id}.values()
