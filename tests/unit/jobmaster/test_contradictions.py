"""What a heartbeat's answer says about attempts that the JobMaster believes in (R10)."""

from __future__ import annotations

import pytest

from minflinkd.jobmaster.heartbeats import Beat, contradictions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import JobHeartbeatAnswer, TaskState
from tests.unit.jobmaster.test_scheduler import TM1, Job


def answer(job: Job, beat: Beat) -> list[ev.Event]:
    """The answer of a TaskManager that knows the slots and no task."""
    known = JobHeartbeatAnswer(allocations=job.state.pool.on(TM1), tasks=())
    return list(contradictions(beat, known))


def test_an_attempt_whose_deployment_was_answered_and_that_nobody_knows_is_gone() -> None:
    """DEPLOYING ends, even if the TaskManager's message about the end is lost (A5)."""
    job = Job()
    job.offer()
    job.found()
    early = Beat(TM1, 1, job.state)
    job.feed(ev.DeployAccepted(job.attempt()))
    assert answer(job, early) == []  # the heartbeat may have overtaken the deployment
    (gone,) = answer(job, Beat(TM1, 2, job.state))
    assert gone == ev.AttemptGone(job.attempt())
    job.feed(gone)
    assert job.state.status is JobStatus.RESTARTING


@pytest.mark.parametrize("state", [TaskState.INITIALIZING, TaskState.RUNNING])
def test_an_attempt_that_has_told_of_itself_and_that_nobody_knows_is_gone(state: TaskState) -> None:
    job = Job()
    job.offer()
    job.found()
    job.report(state)
    assert answer(job, Beat(TM1, 1, job.state)) == [ev.AttemptGone(job.attempt())]
