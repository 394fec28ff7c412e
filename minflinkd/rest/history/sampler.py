"""Looks at the cluster and at every running job every 5 s, and puts down what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import structlog

from minflinkd.checkpoint.messages import GetCheckpoints
from minflinkd.metrics.history.book import HistoryBook, MarkKind
from minflinkd.metrics.history.series import CLUSTER, COARSE_MS, FINE_MS, JOB, TASK, Value
from minflinkd.metrics.rpc import RpcFigures
from minflinkd.rest.backend import Backend
from minflinkd.rest.history.marks import marks_of
from minflinkd.rest.history.measured import JobMeter, Measured
from minflinkd.rpc.jobs import GetJob, JobOverview, JobStatus
from minflinkd.rpc.messages import Request
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId

R = TypeVar("R")

TIMEOUT: Final = 2.0  # seconds for a job's part
LONGEST: Final = 4.0  # seconds for all jobs: those that have not been looked at then are left out of this sample
AT_A_TIME: Final = 8  # jobs between which the event loop does something else

log = structlog.get_logger(__name__)


class JobSample(NamedTuple):
    name: str
    values: Measured


class Sample(NamedTuple):
    at_ms: int
    cluster: Mapping[str, Value]
    jobs: Mapping[JobId, JobSample]


def nobody(_: Sample) -> None:
    """For those who do not want to be told."""


class Sampler(Component):
    """`lag`: seconds by which a timer was late at most since it was last asked. `tell` gets every sample."""

    def __init__(
        self,
        backend: Backend,
        book: HistoryBook,
        *,
        lag: Callable[[], Value] = lambda: None,
        rpc: RpcFigures | None = None,
        tell: Callable[[Sample], None] = nobody,
    ) -> None:
        super().__init__("sampler of metrics")
        self._backend = backend
        self._book = book
        self._lag = lag
        self._rpc = rpc or RpcFigures()
        self._tell = tell
        self._meters: dict[JobId, JobMeter] = {}
        self._forgot_ms = 0

    async def _start(self) -> None:
        await asyncio.to_thread(_build_tables)
        self.tasks.loop("sample", self._run)

    async def _run(self) -> None:
        clock = self._backend.clock
        while True:
            await clock.sleep((FINE_MS - clock.epoch_ms() % FINE_MS) / 1000)
            await self.sample()

    async def sample(self) -> Sample:
        """Take one sample now. Raises nothing of what the parties answer: what is not known is left out."""
        now_ms = self._backend.clock.epoch_ms()
        slot = now_ms // FINE_MS
        self._book.left_out = 0
        jobs = await self._or_none(self._backend.jobs.get)
        found: dict[JobId, JobSample] = {}
        began = self._backend.clock.monotonic()
        for number, job in enumerate(jobs or ()):
            if self._backend.clock.monotonic() - began > LONGEST:
                log.warning("a sample of metrics took too long: the other jobs are left out", looked_at=number)
                break
            if job.status.terminal:
                await self._ended(job, now_ms)
            elif (one := await self._job(job, slot)) is not None:
                found[job.job_id] = one
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
        if jobs is not None:
            running = {job.job_id for job in jobs if not job.status.terminal}
            self._meters = {job_id: meter for job_id, meter in self._meters.items() if job_id in running}
        cluster = await self._cluster(jobs)
        self._book.cluster.put(slot, [cluster[name] for name in CLUSTER.names])
        if now_ms - self._forgot_ms >= COARSE_MS:
            self._book.forget(now_ms)
            self._forgot_ms = now_ms
        sample = Sample(slot * FINE_MS, cluster, found)
        self._tell(sample)
        return sample

    async def _job(self, job: JobOverview, slot: int) -> JobSample | None:
        """Put down one job. What goes wrong with it concerns no other job."""
        try:
            details = await self._backend.dispatcher(GetJob(job_id=job.job_id), TIMEOUT)
            checkpoints = await self._backend.dispatcher(GetCheckpoints(job_id=job.job_id), TIMEOUT)
            now_ms = self._backend.clock.epoch_ms()
            values = self._meters.setdefault(job.job_id, JobMeter()).measure(details, checkpoints, now_ms)
            past = self._book.heard_of(job.job_id, job.name, now_ms)
            if past is None:
                self._book.left_out += 1
            else:
                self._book.put(past, slot, values.job, values.tasks)
                past.mark(marks_of(details, checkpoints), now_ms)
            return JobSample(job.name, values)
        except MinflinkError:
            return None
        except Exception:
            log.exception("a job could not be measured", job=job.job_id)
            return None

    async def _ended(self, job: JobOverview, now_ms: int) -> None:
        """Put down the end of a job that was measured while it ran."""
        past = self._book.jobs.get(job.job_id)
        if past is None or (job.end_ms, MarkKind.ENDED) in past.marks:
            return
        details = await self._ask(GetJob(job_id=job.job_id))
        checkpoints = await self._ask(GetCheckpoints(job_id=job.job_id))
        if details is not None:
            past.mark(marks_of(details, checkpoints), now_ms)
            past.heard_ms = now_ms

    async def _cluster(self, jobs: tuple[JobOverview, ...] | None) -> dict[str, Value]:
        resources = await self._or_none(self._backend.resources.get)
        return {
            "slots_total": None if resources is None else resources.slots_total,
            "slots_free": None if resources is None else resources.slots_free,
            "task_managers": None if resources is None else resources.task_managers,
            "jobs_running": None if jobs is None else sum(job.status is JobStatus.RUNNING for job in jobs),
            "loop_lag": self._lag(),
            **self._requests(),
        }

    def _requests(self) -> dict[str, Value]:
        lately = self._rpc.since_last_sample()
        return {
            "rpc_per_second": lately.per_second,
            "rpc_unanswered_per_second": lately.unanswered_per_second,
            "rpc_slowest": lately.slowest,
            "rpc_in_flight": sum(map(len, self._rpc.in_flight.values())),
        }

    async def _ask(self, question: Request[R]) -> R | None:
        return await self._or_none(lambda: self._backend.dispatcher(question, TIMEOUT))

    @staticmethod
    async def _or_none(ask: Callable[[], Awaitable[R]]) -> R | None:
        try:
            return await ask()
        except MinflinkError:
            return None


def _build_tables() -> None:
    """Look once at every table of codes: making one takes some milliseconds."""
    for layout in (TASK, JOB, CLUSTER):
        for series in layout.series:
            _ = series.codec.table
