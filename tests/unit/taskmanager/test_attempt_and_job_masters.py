"""An attempt's states, and what a TaskManager sends to its JobMasters until it is answered."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from unittest.mock import sentinel

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.network import Fenced, Mailbox, job_master, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId
from minflinkd.runtime.machine import IllegalTransition
from minflinkd.taskmanager.attempt import Attempt
from minflinkd.taskmanager.job_masters import JobMasters, JobMasterSilent

JOB, TM, LEADER = JobId("1" * 32), ResourceId("tm-1"), LeaderId("leader")
S = m.TaskState


def attempt() -> Attempt:
    status = m.TaskStatus(attempt_id=AttemptId("2" * 32), task_id=TaskId("a"), state=S.DEPLOYING)
    deployment = sentinel.deployment
    deployment.attempt_id = status.attempt_id
    return Attempt(deployment, Path("/nowhere"), 1, status)


def test_an_attempt_moves_and_says_so() -> None:
    one = attempt()
    assert [one.to(S.INITIALIZING, phases={"build": 1.0}), one.to(S.RUNNING, phases={"start": 2.0})] == [True, True]
    assert one.changed.is_set()
    assert not one.to(S.RUNNING)
    assert one.status.phases == {"build": 1.0, "start": 2.0}


def test_an_ended_attempt_stays_as_it_ended() -> None:
    """The first reason is the one that is told."""
    one = attempt()
    one.to(S.FAILED, error=ErrorInfo(code="first", message="first"))
    assert not one.to(S.CANCELED)
    assert not one.to(S.FAILED, error=ErrorInfo(code="second", message="second"))
    assert one.status.error is not None
    assert one.status.error.code == "first"


def test_an_attempt_makes_no_step_that_the_table_does_not_have() -> None:
    """A3."""
    with pytest.raises(IllegalTransition, match="DEPLOYING -> INPUT_ENDED"):
        attempt().to(S.INPUT_ENDED)


STATUS = m.TaskStateChanged(
    resource_id=TM, status=m.TaskStatus(attempt_id=AttemptId("2" * 32), task_id=TaskId("a"), state=S.RUNNING)
)
OFFERS = (m.SlotOffer(allocation_id=AllocationId("x"), slots=(0,)),)


class World:
    def __init__(self) -> None:
        self.wire = FaultyWire(random.Random(1))
        mailbox = Mailbox(job_master(JOB), fence=LEADER)
        mailbox.on(m.TaskStateChanged, self._changed)
        mailbox.on(m.OfferSlots, self._offered)
        self.wire.party("jm").attach(mailbox)
        self.got: list[m.Message] = []
        self.masters = JobMasters(self.wire.party("tm"), SystemClock(), resource_id=TM, address=task_manager(TM))

    async def _changed(self, request: m.TaskStateChanged) -> m.Done:
        self.got.append(request)
        return m.Done()

    async def _offered(self, request: m.OfferSlots) -> m.OffersAccepted:
        self.got.append(request)
        return m.OffersAccepted(accepted=tuple(o.allocation_id for o in request.offers))


@pytest.mark.looptime
async def test_what_must_arrive_is_sent_until_it_is_answered() -> None:
    """A5: at least once."""
    world, lost = World(), list[m.Message]()

    def drop_two(source: str, target: str, message: m.Message) -> bool:
        lost.append(message)
        return len(lost) <= 2

    world.wire.faults.drop_if = drop_two
    await world.masters.deliver(job_master(JOB), STATUS, LEADER, patience=60)
    assert world.got == [STATUS]
    await world.wire.aclose()


@pytest.mark.looptime
async def test_silence_ends_the_patience_in_time() -> None:
    """A5, R13."""
    world, clock = World(), asyncio.get_running_loop().time
    world.wire.faults.drop = 1.0
    began = clock()
    with pytest.raises(JobMasterSilent):
        await world.masters.deliver(job_master(JOB), STATUS, LEADER, patience=30)
    assert 25 < clock() - began < 36
    with capture_logs():
        answer = await world.masters.offer(job_master(JOB), OFFERS, LEADER, patience=10)
    assert answer.accepted == ()
    await world.wire.aclose()


@pytest.mark.looptime
async def test_a_replaced_job_master_is_no_silence() -> None:
    """R1: what it refuses is refused at once."""
    world = World()
    with pytest.raises(Fenced):
        await world.masters.deliver(job_master(JOB), STATUS, LeaderId("old"), patience=60)
    with capture_logs():
        assert (await world.masters.offer(job_master(JOB), OFFERS, LeaderId("old"), 60)).accepted == ()
    assert (await world.masters.offer(job_master(JOB), OFFERS, LEADER, 60)).accepted == ("x",)
    await world.wire.aclose()
