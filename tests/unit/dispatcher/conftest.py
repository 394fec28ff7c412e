"""A Dispatcher over real local storage. The ResourceManager and the TaskManager are mailboxes."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import Blob, BlobKey
from minflinkd.blob.uploads import Upload
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.config.quotas import Quotas
from minflinkd.dispatcher.dispatcher import Dispatcher
from minflinkd.dispatcher.job_store import JobStore
from minflinkd.dispatcher.options import DispatcherOptions
from minflinkd.jobgraph.model import RecordFormat, RestartStrategy
from minflinkd.jobmaster.job_master import JobMasterOptions
from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, Address, Mailbox
from minflinkd.runtime import supervisor
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import Chance, IdSource, JobId
from minflinkd.storage.registry import Storages
from tests.beside import beside

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
    """Remembers which jobs' blobs were deleted, in order."""

    deleted: list[JobId] = field(default_factory=list)
    failures: int = 0
    uploaded: set[BlobKey] = field(default_factory=set)
    stock: list[Mapping[JobId, Collection[BlobKey] | None]] = field(default_factory=list)
    events: list[tuple[str, JobId]] = field(default_factory=list)  # what happened to holds
    files: dict[BlobKey, Path] = field(default_factory=dict)
    uploading: list[Upload] = field(default_factory=list)
    sizes: dict[BlobKey, int] = field(default_factory=dict)  # others have 9 bytes

    async def take_stock(self, jobs: Mapping[JobId, Collection[BlobKey] | None]) -> None:
        self.stock.append(dict(jobs))

    async def hold(self, job_id: JobId, keys: Collection[BlobKey]) -> frozenset[BlobKey]:
        self.events.append(("hold", job_id))
        return frozenset(keys) - self.uploaded

    async def path(self, job_id: JobId, key: BlobKey) -> Path:
        return self.files[key]

    async def size(self, job_id: JobId, key: BlobKey) -> int:
        return self.sizes.get(key, 9)

    def uploads(self) -> Collection[Upload]:
        return tuple(self.uploading)

    def taken_over(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        self.uploading = [each for each in self.uploading if each.blob not in [Blob(job_id, key) for key in keys]]

    def let_go(self, job_id: JobId) -> None:
        self.events.append(("let go", job_id))

    def failed(self, job_id: JobId) -> None:
        self.events.append(("failed", job_id))

    async def recover(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        self.events.append(("recover", job_id))
        if lost := frozenset(keys) - self.uploaded:
            raise BlobNotFound(f"there is no good copy of {sorted(map(str, lost))}")

    async def delete_job(self, job_id: JobId) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is away")
        self.deleted.append(job_id)


@dataclass
class Cluster:
    directory: Path
    network: LocalNetwork = field(default_factory=LocalNetwork)
    resource_manager: Mailbox = field(default_factory=lambda: Mailbox(RESOURCE_MANAGER))
    blobs: FakeBlobs = field(default_factory=FakeBlobs)
    storages: Storages = field(default_factory=Storages)
    ids: IdSource = field(default_factory=lambda: IdSource(random.Random(1)))
    faults: tuple[Any, ...] = ()  # found by the analysis
    operators: dict[Any, Any] = field(default_factory=dict)  # found by the analysis, by task
    record_formats: dict[Any, dict[str, RecordFormat]] = field(default_factory=dict)  # found by the analysis, by source
    analyzed: list[JobId] = field(default_factory=list)
    ended: list[JobId] = field(default_factory=list)
    freed: list[m.FreeSlots] = field(default_factory=list)
    declared: list[m.DeclareNeeds] = field(default_factory=list)
    wanted: list[tuple[m.Library, ...]] = field(default_factory=list)  # libraries, by each request for a session
    no_session: bool = False
    heartbeat_timeout: float = 0.5  # with the next one: how long the end of a job waits for earlier attempts
    cancellation_timeout: float = 30.0
    result_capacity: int = 1000
    quotas: dict[str, str] = field(default_factory=dict)  # of the next dispatcher
    before_analysis: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        rm, tm = self.resource_manager, Mailbox(TM)
        rm.on(m.FindSession, self._find_session)
        rm.on(m.DeclareNeeds, self._declare_needs)
        rm.on(m.JobMasterEnded, self._job_master_ended)
        tm.on(m.FreeSlots, self._free_slots)
        tm.on(m.AnalyzeJob, self._analyze)
        for mailbox in (rm, tm):
            self.network.attach(mailbox)
        self.store = JobStore(self.storages.at(str(self.directory / "jobstore")))

    async def _find_session(self, request: m.FindSession) -> m.SessionFound:
        self.wanted.append(request.libraries)
        return m.SessionFound(address=None if self.no_session else TM)

    async def _declare_needs(self, request: m.DeclareNeeds) -> m.NeedsAnswer:
        self.declared.append(request)
        return m.NeedsAnswer()

    async def _job_master_ended(self, request: m.JobMasterEnded) -> m.Done:
        self.ended.append(request.job_id)
        return m.Done()

    async def _free_slots(self, request: m.FreeSlots) -> m.Done:
        self.freed.append(request)
        return m.Done()

    async def _analyze(self, request: m.AnalyzeJob) -> m.Analysis:
        if self.before_analysis is not None:
            await self.before_analysis()
        self.analyzed.append(request.job.job_id)
        return m.Analysis(faults=self.faults, operators=self.operators, record_formats=self.record_formats)

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            network=self.network,
            store=self.store,
            storages=self.storages,
            blobs=self.blobs,
            clock=SystemClock(),
            chance=Chance(self.ids, random.Random(1)),
            options=DispatcherOptions(
                checkpoint_root=f"file://{self.directory}/checkpoints",
                savepoint_dir=f"file://{self.directory}/savepoints",
                session_timeout=1.0,
                result_capacity=self.result_capacity,
                quotas=Quotas.parse(self.quotas),
                job_master=JobMasterOptions(
                    restart_strategy=RestartStrategy(),
                    checkpoints=CheckpointOptions(),
                    heartbeat_interval=0.05,
                    heartbeat_timeout=self.heartbeat_timeout,
                    cancellation_timeout=self.cancellation_timeout,
                ),
            ),
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Dispatcher]:
        async with self.dispatcher() as dispatcher, beside("the list is watched", list_is_never_old(dispatcher)):
            yield dispatcher

    async def submit(
        self, job_id: JobId, document: Any = DOCUMENT, *, dry_run: bool = False, owner: str = ""
    ) -> j.SubmissionAnswer:
        request = j.SubmitJob(job_id=job_id, document=msgspec.json.encode(document), dry_run=dry_run, owner=owner)
        return await self.network.ask(DISPATCHER, request, timeout=10)

    async def cancel(self, job_id: JobId) -> None:
        await self.network.ask(DISPATCHER, j.CancelJob(job_id=job_id), timeout=5)

    async def job(self, job_id: JobId) -> j.JobDetails:
        return await self.network.ask(DISPATCHER, j.GetJob(job_id=job_id), timeout=5)

    async def list(self) -> dict[JobId, j.JobStatus]:
        jobs = await self.network.ask(DISPATCHER, j.ListJobs(), timeout=5)
        return {job.job_id: job.status for job in jobs}

    async def lists(self, expected: dict[JobId, j.JobStatus]) -> bool:
        return await self.list() == expected

    def files(self) -> list[str]:
        """Return everything in the storage. Other code may be writing there meanwhile."""
        found = [Path(directory) / name for directory, _, names in os.walk(self.directory) for name in names]
        return sorted(str(path.relative_to(self.directory)) for path in found)


async def list_is_never_old(dispatcher: Dispatcher, pause: float = 0.01) -> None:
    """Compare the list of jobs again and again with one that is made anew (E4): somebody may forget to call `changed`.

    So every test of the Dispatcher is also a test of that.
    """
    inspection = dispatcher._inspection
    while True:
        await asyncio.sleep(pause)
        listed = await inspection._list.all()
        if inspection._list._changed:  # while jobs were looked at
            continue
        made_anew = tuple(inspection._overview(job_id) for job_id in inspection._ids())
        found, expected = msgspec.to_builtins(listed), _Near.those_in(msgspec.to_builtins(made_anew))
        assert [job["job_id"] for job in found] == [job["job_id"] for job in expected]
        old = [
            {name: now[name] for name in now if was[name] != now[name]}
            for was, now in zip(found, expected, strict=True)
        ]
        assert not any(old), old


class _Near(int):
    """A time of day, which is computed from that of another clock: it equals one that is some milliseconds off."""

    @classmethod
    def those_in(cls, value: Any) -> Any:
        match value:
            case int() if value > 10**12:
                return cls(value)
            case list() | tuple():
                return type(value)(cls.those_in(one) for one in value)
            case dict():
                return {key: cls.those_in(one) for key, one in value.items()}
            case _:
                return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and abs(int(self) - other) < 1000

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    one = Cluster(tmp_path)
    yield one
    await one.network.aclose()
    await one.storages.aclose()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends unexpectedly is started again at once."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 0.005)
