"""What a TaskManager reports to the JobMasters of its attempts.

Requests are delivered at least once, so each must be idempotent by its ids. Figures are sent only once, because the
next figures and the answer to the JobMaster's heartbeat contain all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from minflinkd.rpc.messages import Done, Request, TaskMetrics, TaskProgress, TaskState, TaskStateChanged
from minflinkd.rpc.network import Address, Fenced, Network, RpcTimeout, Unreachable
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Consequence, MinflinkError, RemoteError
from minflinkd.runtime.ids import LeaderId
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.slots.core import TaskManagerCore

log = structlog.get_logger(__name__)

ANSWER_TIMEOUT = 5.0  # seconds
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


class JobMasterSilent(MinflinkError):
    """The JobMaster did not answer in the time given by the caller, or no longer leads the job."""

    code = "jobmaster-silent"
    consequence = Consequence.RETRYABLE


async def deliver(
    network: Network,
    clock: Clock,
    request: Request[Done],
    *,
    target: Callable[[], Address | None],
    fence: LeaderId,
    patience: float,
) -> None:
    """Repeat the request until it is answered. `target` returns the JobMaster's address, or None if it was replaced.

    Raises RemoteError and Fenced if it is refused, JobMasterSilent after `patience` seconds or without a target.
    """
    deadline = clock.monotonic() + patience
    pause = FIRST_PAUSE
    while (address := target()) is not None:
        try:
            await network.ask(address, request, timeout=ANSWER_TIMEOUT, fence=fence)
            return
        except (Unreachable, RpcTimeout) as error:
            if clock.monotonic() + pause >= deadline:
                raise JobMasterSilent(f"no answer for {patience:g} s: {error}") from error
        await clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    raise JobMasterSilent("the JobMaster is no longer the job's")


class JobMasters:
    """The JobMasters of the attempts on one TaskManager, as its core knows them."""

    def __init__(self, core: TaskManagerCore, network: Network, clock: Clock) -> None:
        self._core = core
        self._network = network
        self._clock = clock
        waits = core.slots.options
        self._patience = waits.heartbeat_timeout + waits.hold_timeout  # with silent JobMasters

    async def tell_statuses(self, attempt: Attempt) -> None:
        """Report every change of state. Return when the attempt has ended and the last report is answered (m12, J7).

        If no JobMaster takes the report of a failure, set the attempt's `failure_unreported`.
        """
        while True:
            await attempt.changed.wait()
            attempt.changed.clear()
            status, taken = attempt.status, True
            changed = TaskStateChanged(resource_id=self._core.resource_id, status=status)
            try:
                await self.deliver(attempt, changed)
            except (RemoteError, Fenced, JobMasterSilent) as error:
                taken = isinstance(error, RemoteError)
                log.info("a status was not taken", attempt=status.attempt_id, state=status.state, error=str(error))
            if status.state is attempt.status.state and attempt.ended:
                attempt.failure_unreported = not taken and status.state is TaskState.FAILED
                return

    async def deliver(self, attempt: Attempt, request: Request[Done]) -> None:
        """Send the request to the attempt's present JobMaster, and to no later one.

        Raises RemoteError, Fenced, JobMasterSilent.
        """
        leader = attempt.leader
        await deliver(
            self._network,
            self._clock,
            request,
            target=lambda: self._address(attempt, leader),
            fence=leader,
            patience=self._patience,
        )

    def tell_progress(self, attempt: Attempt, metrics: TaskMetrics) -> None:
        attempt.progressed(metrics)
        address = self._address(attempt, attempt.leader)
        if address is not None:
            progress = TaskProgress(attempt_id=attempt.deployment.attempt_id, metrics=metrics)
            self._network.tell(address, progress, fence=attempt.leader)

    def _address(self, attempt: Attempt, leader: LeaderId) -> Address | None:
        """Return the address of this JobMaster of the attempt's job, or None if it no longer leads the job."""
        job = self._core.slots.jobs.get(attempt.deployment.job.job_id)
        if job is None or job.ended or job.leader != leader:
            return None
        return Address(job.address)
