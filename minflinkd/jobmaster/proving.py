"""A version on trial (H7): its first checkpoint proves it, and until then a failure brings the one before it back.

Meanwhile the coordinator is not told of its tasks: the version before it could not read a checkpoint of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog
from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointFailed, CheckpointRefused, FailureCause
from minflinkd.checkpoint.driver import CheckpointCoordinator
from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster.scheduling import Scheduling
from minflinkd.jobmaster.succession import Trial
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import ErrorInfo, MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, TaskId

log = structlog.get_logger(__name__)

PAUSE = 0.5  # seconds before a first checkpoint that was refused is asked for again


class Proving:
    """`trial`: None for a version that is no longer on trial, or never was. `spawn` starts a task under a name."""

    def __init__(
        self,
        job_id: JobId,
        trial: Trial | None,
        *,
        scheduling: Scheduling,
        coordinator: CheckpointCoordinator,
        clock: Clock,
        trigger_interval: float,
        spawn: Callable[[str, Coroutine[Any, Any, None]], None],
    ) -> None:
        self._job_id = job_id
        self._trial = trial
        self._scheduling = scheduling
        self._coordinator = coordinator
        self._clock = clock
        self._trigger_interval = trigger_interval
        self._spawn = spawn
        self._under_way = False
        self._held_back: Mapping[TaskId, AttemptId] | None = None  # that run, and of which the coordinator is not told

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
        """From now on, what was held back."""
        attempts, self._held_back = self._held_back, None
        if attempts is not None:
            self._coordinator.tasks_running(attempts)

    def _try_to_prove(self, trial: Trial) -> None:
        state = self._scheduling.state
        if not self._under_way and state.on_trial and state.status is JobStatus.RUNNING:
            self._under_way = True
            self._spawn("first checkpoint", self._prove(trial))

    async def _prove(self, trial: Trial) -> None:
        """The version's first checkpoint, behind its first micro-batch where it has input."""
        number = self._scheduling.state.round
        try:
            await self._first_batch(trial.timeout + self._trigger_interval)
        except TimeoutError:
            trial.disproved(_hanging(trial.timeout))
            return
        try:
            if self._scheduling.state.round != number:
                raise CheckpointFailed(None, FailureCause.TASK_FAILURE)
            self.begin_checkpoints()
            point = await self._coordinator.trigger(forced=True)
        except CheckpointRefused as error:
            log.info("the first checkpoint has to wait", job=self._job_id, error=str(error))
            await self._clock.sleep(PAUSE)
        except MinflinkError as error:
            state = self._scheduling.state
            if state.round == number and state.status is JobStatus.RUNNING:
                trial.disproved(copy(error.info(), message=f"its first checkpoint failed: {error.message}"))
                return
        else:
            self._scheduling.feed(ev.Proven())
            trial.proven(point.checkpoint_id)
            return
        self._under_way = False
        self._try_to_prove(trial)

    async def _first_batch(self, patience: float) -> None:
        """Returns when all tasks have read rows, or have found none. Raises TimeoutError."""
        async with asyncio.timeout(patience):
            await self._scheduling.until(lambda state: state.has_read or state.status is not JobStatus.RUNNING)


def _hanging(seconds: float) -> ErrorInfo:
    return ErrorInfo(
        code="hot-restart-timeout",
        message=f"the new version has finished no micro-batch within {seconds:g} s (hot-restart.timeout)",
        hint="it may hang; one that needs so long for its first micro-batch needs a longer timeout",
    )
