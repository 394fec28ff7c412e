"""A world whose parties note what the page asks of them, and let a test decide when it is done."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobStatistics
from minflinkd.blob.transfer import BlobInfo
from minflinkd.config.options import Item
from minflinkd.config.origin import Layer, Origin
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.rest.server import Entrance, Listening, RestServer
from minflinkd.rpc import jobs as j
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import Done, ListTaskManagers, TaskManagerInfo
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Conflict, ErrorInfo
from minflinkd.runtime.ids import JobId
from tests.component.page.steering.state_to_show import StateToShow
from tests.component.page.world import FLIGHTS, Managers, World, now_ms
from tests.component.rest.access_world import OWN, records

ORPHANS = j.JobOrphans(
    job_id=FLIGHTS,
    files=(j.OrphanFile(name="shared/0f3a", size=4_200_000, modified_ms=1_700_000_000_000),) * 3,
    kept=31,
)
FILE = Origin(Layer.FILE, "/etc/minflinkd/minflinkd.yaml:12")
OPTIONS = [
    Item("rest.port", "8081", is_default=True, sensitive=False),
    Item("security.token", "hunter2", False, True, (Origin(Layer.ENVIRONMENT, "MINFLINKD_SECURITY_TOKEN"),)),
    Item("taskmanager.numberOfTaskSlots", "2", False, False, (FILE,)),
    Item(
        "taskmanager.spark.conf",
        "{}",
        False,
        False,
        (
            Origin(Layer.COMMAND_LINE, entry="spark.a"),
            Origin(Layer.FILE, "/etc/minflinkd/minflinkd.yaml:13", "spark.b"),
        ),
    ),
]


class Blobs:
    """A BlobServer that lists its blobs. `stored`: by job, what was uploaded for it or copied, with the key of each."""

    url, token = "http://127.0.0.1:1", None
    held: Sequence[BlobInfo] = ()

    def __init__(self) -> None:
        self.stored: dict[JobId | None, dict[str, bytes]] = {}

    async def put(self, job_id: JobId | None, data: bytes, kind: BlobKind, *, user: str = "") -> BlobKey:
        key = BlobKey.new(kind, hashlib.sha256(data).hexdigest())
        self.stored.setdefault(job_id, {})[str(key)] = data
        return key

    async def copy(self, job_id: JobId, key: BlobKey, to: JobId, *, user: str = "") -> BlobKey:
        both = self.stored.setdefault(to, {})
        if str(key) not in both:
            if str(key) not in self.stored.get(job_id, {}):
                raise BlobNotFound(f"there is no blob {key}")
            both[str(key)] = self.stored[job_id][str(key)]
        return key

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None:
        pass

    async def delete_job(self, job_id: JobId) -> None:
        self.stored.pop(job_id, None)

    async def blobs(self) -> Sequence[BlobInfo]:
        return self.held

    def statistics(self) -> BlobStatistics:
        raise NotImplementedError


class Drained(Managers):
    """Its first TaskManager ends when it is drained, unless `held_by` says why not."""

    held_by = ""

    async def list(self, question: ListTaskManagers) -> tuple[TaskManagerInfo, ...]:
        drained, self.drained = self.drained, False
        found = await super().list(question)
        self.drained = drained
        if drained and self.held_by:
            return (replace(found[0], drained=True, held_by={FLIGHTS: self.held_by}), *found[1:])
        return found[1:] if drained else found


class Steered(World):
    """`asked`: what came, in order. An operation is under way until `done`, or fails with `error`."""

    def __init__(self, network: LocalNetwork, access: Access) -> None:
        self.blobs = Blobs()
        kinds = [("p", "referenced"), ("p", "condemned"), ("t", "staged")]
        self.blobs.held = tuple(
            BlobInfo(
                job=FLIGHTS if n < 2 else "none",
                key=f"{kind}-{'0123456789abcdef' * 4}-{n}",
                kind=kind,
                size=40_000 * (n + 1),
                references=int(state == "referenced"),
                state=state,
                modified_ms=now_ms() - 90_000 * (n + 1),
            )
            for n, (kind, state) in enumerate(kinds)
        )
        super().__init__(network, access)
        self.manager = self.managers = Drained(network)
        self.asked: list[j.TriggerSavepoint | j.CheckpointJob | j.CancelJob | j.SweepOrphans] = []
        self.done = True
        self.refuses = False
        self.error: ErrorInfo | None = None
        self.location = "s3://lake/savepoints/savepoint-0f0f0f-1"
        self.state = StateToShow(self.dispatcher)
        box = self.dispatcher.mailbox
        box.on(j.TriggerSavepoint, self._savepoint)
        box.on(j.CheckpointJob, self._checkpoint)
        box.on(j.GetSavepoint, self._status)
        box.on(j.SweepOrphans, self._sweep)

    async def _savepoint(self, request: j.TriggerSavepoint) -> Done:
        self.asked.append(request)
        if self.refuses:
            raise Conflict("a savepoint is under way", hint="wait until it is complete")
        return Done()

    async def _checkpoint(self, request: j.CheckpointJob) -> Done:
        self.asked.append(request)
        return Done()

    async def _status(self, question: j.GetSavepoint) -> j.OperationStatus:
        if not self.done:
            return j.OperationStatus(done=False)
        last = self.asked[-1]
        if isinstance(last, j.CheckpointJob):
            return j.OperationStatus(done=True, location="63")
        if isinstance(last, j.TriggerSavepoint) and last.stop and self.error is None:
            self.dispatcher.become(last.job_id, j.JobStatus.FINISHED)
        return j.OperationStatus(done=True, location="" if self.error else self.location, error=self.error)

    async def _sweep(self, request: j.SweepOrphans) -> j.OrphanReport:
        self.asked.append(request)
        return j.OrphanReport(jobs=(ORPHANS,), dry_run=request.dry_run, grace=86_400.0)

    def _make(self) -> RestServer:
        metrics = Metrics(version="0.1.0", rpc=self.rpc)
        metrics.history = self._history
        return RestServer(
            Backend(self._network, timeout=5.0),
            listening=Listening(host="127.0.0.1", port=self._port),
            entrance=Entrance(access=self._access),
            about=About(version="0.1.0", config_items=lambda: OPTIONS, blob_url=str),
            metrics=metrics,
            blobs=self.blobs,
        )


def asking() -> Access:
    """Return access by the tokens of `access_world`."""
    return Access(TokenProver(OWN, records(), SystemClock(), hint="the token is somewhere"))


@contextlib.asynccontextmanager
async def steered(access: Access | None = None) -> AsyncIterator[Steered]:
    network = LocalNetwork()
    world = Steered(network, access or Access.open_to_all())
    await world.start()
    try:
        yield world
    finally:
        await world.stop()
        await network.aclose()
