"""Checks whether a submitted job can start from the checkpoint that it names (C25), before anything starts (J4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minflinkd.checkpoint.external import External, NoCheckpointThere, read_external
from minflinkd.checkpoint.metadata import CorruptMetadata, MetadataTooNew
from minflinkd.checkpoint.offsets import OffsetsUnreadable
from minflinkd.checkpoint.state_matching import (
    NO_VERDICTS,
    StateNotMatched,
    Verdicts,
    ended_inputs,
    match_nodes,
    match_tasks,
)
from minflinkd.dispatcher.held_state import held_state
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import JobGraph, Restore, RestoreMode, RuntimeMode
from minflinkd.jobmaster.origin import Origin, latest_offsets
from minflinkd.rpc.messages import HeldState
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.storage.interface import InvalidPath, PermissionDenied
from minflinkd.storage.registry import Storages, UnknownScheme

PATH = "restore.path"
NO_TASKS: Mapping[TaskId, Verdicts] = {}
_WRONG = (NoCheckpointThere, CorruptMetadata, MetadataTooNew, UnknownScheme, InvalidPath, PermissionDenied)


@dataclass(frozen=True)
class RestoreCheck:
    """`runs`: whether a job with this id is to run here."""

    storages: Storages
    runs: Callable[[JobId], bool]

    async def held(self, graph: JobGraph) -> dict[TaskId, HeldState]:
        """Return the state that the graph's tasks continue with. Raises StorageError if the storage does not answer."""
        restore = graph.restore
        if restore is None or restore.path is None or restore.offsets is not None:
            return {}
        try:
            found = await read_external(self.storages, restore.path)
        except _WRONG:
            return {}  # `faults` reports why
        return held_state(graph, found.checkpoint.tasks, found.root.uri)

    async def faults(
        self,
        graph: JobGraph,
        operators: Mapping[TaskId, tuple[PlanNode, ...]],
        verdicts: Mapping[TaskId, Verdicts] = NO_TASKS,
    ) -> tuple[GraphFault, ...]:
        """Return the faults that prevent the restore. Raises StorageError if the storage does not answer.

        `operators`: those of each task, as Spark analysed it. `verdicts`: what Spark says of the state held for each
        task.
        """
        restore = graph.restore
        if restore is None or restore.path is None:
            return ()
        if restore.offsets is not None:
            return await self._offsets(graph, restore.path)
        try:
            found = await read_external(self.storages, restore.path)
        except _WRONG as error:
            return (_fault(PATH, error),)
        return (*self._claim(restore, found), *_mismatches(graph, restore, found, operators, verdicts))

    async def warnings(self, graph: JobGraph) -> tuple[str, ...]:
        """Return warnings for a job without faults. Raises what `faults` raises."""
        restore = graph.restore
        if (
            graph.mode is not RuntimeMode.BATCH
            or restore is None
            or restore.path is None
            or restore.offsets is not None
        ):
            return ()
        found = await read_external(self.storages, restore.path)
        sources = {vertex.id for vertex in graph.vertices if vertex.source is not None}
        ended = [vertex for vertex in ended_inputs(found.checkpoint.tasks) if vertex in sources]
        what = "the savepoint" if found.checkpoint.self_contained else "the checkpoint"
        return tuple(
            f"the input of {vertex} had ended when {what} was taken: what was added to it since is not read. "
            "Process that with a job of its own"
            for vertex in ended
        )

    async def _offsets(self, graph: JobGraph, path: str) -> tuple[GraphFault, ...]:
        try:
            start = await latest_offsets(self.storages, path, Origin(self.storages, graph))
        except (*_WRONG, OffsetsUnreadable) as error:
            return (_fault(PATH, error),)
        if start.restores:
            return ()
        return (GraphFault(path=PATH, problem="it has no offset of any source of this job", hint="leave restore out"),)

    def _claim(self, restore: Restore, found: External) -> tuple[GraphFault, ...]:
        owner = found.checkpoint.job_id
        if restore.mode is RestoreMode.CLAIM and found.root.storage.read_only:
            problem = f"{found.root.scheme}:// is only read, so the job could never delete what it claims"
            return (GraphFault(path="restore.mode", problem=problem, hint="no-claim"),)
        if restore.mode is not RestoreMode.CLAIM or found.checkpoint.self_contained or not self.runs(owner):
            return ()
        problem = f"the checkpoint belongs to job {owner}, which runs, and would be deleted"
        return (GraphFault(path="restore.mode", problem=problem, hint="no-claim, or a savepoint of that job"),)


def _mismatches(
    graph: JobGraph,
    restore: Restore,
    found: External,
    operators: Mapping[TaskId, tuple[PlanNode, ...]],
    verdicts: Mapping[TaskId, Verdicts],
) -> list[GraphFault]:
    allow = restore.allow_non_restored_state
    vertices = {task.id: [vertex.id for vertex in task.vertices] for task in chain(graph)}
    faults: list[GraphFault] = []
    try:
        matched = match_tasks(found.checkpoint.tasks, vertices, allow_non_restored=allow)
    except StateNotMatched as error:
        return _faults(error)
    for task, snapshot in matched.items():
        if snapshot.batch_id < 0 or not snapshot.operators or task not in operators:
            continue
        try:
            own = verdicts.get(task, NO_VERDICTS)
            match_nodes(
                snapshot.operators,
                operators[task],
                allow_non_restored=allow,
                allow_changed=restore.allow_changed_state,
                verdicts=own,
            )
        except StateNotMatched as error:
            faults += _faults(error)
    return faults


def _faults(error: StateNotMatched) -> list[GraphFault]:
    return [
        GraphFault(path=PATH, problem=reason.problem, hint=reason.hint, code=reason.code) for reason in error.reasons
    ]


def _fault(path: str, error: MinflinkError) -> GraphFault:
    return GraphFault(path=path, problem=error.message, hint=error.hint)
