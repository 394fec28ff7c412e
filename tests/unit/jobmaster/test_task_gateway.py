"""What the coordinator's messages to the tasks contain."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minflinkd.jobmaster.task_gateway import TaskManagerTasks
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Address, Network, Unreachable, task_manager
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, ResourceId

JOB, HERE, GONE, LEADER = JobId("1" * 32), AttemptId("a" * 32), AttemptId("b" * 32), LeaderId("jm")
TM = task_manager(ResourceId("tm-000000000001"))


class Wire:
    def __init__(self) -> None:
        self.asked: list[tuple[Address, m.Request[Any], LeaderId | None]] = []

    async def ask(
        self, target: Address, request: m.Request[Any], *, timeout: float, fence: LeaderId | None = None
    ) -> m.Done:
        self.asked.append((target, request, fence))
        return m.Done()


async def test_a_trigger_says_how_long_the_task_may_take() -> None:
    """The default of ten minutes does not end a checkpoint that may take an hour (C21)."""
    wire = Wire()
    tasks = TaskManagerTasks(
        cast(Network, wire),
        job_id=JOB,
        fence=LEADER,
        address_of=lambda attempt: TM if attempt == HERE else None,
        timeout=3600.0,
    )
    await tasks.send_trigger(HERE, 7, 2, oldest=6)
    [(target, request, fence)] = wire.asked
    assert (target, fence) == (TM, LEADER)
    assert request == m.TriggerCheckpoint(
        job_id=JOB, attempt_id=HERE, checkpoint_id=7, epoch=2, timeout=3600.0, oldest=6
    )
    with pytest.raises(Unreachable):
        await tasks.send_trigger(GONE, 7, 2)
