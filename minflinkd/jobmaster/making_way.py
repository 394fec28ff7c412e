"""How a JobMaster makes way for the next version of its job, or goes on if none follows (H3).

While the job runs, it acquires the slots that the new version wants. Then it takes a last checkpoint, after which the
tasks process nothing more, and stops them. The slots stay with the job.

The tasks pause for as long as that checkpoint takes, which is long if Spark has just written a new RocksDB snapshot. So
a large state is copied while they still run, as in the live migration of a virtual machine's memory (Clark et al., Live
Migration of Virtual Machines, NSDI 2005). The last checkpoint then uploads only what has changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import reserving, resizing
from minflinkd.jobmaster.scheduler.phases import StoodDown
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduling import Scheduling
from minflinkd.jobmaster.succession import NotStoodDown
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import Library
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.resource_profile import ResourceProfile

log = structlog.get_logger(__name__)

_COPIED_AHEAD = 32 * 2**20  # bytes of state; a smaller state is not copied ahead


class MakingWay:
    def __init__(self, job_id: JobId, scheduling: Scheduling, coordinator: CheckpointCoordinator) -> None:
        self._job_id = job_id
        self._scheduling = scheduling
        self._coordinator = coordinator
        self._stood_down: asyncio.Future[None] | None = None  # set once it is asked to stand down

    async def reserve(
        self,
        groups: Mapping[str, int],
        patience: float,
        libraries: tuple[Library, ...] = (),
        profiles: Mapping[str, ResourceProfile] | None = None,
    ) -> None:
        """Ask for these slots per slot sharing group while the job runs, and return when the job holds them.

        `libraries`: of the next version. Slots in sessions that cannot hold them do not count. Nor do slots that have
        less than its `profiles` say, by group; None: those of the running version.

        It holds them until it stands down, or until `release`. Raises NotStoodDown after `patience` seconds, or at once
        if no TaskManager will ever have that many.
        """
        self._scheduling.feed(ev.SlotsReserved(groups, libraries, profiles))
        try:
            async with asyncio.timeout(patience):
                await self._scheduling.until(_is_settled)
        except TimeoutError:
            state = self._scheduling.state
            reasons = sorted({w for need, w in state.waiting.items() if need in state.pool.needs})
            self.release()
            why = "; ".join(reasons) or "nobody said why"
            raise NotStoodDown(
                f"the slots that the new version wants were not there within {patience:g} s: {why}",
                hint="ask for less parallelism, or for more TaskManagers",
            ) from None
        if (found := reserving.wider_than_any(self._scheduling.state)) is not None:
            (group, wanted), largest = found, self._scheduling.state.largest
            self.release()
            raise NotStoodDown(
                f"the new version wants {wanted} slots of one TaskManager for slot sharing group {group!r}, and a "
                f"TaskManager has {largest} (taskmanager.numberOfTaskSlots)",
                hint="ask for less parallelism, or give TaskManagers more slots",
            )
        if self._scheduling.crashed.is_set() or self._scheduling.state.outcome is not None:
            raise NotStoodDown("the job ends, or its JobMaster crashed, before it had the slots it wants")

    def release(self) -> None:
        """Stop reserving: slots beyond the job's own are given back after they have been idle for a while.

        Raises Crashed.
        """
        self._scheduling.feed(ev.SlotsReserved())

    def can_leave_tasks(self, tasks: tuple[Task, ...]) -> bool:
        """Whether the next version can take over the tasks as they run, and give them the slots that `tasks` want.

        `tasks` are those of a version that differs in nothing but its parallelism.
        """
        return resizing.can_become(self._scheduling.state, tasks)

    @property
    def published(self) -> bool:
        """Whether everything that the latest checkpoint covers is committed, as far as this JobMaster knows."""
        latest, published = self._coordinator.latest(), self._coordinator.latest_published()
        if latest is None:
            return True
        # Their ids are compared: the latest one also names what the retained ones before it owed.
        return published is not None and published.checkpoint_id == latest.checkpoint_id

    async def stand_down(self, *, final: bool, publish: bool = False) -> int:
        """Stop the tasks, keep their slots and decide nothing more. Return the latest checkpoint's id, or 0.

        With `final`, take a last checkpoint first; the tasks process nothing after it. If it fails, the one before it
        counts. With `publish`, stop the tasks only after what the checkpoint covers is committed: nobody could commit
        it later. Raises NotStoodDown; the job then goes on, or ends, as it would have.
        """
        if final:
            await self._have_looked_for_tasks()
        if final and self._scheduling.state.status is JobStatus.RUNNING:
            await self._copy_ahead()
            await self._take_last_cut()
        if publish:
            await self._have_published()
        try:
            await asyncio.shield(self.begin())
            point = await self._coordinator.settled()
        except MinflinkError as error:
            raise NotStoodDown(f"the running version could not be stopped: {error.message}") from error
        if self._scheduling.crashed.is_set():  # the next JobMaster of this version may have brought it up again
            raise NotStoodDown("its JobMaster crashed as it stood down")
        return 0 if point is None else point.checkpoint_id

    def begin(self) -> asyncio.Future[None]:
        """Begin to stand down: bring nothing up from now on. The future is done when nothing runs. Raises Crashed."""
        if self._stood_down is None:
            self._stood_down = asyncio.get_running_loop().create_future()
        waiting = self._stood_down
        self._scheduling.feed(ev.StandDown())
        self.note()
        return waiting

    def go_on(self) -> None:
        """Restart the job from its last checkpoint after `stand_down`, even an abandoned one. Raises Crashed."""
        if self._stood_down is not None:
            self._stood_down.cancel()
            self._stood_down = None
        self.release()
        self._scheduling.feed(ev.GoOn())

    def note(self) -> None:
        """Notice a step of the scheduler, which may have stood down or ended the job.

        It may have stood down before it was asked to. If the job ends, it never will.
        """
        state, waiting = self._scheduling.state, self._stood_down
        if waiting is None or waiting.done():
            return
        if state.outcome is not None:
            self.give_up(f"the job ends: it will be {state.outcome.value}")
        elif isinstance(state.phase, StoodDown):
            waiting.set_result(None)

    def give_up(self, why: str) -> None:
        if (waiting := self._stood_down) is not None and not waiting.done():
            waiting.set_exception(NotStoodDown(why))
            waiting.exception()  # mark it as retrieved: perhaps nobody waits any more

    async def _have_looked_for_tasks(self) -> None:
        """Return when the tasks of an earlier JobMaster are adopted, because only then they can take a checkpoint."""
        if self._scheduling.state.status is JobStatus.RECONCILING:
            await self._scheduling.until(lambda state: state.status is not JobStatus.RECONCILING)

    async def _have_published(self) -> None:
        try:
            if (latest := self._coordinator.latest()) is not None:
                await self._coordinator.published(latest.checkpoint_id)
        except MinflinkError as error:
            self._scheduling.feed(ev.StandDown())  # the tasks may already have stopped processing
            self.go_on()
            raise NotStoodDown(
                f"sinks that the new version lacks have not committed what they owe: {error.message}", hint=error.hint
            ) from error

    async def _copy_ahead(self) -> None:
        latest = self._coordinator.latest()
        if latest is None or sum(task.bytes_full for task in latest.tasks) < _COPIED_AHEAD:
            return
        try:
            await self._coordinator.trigger(forced=True)
        except MinflinkError as error:  # the last checkpoint uploads more, or fails as well
            log.info("the state is not copied ahead", job=self._job_id, error=str(error))

    async def _take_last_cut(self) -> None:
        try:
            await self._coordinator.trigger(forced=True, stop=True)
        except MinflinkError as error:
            if self._coordinator.latest() is None:
                why = f"its last checkpoint failed, and there is none before it: {error.message}"
                raise NotStoodDown(why, hint=error.hint) from error
            log.warning("no last checkpoint; the one before it counts", job=self._job_id, error=str(error))


def _is_settled(state: JobState) -> bool:
    """Whether the requested slots are there, or will never come."""
    return reserving.has_reserved(state) or reserving.wider_than_any(state) is not None or state.outcome is not None
