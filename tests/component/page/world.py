"""A real endpoint before parties with jobs in all states, for the page to show. No Spark runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from msgspec.structs import replace

from minflinkd.jobgraph.model import Input, JobGraph, Sink, Source, Task, Vertex
from minflinkd.metrics.history.book import HistoryBook
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Entrance, Listening, RestServer
from minflinkd.rpc.jobs import ExecutionState, HotRestart, JobDetails, JobStatus, RecoveryRecord, RestartState
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import GetResourceOverview, ListTaskManagers, ResourceOverview, SlotStatus, TaskManagerInfo
from minflinkd.runtime.ids import JobId, ResourceId, TaskId, VertexId
from tests.component.page.checkpoints_to_show import checkpoints
from tests.component.page.figures import fill, sample
from tests.unit.rest import parties
from tests.unit.rest.parties import TM, Dispatcher, ResourceManager, TaskManager

FLIGHTS = JobId("0f" * 16)
SLOTS = 240  # of 5 s each, that the job FLIGHTS has a past
PACE = 1.0  # seconds between two samples
MARKUP = "<img src=x onerror=document.title='broken'>&amp;\"'"


class Managers(ResourceManager):
    """Three TaskManagers that are heard, with slots of several jobs."""

    async def list(self, question: ListTaskManagers) -> tuple[TaskManagerInfo, ...]:
        (pattern,) = await super().list(question)
        held = [(FLIGHTS, FLIGHTS, JobId("3f" * 16), None), (JobId("1f" * 16), FLIGHTS), (None, None)]
        return tuple(
            replace(
                pattern,
                resource_id=TM if n == 0 else ResourceId(f"tm-{n}23456789abc"),
                pid=4711 + n,
                registered_ms=now_ms() - 7_000_000,
                last_heartbeat_ms=now_ms() - 900,
                report=replace(
                    pattern.report,
                    session_generation=1 + n,
                    slots=tuple(SlotStatus(index=i, job_id=one) for i, one in enumerate(slots)),
                    metrics=METRICS | ({"jvm.gc_share": 0.17} if n == 0 else {}),
                ),
            )
            for n, slots in enumerate(held)
        )

    async def overview(self, question: GetResourceOverview) -> ResourceOverview:
        return ResourceOverview(task_managers=3, slots_total=8, slots_free=3, starting=(), lost=1)


METRICS = {
    "supervisor.rss_bytes": 98e6,
    "supervisor.threads": 12.0,
    "session.rss_bytes": 310e6,
    "session.threads": 41.0,
    "jvm.rss_bytes": 2.1e9,
    "jvm.threads": 187.0,
    "jvm.descriptors": 402.0,
    "jvm.gc_share": 0.021,
    "jvm.heap.used_bytes": 620e6,
    "jvm.heap.max_bytes": 1073e6,
    "jvm.non_heap.used_bytes": 210e6,
    "jvm.metaspace.used_bytes": 140e6,
    "jvm.direct.used_bytes": 18e6,
    "jvm.gc.G1_Young_Generation.count": 412.0,
    "jvm.gc.G1_Young_Generation.time_ms": 3810.0,
    "jvm.gc.G1_Old_Generation.count": 1.0,
    "jvm.gc.G1_Old_Generation.time_ms": 240.0,
    "python_workers.rss_bytes": 340e6,
    "python_workers.processes": 5.0,
    "storage.file.write.requests": 1802.0,
    "storage.file.write.bytes": 88_120_331.0,
    "storage.file.write.seconds": 3.91,
    "merging.physical_files": 31.0,
    "merging.bytes_stored": 91_000_000.0,
}


class World:
    """An endpoint that can be stopped and started again at the same port, as a daemon is."""

    def __init__(self, network: LocalNetwork, access: Access) -> None:
        self.dispatcher, self.manager = Dispatcher(network), Managers(network)
        self.task_manager = TaskManager(network)
        self.dispatcher.jobs = {job.job_id: job for job in jobs()}
        self.dispatcher.in_brief = replace(self.dispatcher.in_brief, completed_ms=now_ms() - 4_000)
        self.dispatcher.checkpoints = checkpoints(now_ms())
        self._network = network
        self.rpc = network.figures
        self._access = access
        self._port = 0
        self._history = HistoryBook()
        fill(self._history, [self.dispatcher.jobs[FLIGHTS]], now_ms(), SLOTS)
        self.server = self._make()
        self._sampling: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.server.url

    async def start(self) -> None:
        await self.server.start()
        self._port = int(self.url.rpartition(":")[2])
        self._sampling = asyncio.ensure_future(self._sample(self.server))

    async def stop(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
        await self.server.aclose()

    async def start_again(self) -> None:
        self.server = self._make()
        await self.start()

    def _make(self) -> RestServer:
        metrics = Metrics(version="0.1.0", rpc=self.rpc)
        metrics.history = self._history  # it outlives the endpoint, as what the daemon has stored of it does
        return RestServer(
            Backend(self._network, timeout=5.0),
            listening=Listening(host="127.0.0.1", port=self._port),
            entrance=Entrance(access=self._access),
            about=About(version="0.1.0", config_items=list, blob_url=str),
            metrics=metrics,
        )

    async def _sample(self, server: RestServer) -> None:
        while True:
            server.events.sampled(sample(self.dispatcher.jobs.values(), now_ms()))
            await asyncio.sleep(PACE)


@contextlib.asynccontextmanager
async def running(access: Access | None = None) -> AsyncIterator[World]:
    network = LocalNetwork()
    world = World(network, access or Access.open_to_all())
    await world.start()
    try:
        yield world
    finally:
        await world.stop()
        await network.aclose()


def now_ms() -> int:
    return round(time.time() * 1000)


def jobs() -> list[JobDetails]:
    """Return one job for each thing that can be said about jobs, beginning with one that is well."""
    now = now_ms()
    return [
        job(FLIGHTS, "flights: carrier delays by hour", now - 6_900_000),
        at(parties.failing(), JobId("1f" * 16), "clicks", now - 90_000_000, status=JobStatus.RESTARTING),
        at(parties.details(), JobId("2f" * 16), "orders", now - 90_000, status=JobStatus.CREATED),
        at(parties.details(), JobId("3f" * 16), MARKUP, now - 4_000_000),
        at(parties.details(status=JobStatus.FAILED, failures=(parties.FAILURE,)), JobId("4f" * 16), "import", now),
        at(parties.details(status=JobStatus.FINISHED), JobId("5f" * 16), "archive of 2025", now - 40_000_000),
        at(parties.details(status=JobStatus.CANCELED), JobId("6f" * 16), "trial", now - 80_000_000),
    ]


def at(details: JobDetails, job_id: JobId, name: str, started: int, status: JobStatus | None = None) -> JobDetails:
    """Return the same job as another one that was submitted at another time."""
    by = started - details.start_ms
    ended = details.end_ms + by if details.end_ms >= 0 else -1
    failures = tuple(replace(one, timestamp_ms=one.timestamp_ms + by) for one in details.failures)
    repeated = details.repeated
    if repeated is not None:
        last = replace(repeated.last, timestamp_ms=now_ms() - 20_000)
        repeated = replace(repeated, since_ms=now_ms() - 2_400_000, last=last)
    return replace(
        details,
        job_id=job_id,
        graph=replace(details.graph, name=name),
        status=details.status if status is None else status,
        start_ms=started,
        end_ms=ended,
        timestamps={state: when + by for state, when in details.timestamps.items()},
        tasks=tuple(replace(task, start_ms=task.start_ms + by) for task in details.tasks),
        failures=failures,
        repeated=repeated,
        next_restart_ms=now_ms() + 9000 if details.next_restart_ms >= 0 else -1,
    )


def job(job_id: JobId, name: str, started: int) -> JobDetails:
    """Return a running job of five tasks, which was restarted once and hot-restarted once."""
    source = Vertex(id=VertexId("flights"), source=Source(format="json", path="/data/flights"))
    planes = Vertex(id=VertexId("planes"), source=Source(format="parquet", path="/data/planes"))
    clean = _reading("clean", "flights")
    joined = Vertex(
        id=VertexId("by_plane"),
        inputs=(Input(id=VertexId("clean"), exchange=True), Input(id=VertexId("planes"), exchange=True)),
        sql="SELECT * FROM clean JOIN planes USING (tailnum)",
    )
    hourly = _reading("hourly", "by_plane", exchange=True)
    of_both = (Input(id=VertexId("hourly"), exchange=True),)
    sinks = [
        Vertex(id=VertexId(each), inputs=of_both, sink=Sink(format="parquet", path=f"/{each}"))
        for each in ("delays", "alerts")
    ]
    return _of_tasks(job_id, name, started, [[source, clean], [planes], [joined], [hourly], *[[one] for one in sinks]])


def large(job_id: JobId, count: int = 50) -> JobDetails:
    """Return a running job of so many tasks, in layers of five."""
    vertices = [Vertex(id=VertexId("v0"), source=Source(format="json", path="/data"))]
    for n in range(1, count):
        read = sorted({max(0, n - 5), max(0, n - 1 - n % 3)})
        inputs = tuple(Input(id=VertexId(f"v{i}"), exchange=True) for i in read)
        vertices.append(Vertex(id=VertexId(f"v{n}"), inputs=inputs, sql="SELECT 1"))
    return _of_tasks(job_id, f"a job of {count} tasks", now_ms() - 500_000, [[vertex] for vertex in vertices])


def _reading(name: str, source: str, *, exchange: bool = False) -> Vertex:
    inputs = (Input(id=VertexId(source), exchange=exchange),)
    return Vertex(id=VertexId(name), inputs=inputs, sql=f"SELECT * FROM {source}")


def _of_tasks(job_id: JobId, name: str, started: int, chains: list[list[Vertex]]) -> JobDetails:
    pattern = parties.details()
    graph = JobGraph(name=name, parallelism=2, vertices=tuple(vertex for chain in chains for vertex in chain))
    tasks = tuple(
        replace(
            pattern.tasks[0],
            task=Task(id=TaskId(chain[-1].id), vertices=tuple(chain), parallelism=2),
            state=ExecutionState.RUNNING,
            start_ms=started + 500,
            metrics=replace(pattern.tasks[0].metrics, watermark_ms=now_ms() - 9000),
        )
        for chain in chains
    )
    return replace(
        pattern,
        job_id=job_id,
        graph=graph,
        start_ms=started,
        tasks=tasks,
        timestamps={JobStatus.CREATED: started, JobStatus.RUNNING: started + 700},
        waiting=(),
        recoveries=(
            RecoveryRecord(
                failed_ms=now_ms() - 1_900_000,
                cause="TaskManager tm-ba9876543210 was lost: its process was killed by signal 9",
                checkpoint_id=41,
                phases={"canceled": 0.1, "slots": 8.2, "deployed": 9.0, "running": 11.2, "first_batch": 12.4},
            ),
        ),
        hot_restarts=(
            HotRestart(
                number=1,
                state=RestartState.COMPLETED,
                requested_ms=now_ms() - 1_100_000,
                checkpoint_id=55,
                phases={"stopped": 0.4, "deployed": 0.9, "running": 1.6, "first_batch": 2.2, "first_checkpoint": 3.1},
            ),
        ),
        submission={"analyzed": 0.8, "stored": 0.9, "slots": 4.0, "deployed": 4.2, "running": 5.1, "first_batch": 7.9},
    )
