"""Whether a version of a job can go on with the state that is there (C25, H2), before anything starts or stops (J4).

`compare` is asked about a hot restart: the state is that of the running version. `RestoreCheck` is asked about a
submission: the state is in the checkpoint that the job names. Both look for the same misfits, and report them in their
own words. Only `RestoreCheck` reads a storage; the rest is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minflinkd.checkpoint.external import External, NoCheckpointThere, read_external
from minflinkd.checkpoint.metadata import CorruptMetadata, MetadataTooNew
from minflinkd.checkpoint.offsets import OffsetsUnreadable
from minflinkd.checkpoint.source_logs import SourceLogs, vertex_of, without_log
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
    ended_inputs,
    match_nodes,
    match_tasks,
)
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.difference import setting_changes, vertex_changes
from minflinkd.jobgraph.faults import GraphFault, vertex_path
from minflinkd.jobgraph.model import JobGraph, Restore, RestoreMode, RuntimeMode
from minflinkd.jobmaster.origin import Origin, latest_offsets
from minflinkd.rpc.jobs import StateChange, StateFate, VersionChanges
from minflinkd.rpc.messages import HeldState, TaskRestore
from minflinkd.rpc.snapshot import PlanNode, StateFile, TaskSnapshot
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId, TaskId, VertexId
from minflinkd.storage.interface import InvalidPath, PermissionDenied
from minflinkd.storage.registry import Storages, UnknownScheme

Plans = Mapping[TaskId, Sequence[PlanNode]]  # the tasks of the new version, as Spark analysed them
NO_TASKS: Mapping[TaskId, Verdicts] = {}

_VERTICES = "vertices"
_PATH = "restore.path"
_ALLOW_HERE = "to drop it: --allow-non-restored-state"
_HINTS_HERE = {ALLOW: _ALLOW_HERE, ALLOW_CHANGED: ALLOW_CHANGED_HERE}
_WRONG = (NoCheckpointThere, CorruptMetadata, MetadataTooNew, UnknownScheme, InvalidPath, PermissionDenied)


@dataclass(frozen=True)
class Misfit:
    """Why state does not fit. `has_run`: whether its task had finished a micro-batch at the checkpoint."""

    reason: Reason
    has_run: bool = True


def misfits(
    graph: JobGraph,
    snapshots: Sequence[TaskSnapshot],
    plans: Plans,
    verdicts: Mapping[TaskId, Verdicts] = NO_TASKS,
    *,
    allow_non_restored: bool,
    allow_changed: bool,
) -> Iterator[Misfit]:
    """Yield every reason why the tasks of `graph` cannot go on with the snapshots.

    `verdicts`: what Spark says of that state in these plans. A task that had not run has no types yet to compare.
    """
    try:
        matched = match_tasks(snapshots, _vertices(graph), allow_non_restored=allow_non_restored)
    except StateNotMatched as error:
        yield from map(Misfit, error.reasons)
        return
    for task, snapshot in matched.items():
        if not snapshot.operators or task not in plans:
            continue
        has_run = snapshot.batch_id >= 0
        try:
            match_nodes(
                snapshot.operators,
                plans[task],
                allow_non_restored=allow_non_restored,
                allow_changed=allow_changed,
                verdicts=verdicts.get(task, NO_VERDICTS) if has_run else all_fit(plans[task]),
            )
        except StateNotMatched as error:
            yield from (Misfit(reason, has_run) for reason in error.reasons)


def held_state(graph: JobGraph, snapshots: Sequence[TaskSnapshot], root: str) -> dict[TaskId, HeldState]:
    """Return the state that tasks continue with, as a TaskManager needs it to compare types.

    It has only tasks whose state Spark has described. `root`: URI of the physical files. Empty if the snapshots do not
    match the graph: `misfits` says why.
    """
    try:
        matched = match_tasks(snapshots, _vertices(graph), allow_non_restored=True)
    except StateNotMatched:
        return {}
    held = {
        task: HeldState(operators=s.operators, described=tuple(filter(_describes_types, s.files)), root=root)
        for task, s in matched.items()
    }
    return {task: state for task, state in held.items() if state.described}


def _describes_types(file: StateFile) -> bool:
    return file.path.startswith("state/") and file.path.endswith("/_metadata/schema")


def _vertices(graph: JobGraph) -> dict[TaskId, list[VertexId]]:
    return {task.id: [vertex.id for vertex in task.vertices] for task in chain(graph)}


# --- a hot restart: the state of the running version -------------------------------------------------------------


def compare(
    old: JobGraph,
    new: JobGraph,
    snapshots: Sequence[TaskSnapshot],
    plans: Plans,
    verdicts: Mapping[TaskId, Verdicts] = NO_TASKS,
    *,
    allow_non_restored: bool,
    allow_changed: bool = False,
) -> tuple[VersionChanges, tuple[GraphFault, ...]]:
    """Compare two versions. `snapshots`: of the last checkpoint.

    The faults say why the new version cannot continue with it.
    """
    found = misfits(new, snapshots, plans, verdicts, allow_non_restored=allow_non_restored, allow_changed=allow_changed)
    changes = VersionChanges(
        vertices=vertex_changes(old, new),
        settings=setting_changes(old, new),
        state=tuple(_state_changes(new, snapshots, plans, verdicts, allow_changed=allow_changed)),
    )
    # A task that had not run has no state in this checkpoint, but perhaps in the one that it stops with. Spark will
    # then say whether that state fits, but not whether its meaning changed.
    counted = (misfit.reason for misfit in found if misfit.has_run or misfit.reason.changes_meaning)
    return changes, (*_unchangeable(old, new), *map(_fault_here, counted))


def _unchangeable(old: JobGraph, new: JobGraph) -> Iterator[GraphFault]:
    if old.isolation is not new.isolation:
        problem = f"the job runs with isolation {old.isolation.value}, on TaskManagers that are shared accordingly"
        yield GraphFault(path="isolation", problem=problem, hint="stop the job with a savepoint, and start it anew")


def _fault_here(reason: Reason) -> GraphFault:
    path = vertex_path(reason.vertex) if reason.vertex else _VERTICES
    return GraphFault(path=path, problem=reason.problem, hint=_HINTS_HERE.get(reason.hint, FRESH), code=reason.code)


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
            task = next(iter(match_tasks([snapshot], vertices, allow_non_restored=True)), None)
            placement = match_nodes(
                snapshot.operators,
                () if task is None else plans.get(task, ()),
                allow_non_restored=True,
                allow_changed=allow_changed,
                verdicts=NO_VERDICTS if task is None else verdicts.get(task, NO_VERDICTS),
            )
        except StateNotMatched as error:
            for node in stateful:
                yield _fate(node, StateFate.INCOMPATIBLE, str(error.reasons[0].problem))
            continue
        kept = set(placement.operators.values())
        for node in stateful:
            yield _fate(node, StateFate.KEPT if node.number in kept else StateFate.LOST)


def _fate(node: PlanNode, fate: StateFate, reason: str = "") -> StateChange:
    return StateChange(vertex=node.vertex, kind=node.kind, fate=fate, reason=reason)


# --- a submission: the state in the checkpoint that it names -----------------------------------------------------


@dataclass(frozen=True)
class RestoreCheck:
    """`runs`: whether a job with this id is to run here."""

    storages: Storages
    runs: Callable[[JobId], bool]

    async def held(self, graph: JobGraph) -> dict[TaskId, HeldState]:
        """Return the state that the graph's tasks continue with. Raises StorageError if the storage does not answer."""
        if (path := _restored_from(graph)) is None:
            return {}
        try:
            found = await read_external(self.storages, path)
        except _WRONG:
            return {}  # `faults` reports why
        return held_state(graph, found.checkpoint.tasks, found.root.uri)

    async def faults(
        self, graph: JobGraph, plans: Plans, verdicts: Mapping[TaskId, Verdicts] = NO_TASKS
    ) -> tuple[GraphFault, ...]:
        """Return the faults that prevent the restore. Raises StorageError if the storage does not answer."""
        restore = graph.restore
        if restore is None or restore.path is None:
            return ()
        if restore.offsets is not None:
            return await self._offsets(graph, restore.path)
        try:
            found = await read_external(self.storages, restore.path)
        except _WRONG as error:
            return (_fault(error),)
        reasons = misfits(
            graph,
            found.checkpoint.tasks,
            plans,
            verdicts,
            allow_non_restored=restore.allow_non_restored_state,
            allow_changed=restore.allow_changed_state,
        )
        # A task that had not run starts without state.
        faults = (
            GraphFault(path=_PATH, problem=misfit.reason.problem, hint=misfit.reason.hint, code=misfit.reason.code)
            for misfit in reasons
            if misfit.has_run
        )
        return (*self._claim(restore, found), *faults)

    async def warnings(self, graph: JobGraph) -> tuple[str, ...]:
        """Return warnings for a job without faults. Raises what `faults` raises."""
        if graph.mode is not RuntimeMode.BATCH or (path := _restored_from(graph)) is None:
            return ()
        found = await read_external(self.storages, path)
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
            return (_fault(error),)
        if not start.restores:
            problem = "it has no offset of any source of this job"
            return (GraphFault(path=_PATH, problem=problem, hint="leave restore out"),)
        return tuple(_no_log(source) for restore in start.restores.values() for source in _without_log(restore))

    def _claim(self, restore: Restore, found: External) -> tuple[GraphFault, ...]:
        owner = found.checkpoint.job_id
        if restore.mode is RestoreMode.CLAIM and found.root.storage.read_only:
            problem = f"{found.root.scheme}:// is only read, so the job could never delete what it claims"
            return (GraphFault(path="restore.mode", problem=problem, hint="no-claim"),)
        if restore.mode is not RestoreMode.CLAIM or found.checkpoint.self_contained or not self.runs(owner):
            return ()
        problem = f"the checkpoint belongs to job {owner}, which runs, and would be deleted"
        return (GraphFault(path="restore.mode", problem=problem, hint="no-claim, or a savepoint of that job"),)


def _without_log(restore: TaskRestore) -> tuple[str, ...]:
    return without_log(restore.offsets, SourceLogs(restore.snapshot.operators, restore.snapshot.files))


def _no_log(source: str) -> GraphFault:
    return GraphFault(
        path=vertex_path(VertexId(vertex_of(source))),
        problem=f"the offset of the file source {source} is a place in its log of files, and there is no log up to it",
        hint="name a savepoint or checkpoint as restore.path; or give the offsets of other sources only, and move away "
        "what was read",
        code="offsets-not-usable",
    )


def _restored_from(graph: JobGraph) -> str | None:
    """Return the path of the checkpoint whose state the job continues with. None if it takes no state."""
    restore = graph.restore
    return None if restore is None or restore.offsets is not None else restore.path


def _fault(error: MinflinkError) -> GraphFault:
    return GraphFault(path=_PATH, problem=error.message, hint=error.hint)
