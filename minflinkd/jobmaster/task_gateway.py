"""How a job's checkpoint coordinator talks to the job's running tasks (m12)."""

from __future__ import annotations

from collections.abc import Callable

from minflinkd.rpc.messages import DrainTask, NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint
from minflinkd.rpc.network import Address, Network, Unreachable
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId

TRIGGER_TIMEOUT = 5.0  # seconds
DRAIN_TIMEOUT = 20.0
PUBLISH_TIMEOUT = 60.0  # sinks may have many files to publish


class TaskManagerTasks:
    """Sends requests to the TaskManagers of running attempts.

    `address_of` returns the address of an attempt's TaskManager, or None if the attempt is gone. `timeout` is that of a
    checkpoint.
    """

    def __init__(
        self,
        network: Network,
        *,
        job_id: JobId,
        fence: LeaderId,
        address_of: Callable[[AttemptId], Address | None],
        timeout: float,
    ) -> None:
        self._network = network
        self._job_id = job_id
        self._fence = fence
        self._address_of = address_of
        self._timeout = timeout

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
        request = TriggerCheckpoint(
            job_id=self._job_id,
            attempt_id=attempt_id,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            timeout=self._timeout,
            stop=stop,
            full=full,
            oldest=oldest,
        )
        await self._network.ask(self._find(attempt_id), request, timeout=TRIGGER_TIMEOUT, fence=self._fence)

    async def drain(self, attempt_id: AttemptId) -> None:
        """Start to drain the task. Returns when it has begun to run to its end."""
        request = DrainTask(job_id=self._job_id, attempt_id=attempt_id)
        await self._network.ask(self._find(attempt_id), request, timeout=DRAIN_TIMEOUT, fence=self._fence)

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        request = NotifyCheckpointComplete(job_id=self._job_id, attempt_id=attempt_id, checkpoint_id=checkpoint_id)
        await self._network.ask(self._find(attempt_id), request, timeout=PUBLISH_TIMEOUT, fence=self._fence)

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        request = NotifyCheckpointAborted(job_id=self._job_id, attempt_id=attempt_id, checkpoint_id=checkpoint_id)
        await self._network.ask(self._find(attempt_id), request, timeout=TRIGGER_TIMEOUT, fence=self._fence)

    def _find(self, attempt_id: AttemptId) -> Address:
        address = self._address_of(attempt_id)
        if address is None:
            raise Unreachable(f"attempt {attempt_id} runs nowhere")
        return address
