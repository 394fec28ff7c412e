"""A Dispatcher over real local storage, with a ResourceManager and a TaskManager that are mailboxes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.blob.keys import BlobKey
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.dispatcher.dispatcher import Dispatcher, DispatcherOptions
from minflinkd.dispatcher.job_store import JobStore
from minflinkd.jobgraph.model import RestartStrategy
from minflinkd.jobmaster.job_master import JobMasterOptions
from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, Address, Mailbox
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import IdSource, JobId
from minflinkd.storage.registry import Storages

TM = Address("taskmanager/tm-1")
DOCUMENT: dict[str, Any] = {
    "name": "copy",
    "vertices": [
        {"id": "numbers", "source": {"format": "rate"}},
        {"id": "out", "inputs": ["numbers"], "sink": {"format": "parquet", "path": "/nowhere/out"}},
    ],
}


@dataclass
class FakeBlobs:
    """Which jobs' blobs were deleted, in order."""

    deleted: list[JobId] = field(default_factory=list)
    failures: int = 0

    async def contains(self, job_id: JobId, key: BlobKey) -> bool:
        return False

    async def delete_job(self, job_id: JobId) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is away")
        self.deleted.append(job_id)


@dataclass
class Cluster:
    directory: Path
    network: LocalNetwork = field(default_factory=LocalNetwork)
    blobs: FakeBlobs = field(default_factory=FakeBlobs)
    storages: Storages = field(default_factory=Storages)
    faults: tuple[Any, ...] = ()  # that the analysis finds
    analyzed: list[JobId] = field(default_factory=list)
    ended: list[JobId] = field(default_factory=list)
    before_analysis: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        rm, tm = Mailbox(RESOURCE_MANAGER), Mailbox(TM)
        rm.on(m.FindSession, self._find_session)
        rm.on(m.DeclareNeeds, self._declare_needs)
        rm.on(m.JobMasterEnded, self._job_master_ended)
        tm.on(m.AnalyzeJob, self._analyze)
        for mailbox in (rm, tm):
            self.network.attach(mailbox)
        self.store = JobStore(self.storages.at(str(self.directory / "jobstore")))

    async def _find_session(self, request: m.FindSession) -> m.SessionFound:
        return m.SessionFound(address=TM)

    async def _declare_needs(self, request: m.DeclareNeeds) -> m.NeedsAnswer:
        return m.NeedsAnswer()

    async def _job_master_ended(self, request: m.JobMasterEnded) -> m.Done:
        self.ended.append(request.job_id)
        return m.Done()

    async def _analyze(self, request: m.AnalyzeJob) -> m.Analysis:
        if self.before_analysis is not None:
            await self.before_analysis()
        self.analyzed.append(request.job.job_id)
        return m.Analysis(faults=self.faults)

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            network=self.network,
            store=self.store,
            storages=self.storages,
            blobs=self.blobs,
            clock=SystemClock(),
            ids=IdSource(random.Random(1)),
            rng=random.Random(1),
            options=DispatcherOptions(
                checkpoint_root=f"file://{self.directory}/checkpoints",
                session_timeout=1.0,
                job_master=JobMasterOptions(
                    restart_strategy=RestartStrategy(), checkpoints=CheckpointOptions(), heartbeat_interval=0.05
                ),
            ),
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Dispatcher]:
        async with self.dispatcher() as dispatcher:
            yield dispatcher

    async def submit(self, job_id: JobId, document: Any = DOCUMENT, *, dry_run: bool = False) -> j.SubmissionAnswer:
        request = j.SubmitJob(job_id=job_id, document=msgspec.json.encode(document), dry_run=dry_run)
        return await self.network.ask(DISPATCHER, request, timeout=10)

    async def job(self, job_id: JobId) -> j.JobDetails:
        return await self.network.ask(DISPATCHER, j.GetJob(job_id=job_id), timeout=5)

    async def list(self) -> dict[JobId, j.JobStatus]:
        jobs = await self.network.ask(DISPATCHER, j.ListJobs(), timeout=5)
        return {job.job_id: job.status for job in jobs}

    def files(self) -> list[str]:
        """Everything that lies in the storage."""
        return sorted(str(p.relative_to(self.directory)) for p in self.directory.rglob("*") if p.is_file())


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    one = Cluster(tmp_path)
    yield one
    await one.network.aclose()
    await one.storages.aclose()
