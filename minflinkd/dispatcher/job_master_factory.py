"""Makes the JobMasters of all jobs: what a stored job and the Dispatcher's present options come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.dispatcher.job_store import StoredJob
from minflinkd.dispatcher.libraries import libraries
from minflinkd.dispatcher.options import DispatcherOptions, checkpoint_options, checkpointing_of_tasks
from minflinkd.jobgraph.input_range import limits
from minflinkd.jobgraph.model import JobGraph, version_of
from minflinkd.jobgraph.real_time import execution_of
from minflinkd.jobmaster.job import AcceptedJob, JobStorage, Succession
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.rpc.jobs import JobDetails
from minflinkd.rpc.messages import ArtifactRef, JobContext
from minflinkd.rpc.network import Network
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.ids import Chance, JobId
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages

STARTS = 8  # JobMasters brought up at a time: each reads its job's checkpoints


class JobMasterFactory:
    """`options`: returns the present options. `leads`: whether it is certain that no other daemon leads now.

    `pointers` returns where a job's completed checkpoints are recorded, if there may be other daemons.
    """

    def __init__(
        self,
        *,
        network: Network,
        storages: Storages,
        clock: Clock,
        chance: Chance,
        options: Callable[[], DispatcherOptions],
        leads: Callable[[], bool],
        pointers: Callable[[JobId], Location | None],
    ) -> None:
        self._network = network
        self._storages = storages
        self._clock = clock
        self._chance = chance
        self._options = options
        self._leads = leads
        self.pointers_of = pointers
        self.gate = asyncio.Semaphore(STARTS)  # whoever brings up a JobMaster waits for it
        self._scrubs = asyncio.Lock()
        self.adopted_tasks = 0

    def make(
        self,
        stored: StoredJob,
        turn: StorageTurn,
        succession: Succession,
        on_end: Callable[[JobDetails], Coroutine[Any, Any, None]],
    ) -> JobMaster:
        return JobMaster(
            AcceptedJob(
                graph=stored.graph,
                context=self.context(stored.job_id, stored.graph),
                submitted_ms=stored.submitted_ms,
                submission=stored.submission,
                cancelled=stored.cancelled,
            ),
            options=replace(self._options().job_master, checkpoints=self.checkpoint_options(stored.graph)),
            storage=JobStorage(
                storages=self._storages,
                root=self.checkpoints_of(stored.job_id),
                turn=turn,
                leads=self._leads,
                pointers=self.pointers_of(stored.job_id),
                scrubs=self._scrubs,
            ),
            network=self._network,
            clock=self._clock,
            chance=self._chance,
            on_end=on_end,
            succession=replace(succession, on_adoption=self._adopted),
        )

    def _adopted(self, tasks: int) -> None:
        self.adopted_tasks += tasks

    def context(self, job_id: JobId, graph: JobGraph) -> JobContext:
        """Return what the job's tasks are built with."""
        return JobContext(
            job_id=job_id,
            name=graph.name,
            params=graph.params,
            mode=graph.mode,
            checkpointing=checkpointing_of_tasks(self._options().job_master.checkpoints, graph),
            checkpoint_root=self._checkpoint_root(job_id),
            artifacts=tuple(ArtifactRef(name=a.name, key=a.key or "", size=a.size) for a in graph.artifacts),
            spark=graph.spark,
            trigger_interval=float(graph.trigger_interval),
            execution=execution_of(graph),
            limits=limits(graph),
            libraries=libraries(graph),
            version=version_of(graph),
        )

    def checkpoint_options(self, graph: JobGraph) -> CheckpointOptions:
        return checkpoint_options(self._options().job_master.checkpoints, graph)

    def checkpoints_of(self, job_id: JobId) -> Location:
        """Return the directory of the job's checkpoints."""
        return self._storages.at(self._checkpoint_root(job_id))

    def _checkpoint_root(self, job_id: JobId) -> str:
        return f"{self._options().checkpoint_root.rstrip('/')}/{job_id}"
