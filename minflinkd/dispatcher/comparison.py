"""Compares a new version of a job with the running one: what changes, and what becomes of its state (H2, C25). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from minflinkd.checkpoint.state_matching import (
    ALLOW,
    ALLOW_CHANGED,
    ALLOW_CHANGED_HERE,
    FRESH,
    NO_VERDICTS,
    Reason,
    StateNotMatched,
    Verdicts,
    all_fit,
    match_nodes,
    match_tasks,
)
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.difference import setting_changes, vertex_changes
from minflinkd.jobgraph.faults import GraphFault, vertex_path
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.jobs import StateChange, StateFate, VersionChanges
from minflinkd.rpc.snapshot import PlanNode, TaskSnapshot
from minflinkd.runtime.ids import TaskId, VertexId

PATH = "vertices"
_ALLOW_HERE = "to leave it behind: --allow-non-restored-state"
_HINTS = {ALLOW: _ALLOW_HERE, ALLOW_CHANGED: ALLOW_CHANGED_HERE}

Plans = Mapping[TaskId, Sequence[PlanNode]]
_NO_TASKS: Mapping[TaskId, Verdicts] = {}


def compare(
    old: JobGraph,
    new: JobGraph,
    snapshots: Sequence[TaskSnapshot],
    plans: Plans,
    verdicts: Mapping[TaskId, Verdicts] = _NO_TASKS,
    *,
    allow_non_restored: bool,
    allow_changed: bool = False,
) -> tuple[VersionChanges, tuple[GraphFault, ...]]:
    """Compare two versions. `snapshots`: of the last checkpoint. `plans`: the new tasks, as Spark analysed them.

    `verdicts`: what Spark says of that state in these plans. The faults say why the new version cannot continue with
    it.
    """
    changes = VersionChanges(
        vertices=vertex_changes(old, new),
        settings=setting_changes(old, new),
        state=tuple(_state_changes(new, snapshots, plans, verdicts, allow_changed=allow_changed)),
    )
    faults = _faults(
        new, snapshots, plans, verdicts, allow_non_restored=allow_non_restored, allow_changed=allow_changed
    )
    return changes, (*_unchangeable(old, new), *faults)


def _unchangeable(old: JobGraph, new: JobGraph) -> Iterator[GraphFault]:
    if old.isolation is not new.isolation:
        problem = f"the job runs with isolation {old.isolation.value}, on TaskManagers that are shared accordingly"
        yield GraphFault(path="isolation", problem=problem, hint="stop the job with a savepoint, and start it anew")


def _vertices(graph: JobGraph) -> dict[TaskId, list[VertexId]]:
    return {task.id: [vertex.id for vertex in task.vertices] for task in chain(graph)}


def _faults(
    new: JobGraph,
    snapshots: Sequence[TaskSnapshot],
    plans: Plans,
    verdicts: Mapping[TaskId, Verdicts],
    *,
    allow_non_restored: bool,
    allow_changed: bool,
) -> Iterator[GraphFault]:
    try:
        matched = match_tasks(snapshots, _vertices(new), allow_non_restored=allow_non_restored)
    except StateNotMatched as error:
        yield from _reasons(error.reasons)
        return
    for task, snapshot in matched.items():
        if not snapshot.operators or task not in plans:
            continue
        has_run = snapshot.batch_id >= 0
        try:
            own = verdicts.get(task, NO_VERDICTS) if has_run else all_fit(plans[task])
            match_nodes(
                snapshot.operators,
                plans[task],
                allow_non_restored=allow_non_restored,
                allow_changed=allow_changed,
                verdicts=own,
            )
        except StateNotMatched as error:
            # A task without a micro-batch has no state in this checkpoint, but perhaps in the one that it stops with.
            # Spark will then say whether that state fits, but not whether its meaning changed.
            yield from _reasons(reason for reason in error.reasons if has_run or reason.changes_meaning)


def _reasons(reasons: Iterable[Reason]) -> Iterator[GraphFault]:
    for reason in reasons:
        path = vertex_path(reason.vertex) if reason.vertex else PATH
        yield GraphFault(path=path, problem=reason.problem, hint=_HINTS.get(reason.hint, FRESH), code=reason.code)


def _state_changes(
    new: JobGraph,
    snapshots: Sequence[TaskSnapshot],
    plans: Plans,
    verdicts: Mapping[TaskId, Verdicts],
    *,
    allow_changed: bool,
) -> Iterator[StateChange]:
    """Yield one line for each stateful operator in the last checkpoint."""
    vertices = _vertices(new)
    for snapshot in snapshots:
        stateful = [node for node in snapshot.operators if node.stateful]
        try:
            heirs = match_tasks([snapshot], vertices, allow_non_restored=True)
            task = next(iter(heirs), None)
            nodes = plans.get(task, ()) if task is not None else ()
            own = NO_VERDICTS if task is None else verdicts.get(task, NO_VERDICTS)
            placement = match_nodes(
                snapshot.operators, nodes, allow_non_restored=True, allow_changed=allow_changed, verdicts=own
            )
            kept = set(placement.operators.values())
        except StateNotMatched as error:
            for node in stateful:
                yield _fate(node, StateFate.INCOMPATIBLE, str(error.reasons[0].problem))
            continue
        for node in stateful:
            yield _fate(node, StateFate.KEPT if node.number in kept else StateFate.LOST)


def _fate(node: PlanNode, fate: StateFate, reason: str = "") -> StateChange:
    return StateChange(vertex=node.vertex, kind=node.kind, fate=fate, reason=reason)
