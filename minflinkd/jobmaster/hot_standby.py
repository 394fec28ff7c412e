"""Keeps another TaskManager ready to go on with the job: `recovery: hot-standby` (R32).

The ResourceManager names the TaskManager to which the job would go if it lost its own. This one is told what the tasks
are and what they would start from, with every checkpoint. If it is lost, or does not answer, or another one is named,
that costs the job nothing but the preparation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from msgspec.structs import replace as copy

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import HotStandbyStatus, JobStatus
from minflinkd.rpc.network import Network, task_manager
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import LeaderId, ResourceId

log = structlog.get_logger(__name__)

LEASE = 30.0  # seconds after the last message, in which the TaskManager remains prepared
TIMEOUT = 5.0  # seconds for its answer, which does not wait for the preparation
PAUSE = 1.0  # seconds between two messages, at least: a job may complete ten checkpoints in this time
EARLY = "the job does not run, or has no complete checkpoint yet"
NOBODY = "no other TaskManager has a ready session and enough free slots"


def preparation(
    state: JobState, context: m.JobContext, leader_id: LeaderId, latest: CompletedCheckpoint | None
) -> m.StandBy | None:
    """Return what the standby is to be prepared for; None while the job has no complete checkpoint of all tasks."""
    if latest is None or state.status is not JobStatus.RUNNING:
        return None
    snapshots = {snapshot.task_id: snapshot for snapshot in latest.tasks}
    if not state.executions.keys() <= snapshots.keys():
        return None
    number = latest.checkpoint_id
    tasks = tuple(
        m.StandbyTask(
            task=copy(state.tasks[task_id], parallelism=execution.parallelism),
            restore=m.TaskRestore(checkpoint_id=number, snapshot=snapshots[task_id]),
            partitions=execution.partitions,
        )
        for task_id, execution in sorted(state.executions.items())
    )
    return m.StandBy(job=context, job_leader_id=leader_id, checkpoint_id=number, tasks=tasks, lease=LEASE)


class HotStandby:
    """`named`: the TaskManager that the ResourceManager named last. `prepare` returns what it is to be told.

    `on_change` is called when `status` has changed.
    """

    def __init__(
        self,
        *,
        named: Callable[[], ResourceId | None],
        prepare: Callable[[], m.StandBy | None],
        network: Network,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._named = named
        self._prepare = prepare
        self._network = network
        self._clock = clock
        self._on_change = on_change
        self._news = asyncio.Event()
        self.status = HotStandbyStatus(why=EARLY)

    def news(self) -> None:
        """A checkpoint is complete, or another TaskManager is named."""
        self._news.set()

    async def keep(self) -> None:
        """Keep the TaskManager prepared, for ever."""
        while True:
            self._news.clear()
            self._show(await self._tell())
            await self._clock.sleep(PAUSE)
            try:
                async with asyncio.timeout(LEASE / 3 - PAUSE):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _tell(self) -> HotStandbyStatus:
        resource_id, request = self._named(), self._prepare()
        if request is None:
            return HotStandbyStatus(resource_id=resource_id, why=EARLY)
        if resource_id is None:
            return HotStandbyStatus(why=NOBODY)
        try:
            answer = await self._network.ask(
                task_manager(resource_id), request, timeout=TIMEOUT, fence=request.job_leader_id
            )
        except MinflinkError as error:
            return HotStandbyStatus(resource_id=resource_id, why=error.message)
        return HotStandbyStatus(resource_id=resource_id, ready=answer.ready, why=answer.why)

    def _show(self, status: HotStandbyStatus) -> None:
        if status != self.status:
            self.status = status
            log.info("hot standby", resource=status.resource_id, ready=status.ready, why=status.why)
            self._on_change()
