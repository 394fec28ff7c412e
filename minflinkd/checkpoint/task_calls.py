"""The coordinator's calls to the job's tasks, and how often they are retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import stamina
import structlog

from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.state import State, owed_to
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Consequence, MinflinkError, error_info
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

FEW = 3  # tries of a trigger
WAIT_MAX = 10.0  # seconds between tries of calls that may not be given up


class TaskGateway(Protocol):
    """The running tasks, as the coordinator calls them. Every call may be repeated; each has its own timeout."""

    async def send_trigger(
        self,
        attempt_id: AttemptId,
        checkpoint_id: int,
        epoch: int,
        *,
        oldest: int = 0,
        stop: bool = False,
        full: bool = False,
    ) -> None:
        """Return when the task has taken the trigger. Raises what the task or the connection to it raises.

        `oldest`: the oldest pending checkpoint. The abort of an older one may have been lost.
        """
        ...

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        """Return when the task's sinks have published the checkpoint."""
        ...

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None: ...


class TaskCalls:
    """`state`: returns the coordinator's current state. `feed` reports the outcome of a call to it."""

    def __init__(
        self,
        gateway: TaskGateway,
        *,
        state: Callable[[], State],
        feed: Callable[[e.Event], None],
        tasks: TaskOwner,
        name: str,
    ) -> None:
        self._gateway = gateway
        self._state = state
        self._feed = feed
        self._tasks = tasks
        self._name = name
        self._notifying: set[AttemptId] = set()

    def trigger(self, attempt: AttemptId, number: int, *, stop: bool, full: bool) -> None:
        self._tasks.job(f"trigger {number} at {attempt}", self._trigger(attempt, number, stop, full))

    def complete(self, attempt: AttemptId) -> None:
        """Notify the attempt of all checkpoints that it owes, including those that it comes to owe meanwhile."""
        if attempt not in self._notifying:
            self._notifying.add(attempt)
            self._tasks.job(f"completions for {attempt}", self._complete(attempt))

    def aborted(self, attempt: AttemptId, number: int) -> None:
        """Notify the attempt of an abort until it answers or has ended.

        Without this, it may stay stopped at the cut, or hold up a reader that waits for the barrier. The next trigger
        would also end this, but perhaps none comes.
        """
        what = f"abort of {number} at {attempt}"

        def given_up(error: Exception) -> None:
            log.warning("given up", component=self._name, what=what, error=str(error))

        self._tasks.job(what, self._aborted(attempt, number), on_error=given_up)

    async def _trigger(self, attempt: AttemptId, number: int, stop: bool, full: bool) -> None:
        try:
            async for trial in stamina.retry_context(on=_retryable, attempts=FEW, wait_initial=0.1):
                with trial:
                    state = self._state()
                    if number not in state.pending:
                        return  # aborted: a task that is triggered now would upload for nothing (C13)
                    oldest, epoch = min(state.pending), state.options.epoch
                    await self._gateway.send_trigger(attempt, number, epoch, oldest=oldest, stop=stop, full=full)
        except Exception as error:
            self._feed(e.TriggerFailed(number, attempt, error_info(error)))
        else:
            self._feed(e.TriggerTaken(number, attempt))

    async def _complete(self, attempt: AttemptId) -> None:
        """Notify one checkpoint at a time, in order, until each is confirmed or the attempt is gone."""
        try:
            while (number := owed_to(self._state(), attempt)) is not None:
                async for trial in stamina.retry_context(
                    on=Exception, attempts=None, timeout=None, wait_initial=0.1, wait_max=WAIT_MAX
                ):
                    with trial:
                        if owed_to(self._state(), attempt) != number:
                            return
                        reach(CrashPoint.NOTIFY)
                        await self._gateway.notify_complete(attempt, number)
                reach(CrashPoint.NOTIFIED)
                self._feed(e.TaskNotified(number, attempt))
        finally:
            self._notifying.discard(attempt)

    async def _aborted(self, attempt: AttemptId, number: int) -> None:
        async for trial in stamina.retry_context(
            on=_retryable, attempts=None, timeout=None, wait_initial=0.1, wait_max=WAIT_MAX
        ):
            with trial:
                state = self._state()
                if attempt in state.survivors or attempt in state.attempts.values():
                    await self._gateway.notify_aborted(attempt, number)


def _retryable(error: Exception) -> bool:
    return isinstance(error, MinflinkError) and error.info().consequence is Consequence.RETRYABLE
