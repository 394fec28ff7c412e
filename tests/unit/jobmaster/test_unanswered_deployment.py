"""A deployment without an answer: nobody knows whether it was carried out (m12)."""

from __future__ import annotations

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.network import RpcTimeout
from minflinkd.runtime.ids import TaskId
from tests.unit.jobmaster.test_scheduler import Job, kinds

NO_ANSWER = RpcTimeout("no answer").info()


def test_it_is_cancelled_before_another_attempt_follows() -> None:
    job = Job()
    job.offer()
    (deploy,) = job.found()
    assert isinstance(deploy, ev.Deploy)
    commands = job.feed(ev.DeployUnanswered(deploy.attempt_id, NO_ANSWER))
    assert kinds(commands) == ["StopCheckpoints", "Cancel"]
    assert job.state.status is JobStatus.RESTARTING
    assert job.tick_at_wakeup() == []  # the restart is due, but the attempt may still run
    assert kinds(job.feed(ev.AttemptGone(deploy.attempt_id))) == ["FindRestorePoint"]


def test_a_task_that_has_said_that_it_runs_was_deployed() -> None:
    job = Job()
    job.run()
    assert job.feed(ev.DeployUnanswered(job.attempt(), NO_ANSWER)) == []
    assert job.state.executions[TaskId("a")].state is ExecutionState.RUNNING


def test_one_that_is_being_cancelled_is_not_over_for_it() -> None:
    job = Job()
    job.offer()
    job.found()
    job.feed(ev.CancelRequested())
    assert job.feed(ev.DeployUnanswered(job.attempt(), NO_ANSWER)) == []
    assert job.state.executions[TaskId("a")].state is ExecutionState.CANCELING
