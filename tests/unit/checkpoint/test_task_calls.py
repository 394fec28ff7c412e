"""The coordinator's calls to tasks that cannot be reached for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest
import pytest_asyncio

from minflinkd.checkpoint.machine.state import State
from minflinkd.checkpoint.task_calls import TaskCalls
from minflinkd.rpc.network import Fenced, Unreachable
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.supervision import TaskOwner
from tests.unit.checkpoint.builders import A1, B1, Story

pytestmark = pytest.mark.looptime

AWAY = 300.0  # seconds


@dataclass
class Tasks:
    """Tasks that answer from `back` on."""

    back: float = AWAY
    error: MinflinkError = field(default_factory=lambda: Unreachable("no connection"))
    asked: int = 0
    aborted: list[tuple[AttemptId, int]] = field(default_factory=list)

    async def send_trigger(
        self,
        attempt_id: AttemptId,
        checkpoint_id: int,
        epoch: int,
        *,
        oldest: int = 0,
        stop: bool = False,
        full: bool = False,
    ) -> None: ...

    async def notify_complete(self, attempt_id: AttemptId, checkpoint_id: int) -> None: ...

    async def notify_aborted(self, attempt_id: AttemptId, checkpoint_id: int) -> None:
        self.asked += 1
        if asyncio.get_running_loop().time() < self.back:
            raise self.error
        self.aborted.append((attempt_id, checkpoint_id))


@dataclass
class World:
    owner: TaskOwner = field(default_factory=lambda: TaskOwner("coordinator"))
    tasks: Tasks = field(default_factory=Tasks)
    state: State = field(default_factory=lambda: Story().running().state)

    def aborts(self, attempt: AttemptId, number: int) -> None:
        calls = TaskCalls(
            self.tasks, state=lambda: self.state, feed=lambda event: None, tasks=self.owner, name="coordinator"
        )
        calls.aborted(attempt, number)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    one = World()
    yield one
    await one.owner.aclose()


async def test_a_task_is_told_of_an_abort_however_long_it_cannot_be_reached(world: World) -> None:
    """It may have stopped at the cut, or hold up a reader for the barrier. Perhaps no trigger follows (C13, A14a)."""
    world.aborts(A1, 4)
    await asyncio.sleep(AWAY + 20.0)
    assert world.tasks.aborted == [(A1, 4)]


async def test_a_task_that_runs_on_while_others_restart_is_told_as_well(world: World) -> None:
    world.state = replace(world.state, attempts={}, survivors=frozenset({B1}))
    world.aborts(B1, 4)
    await asyncio.sleep(AWAY + 20.0)
    assert world.tasks.aborted == [(B1, 4)]


async def test_a_task_that_has_ended_is_not_told_any_more(world: World) -> None:
    world.aborts(A1, 4)
    await asyncio.sleep(AWAY / 2)
    world.state = Story().state
    await asyncio.sleep(20.0)
    asked = world.tasks.asked
    await asyncio.sleep(AWAY)
    assert (world.tasks.asked, world.tasks.aborted) == (asked, [])


async def test_a_taskmanager_that_follows_a_later_jobmaster_is_not_asked_again(world: World) -> None:
    """That one tells it."""
    world.tasks.error = Fenced("a later JobMaster leads")
    world.aborts(A1, 4)
    await asyncio.sleep(AWAY + 20.0)
    assert (world.tasks.asked, world.tasks.aborted) == (1, [])
