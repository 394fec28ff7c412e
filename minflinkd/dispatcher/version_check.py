"""Checks a new version of a running job: as a submission is (J4), and against the state of the running one (H2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from minflinkd.dispatcher.blobs import keys_of_versions
from minflinkd.dispatcher.state_fit import compare, held_state
from minflinkd.dispatcher.submission import Admit, Analyzer, ContextOf
from minflinkd.dispatcher.versions import Versions
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.jobs import HotRestartJob, RestartAnswer
from minflinkd.rpc.messages import HeldState
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import JobId, TaskId


@dataclass(frozen=True)
class VersionCheck:
    """Stops nothing and stores nothing. After a check the job holds the new version's artifacts beside its own."""

    analyzer: Analyzer
    context: ContextOf

    async def check(
        self,
        job_id: JobId,
        versions: Versions,
        snapshots: Sequence[TaskSnapshot],
        request: HotRestartJob,
        *,
        admit: Admit,
    ) -> tuple[JobGraph, RestartAnswer]:
        """Return the new version, what it changes, and why the state does not fit if it does not.

        `snapshots`: of the running version's last checkpoint. Raises InvalidJobGraph if the version is wrong in itself,
        NoSession, StorageError, and what `admit` raises.
        """
        running = versions.current.graph

        async def held(graph: JobGraph) -> dict[TaskId, HeldState]:
            return held_state(graph, snapshots, self.context(job_id, graph).checkpoint_root)

        graph, analysis = await self.analyzer.analyze(
            job_id, request.document, self.context, held=held, admit=admit, beside=keys_of_versions(versions)
        )
        # If the job has a checkpoint of its own, that counts. If not, the new version starts as the old one was
        # started.
        graph = replace(graph, restore=running.restore)
        changes, faults = compare(
            running,
            graph,
            snapshots,
            analysis.operators,
            analysis.verdicts,
            allow_non_restored=request.allow_non_restored_state,
            allow_changed=request.allow_changed_state,
        )
        if graph.input_range != running.input_range:
            problem = "the state that is there is of the rows of another range"
            hint = "keep the range; or cancel the job, and submit it with the other one"
            faults = (*faults, GraphFault(path="input-range", problem=problem, hint=hint))
        return graph, RestartAnswer(job_id=job_id, faults=faults, changes=changes)
