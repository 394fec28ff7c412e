"""A world for tests of a TaskManager's core: leaders with small numbers, and the commands that the core gives."""

from __future__ import annotations

from typing import Any, TypeVar

from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import RpcTimeout, Unreachable, job_master, task_manager
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Tell, Unknown
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AllocationId, AttemptId, InstanceId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.taskmanager.slots.core import TaskManagerCore, TaskManagerOptions
from minflinkd.taskmanager.slots.events import EndTasks, StartTask
from minflinkd.taskmanager.slots.table import SlotState

TM = ResourceId("tm-1")
JOB, OTHER = JobId("1" * 32), JobId("2" * 32)
A, B, C = AllocationId("a"), AllocationId("b"), AllocationId("c")
SLOTS = 4
LOST = Unknown(RpcTimeout("no answer"))
NO_WAY = Unknown(Unreachable("no connection"))
HELLO = m.RegisterTaskManager(
    address=task_manager(TM),
    pid=1,
    hardware=m.Hardware(cpu_cores=1, memory_bytes=1),
    log_directory="",
    report=m.TaskManagerReport(resource_id=TM, slots=(), session=m.SessionPhase.STARTING),
)
T = TypeVar("T")


def leader(number: int) -> LeaderId:
    """Return the id of leader `number`; a later leader has a greater number."""
    return LeaderId(f"{number:08d}")


def attempt(number: int) -> AttemptId:
    return AttemptId(f"attempt-{number}")


def registered(number: int = 1, **more: Any) -> m.Registered:
    return m.Registered(
        instance_id=InstanceId(f"instance-{number}"),
        leader_id=leader(number),
        heartbeat_interval=1.0,
        heartbeat_timeout=5.0,
        **more,
    )


def allocate(key: AllocationId, *slots: int, job: JobId = JOB, jm: int = 1, exclusive: bool = False) -> m.AllocateSlots:
    return m.AllocateSlots(
        job_id=job,
        allocation_id=key,
        slots=slots,
        job_master=job_master(job),
        job_leader_id=leader(jm),
        exclusive=exclusive,
    )


def deploy(key: AllocationId, number: int = 0, *, job: JobId = JOB, jm: int = 1, task: str = "t") -> m.DeployTask:
    context = m.JobContext(
        job_id=job,
        name="job",
        params={},
        mode=RuntimeMode.STREAMING,
        checkpointing=Checkpointing(),
        checkpoint_root="file:///nowhere",
    )
    vertex = Vertex(id=VertexId(task), source=Source(format="rate"))
    return m.DeployTask(
        job=context,
        task=Task(id=TaskId(task), vertices=(vertex,), parallelism=1),
        allocation_id=key,
        attempt_id=attempt(number),
        attempt_number=number,
        job_leader_id=leader(jm),
    )


class CoreWorld:
    """A TaskManager's core that is registered with leader 1 and has a ready session, unless told otherwise."""

    def __init__(self, *, ready: bool = True, **options: Any) -> None:
        self.now = 0.0
        self.core = TaskManagerCore(HELLO, slots=SLOTS, options=TaskManagerOptions(**options), now=0.0)
        self.commands: list[object] = []
        self.asks: list[Ask] = []  # without an outcome yet
        if ready:
            self.core.session_changed(m.SessionPhase.READY, 1, aged=False, now=0.0)
            self.wait(0.0)
            self.answer(self.ask_of(m.RegisterTaskManager), registered())
            self.take(object)

    def _collect(self) -> None:
        commands = self.core.take_commands()
        self.commands += commands
        self.asks += [c for c in commands if isinstance(c, Ask)]

    def take(self, kind: type[T]) -> list[T]:
        """Return the commands of this kind, and of its subclasses, that were not taken before."""
        taken = [c for c in self.commands if isinstance(c, kind)]
        self.commands = [c for c in self.commands if not isinstance(c, kind)]
        return taken

    def told(self) -> list[m.Notice]:
        return [tell.notice for tell in self.take(Tell)]

    def ask_of(self, kind: type[m.Message]) -> Ask:
        """Return the last request of this kind that has no outcome yet."""
        return [ask for ask in self.asks if isinstance(ask.request, kind)][-1]

    def offered(self) -> tuple[AllocationId, ...]:
        request = self.ask_of(m.OfferSlots).request
        assert isinstance(request, m.OfferSlots)
        return tuple(o.allocation_id for o in request.offers)

    def is_asking(self, kind: type[m.Message]) -> bool:
        return any(isinstance(ask.request, kind) for ask in self.asks)

    def outcome(self, ask: Ask, outcome: Outcome) -> None:
        self.asks.remove(ask)
        self.core.answered(ask.about, outcome, self.now)
        self._collect()

    def answer(self, ask: Ask, value: object) -> None:
        self.outcome(ask, Answered(value))

    def refuse(self, ask: Ask, error: MinflinkError) -> None:
        self.outcome(ask, Refused(error))

    def accept(self, *keys: AllocationId) -> None:
        self.answer(self.ask_of(m.OfferSlots), m.OffersAccepted(accepted=keys))

    def rm(self, message: m.Message, number: int = 1) -> Any:
        return self.receive(message, leader(number))

    def jm(self, message: m.Message, number: int = 1) -> Any:
        return self.receive(message, leader(number))

    def receive(self, message: m.Message, fence: LeaderId) -> Any:
        try:
            return self.core.receive(message, fence, self.now)
        finally:
            self._collect()

    def beat(self, *keys: AllocationId, job: JobId = JOB, jm: int = 1) -> m.JobHeartbeatAnswer:
        request = m.HeartbeatFromJobMaster(job_id=job, leader_id=leader(jm), allocations=keys)
        answer = self.jm(request, jm)
        assert isinstance(answer, m.JobHeartbeatAnswer)
        return answer

    def ended(self, *numbers: int) -> None:
        for number in numbers:
            self.core.attempt_ended(attempt(number), self.now)
        self._collect()

    def failed(self, number: int) -> None:
        """Let an attempt fail. Nothing of it runs, and its JobMaster does not know it yet."""
        self.core.attempt_ended(attempt(number), self.now, failed=True)
        self._collect()

    def wait(self, seconds: float, *, rm: bool = True) -> None:
        """Let time pass, with a tick whenever one is due.

        The ResourceManager answers each heartbeat, or none (`rm`).
        """
        end = self.now + seconds
        while (due := self.core.next_wakeup()) is not None and due <= end:
            self.now = max(self.now, due)
            self.core.tick(self.now)
            self._collect()
            for ask in [a for a in self.asks if isinstance(a.request, m.HeartbeatFromTaskManager)]:
                self.outcome(ask, Answered(m.HeartbeatAnswer()) if rm else LOST)
        self.now = end

    def state(self, key: AllocationId) -> SlotState:
        binding = self.core.slots.table.bindings.get(key)
        return SlotState.FREE if binding is None else binding.state

    def active(self, key: AllocationId, *slots: int, job: JobId = JOB, jm: int = 1) -> None:
        """Allocate these slots and accept the offer."""
        assert self.rm(allocate(key, *slots, job=job, jm=jm)).allocated
        self.accept(*self.offered())
        assert self.state(key) is SlotState.ACTIVE


S = SlotState


def ends(world: CoreWorld) -> list[tuple[str, ...]]:
    return [command.attempts for command in world.take(EndTasks)]


def running(*, jm: int = 1, **options: Any) -> CoreWorld:
    """Return a world in which attempt 0 runs on allocation A."""
    world = CoreWorld(**options)
    world.active(A, 0, 1, jm=jm)
    world.jm(deploy(A, jm=jm), jm)
    assert [c.deployment.attempt_id for c in world.take(StartTask)] == [attempt(0)]
    return world
