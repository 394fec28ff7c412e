"""One region on two TaskManagers: who reads what from where. Both are deployed and restarted as one."""

from __future__ import annotations

import pytest

from minflinkd.jobgraph.model import Input, Task, Vertex
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.state import new_job
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import ExchangeSource, SlotOffer, TaskState
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, ResourceId, TaskId, VertexId
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind, task

TM3 = ResourceId("tm-3")
UNREACHABLE = ErrorInfo(code="exchange-unreachable", message="nobody there", consequence=Consequence.RETRYABLE)


class Spanning(WideJob):
    """A job in which `a` writes to `b`, each in a slot sharing group of its own. `c` is not connected with them."""

    def __init__(self) -> None:
        super().__init__()
        reader = Vertex(id=VertexId("b"), inputs=(Input(id=VertexId("a"), exchange=True),), sql="SELECT 1")
        writer = task("a", 2, "a")
        tasks = (
            Task(id=writer.id, vertices=writer.vertices, parallelism=2, slot_sharing_group="a", readers=(TaskId("b"),)),
            Task(id=TaskId("b"), vertices=(reader,), parallelism=2, slot_sharing_group="b"),
            task("c", 1, "c"),
        )
        self.state = new_job(tasks, self.options)
        self.feed(ev.Started())

    def give(self, resource: ResourceId, group: str, slots: int, url: str = "") -> list[ev.Command]:
        allocation, first = self.needs[group].allocation_id, self.slots.get(resource, 0)
        self.slots[resource] = first + slots
        offers = (SlotOffer(AllocationId(allocation), tuple(range(first, first + slots))),)
        return self.feed(ev.SlotsOffered(resource, f"taskmanager/{resource}", offers, url or f"http://{resource}"))

    def run(self) -> dict[TaskId, ev.Deploy]:
        self.give(TM1, "a", 2)
        self.give(TM2, "b", 2)
        self.give(TM1, "c", 1)
        deployed = {command.task_id: command for command in self.deploy()}
        self.come_up()
        return deployed

    def read_by_b(self, resource: ResourceId) -> tuple[ExchangeSource, ...]:
        """Return what the reader is to be told if the writer runs there."""
        here = ExchangeSource(
            vertex_id=VertexId("a"),
            attempt_id=self.attempt("a"),
            resource_id=resource,
            data_url=f"http://{resource}",
        )
        return (here,)


def states(job: WideJob) -> dict[str, ExecutionState]:
    return {str(task_id): execution.state for task_id, execution in job.state.executions.items()}


def test_a_reader_is_told_the_attempt_that_is_deployed_with_it_and_where() -> None:
    """J11."""
    job = Spanning()
    deployed = job.run()
    assert deployed[TaskId("b")].inputs == job.read_by_b(TM1)
    assert deployed[TaskId("b")].address == "taskmanager/tm-2"
    assert deployed[TaskId("a")].attempt_id == job.attempt("a")
    assert deployed[TaskId("a")].inputs == deployed[TaskId("c")].inputs == ()


@pytest.mark.parametrize(("lost", "dead", "other"), [(TM2, "b", "a"), (TM1, "a", "b")])
def test_a_lost_taskmanager_restarts_the_region_on_the_others_too(lost: ResourceId, dead: str, other: str) -> None:
    """Nothing is deployed before the whole region has stopped. Then both tasks start from one checkpoint (R11, R16)."""
    job = Spanning()
    job.run()
    before = {name: job.attempt(name) for name in "abc"}
    commands = job.feed(ev.TaskManagerGone(lost, "killed"))
    kept = TM1 if lost == TM2 else TM2
    assert ev.Cancel(before[other], f"taskmanager/{kept}") in commands
    assert states(job)[other] is ExecutionState.CANCELING
    assert states(job)[dead] is ExecutionState.FAILED
    assert job.state.status is JobStatus.RESTARTING
    while job.needs:
        group, need = min(job.needs.items())
        job.give(TM3, group, need.slots)
    assert of_kind(ev.FindRestorePoint, job.wait(1)) == []
    region = {TaskId("a"), TaskId("b")} | ({TaskId("c")} if lost == TM1 else set())
    (find,) = of_kind(ev.FindRestorePoint, job.report(other, TaskState.CANCELED))
    assert find == ev.FindRestorePoint(job.state.round, frozenset(region))
    deployed = {command.task_id: command for command in job.deploy(checkpoint=4)}
    assert set(deployed) == region
    assert job.attempt("a") != before["a"]
    assert job.attempt("b") != before["b"]
    writer = job.state.executions[TaskId("a")]
    assert deployed[TaskId("a")].address == writer.address
    assert writer.resource_id is not None
    assert writer.resource_id != lost
    assert deployed[TaskId("b")].inputs == job.read_by_b(writer.resource_id)
    job.come_up()


def test_a_reader_whose_input_is_unreachable_restarts_with_its_writer() -> None:
    """A task that is not connected with them runs on (J11)."""
    job = Spanning()
    job.run()
    commands = job.report("b", TaskState.FAILED, UNREACHABLE)
    assert of_kind(ev.Cancel, commands) == [ev.Cancel(job.attempt("a"), "taskmanager/tm-1")]
    assert states(job)["c"] is ExecutionState.RUNNING
    job.report("a", TaskState.CANCELED)
    (find,) = of_kind(ev.FindRestorePoint, job.wait(2))
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("a"), TaskId("b")}))


def test_a_reader_that_loses_its_input_after_its_writer_has_failed_is_no_second_attempt_to_restart() -> None:
    job = Spanning()
    job.run()
    job.report("a", TaskState.FAILED, BOOM)
    job.report("b", TaskState.FAILED, UNREACHABLE)
    assert job.state.history.attempts == 1
    assert job.state.failures[0].record.error == BOOM


def test_a_cancellation_ends_both_and_a_lost_input_then_is_no_failure() -> None:
    job = Spanning()
    job.run()
    cancelled = of_kind(ev.Cancel, job.feed(ev.CancelRequested()))
    assert len(cancelled) == 3
    for name in "ac":
        job.report(name, TaskState.CANCELED)
    job.report("b", TaskState.FAILED, UNREACHABLE)
    assert job.state.outcome is JobStatus.CANCELED
    assert not job.state.live
