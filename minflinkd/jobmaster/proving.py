"""A version on trial (H7): its first checkpoint with rows proves it; if it fails before, the old version returns.

    looks for input -> has processed rows ------------------------------> first checkpoint -> proven
                    -> finds none: on trial -> rows, or the trial is over ----^

During its trial, however long, it takes no checkpoint on its own: the version before it could not read one. Nothing is
published without a checkpoint. So the version before it can go on from its own last checkpoint, with exact output, even
hours later. Its storage does not grow meanwhile.

A checkpoint that somebody asks for (a savepoint, a stop) is still taken, and ends the trial. Output without input, from
timers, ends it too: otherwise that output would never be published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog
from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointFailed, CheckpointRefused, FailureCause
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduling import Scheduling
from minflinkd.jobmaster.succession import Trial
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import ErrorInfo, MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, TaskId

log = structlog.get_logger(__name__)

PAUSE = 0.5  # seconds before a refused first checkpoint is tried again


class Proving:
    """Runs the trial of one version, and holds back its checkpoints until then.

    `trial` is None for a version that is not on trial. `base` is the last checkpoint of the version before it. `spawn`
    starts a task under a name.
    """

    def __init__(
        self,
        job_id: JobId,
        trial: Trial | None,
        *,
        base: int,
        scheduling: Scheduling,
        coordinator: CheckpointCoordinator,
        clock: Clock,
        trigger_interval: float,
        spawn: Callable[[str, Coroutine[Any, Any, None]], None],
    ) -> None:
        self._job_id = job_id
        self._trial = trial
        self._base = base
        self._scheduling = scheduling
        self._coordinator = coordinator
        self._clock = clock
        self._trigger_interval = trigger_interval
        self._spawn = spawn
        self._under_way = False
        self._watching = False
        # Running attempts that the coordinator does not know yet.
        self._held_back: Mapping[TaskId, AttemptId] | None = None

    def tasks_running(self, attempts: Mapping[TaskId, AttemptId]) -> None:
        self._held_back = attempts
        if self._trial is None or not self._scheduling.state.on_trial:
            self.begin_checkpoints()
        else:
            self._trial.running()
            self._try_to_prove(self._trial)

    def tasks_stopped(self) -> None:
        self._held_back = None

    def disproved(self, error: ErrorInfo) -> None:
        if self._trial is not None:
            self._trial.disproved(error)

    def begin_checkpoints(self) -> None:
        """Tell the coordinator about the attempts that were held back, and begin periodic checkpoints."""
        self._tell(periodic=True)
        self._coordinator.begin_periodic()

    def _tell(self, *, periodic: bool) -> None:
        attempts, self._held_back = self._held_back, None
        if attempts is not None:
            self._coordinator.tasks_running(attempts, periodic=periodic)

    def _try_to_prove(self, trial: Trial) -> None:
        state = self._scheduling.state
        if not self._under_way and state.on_trial and state.status is JobStatus.RUNNING:
            self._under_way = True
            self._spawn("first checkpoint", self._prove(trial))

    async def _prove(self, trial: Trial) -> None:
        """Take the version's first checkpoint, after its first micro-batch with rows."""
        number = self._scheduling.state.round
        if not self._watching:
            self._watching = True
            self._spawn("checkpoint that ends a trial", self._watch(trial))
        try:
            due = await self._rows(trial, number)
        except TimeoutError:
            trial.disproved(_hanging(trial.timeout))
            return
        if self._scheduling.crashed.is_set() or not self._scheduling.state.on_trial:
            return
        try:
            if not due:
                raise CheckpointFailed(None, FailureCause.TASK_FAILURE)
            self.begin_checkpoints()
            point = await self._coordinator.trigger(forced=True)
        except CheckpointRefused as error:
            log.info("the first checkpoint has to wait", job=self._job_id, error=str(error))
            await self._clock.sleep(PAUSE)
        except MinflinkError as error:
            if self._goes_on(number):
                trial.disproved(copy(error.info(), message=f"its first checkpoint failed: {error.message}"))
                return
        else:
            self._accept(trial, point.checkpoint_id)
            return
        self._under_way = False
        self._try_to_prove(trial)

    def _accept(self, trial: Trial, checkpoint_id: int) -> None:
        """End the trial. `_prove` and `_watch` both call this; the first call counts."""
        if self._scheduling.state.on_trial:
            self._scheduling.feed(ev.Proven())
            self.begin_checkpoints()
            trial.proven(checkpoint_id)

    async def _rows(self, trial: Trial, number: int) -> bool:
        """Return True when the first checkpoint of round `number` is due, or False if it never will be.

        Raises TimeoutError if a task neither finishes a micro-batch nor finds that it has no input.
        """
        # Rows that each attempt had emitted when the version was found to be idle.
        emitted: Mapping[AttemptId, int] | None = None

        def has_rows(state: JobState) -> bool:
            return state.has_input or (emitted is not None and _has_emitted(state, emitted))

        while True:
            async with asyncio.timeout(trial.timeout + self._trigger_interval):
                await self._scheduling.until(lambda state: state.has_read or not self._goes_on(number))
            state = self._scheduling.state
            if not self._goes_on(number):
                return False
            if has_rows(state):
                return True
            if emitted is None:
                emitted = {e.attempt_id: e.metrics.rows_out for e in state.live if e.attempt_id is not None}
                self._idle(trial)
            try:
                async with asyncio.timeout(trial.left()):
                    await self._scheduling.until(
                        lambda state: not state.has_read or has_rows(state) or not self._goes_on(number)
                    )
            except TimeoutError:
                log.info("a version is accepted without input: its trial is over", job=self._job_id)
                return True

    def _goes_on(self, number: int) -> bool:
        state = self._scheduling.state
        runs = state.status is JobStatus.RUNNING and state.round == number
        return runs and state.on_trial and not self._scheduling.crashed.is_set()

    def _idle(self, trial: Trial) -> None:
        log.info("a version is on trial: no input yet", job=self._job_id)
        self._tell(periodic=False)  # so that a checkpoint can be requested
        trial.idle()

    async def _watch(self, trial: Trial) -> None:
        """Wait for a checkpoint that somebody else requests, and accept the version with it."""
        try:
            point = await self._coordinator.completed_after(self._base)
        except CheckpointRefused:  # the JobMaster ends
            return
        self._accept(trial, point.checkpoint_id)


def _has_emitted(state: JobState, before: Mapping[AttemptId, int]) -> bool:
    """Whether a task has emitted rows although it read none."""
    now = {e.attempt_id: e.metrics.rows_out for e in state.live}
    return any(now.get(attempt_id, 0) > rows for attempt_id, rows in before.items())


def _hanging(seconds: float) -> ErrorInfo:
    return ErrorInfo(
        code="hot-restart-timeout",
        message=f"the new version has finished no micro-batch within {seconds:g} s (hot-restart.timeout)",
        hint="it may hang; one that needs so long for its first micro-batch needs a longer timeout",
    )
