"""An attempt's states, and the messages that a TaskManager repeats until a JobMaster answers them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.network import Address, Fenced, Mailbox, job_master
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, ResourceId, TaskId
from minflinkd.runtime.machine import IllegalTransition
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.slots.job_masters import JobMasterSilent, deliver
from tests.unit.taskmanager.core_world import deploy

JOB, TM, LEADER = JobId("1" * 32), ResourceId("tm-1"), LeaderId("leader")
S = m.TaskState


def attempt() -> Attempt:
    return Attempt.of(deploy(AllocationId("a")), Path("/nowhere"), 1)


def test_an_attempt_moves_and_says_so() -> None:
    one = attempt()
    assert [one.to(S.INITIALIZING, phases={"build": 1.0}), one.to(S.RUNNING, phases={"start": 2.0})] == [True, True]
    assert one.changed.is_set()
    assert not one.to(S.RUNNING)
    assert one.status.phases == {"build": 1.0, "start": 2.0}


def test_an_ended_attempt_stays_as_it_ended() -> None:
    """The first reason is the one that is reported."""
    one = attempt()
    one.to(S.FAILED, error=ErrorInfo(code="first", message="first"))
    assert not one.to(S.CANCELED)
    assert not one.to(S.FAILED, error=ErrorInfo(code="second", message="second"))
    assert one.status.error is not None
    assert one.status.error.code == "first"


def test_an_attempt_makes_no_step_that_the_table_does_not_have() -> None:
    """Transitions that the table does not have are refused (A3)."""
    with pytest.raises(IllegalTransition, match="DEPLOYING -> INPUT_ENDED"):
        attempt().to(S.INPUT_ENDED)


STATUS = m.TaskStateChanged(
    resource_id=TM, status=m.TaskStatus(attempt_id=AttemptId("2" * 32), task_id=TaskId("a"), state=S.RUNNING)
)


class World:
    def __init__(self) -> None:
        self.wire = FaultyWire(random.Random(1))
        mailbox = Mailbox(job_master(JOB), fence=LEADER)
        mailbox.on(m.TaskStateChanged, self._changed)
        self.wire.party("jm").attach(mailbox)
        self.got: list[m.Message] = []
        self.target: Address | None = job_master(JOB)

    async def _changed(self, request: m.TaskStateChanged) -> m.Done:
        self.got.append(request)
        return m.Done()

    async def deliver(self, *, fence: LeaderId = LEADER, patience: float = 60) -> None:
        await deliver(
            self.wire.party("tm"), SystemClock(), STATUS, target=lambda: self.target, fence=fence, patience=patience
        )


@pytest.mark.looptime
async def test_what_must_arrive_is_sent_until_it_is_answered() -> None:
    """Messages are delivered at least once (A5)."""
    world, lost = World(), list[m.Message]()

    def drop_two(source: str, target: str, message: m.Message) -> bool:
        lost.append(message)
        return len(lost) <= 2

    world.wire.faults.drop_if = drop_two
    await world.deliver()
    assert world.got == [STATUS]
    await world.wire.aclose()


@pytest.mark.looptime
async def test_silence_ends_the_patience_in_time() -> None:
    """A5, R13."""
    world, clock = World(), asyncio.get_running_loop().time
    world.wire.faults.drop = 1.0
    began = clock()
    with pytest.raises(JobMasterSilent):
        await world.deliver(patience=30)
    assert 25 < clock() - began < 36
    await world.wire.aclose()


@pytest.mark.looptime
async def test_a_replaced_job_master_is_no_silence() -> None:
    """If it refuses a message, the message is refused at once (R1)."""
    world = World()
    with pytest.raises(Fenced):
        await world.deliver(fence=LeaderId("old"))
    await world.wire.aclose()


@pytest.mark.looptime
async def test_nothing_is_sent_to_a_job_master_that_leads_the_job_no_longer() -> None:
    """The TaskManager may learn of the new leader between two tries (R13)."""
    world, clock = World(), asyncio.get_running_loop().time

    def drop_and_replace(source: str, target: str, message: m.Message) -> bool:
        world.target = None
        return True

    world.wire.faults.drop_if = drop_and_replace
    began = clock()
    with pytest.raises(JobMasterSilent):
        await world.deliver()
    assert clock() - began < 6
    assert world.got == []
    await world.wire.aclose()
