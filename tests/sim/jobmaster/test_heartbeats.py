"""Heartbeats of a JobMaster in virtual time (R10): who is lost and who is not, and attempts that nobody wants."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER, task_manager
from minflinkd.runtime.ids import AttemptId, TaskId
from tests.sim.jobmaster.world import TM, TM2, World, graph, running
from tests.waiting import until

pytestmark = pytest.mark.looptime
STRAY = AttemptId("2" * 32)


def longest_gap(times: list[float]) -> float:
    return max(b - a for a, b in pairwise(times))


async def test_a_lost_heartbeat_is_no_silence(tmp_path: Path) -> None:
    """A TaskManager ends the tasks of a JobMaster that is silent for the timeout. The next heartbeat is in time."""
    async with running(tmp_path) as world:
        lost: list[m.Message] = []

        def every_other(_s: str, _t: str, message: m.Message) -> bool:
            if isinstance(message, m.HeartbeatFromJobMaster | m.DeclareNeeds):
                lost.append(message)
            return bool(len(lost) % 2) and bool(lost) and lost[-1] is message

        world.wire.faults.drop_if = every_other
        await asyncio.sleep(30)
        assert longest_gap(world.tm.beats) <= 3.1
        assert longest_gap(world.declared) <= 3.1
        assert world.master.details().restarts == 0


async def test_a_silent_taskmanager_is_lost_after_the_timeout_and_its_task_runs_elsewhere(tmp_path: Path) -> None:
    """A silent TaskManager counts as lost. It ends its tasks itself, so they can run elsewhere (R11, R15)."""
    async with running(tmp_path) as world:
        world.slots[TM2] = 8
        world.wire.faults.cut.add(frozenset(("jm", task_manager(TM))))
        began = asyncio.get_running_loop().time()
        await until(lambda: world.master.status is JobStatus.RESTARTING)
        assert 4.9 <= asyncio.get_running_loop().time() - began <= 6.1
        await until(lambda: world.master.status is JobStatus.RUNNING)
        assert len(world.task_managers[TM2].deployed) == 1


async def test_the_resource_manager_is_missed_by_nobody(tmp_path: Path) -> None:
    """A running job goes on, and keeps declaring its needs (R12)."""
    async with running(tmp_path) as world:
        world.wire.faults.drop_if = lambda _s, target, _m: target == RESOURCE_MANAGER
        await asyncio.sleep(60)
        world.wire.faults.drop_if = None
        count = len(world.declared)
        await until(lambda: len(world.declared) > count)
        assert world.master.details().restarts == 0


def stray(world: World, state: m.TaskState) -> None:
    world.tm.tasks[STRAY] = m.TaskStatus(attempt_id=STRAY, task_id=TaskId("numbers"), state=state)


@pytest.mark.parametrize("state", [m.TaskState.INITIALIZING, m.TaskState.RUNNING, m.TaskState.INPUT_ENDED])
async def test_an_attempt_that_was_given_up_is_cancelled_when_it_is_reported(
    tmp_path: Path, state: m.TaskState
) -> None:
    """The deployment came after the JobMaster stopped waiting for an answer, or the cancellation never came (R10)."""
    async with running(tmp_path) as world:
        stray(world, state)
        await until(lambda: STRAY not in world.tm.tasks)
        assert set(world.tm.cancelled) == {STRAY}
        assert world.master.status is JobStatus.RUNNING


async def test_an_attempt_that_ends_already_is_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        stray(world, m.TaskState.CANCELING)
        await asyncio.sleep(5)
        assert world.tm.cancelled == []


async def test_a_slot_that_the_taskmanager_does_not_know_is_not_held(tmp_path: Path) -> None:
    """What ran on a slot that the TaskManager does not know is deployed again (R10)."""
    async with running(tmp_path) as world:
        world.tm.held.clear()
        await until(lambda: len(world.tm.deployed) == 2)
        first, second = world.tm.deployed
        assert first.allocation_id != second.allocation_id


async def test_a_task_that_takes_its_time_to_stop_is_waited_for(tmp_path: Path) -> None:
    """The limit is when its TaskManager would give the child up. Two attempts of a task never run at once."""
    async with running(tmp_path, graph("a", "b")) as world:
        world.tm.cancel_takes = 95
        world.master.cancel()
        began = asyncio.get_running_loop().time()
        await until(lambda: world.ended)
        assert asyncio.get_running_loop().time() - began > 95
        assert world.tm.tasks == {}
