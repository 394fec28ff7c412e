"""How jobs ended (R26). The result is stored first. Then everything else of the job is deleted, whatever fails.

A result is dirty until nothing is left to clean up. Whoever finds a dirty one, this daemon or a later one, continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from minflinkd.checkpoint.retained import retain_offsets, retain_only
from minflinkd.dispatcher.blobs import Blobs
from minflinkd.dispatcher.job_store import JobStore, StoredResult, Unreadable
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import JobMasterEnded
from minflinkd.rpc.network import RESOURCE_MANAGER, Fenced, Network
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.ids import JobId, LeaderId
from minflinkd.runtime.supervisor import nothing
from minflinkd.storage.location import Location

log = structlog.get_logger(__name__)

FIRST_PAUSE = 1.0  # seconds between two tries of a step, doubled after every try
LONGEST_PAUSE = 60.0
STEP_TIMEOUT = 600.0  # seconds; a storage that does not answer for that long is asked again
FAREWELL_TIMEOUT = 5.0
EXPIRY_INTERVAL = 60.0

Step = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Retention:
    """Which results are kept: the last `most`, each for so many seconds."""

    most: int = 1000
    seconds: float = 3600.0


class JobResults(Component):
    """The results of ended jobs, as long as `retention()` says."""

    def __init__(
        self,
        *,
        store: JobStore,
        blobs: Blobs,
        network: Network,
        clock: Clock,
        checkpoints_of: Callable[[JobId], Location],
        new_leader_id: Callable[[], LeaderId],
        retention: Callable[[], Retention],
        leads: Callable[[], bool],
    ) -> None:
        """`leads`: whether it is certain that no other daemon leads now."""
        super().__init__("results of jobs")
        self._store = store
        self._blobs = blobs
        self._network = network
        self._clock = clock
        self._checkpoints_of = checkpoints_of
        self._new_leader_id = new_leader_id
        self._retention = retention
        self._leads = leads
        self._results: dict[JobId, StoredResult] = {}
        self.on_change: Callable[[JobId], None] = lambda _: None  # called when the job's result is new, or gone
        self.unreadable: tuple[Unreadable, ...] = ()  # left alone; set at the start

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._results

    def get(self, job_id: JobId) -> StoredResult | None:
        return self._results.get(job_id)

    def all(self) -> tuple[StoredResult, ...]:
        return tuple(self._results.values())

    async def _start(self) -> None:
        """Read the newest results. A daemon with a long past must not read all of it before it leads."""
        ids, capacity = await self._store.result_ids(), self._retention().most
        found = await self._store.results(ids[:capacity])
        self.unreadable = tuple(result for result in found if isinstance(result, Unreadable))
        for result in found:
            if isinstance(result, StoredResult):
                job_id = result.details.job_id
                self._keep(job_id, result)
                if result.dirty:
                    self.tasks.job(f"cleanup of {job_id}", self._clean_up(result))
        if older := ids[capacity:]:
            log.info("more results of jobs than are kept; the oldest are deleted", kept=capacity, deleted=len(older))
            self.tasks.job("deletion of old results", self._drop(older))
        self.tasks.loop("expiry", self._expire)

    async def _drop(self, older: Sequence[JobId]) -> None:
        """Clean up after these jobs, and delete their results. One that cannot be read is left alone."""
        for job_id in older:
            if (result := await self._stored(job_id)) is not None:
                self._keep(job_id, result)
                if result.dirty:
                    await self._clean_up(result)
                await self._forget(job_id)

    async def _stored(self, job_id: JobId) -> StoredResult | None:
        found: list[StoredResult | Unreadable] = []

        async def read() -> None:
            found.extend(await self._store.results([job_id]))

        await until_done(self._clock, f"result of {job_id}", read)
        return next((result for result in found if isinstance(result, StoredResult)), None)

    def ended(self, result: StoredResult, *, store: Step, close: Step, savepoints_ended: Step) -> None:
        """The job has ended: do the rest.

        `store` stores this result, `close` ends the job's JobMaster, and `savepoints_ended` returns when the job's
        checkpoints are not being copied any more.
        """

        async def end() -> None:
            await until_done(self._clock, f"result of {job_id}", store)
            reach(CrashPoint.END_STORED)
            self._keep(job_id, result)
            await self._clean_up(result, close=close, savepoints_ended=savepoints_ended)

        job_id = result.details.job_id
        self.tasks.job(f"end of {job_id}", end())

    async def _clean_up(
        self,
        result: StoredResult,
        *,
        close: Step = nothing,
        savepoints_ended: Step = nothing,
    ) -> None:
        """Clean up after a job.

        Each step is idempotent and repeated until done: a crash between two costs a repetition.
        """
        job_id = result.details.job_id
        clean = replace(result, dirty=False)
        steps: tuple[tuple[str, Step], ...] = (
            ("JobMaster", close),
            ("slots", lambda: self.release_slots(job_id)),
            ("savepoints", savepoints_ended),
            ("checkpoints", lambda: self._delete_checkpoints(result)),
            ("blobs", lambda: self._blobs.delete_job(job_id)),
            ("clean result", lambda: self._cleaned(clean)),
        )
        for what, step in steps:
            await until_done(self._clock, f"{what} of {job_id}", step)
        self._keep(job_id, clean)

    def _keep(self, job_id: JobId, result: StoredResult) -> None:
        self._results[job_id] = result
        self.on_change(job_id)

    async def _cleaned(self, result: StoredResult) -> None:
        reach(CrashPoint.END_CLEANED)
        await self._store.put_result(result)

    async def release_slots(self, job_id: JobId) -> None:
        """Tell the ResourceManager that the job, which has no JobMaster any more, has ended for good.

        It is told in the name of a later leader than any that the job had. Even one that never came up may have
        declared needs.
        """
        farewell = JobMasterEnded(job_id=job_id, leader_id=self._new_leader_id())
        try:
            await self._network.ask(RESOURCE_MANAGER, farewell, timeout=FAREWELL_TIMEOUT)
        except Fenced as error:
            log.info("the ResourceManager knew that the job has ended", job=job_id, error=str(error))

    async def _delete_checkpoints(self, result: StoredResult) -> None:
        """Delete what nobody needs any more of the job's checkpoints.

        The record of its offsets stays as long as the result.
        """
        directory = self._checkpoints_of(result.details.job_id)
        if not keeps_checkpoints(result):
            await retain_offsets(directory)
        elif result.retained and result.kept is not None:
            await retain_only(directory, result.kept, leads=self._leads)

    async def _expire(self) -> None:
        ages = Ages(self._clock)
        while True:
            await self._clock.sleep(EXPIRY_INTERVAL)
            for job_id, result in list(self._results.items()):
                age = ages.of(job_id, result.details.end_ms)
                if not result.dirty and result.details.end_ms > 0 and age > self._retention().seconds:
                    await self._forget(job_id)
                    ages.forget(job_id)
            clean = sorted((r.details.end_ms, job_id) for job_id, r in self._results.items() if not r.dirty)
            for _, job_id in clean[: max(0, len(self._results) - self._retention().most)]:
                await self._forget(job_id)
                ages.forget(job_id)

    async def _forget(self, job_id: JobId) -> None:
        """Delete an expired result, after the checkpoints kept for it.

        A failure affects no other result and is retried.
        """
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                if not self._results[job_id].retained:
                    await self._checkpoints_of(job_id).delete_tree()
                await self._store.delete_result(job_id)
        except Exception as error:
            log.warning("a result has expired and cannot be deleted yet", job=job_id, error=str(error))
        else:
            del self._results[job_id]
            self.on_change(job_id)


class Ages:
    """How long ago jobs have ended. A clock that is set a year forward must not expire what is a minute old.

    The wall clock only says how old a result is when it is first seen, at the start of the daemon or soon after the
    job's end. After that, only time that has elapsed counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first_seen: dict[JobId, tuple[float, float]] = {}  # its age then, and when that was, in seconds

    def of(self, job_id: JobId, end_ms: int) -> float:
        """Return the age in seconds."""
        now = self._clock.monotonic()
        if job_id not in self._first_seen:
            self._first_seen[job_id] = max(0.0, (self._clock.epoch_ms() - end_ms) / 1000), now
        age, seen = self._first_seen[job_id]
        return age + now - seen

    def forget(self, job_id: JobId) -> None:
        self._first_seen.pop(job_id, None)


async def until_done(clock: Clock, what: str, step: Step) -> None:
    """Repeat an idempotent step until it succeeds. Otherwise only the daemon's end stops it."""
    pause = FIRST_PAUSE
    while True:
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                await step()
            return
        except Exception as error:
            log.warning("a step failed and is repeated", step=what, error=str(error), pause=pause)
            await clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def keeps_checkpoints(result: StoredResult) -> bool:
    """Whether the checkpoints are kept as long as the result. If they are retained, they stay even longer.

    A person may still need those of a failed job, or need them to settle its sinks by hand.
    """
    return result.retained or result.details.status is JobStatus.FAILED or not result.details.sinks_settled
