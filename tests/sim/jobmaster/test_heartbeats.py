"""The JobMaster's heartbeats in virtual time: each TaskManager at its own pace, and attempts that nobody wants."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from minflinkd.jobgraph.model import RestartStrategy, Source, Task, Vertex
from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster.heartbeats import TaskManagerBeats
from minflinkd.jobmaster.job_state import JobState, new_job
from minflinkd.jobmaster.slot_pool import Held
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.network import Mailbox, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.runtime.supervision import TaskOwner

pytestmark = pytest.mark.looptime
JOB, LEADER = JobId("1" * 32), LeaderId("leader")
TM1, TM2 = ResourceId("tm-1"), ResourceId("tm-2")
STRAY = AttemptId("2" * 32)


def holding(*resources: ResourceId) -> JobState:
    vertex = Vertex(id=VertexId("a"), source=Source(format="rate"))
    task = Task(id=TaskId("a"), vertices=(vertex,), parallelism=1)
    state = new_job((task,), RestartStrategy(), slot_request_timeout=300)
    held = {AllocationId(r): Held("default", (0,), r, task_manager(r)) for r in resources}
    return replace(state, pool=replace(state.pool, held=held))


class World:
    def __init__(self, *resources: ResourceId) -> None:
        self.wire = FaultyWire(random.Random(1))
        self.tasks = TaskOwner("test")
        self.state = holding(*resources)
        self.heard: dict[ResourceId, list[float]] = {r: [] for r in resources}
        self.reports: tuple[m.TaskStatus, ...] = ()
        self.cancelled: list[AttemptId] = []
        self.events: list[ev.Event] = []
        for resource in resources:
            self._task_manager(resource)
        self.beats = TaskManagerBeats(
            self.wire.party("jm"),
            job_id=JOB,
            leader_id=LEADER,
            interval=1.0,
            timeout=5.0,
            cancellation_timeout=60.0,
            clock=SystemClock(),
            tasks=self.tasks,
            state=lambda: self.state,
            feed=self.events.append,
        )

    def _task_manager(self, resource: ResourceId) -> None:
        async def beat(request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
            self.heard[resource].append(asyncio.get_running_loop().time())
            return m.JobHeartbeatAnswer(allocations=request.allocations, tasks=self.reports)

        async def cancel(request: m.CancelTask) -> m.Done:
            self.cancelled.append(request.attempt_id)
            await asyncio.sleep(10.0)  # user code that is slow to end
            self.reports = ()
            return m.Done()

        mailbox = Mailbox(task_manager(resource))
        mailbox.on(m.HeartbeatFromJobMaster, beat)
        mailbox.on(m.CancelTask, cancel)
        self.wire.party(resource).attach(mailbox)

    async def beat_for(self, seconds: float) -> None:
        self.tasks.loop("beats", self.beats.run)
        with capture_logs():
            await asyncio.sleep(seconds)
            await self.tasks.aclose()
            await self.wire.aclose()


async def test_a_taskmanager_that_hangs_does_not_slow_the_beats_to_the_others() -> None:
    """R10: a TaskManager ends the tasks of a JobMaster that it has not heard for the heartbeat's timeout."""
    world = World(TM1, TM2)
    world.wire.faults.drop_if = lambda _s, target, _m: target == task_manager(TM1)
    await world.beat_for(20.0)
    times = world.heard[TM2]
    assert max(b - a for a, b in pairwise(times)) < 2.0
    assert any(isinstance(event, ev.TaskManagerGone) and event.resource_id == TM1 for event in world.events)
    assert not any(isinstance(event, ev.TaskManagerGone) and event.resource_id == TM2 for event in world.events)


@pytest.mark.parametrize("state", [m.TaskState.INITIALIZING, m.TaskState.RUNNING, m.TaskState.INPUT_ENDED])
async def test_an_attempt_that_was_given_up_is_cancelled_once_when_it_is_reported(state: m.TaskState) -> None:
    """R10: its deployment arrived after the JobMaster had ceased to wait for an answer, or its cancellation never."""
    world = World(TM1)
    world.reports = (m.TaskStatus(attempt_id=STRAY, task_id=TaskId("a"), state=state),)
    await world.beat_for(20.0)
    assert world.cancelled == [STRAY]


async def test_an_attempt_that_ends_already_is_left_alone() -> None:
    world = World(TM1)
    world.reports = (m.TaskStatus(attempt_id=STRAY, task_id=TaskId("a"), state=m.TaskState.CANCELING),)
    await world.beat_for(5.0)
    assert world.cancelled == []
