"""A JobMaster's core. Tests feed it by hand, see which requests it sends, and answer them."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from minflinkd.jobgraph.model import Checkpointing, RestartStrategy, RuntimeMode, Task
from minflinkd.jobmaster.core import JobMasterCore
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.network import RpcTimeout, Unreachable
from minflinkd.rpc.party import Answered, Ask, Outcome, Unknown
from minflinkd.runtime.ids import AllocationId, AttemptId, Chance, IdSource, JobId, ResourceId, TaskId
from tests.unit.jobmaster.wide_job import TM1, task

C = TypeVar("C")
JOB = JobId("1" * 32)
CONTEXT = m.JobContext(
    job_id=JOB,
    name="copy",
    params={},
    mode=RuntimeMode.STREAMING,
    checkpointing=Checkpointing(),
    checkpoint_root="file:///nowhere",
)
DONE = Answered(m.Done())
NO_ANSWER = Unknown(RpcTimeout("no answer"))
UNREACHABLE = Unknown(Unreachable("nobody there"))
A = TaskId("a")


class JobMaster:
    """A JobMaster's core whose requests a test answers. Heartbeats: one a second, lost after 5 s of silence."""

    def __init__(self, *tasks: Task, heralded: tuple[ResourceId, ...] = (), width: int = 1, **options: Any) -> None:
        """The job has one task of this width, unless others are given."""
        rng = random.Random(7)
        ids = IdSource(rng)
        self.now = 0.0
        self.commands: list[object] = []
        self.core = JobMasterCore(
            job_id=JOB,
            leader_id=ids.leader(),
            tasks=tasks or (task("a", width, "a"),),
            context=CONTEXT,
            options=JobMasterOptions(restart_strategy=RestartStrategy(jitter_factor=0.0), **options),
            chance=Chance(ids, rng),
            heralded=heralded,
        )

    def taken(self, kind: type[C]) -> list[C]:
        """Return the driver's commands of this kind since the last look at them."""
        new = self.core.take_commands()
        assert all(isinstance(command, Ask | ev.Command) for command in new)
        self.commands += new
        found = [command for command in self.commands if isinstance(command, kind)]
        self.commands = [command for command in self.commands if command not in found]
        return found

    def asked(self, kind: type[m.Request[Any]]) -> list[Ask]:
        """Return the requests of this kind since the last look at them."""
        asks = self.taken(Ask)
        self.commands += [ask for ask in asks if not isinstance(ask.request, kind)]
        return [ask for ask in asks if isinstance(ask.request, kind)]

    def feed(self, event: ev.Event) -> None:
        self.core.feed(event, self.now)
        self.core.next_wakeup()  # as the driver does after every call

    def receive(self, message: m.Message) -> Any:
        answer = self.core.receive(message, self.core.leader_id, self.now)
        self.core.next_wakeup()
        return answer

    def answer(self, ask: Ask, outcome: Outcome) -> None:
        self.core.answered(ask.about, outcome, self.now)
        self.core.next_wakeup()

    def tick(self, now: float) -> None:
        self.now = now
        self.core.tick(now)
        self.core.next_wakeup()

    def offer(self, resource: ResourceId = TM1, allocation: str = "") -> m.OffersAccepted:
        offer = m.SlotOffer(
            allocation_id=AllocationId(allocation or next(iter(self.core.state.pool.needs))), slots=(0,)
        )
        accepted: m.OffersAccepted = self.receive(
            m.OfferSlots(
                resource_id=resource, address=f"taskmanager/{resource}", offers=(offer,), data_url=f"http://{resource}"
            )
        )
        return accepted

    @property
    def attempt(self) -> AttemptId:
        attempt = self.core.state.executions[A].attempt_id
        assert attempt is not None
        return attempt

    @property
    def held(self) -> tuple[AllocationId, ...]:
        return tuple(self.core.state.pool.held)

    def state_of_a(self) -> ExecutionState:
        return self.core.state.executions[A].state

    def status(self, state: m.TaskState, **more: Any) -> m.TaskStatus:
        return m.TaskStatus(attempt_id=self.attempt, task_id=A, state=state, **more)

    def report(self, state: m.TaskState, **more: Any) -> Any:
        return self.receive(m.TaskStateChanged(resource_id=TM1, status=self.status(state, **more)))

    def deployed(self) -> Ask:
        """Return the request to deploy, which nobody has answered yet."""
        if not self.held:
            self.feed(ev.Started())
            self.offer()
        self.feed(ev.RestorePointFound(self.core.state.round, None, {}))
        (ask,) = self.asked(m.DeployTask)
        return ask

    def run(self) -> JobMaster:
        self.answer(self.deployed(), DONE)
        self.report(m.TaskState.RUNNING)
        assert self.core.state.status is JobStatus.RUNNING
        return self

    def beat(self, now: float) -> Ask:
        """Return the heartbeat of this time to the only TaskManager."""
        self.tick(now)
        (beat,) = self.asked(m.HeartbeatFromJobMaster)
        return beat

    def knows(self, *tasks: m.TaskStatus) -> Answered:
        """Return a heartbeat's answer by a TaskManager that knows all allocations, and these tasks."""
        return Answered(m.JobHeartbeatAnswer(allocations=self.held, tasks=tasks))
