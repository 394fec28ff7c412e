"""Large messages about one job, and a party that receives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minflinkd.blob.offloading import RULES
from minflinkd.jobgraph.model import Checkpointing, RuntimeMode, Source, Task, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Address, Mailbox, job_master, task_manager
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId, VertexId

JOB = JobId("a" * 32)
FIRST = LeaderId("1" * 32)
TM = ResourceId("tm-0123456789ab")
THERE, MASTER = task_manager(TM), job_master(JOB)


@dataclass
class Party:
    """Answers every request and remembers it."""

    address: Address
    fence: LeaderId | None = None
    got: list[m.Message] = field(default_factory=list)
    answer: Any = field(default_factory=m.Done)

    def __post_init__(self) -> None:
        self.mailbox = Mailbox(self.address, fence=self.fence)
        kinds: tuple[type[m.Request[Any]], ...] = (*RULES, m.CancelTask)
        for kind in kinds:
            self.mailbox.on(kind, self._take)

    async def _take(self, message: m.Message) -> Any:
        self.got.append(message)
        return self.answer


def snapshot(files: int, number: int = 1) -> TaskSnapshot:
    handles = (StateHandle(file=f"chk-{number}", offset=i, length=1, checksum="c" * 32) for i in range(files))
    return TaskSnapshot(
        task_id=TaskId("t"),
        attempt_id=AttemptId("b" * 32),
        resource_id=TM,
        checkpoint_id=number,
        batch_id=number,
        files=tuple(StateFile(f"state/0/{i}/1.delta", handle) for i, handle in enumerate(handles)),
    )


def context(size: int = 0) -> m.JobContext:
    return m.JobContext(
        job_id=JOB,
        name="a job",
        params={"text": "x" * size},
        mode=RuntimeMode.STREAMING,
        checkpointing=Checkpointing(),
        checkpoint_root="/checkpoints",
    )


def deployment(number: int = 0, *, job: int = 10_000, graph: int = 10_000, files: int = 100) -> m.DeployTask:
    vertex = Vertex(id=VertexId("t"), source=Source(format="json", path="/" + "p" * graph))
    return m.DeployTask(
        job=context(job),
        task=Task(id=TaskId("t"), vertices=(vertex,), parallelism=1),
        allocation_id=AllocationId("c" * 32),
        attempt_id=AttemptId(f"{number:032x}"),
        attempt_number=number,
        job_leader_id=FIRST,
        restore=m.TaskRestore(checkpoint_id=number, snapshot=snapshot(files, number)) if files else None,
    )


def acknowledgement(files: int = 100, number: int = 1) -> m.AcknowledgeCheckpoint:
    return m.AcknowledgeCheckpoint(job_id=JOB, attempt_id=AttemptId("b" * 32), snapshot=snapshot(files, number))
