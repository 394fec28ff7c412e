"""Savepoints of one job, and ending the job with one: stopped where it is, or drained (C24)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.savepoints import SavepointNotWritten, new_name, write_savepoint
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduling import Scheduling
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Conflict, Consequence, MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId
from minflinkd.storage.location import Location

TRIES = 3  # to write a drained job's savepoint: there is no second final checkpoint


class StopFailed(MinflinkError):
    """The job was not stopped, and goes on from its last checkpoint. A savepoint named here can be used."""

    code = "stop-failed"
    consequence = Consequence.RETRYABLE


def names_of_tries(name: str) -> tuple[str, ...]:
    """Return a name for each attempt to write a drained job's savepoint. A write that was given up may still arrive."""
    return (name, *(f"{name}-{trial}" for trial in range(2, TRIES + 1)))


@dataclass
class Drain:
    """A job that runs to its end. `savepoint` will be made from its final checkpoint."""

    directory: Location
    name: str
    savepoint: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def failed(self, error: MinflinkError) -> None:
        if not self.savepoint.done():
            self.savepoint.set_exception(error)
            self.savepoint.exception()  # mark it as retrieved: perhaps nobody waits any more


class Savepoints:
    """Takes a job's savepoints.

    `root` is the directory of the job's checkpoints. `drain_task` returns when the task has begun to run to its end.
    """

    def __init__(
        self,
        job_id: JobId,
        *,
        root: Location,
        coordinator: CheckpointCoordinator,
        scheduling: Scheduling,
        drain_task: Callable[[AttemptId], Awaitable[None]],
    ) -> None:
        self._job_id = job_id
        self._root = root
        self._coordinator = coordinator
        self._scheduling = scheduling
        self._drain_task = drain_task
        self._drain: Drain | None = None
        self._asked = 0  # savepoints that somebody waits for
        self._under_way = 0  # those that are being written
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()
        self.keeps_checkpoints = False  # after a drain without a savepoint, they are all that is left of the job

    @property
    def under_way(self) -> bool:
        """Whether a savepoint is being made, or the job is being ended with one."""
        return self._asked > 0

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    async def take(self, directory: Location, name: str = "") -> str:
        """Take a savepoint and return its URI. Raises CheckpointRefused, CheckpointFailed, SavepointNotWritten.

        `name` is the name of its directory below `directory`. If it is empty, a new one is made.
        """
        with self._noted():
            return await self._take(directory, name)

    async def stop(
        self, directory: Location, name: str = "", *, cancel: Callable[[], Awaitable[None]] | None = None
    ) -> str:
        """Take a savepoint and end the job. Return the savepoint's URI once the job is ending as FINISHED.

        With `cancel`, this is called instead: the job ends as CANCELED.

        Raises CheckpointRefused, CheckpointFailed, StopFailed: the job goes on.
        """
        with self._noted():
            return await self._stop(directory, name, cancel)

    async def _stop(self, directory: Location, name: str, cancel: Callable[[], Awaitable[None]] | None) -> str:
        number = self._scheduling.state.round
        try:
            path = await self._take(directory, name, stop=True)
        except SavepointNotWritten as error:
            self._go_on(error)
            raise StopFailed(str(error), hint="the job goes on; try again") from error
        if cancel is not None:
            await self._cancel(cancel, path)
            return path
        self._scheduling.feed(ev.StopDone(number))
        if self._scheduling.state.outcome is not JobStatus.FINISHED:
            raise StopFailed(f"the savepoint {path} was made, but the job's tasks failed before they could be stopped")
        return path

    async def _cancel(self, cancel: Callable[[], Awaitable[None]], savepoint: str) -> None:
        """Raises StopFailed: the job goes on."""
        try:
            await cancel()
        except MinflinkError as error:
            self._go_on(error)
            raise StopFailed(f"the savepoint {savepoint} was made, but the job was not cancelled: {error}") from error

    async def drain(self, directory: Location, name: str = "") -> str:
        """Let the job run to its end, with all windows and timers fired. Return the URI of the savepoint after it.

        Its name is one of `names_of_tries`.

        Raises Conflict, StopFailed (the job goes on), SavepointNotWritten (the job has ended, its checkpoints are
        kept).
        """
        state = self._scheduling.state
        if self._drain is not None or state.status is not JobStatus.RUNNING or state.outcome is not None:
            raise Conflict(f"job {self._job_id} is {state.status.value}, or being drained already")
        drain = self._drain = Drain(directory, name or new_name(self._job_id))
        self._scheduling.feed(ev.DrainBegun())
        self._coordinator.drain_begins()
        attempts = [e.attempt_id for e in state.executions.values() if e.attempt_id is not None]
        with self._noted():
            try:
                await asyncio.gather(*map(self._drain_task, attempts))
            except MinflinkError as error:
                drain.failed(StopFailed(f"the job could not be drained: {error}", hint="the job goes on"))
                self._go_on(error)
            return await drain.savepoint

    async def drained(self) -> None:
        """Make the savepoint if the job is being drained. Its final checkpoint is complete and published."""
        if (drain := self._drain) is None:
            return
        try:
            path = await self._of_final(drain)
        except SavepointNotWritten as error:
            self.keeps_checkpoints = True
            drain.failed(error)
        else:
            drain.savepoint.set_result(path)

    async def ended(self) -> None:
        """Return when no savepoint is being made. One that is being copied goes on after the JobMaster has closed."""
        await self._none_under_way.wait()

    def tasks_stopped(self) -> None:
        if self._drain is not None:
            self._drain.failed(StopFailed("the job's tasks ended before they were drained", hint="the job goes on"))
            self._drain = None

    def _go_on(self, error: MinflinkError) -> None:
        """Restart the tasks from the last checkpoint: they process nothing, or have run to the end of time."""
        self._scheduling.feed(ev.CheckpointsFailed(copy(error.info(), consequence=Consequence.RETRYABLE)))

    async def _take(self, directory: Location, name: str, *, stop: bool = False) -> str:
        """Take a savepoint. With `stop`, the tasks process nothing after it until they end or the checkpoint fails."""
        checkpoint = await self._coordinator.trigger(CheckpointKind.SAVEPOINT, forced=True, stop=stop)
        try:
            return await self._write(checkpoint, directory, name)
        finally:
            self._coordinator.unpin(checkpoint.checkpoint_id)

    async def _of_final(self, drain: Drain) -> str:
        """Make a savepoint of the latest checkpoint. Raises SavepointNotWritten."""
        checkpoint = self._coordinator.latest()
        assert checkpoint is not None
        *first, last = names_of_tries(drain.name)
        for name in first:
            with contextlib.suppress(SavepointNotWritten):
                return await self._write(checkpoint, drain.directory, name)
        return await self._write(checkpoint, drain.directory, last)

    async def _write(self, checkpoint: CompletedCheckpoint, directory: Location, name: str) -> str:
        self._under_way += 1
        self._none_under_way.clear()
        try:
            await self._coordinator.published(checkpoint.checkpoint_id)
            reach(CrashPoint.SAVEPOINT_CUT)
            savepoint = await write_savepoint(self._root, checkpoint, directory, name)
            reach(CrashPoint.SAVEPOINT_WRITTEN)
            self._coordinator.copied(checkpoint.checkpoint_id, savepoint.uri)
            return savepoint.uri
        except MinflinkError as error:
            raise SavepointNotWritten(
                f"checkpoint {checkpoint.checkpoint_id} is complete, and no savepoint could be made of it: {error}",
                hint=error.hint,
            ) from error
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._none_under_way.set()
