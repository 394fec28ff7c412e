"""The ResourceManager over a real network, in virtual time. TaskManagers are their cores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace as copy

from minflinkd.resourcemanager.launcher import Launched
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.reservations import RESERVATION_TIMEOUT
from minflinkd.resourcemanager.resource_manager import ResourceManager
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.rpc import messages as m
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import (
    DISPATCHER,
    RESOURCE_MANAGER,
    Address,
    Fenced,
    Mailbox,
    Unreachable,
    job_master,
    task_manager,
)
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import MinflinkError, RemoteError
from minflinkd.runtime.ids import AllocationId, IdSource, JobId, LeaderId, ResourceId
from minflinkd.taskmanager.slots.core import Exit
from tests.task_manager import BareTaskManager
from tests.waiting import until

pytestmark = pytest.mark.looptime
JOB = JobId("1" * 32)
LEADER = LeaderId("leader")
A, B = AllocationId("a"), AllocationId("b")


@dataclass
class FakeLauncher:
    network: LocalNetwork
    task_managers: dict[ResourceId, BareTaskManager] = field(default_factory=dict)
    stopped: list[tuple[ResourceId, bool]] = field(default_factory=list)
    failing: str = ""
    living: tuple[Launched, ...] = ()

    async def start(self, resource_id: ResourceId, size: TaskManagerSize | None = None) -> None:
        if self.failing:
            raise MinflinkError(self.failing)
        self.task_managers[resource_id] = BareTaskManager(resource_id, self.network, slots=2)

    async def stop(self, resource_id: ResourceId, *, kill: bool = False) -> None:
        self.stopped.append((resource_id, kill))

    async def adopt(self) -> tuple[Launched, ...]:
        return self.living

    async def aclose(self) -> None:
        for tm in self.task_managers.values():
            await tm.aclose()


@dataclass
class Cluster:
    network: LocalNetwork
    launcher: FakeLauncher
    manager: ResourceManager
    lost: list[m.TaskManagerLost] = field(default_factory=list)

    async def needs(self, *, version: int = 1, held: tuple[AllocationId, ...] = (), **slots: int) -> m.NeedsAnswer:
        declaration = m.DeclareNeeds(
            job_id=JOB,
            leader_id=LEADER,
            address=job_master(JOB),
            version=version,
            needs=tuple(m.SlotNeed(allocation_id=AllocationId(a), slots=n) for a, n in slots.items()),
            held=held,
        )
        return await self.network.ask(RESOURCE_MANAGER, declaration, timeout=1)

    async def task_manager(self, number: int = 0) -> BareTaskManager:
        """Wait until the launcher has started the process of a TaskManager. It registers with its own `start`."""
        await until(lambda: len(self.launcher.task_managers) > number)
        return list(self.launcher.task_managers.values())[number]

    async def registered(self, tm: BareTaskManager) -> m.Registered:
        await tm.start()
        return await until(lambda: tm.registered)


@asynccontextmanager
async def running(*living: Launched) -> AsyncIterator[Cluster]:
    network = LocalNetwork()
    launcher = FakeLauncher(network, living=living)
    manager = ResourceManager(
        network=network,
        launcher=launcher,
        clock=SystemClock(),
        ids=IdSource(random.Random(1)),
        options=ResourceManagerOptions(slots_per_tm=2, standby=0, taskmanager_timeout=3, start_timeout=20),
    )
    cluster = Cluster(network, launcher, manager)
    mailbox = Mailbox(job_master(JOB), fence=LEADER)

    async def lost(notice: m.TaskManagerLost) -> None:
        cluster.lost.append(notice)

    mailbox.on_notice(m.TaskManagerLost, lost)
    network.attach(mailbox)
    async with manager:
        yield cluster
    await launcher.aclose()
    await network.aclose()


async def test_a_start_of_an_earlier_daemon_that_waits_still_says_why() -> None:
    """The reason does not change, so the launcher does not tell it again (R50)."""
    async with running(Launched(ResourceId("tm-old"), waiting="no node")) as cluster:
        overview = await cluster.network.ask(RESOURCE_MANAGER, m.GetResourceOverview(), timeout=1)
        assert [(each.resource_id, each.waiting) for each in overview.starting] == [("tm-old", "no node")]
        cluster.manager.task_manager_waits(ResourceId("tm-old"), "")
        cluster.manager.task_manager_found(ResourceId("tm-late"))
        overview = await cluster.network.ask(RESOURCE_MANAGER, m.GetResourceOverview(), timeout=1)
        assert [(each.resource_id, each.waiting) for each in overview.starting] == [("tm-old", ""), ("tm-late", "")]


async def test_a_need_starts_a_taskmanager_and_is_served_by_it_once_it_registers() -> None:
    """The TaskManager may be asked for slots before it knows that it is registered (m1 - m8)."""
    async with running() as cluster:
        assert "waiting for 1 TaskManager " in (await cluster.needs(a=1)).waiting[A]
        tm = await cluster.task_manager()
        registered = await cluster.registered(tm)
        assert registered.leader_id == cluster.manager.leader_id
        await until(lambda: tm.table.bindings)
        assert set(tm.table.bindings) == {A}
        job = tm.core.slots.jobs[JOB]
        assert (job.address, job.leader) == (job_master(JOB), LEADER)
        overview = await cluster.network.ask(RESOURCE_MANAGER, m.GetResourceOverview(), timeout=1)
        assert (overview.task_managers, overview.slots_total, overview.slots_free, overview.pending_needs) == (
            1,
            2,
            1,
            0,
        )
        (info,) = await cluster.network.ask(RESOURCE_MANAGER, m.ListTaskManagers(), timeout=1)
        assert (info.resource_id, info.log_directory) == (tm.resource_id, "log")


async def test_an_exit_seen_by_the_launcher_is_told_to_the_job_and_replaced_at_once() -> None:
    """R11."""
    async with running() as cluster:
        await cluster.needs(a=1)
        tm = await cluster.task_manager()
        registered = await cluster.registered(tm)
        await until(lambda: tm.table.bindings)
        await cluster.needs(version=2, held=(A,))
        await tm.aclose()
        cluster.manager.task_manager_exited(tm.resource_id, "killed by SIGKILL")
        await cluster.task_manager(1)
        assert cluster.lost == [m.TaskManagerLost(resource_id=tm.resource_id, reason="killed by SIGKILL")]
        late = m.HeartbeatFromTaskManager(instance_id=registered.instance_id, report=tm.core.report())
        with pytest.raises(RemoteError) as refused:
            await cluster.network.ask(RESOURCE_MANAGER, late, timeout=1, fence=registered.leader_id)
        assert refused.value.info().code == "unknown-task-manager"


async def test_a_silent_taskmanager_is_killed_and_may_register_again() -> None:
    """The exit of an adopted or a stopped process is not seen (R10, R15)."""
    async with running() as cluster:
        await cluster.needs(a=1)
        tm = await cluster.task_manager()
        first = await cluster.registered(tm)
        for _ in range(7):
            await asyncio.sleep(1)
            await cluster.needs(version=2, held=(A,))
        assert cluster.launcher.stopped == []
        await tm.aclose()
        await until(lambda: cluster.launcher.stopped)
        assert cluster.launcher.stopped == [(tm.resource_id, True)]
        async with BareTaskManager(tm.resource_id, cluster.network, slots=2) as again:
            assert (await until(lambda: again.registered)).instance_id != first.instance_id


async def test_a_request_that_fails_in_no_foreseen_way_is_repeated() -> None:
    """The slots stay marked taken until somebody reports what happened to them (m7)."""
    async with running() as cluster:
        await cluster.needs(a=1)
        tm = await cluster.task_manager()
        ask, failures = cluster.network.ask, [ValueError("cannot be encoded")]

        async def failing(target: Address, request: m.Request[Any], **more: Any) -> Any:
            if isinstance(request, m.AllocateSlots) and failures:
                raise failures.pop()
            return await ask(target, request, **more)

        cluster.network.ask = failing  # type: ignore[method-assign]
        await tm.start()
        async with asyncio.timeout(RESERVATION_TIMEOUT / 2):
            await until(lambda: A in tm.table.bindings)
        assert failures == []


async def test_a_crashed_resourcemanager_decides_nothing_any_more() -> None:
    """The state of a crashed ResourceManager cannot be trusted, and another takes its place."""
    async with running() as cluster:
        before = cluster.manager.snapshot()
        cluster.manager.crash(ValueError("a bug"))
        with pytest.raises(Crashed):
            await cluster.manager.mailbox.deliver(m.FindSession(), None)
        assert cluster.manager.snapshot() == before


async def test_a_resourcemanager_whose_command_fails_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands after the failed one are lost, and its state records steps that were never carried out (A1)."""
    async with running() as cluster:
        monkeypatch.setattr(cluster.manager, "_carry_out_own", lambda _: 1 / 0)
        with pytest.raises(Unreachable, match="division by zero"):
            await cluster.needs(a=1)
        assert cluster.manager.crashed.is_set()


async def test_a_resourcemanager_takes_no_message_while_it_is_closed() -> None:
    """Nobody could carry out the commands that it would give."""
    async with running() as cluster:
        may_end = asyncio.Event()

        async def stubborn(resource_id: ResourceId, size: TaskManagerSize | None) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()

        cluster.launcher.start = stubborn  # type: ignore[method-assign]
        await cluster.needs(a=1)
        closing = asyncio.create_task(cluster.manager.aclose())
        await until(lambda: not cluster.manager.running)
        with pytest.raises(Unreachable):
            await cluster.needs(version=2, a=1)
        may_end.set()
        await closing
        assert not cluster.manager.crashed.is_set()


async def test_the_needs_of_a_silent_jobmaster_are_dropped() -> None:
    async with running() as cluster:
        await cluster.needs(a=3)
        await asyncio.sleep(8)
        assert JOB in cluster.manager.snapshot().resources.jobs
        await until(lambda: JOB not in cluster.manager.snapshot().resources.jobs)


async def test_an_ended_jobmaster_is_refused_from_then_on() -> None:
    """R1."""
    async with running() as cluster:
        await cluster.needs(a=3)
        await cluster.network.ask(RESOURCE_MANAGER, m.JobMasterEnded(job_id=JOB, leader_id=LEADER), timeout=1)
        with pytest.raises(Fenced):
            await cluster.needs(version=2, a=1)
        assert cluster.network.figures.fenced == {"DeclareNeeds": 1}


async def test_a_new_resourcemanager_asks_the_dispatcher_for_the_jobs_as_soon_as_there_is_one() -> None:
    """A TaskManager with slots of an unknown job keeps them until then (R12, A14)."""
    other = JobId("2" * 32)

    async def jobs(_: m.ListJobsToRun) -> m.JobsToRun:
        return m.JobsToRun(jobs=(other,))

    async with running() as cluster:
        slots = (
            m.SlotStatus(index=0, job_id=JOB, allocation_id=A),
            m.SlotStatus(index=1, job_id=other, allocation_id=B),
        )
        resource_id = ResourceId("tm-a")
        report = m.TaskManagerReport(resource_id=resource_id, slots=slots, session=m.SessionPhase.READY)
        hello = BareTaskManager(resource_id, cluster.network, slots=2).hello
        registered = await cluster.network.ask(RESOURCE_MANAGER, copy(hello, report=report), timeout=1)

        async def ended() -> tuple[JobId, ...]:
            beat = m.HeartbeatFromTaskManager(instance_id=registered.instance_id, report=report)
            fence = registered.leader_id
            return (await cluster.network.ask(RESOURCE_MANAGER, beat, timeout=1, fence=fence)).ended_jobs

        assert registered.ended_jobs == ()
        await asyncio.sleep(3)
        assert await ended() == ()
        dispatcher = Mailbox(DISPATCHER)
        dispatcher.on(m.ListJobsToRun, jobs)
        cluster.network.attach(dispatcher)
        assert await until(ended) == (JOB,)
        assert cluster.network.figures.outcomes["ListJobsToRun", "ok"] == 1


async def test_a_session_is_found_after_a_taskmanager_was_started_for_it() -> None:
    async with running() as cluster:

        async def find() -> m.SessionFound:
            return await cluster.network.ask(RESOURCE_MANAGER, m.FindSession(), timeout=1)

        assert await find() == m.SessionFound(waiting="waiting for 1 TaskManager to become ready")
        tm = await cluster.task_manager()
        await cluster.registered(tm)
        assert await find() == m.SessionFound(address=task_manager(tm.resource_id))


async def test_who_waits_is_refused_with_the_reason_when_starts_keep_failing() -> None:
    """R5."""
    async with running() as cluster:
        cluster.launcher.failing = "no java"
        await cluster.needs(a=1)
        await until(lambda: cluster.manager.snapshot().resources.starts.failed >= 3)
        assert "no java" in (await cluster.needs(a=1)).refused[A]
        found = await cluster.network.ask(RESOURCE_MANAGER, m.FindSession(), timeout=1)
        assert "no java" in found.refused


async def test_an_idle_taskmanager_is_asked_to_exit_and_stopped() -> None:
    """R6."""
    async with running() as cluster:
        async with BareTaskManager(ResourceId("tm-by-hand"), cluster.network, slots=2) as tm:
            await until(lambda: cluster.launcher.stopped)
            assert cluster.launcher.stopped == [(tm.resource_id, False)]
            assert [type(command) for command in tm.commanded] == [Exit]
        with pytest.raises(RemoteError, match="was told to exit"):
            await cluster.network.ask(RESOURCE_MANAGER, tm.hello, timeout=1)
