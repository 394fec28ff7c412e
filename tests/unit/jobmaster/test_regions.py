"""Failover regions (R16): a failure does not disturb tasks that no exchange connects with it."""

from __future__ import annotations

from minflinkd.jobgraph.model import Input, Task, Vertex
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.regions import regions
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.messages import TaskState
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.taskmanager.child.protocol import SessionLost
from tests.unit.jobmaster.wide_job import BOOM, TM1, TM2, WideJob, of_kind, task

FATAL = ErrorInfo(code="user-code", message="broken", consequence=Consequence.FATAL)


def running() -> WideJob:
    """Return a running job with two regions in one slot sharing group."""
    job = WideJob(a=2, b=2, group="default")
    job.offer(TM1, 2)
    job.deploy()
    job.come_up()
    return job


def state_of(job: WideJob, name: str) -> ExecutionState:
    return job.state.executions[TaskId(name)].state


def test_tasks_that_exchange_data_are_one_region() -> None:
    reader = Vertex(id=VertexId("r"), inputs=(Input(id=VertexId("a"), exchange=True),), sql="SELECT 1")
    end = Vertex(id=VertexId("s"), inputs=(Input(id=VertexId("r"), exchange=True),), sql="SELECT 1")
    tasks = (
        task("a", 1, "default"),
        task("b", 1, "default"),
        Task(id=TaskId("r"), vertices=(reader,), parallelism=1),
        Task(id=TaskId("s"), vertices=(end,), parallelism=1),
    )
    assert regions(tasks) == {**dict.fromkeys("ars", frozenset("ars")), "b": frozenset("b")}


def test_a_failure_restarts_its_region_while_the_others_run_on() -> None:
    job = running()
    survivor = job.attempt("b")
    assert job.report("a", TaskState.FAILED, BOOM) == [ev.StopCheckpoints(frozenset({survivor}))]
    assert (job.state.status, state_of(job, "b")) == (JobStatus.RESTARTING, ExecutionState.RUNNING)
    (find,) = job.wait(1)
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("a")}))
    (deploy,) = job.deploy(checkpoint=3)
    assert (deploy.task_id, deploy.number, deploy.parallelism) == ("a", 1, 2)
    commands = job.report("a", TaskState.RUNNING)
    assert commands == [ev.StartCheckpoints({TaskId("a"): job.attempt("a"), TaskId("b"): survivor})]
    assert job.state.executions[TaskId("b")].number == 0


def test_a_region_that_fails_while_another_waits_for_its_restart_joins_it() -> None:
    """There is one restart, and it counts as one attempt of the restart strategy."""
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    assert job.report("b", TaskState.FAILED, BOOM) == [ev.StopCheckpoints()]
    (find,) = job.wait(1)
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("a"), TaskId("b")}))
    assert job.state.history.attempts == 1


def test_a_region_that_fails_while_a_restore_point_is_looked_for_comes_along() -> None:
    """The sinks of that region were not prepared, so nothing of it may be deployed in that round."""
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    job.report("b", TaskState.FAILED, BOOM)
    assert job.deploy() == []
    (find,) = job.wait(1)
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("a"), TaskId("b")}))


def test_a_region_that_fails_while_another_comes_up_leaves_it_alone() -> None:
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    job.wait(1)
    job.deploy()
    job.report("b", TaskState.FAILED, BOOM)
    assert state_of(job, "a") is ExecutionState.DEPLOYING
    (find,) = of_kind(ev.FindRestorePoint, job.wait(2))
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("b")}))


def test_a_hopeless_failure_ends_the_others_too() -> None:
    job = running()
    survivor = job.attempt("b")
    commands = job.report("a", TaskState.FAILED, FATAL)
    assert of_kind(ev.Cancel, commands) == [ev.Cancel(survivor, "taskmanager/tm-1")]
    assert job.state.outcome is JobStatus.FAILED


def test_a_hopeless_failure_counts_also_while_another_region_waits_for_its_restart() -> None:
    job = running()
    job.report("a", TaskState.FAILED, BOOM)
    job.report("b", TaskState.FAILED, FATAL)
    assert job.state.outcome is JobStatus.FAILED


def test_checkpoints_that_fail_concern_all_tasks() -> None:
    """C23."""
    job = running()
    assert len(of_kind(ev.Cancel, job.feed(ev.CheckpointsFailed(BOOM)))) == 2


def test_a_lost_taskmanager_takes_only_what_ran_there() -> None:
    """Tasks and slots on the other TaskManager are not touched (R11)."""
    job = WideJob(a=2, b=2)
    first, second = (job.needs[g].allocation_id for g in "ab")
    job.offer(TM1, 2, first)
    job.offer(TM2, 2, second)
    job.deploy()
    job.come_up()
    job.feed(ev.TaskManagerGone(TM2, "killed"))
    assert (state_of(job, "a"), state_of(job, "b")) == (ExecutionState.RUNNING, ExecutionState.FAILED)
    assert set(job.needs) == {"b"}
    job.wait(1)
    (find,) = of_kind(ev.FindRestorePoint, job.offer(TM1, 2))
    assert find == ev.FindRestorePoint(job.state.round, frozenset({TaskId("b")}))
    (deploy,) = job.deploy()
    assert deploy.address == "taskmanager/tm-1"


def test_a_lost_session_takes_all_tasks_of_its_taskmanager() -> None:
    """J7."""
    job = running()
    survivor = job.attempt("b")
    lost = SessionLost("the session child ended").info()
    assert ev.Cancel(survivor, "taskmanager/tm-1") in job.report("a", TaskState.FAILED, lost)
    assert job.report("b", TaskState.FAILED, lost) == []
    assert job.state.history.attempts == 1
