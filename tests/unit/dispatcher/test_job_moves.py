"""The Dispatcher moves jobs when the ResourceManager asks for it, and answers why they are still there (A15b)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from minflinkd.dispatcher.job_moves import JobMoves
from minflinkd.dispatcher.move_decisions import FIRST_PAUSE
from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import HotRestart, JobStatus, RestartState
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import DISPATCHER, Mailbox
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner

pytestmark = pytest.mark.looptime

JOB, GONE = JobId("1" * 32), JobId("2" * 32)


@dataclass
class Run:
    """A job that runs on a TaskManager that is drained."""

    job_id: JobId = JOB
    moves: int = 0
    refuses: bool = False
    restarts: list[HotRestart] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hot_restarts: Any = SimpleNamespace(move=self.move)
        self.master = SimpleNamespace(status=JobStatus.RUNNING, on_drained=True, waits_for="no room")
        self.stored = SimpleNamespace(graph=SimpleNamespace(mode=RuntimeMode.STREAMING))

    async def move(self) -> int:
        self.moves += 1
        if self.refuses:
            raise Conflict("another version of the job is being checked")
        self.restarts.append(HotRestart(number=self.moves, state=RestartState.HANDING_OVER, requested_ms=0))
        return self.moves

    def details(self) -> Any:
        return SimpleNamespace(hot_restarts=tuple(self.restarts))

    def refuses_versions(self) -> str:
        return ""


@dataclass
class World:
    network: LocalNetwork
    run: Run

    async def ask(self, *jobs: JobId) -> dict[JobId, str]:
        """Ask as the ResourceManager does. Return what it is told, once that was acted on."""
        answer = await self.network.ask(DISPATCHER, m.MoveJobs(jobs=jobs or (JOB,)), timeout=1)
        await asyncio.sleep(0.1)
        return answer.why


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    tasks, network, run = TaskOwner("dispatcher"), LocalNetwork(), Run()
    mailbox = Mailbox(DISPATCHER)
    runs: Any = {JOB: run}
    JobMoves(run_of=runs.get, tasks=tasks, clock=SystemClock()).attach(mailbox)
    network.attach(mailbox)
    yield World(network, run)
    await tasks.aclose()
    await network.aclose()


async def test_a_job_moves_once_however_often_it_is_asked_for(world: World) -> None:
    """While it moves, the answer says what it waits for (A15b)."""
    assert await world.ask() == {JOB: ""}
    assert await world.ask() == {JOB: "no room"}
    assert await world.ask() == {JOB: "no room"}
    assert world.run.moves == 1


async def test_a_move_that_is_refused_is_tried_again_after_a_while(world: World) -> None:
    """The job runs on, and says why it is there (A15b, H9)."""
    world.run.refuses = True
    await world.ask()
    assert await world.ask() == {JOB: "another version of the job is being checked"}
    assert world.run.moves == 1
    await asyncio.sleep(FIRST_PAUSE)
    world.run.refuses = False
    await world.ask()
    assert world.run.moves == 2


async def test_a_job_that_is_not_to_run_is_named_with_the_others(world: World) -> None:
    """It keeps nobody else from moving (A15b)."""
    why = await world.ask(GONE, JOB)
    assert "has ended" in why[GONE]
    assert world.run.moves == 1
