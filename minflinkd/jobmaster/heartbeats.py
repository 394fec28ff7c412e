"""JobMaster <-> TaskManager heartbeats and the reconciliation that they carry (R10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster.job_state import JobState
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.messages import CancelTask, HeartbeatFromJobMaster, JobHeartbeatAnswer, TaskState, TaskStatus
from minflinkd.rpc.network import Address, Fenced, Network, RpcTimeout, Unreachable
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError, RemoteError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, ResourceId
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

UNREACHABLE_IS_LOST = 2  # failing connections in a row
ENDING = frozenset({TaskState.CANCELING, TaskState.CANCELED, TaskState.FAILED})


class TaskManagerBeats:
    """Beats to every TaskManager that holds slots of the job; tells the scheduler who is lost, and what differs."""

    def __init__(
        self,
        network: Network,
        *,
        job_id: JobId,
        leader_id: LeaderId,
        interval: float,
        timeout: float,
        cancellation_timeout: float,
        clock: Clock,
        tasks: TaskOwner,
        state: Callable[[], JobState],
        feed: Callable[[ev.Event], None],
    ) -> None:
        self._network = network
        self._job_id = job_id
        self._leader_id = leader_id
        self._interval = interval
        self._timeout = timeout
        self._cancellation_timeout = cancellation_timeout
        self._clock = clock
        self._tasks = tasks
        self._state = state
        self._feed = feed
        self._heard: dict[ResourceId, float] = {}
        self._unreachable: dict[ResourceId, int] = {}
        self._beating: dict[ResourceId, asyncio.Task[None]] = {}
        self._strays: dict[AttemptId, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever. Each TaskManager at its own pace: one that hangs must not make this job look dead to the others."""
        while True:
            await self._clock.sleep(self._interval)
            held = self._state().pool.held.values()
            targets = {h.resource_id: Address(h.address) for h in held}
            for gone in set(self._heard) - set(targets):
                del self._heard[gone]
                self._unreachable.pop(gone, None)
            self._beating = {resource: task for resource, task in self._beating.items() if not task.done()}
            self._strays = {attempt: task for attempt, task in self._strays.items() if not task.done()}
            for resource, address in targets.items():
                if resource not in self._beating:
                    self._beating[resource] = self._tasks.job(f"beat to {resource}", self._beat(resource, address))

    async def _beat(self, resource: ResourceId, address: Address) -> None:
        before = self._state()
        allocations = before.pool.on(resource)
        request = HeartbeatFromJobMaster(job_id=self._job_id, leader_id=self._leader_id, allocations=allocations)
        now = self._clock.monotonic()
        self._heard.setdefault(resource, now)
        try:
            answer = await self._network.ask(address, request, timeout=self._timeout, fence=self._leader_id)
        except (RemoteError, Fenced) as error:
            self._feed(ev.SlotsGone(allocations, f"TaskManager {resource} refuses the job: {error}"))
            return
        except (Unreachable, RpcTimeout) as error:
            misses = self._unreachable.get(resource, 0) + 1 if isinstance(error, Unreachable) else 0
            self._unreachable[resource] = misses
            silent = self._clock.monotonic() - self._heard[resource]
            if misses >= UNREACHABLE_IS_LOST or silent >= self._timeout:
                self._feed(ev.TaskManagerGone(resource, f"no heartbeat for {silent:.1f} s: {error}"))
            return
        self._heard[resource] = self._clock.monotonic()
        self._unreachable[resource] = 0
        self._reconcile(before, resource, answer)
        for status in answer.tasks:
            self._cancel_stray(before, status, address)

    def _cancel_stray(self, before: JobState, status: TaskStatus, address: Address) -> None:
        """An attempt that was given up while its TaskManager did not answer (its deployment may have arrived late, its

        cancellation not at all) must not go on beside its successor.
        """
        attempt = status.attempt_id
        live = {e.attempt_id for state in (before, self._state()) for e in state.live}
        if attempt not in live and status.state not in ENDING and attempt not in self._strays:
            log.warning("an attempt that was given up still runs; it is cancelled", attempt=attempt, address=address)
            self._strays[attempt] = self._tasks.job(f"cancel stray {attempt}", self._cancel(attempt, address))

    async def _cancel(self, attempt: AttemptId, address: Address) -> None:
        request = CancelTask(job_id=self._job_id, attempt_id=attempt)
        try:
            await self._network.ask(address, request, timeout=self._cancellation_timeout, fence=self._leader_id)
        except MinflinkError as error:
            log.info("a stray attempt was not cancelled yet", attempt=attempt, error=str(error))

    def _reconcile(self, before: JobState, resource: ResourceId, answer: JobHeartbeatAnswer) -> None:
        """What the TaskManager does not know is gone; only what was there before the question is judged by it."""
        unknown = tuple(a for a in before.pool.on(resource) if a not in answer.allocations)
        if unknown:
            self._feed(ev.SlotsGone(unknown, f"TaskManager {resource} does not know the allocation"))
        known = {status.attempt_id for status in answer.tasks}
        for status in answer.tasks:
            self._feed(ev.TaskChanged(status))
        for execution in before.executions.values():
            settled = execution.state in (ExecutionState.INITIALIZING, ExecutionState.RUNNING)
            here = settled and execution.resource_id == resource
            if here and execution.attempt_id is not None and execution.attempt_id not in known:
                self._feed(ev.AttemptGone(execution.attempt_id))
