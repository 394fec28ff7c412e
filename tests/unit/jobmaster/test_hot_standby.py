"""A JobMaster asks for a hot standby while its job runs, and tells it of each checkpoint (R32)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.jobmaster.hot_standby import EARLY, LEASE, NOBODY, PAUSE, HotStandby, preparation
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.jobs import HotStandbyStatus
from minflinkd.rpc.network import Mailbox, task_manager
from minflinkd.rpc.party import Answered
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId
from minflinkd.runtime.supervision import TaskOwner
from tests.unit.jobmaster.fed_core import CONTEXT, JOB, JobMaster
from tests.unit.jobmaster.wide_job import TM1, TM2
from tests.waiting import until

A = TaskId("a")


def checkpoint(number: int, *tasks: TaskId) -> CompletedCheckpoint:
    snapshots = (
        TaskSnapshot(task_id=task, attempt_id=AttemptId("2" * 32), resource_id=TM1, checkpoint_id=number, batch_id=1)
        for task in tasks
    )
    return CompletedCheckpoint(
        job_id=JOB,
        checkpoint_id=number,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=tuple(snapshots),
    )


def request(master: JobMaster, latest: CompletedCheckpoint | None) -> m.StandBy | None:
    return preparation(master.core.state, CONTEXT, master.core.leader_id, latest)


# --- what the core asks for ------------------------------------------------------------------------------------------


def test_a_standby_is_asked_for_while_the_job_runs() -> None:
    """While it comes up, spares are needed for itself (R32)."""
    master = JobMaster(hot_standby=True)
    master.feed(ev.Started())
    assert [ask.request.hot_standby for ask in master.asked(m.DeclareNeeds)] == [False]
    master.run()
    master.asked(m.DeclareNeeds)
    master.tick(10.0)
    (ask,) = master.asked(m.DeclareNeeds)
    assert ask.request.hot_standby
    master.answer(ask, Answered(m.NeedsAnswer(hot_standby=TM2)))
    assert master.core.hot_standby == TM2


def test_a_job_that_wants_none_asks_for_none() -> None:
    """`recovery: restart` is the default (R32)."""
    master = JobMaster().run()
    master.tick(10.0)
    assert not any(ask.request.hot_standby for ask in master.asked(m.DeclareNeeds))


# --- what it is told -------------------------------------------------------------------------------------------------


def test_a_standby_is_told_the_tasks_as_they_run() -> None:
    """They would be deployed with these slots and partitions, from this checkpoint (R32)."""
    master = JobMaster(max_parallelism=8).run()
    found = request(master, checkpoint(5, A))
    assert found is not None
    (task,) = found.tasks
    execution = master.core.state.executions[A]
    assert (task.task.parallelism, task.partitions) == (execution.parallelism, execution.partitions) == (1, 8)
    assert (found.checkpoint_id, task.restore.checkpoint_id) == (5, 5)


def test_without_a_checkpoint_of_all_tasks_there_is_nothing_to_tell() -> None:
    """Nor while the job does not run: what it will start from is not known yet (R32)."""
    master = JobMaster()
    assert request(master, checkpoint(5, A)) is None
    master.run()
    assert request(master, None) is None
    assert request(master, checkpoint(5)) is None


# --- when it is told -------------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """A job with a hot standby, and the TaskManagers that may be it."""

    standby: HotStandby
    wire: FaultyWire
    named: ResourceId | None = TM1
    latest: int = 1
    answer: m.StandingBy = field(default_factory=lambda: m.StandingBy(ready=True))
    told: list[tuple[ResourceId, int]] = field(default_factory=list)
    changes: int = 0

    def complete(self, number: int) -> None:
        self.latest = number
        self.standby.news()


@asynccontextmanager
async def kept(named: ResourceId | None = TM1) -> AsyncIterator[Kept]:
    wire, master = FaultyWire(random.Random(1)), JobMaster().run()

    def changed() -> None:
        found.changes += 1

    standby = HotStandby(
        named=lambda: found.named,
        prepare=lambda: request(master, checkpoint(found.latest, A) if found.latest else None),
        network=wire.party("jm"),
        clock=SystemClock(),
        on_change=changed,
    )
    found = Kept(standby, wire, named)
    for resource_id in (TM1, TM2):
        mailbox = Mailbox(task_manager(resource_id))

        async def told(request: m.StandBy, at: ResourceId = resource_id) -> m.StandingBy:
            found.told.append((at, request.checkpoint_id))
            return found.answer

        mailbox.on(m.StandBy, told)
        wire.party(resource_id).attach(mailbox)
    tasks = TaskOwner("test")
    tasks.loop("hot standby", standby.keep)
    yield found
    await tasks.aclose()
    await wire.aclose()


@pytest.mark.looptime
async def test_each_checkpoint_is_told_but_not_more_often_than_once_a_second() -> None:
    """And without one, often enough that the preparation does not lapse (R32)."""
    async with kept() as job:
        await until(lambda: job.standby.status.ready, "ready")
        for number in range(2, 12):
            job.complete(number)
            await asyncio.sleep(PAUSE / 10)
        await until(lambda: job.told[-1] == (TM1, 11), "the last checkpoint")
        assert len(job.told) <= 4
        before = len(job.told)
        await asyncio.sleep(2 * LEASE)
        assert len(job.told) - before >= 5


@pytest.mark.looptime
async def test_another_taskmanager_that_is_named_is_told() -> None:
    """The first one forgets it after the lease (R32)."""
    async with kept() as job:
        await until(lambda: job.told == [(TM1, 1)], "the first")
        job.named = TM2
        job.standby.news()
        await until(lambda: job.told[-1] == (TM2, 1), "the second")
        assert job.standby.status == HotStandbyStatus(resource_id=TM2, ready=True)


@pytest.mark.looptime
async def test_what_is_shown_says_what_is_missing() -> None:
    """No TaskManager, no checkpoint, not prepared yet, or no answer (R32)."""
    async with kept(named=None) as job:
        job.latest, job.answer = 0, m.StandingBy(ready=False, why="it rehearses a")
        await asyncio.sleep(2 * PAUSE)
        assert job.standby.status == HotStandbyStatus(why=EARLY)
        job.complete(1)
        await until(lambda: job.standby.status == HotStandbyStatus(why=NOBODY))
        job.named = TM1
        job.standby.news()
        await until(lambda: job.standby.status.why == "it rehearses a")
        job.named = ResourceId("tm-gone")
        job.standby.news()
        await until(lambda: "tm-gone" in job.standby.status.why, "that it is gone")
        assert not job.standby.status.ready
        assert job.changes == 3
