"""The driver of a TaskManager's core, tested by its registration in virtual time (m4 - m6, R10)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyWire
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import RESOURCE_MANAGER, Mailbox, Network, Unreachable, task_manager
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import InstanceId, LeaderId, ResourceId
from minflinkd.taskmanager.slots.core import Exit, RenewSession, TaskManagerOptions
from minflinkd.taskmanager.slots.core_driver import OwnCommand
from tests.task_manager import BareTaskManager
from tests.waiting import until

pytestmark = pytest.mark.looptime
TM = ResourceId("tm-1")


class UnknownTaskManager(Conflict):
    code = "unknown-task-manager"


class FakeResourceManager:
    def __init__(self, network: Network, leader: str = "one") -> None:
        self.leader = LeaderId(leader)
        self.registrations = 0
        self.beats = 0
        self.known = True
        self.reports: list[m.TaskManagerReport] = []
        self.mailbox = Mailbox(RESOURCE_MANAGER, fence=self.leader)
        self.mailbox.on(m.RegisterTaskManager, self._register, fenced=False)
        self.mailbox.on(m.HeartbeatFromTaskManager, self._beat)
        self.mailbox.on_notice(m.SlotsFree, self._slots_free)
        network.attach(self.mailbox)

    async def _register(self, request: m.RegisterTaskManager) -> m.Registered:
        self.registrations += 1
        self.known = True
        instance = InstanceId(f"{self.leader}-{self.registrations}")
        return m.Registered(instance_id=instance, leader_id=self.leader, heartbeat_interval=1.0, heartbeat_timeout=5.0)

    async def _beat(self, request: m.HeartbeatFromTaskManager) -> m.HeartbeatAnswer:
        if not self.known:
            raise UnknownTaskManager("register again")
        self.beats += 1
        return m.HeartbeatAnswer()

    async def _slots_free(self, notice: m.SlotsFree) -> None:
        self.reports.append(notice.report)


class Registering(BareTaskManager):
    """The first `broken` requests fail before they are sent."""

    def __init__(self, network: Network, *, give_up_after: float = 0.0, broken: int = 0) -> None:
        self.broken = broken
        self.helpless = False
        self.logs: list[Any] = []
        options = TaskManagerOptions(registration_timeout=give_up_after)
        super().__init__(TM, network, slots=0, session=m.SessionPhase.STARTING, options=options)

    @property
    def leader(self) -> LeaderId | None:
        return self.registered.leader_id if self.registered is not None else None

    @property
    def exits(self) -> list[Exit]:
        return [command for command in self.commanded if isinstance(command, Exit)]

    def commanded_to(self, command: OwnCommand) -> None:
        if isinstance(command, RenewSession):
            self.enter(m.SessionPhase.STARTING)
            return
        if self.helpless:
            raise OSError("too many open files")
        super().commanded_to(command)

    def complete(self, request: m.Request[Any]) -> m.Request[Any]:
        if self.broken:
            self.broken -= 1
            raise OSError("too many open files")
        return request


@asynccontextmanager
async def registering(network: Network, *, give_up_after: float = 0.0, broken: int = 0) -> AsyncIterator[Registering]:
    with capture_logs() as logs:
        async with Registering(network, give_up_after=give_up_after, broken=broken) as registration:
            registration.logs = logs
            yield registration


async def took(condition: Callable[[], object]) -> float:
    """Wait for the condition. Return how many seconds of virtual time it took."""
    clock = asyncio.get_running_loop().time
    began = clock()
    await until(condition)
    return clock() - began


async def test_it_registers_beats_and_tells_at_once_what_falls_free() -> None:
    """m4, m11."""
    network = LocalNetwork()
    rm = FakeResourceManager(network)
    async with registering(network) as registration:
        await until(lambda: rm.beats == 3)
        assert (rm.registrations, registration.leader) == (1, "one")
        registration.enter(m.SessionPhase.READY)
        await until(lambda: [r.session for r in rm.reports] == [m.SessionPhase.READY])


async def test_a_report_does_not_overtake_the_one_before_it() -> None:
    """A session that is to be renewed changes at once. The report of that follows the one about the request (m11)."""
    network = LocalNetwork()
    rm = FakeResourceManager(network)
    async with registering(network) as registration:
        await until(lambda: rm.beats)
        registration.enter(m.SessionPhase.READY)
        await until(lambda: rm.reports)
        rm.reports.clear()
        renew = m.RenewSession(reason="it has aged")
        await network.ask(task_manager(TM), renew, timeout=1.0, fence=registration.leader)
        await until(lambda: len(rm.reports) == 2)
        first, second = (report.version for report in rm.reports)
        assert first < second


async def test_a_resource_manager_that_forgot_it_is_told_again() -> None:
    """The ResourceManager answers `unknown-task-manager` (R10)."""
    network = LocalNetwork()
    rm = FakeResourceManager(network)
    async with registering(network):
        await until(lambda: rm.beats)
        rm.known = False
        assert await took(lambda: rm.registrations == 2) < 1.5


async def test_it_follows_a_new_leader() -> None:
    """The old leader's successor fences its heartbeats, and it registers there (R1, R12)."""
    network = LocalNetwork()
    first = FakeResourceManager(network)
    async with registering(network) as registration:
        await until(lambda: first.beats)
        second = FakeResourceManager(network, "two")
        assert await took(lambda: registration.leader == "two") < 1.5
        assert (second.registrations, network.figures.fenced) == (1, {"HeartbeatFromTaskManager": 1})


async def test_two_failing_connections_in_a_row_end_a_registration() -> None:
    """Two failing connections end a registration sooner than the heartbeat timeout (R10)."""
    network = LocalNetwork()
    rm = FakeResourceManager(network)
    async with registering(network) as registration:
        await until(lambda: rm.beats)
        network.detach(rm.mailbox)
        assert 1.0 < await took(lambda: registration.leader is None) < 2.5
        network.attach(rm.mailbox)
        await until(lambda: rm.registrations == 2)


async def test_silence_ends_a_registration_after_the_heartbeats_timeout() -> None:
    """Lost heartbeats alone do not count as failing connections (R10)."""
    wire = FaultyWire(random.Random(1))
    rm = FakeResourceManager(wire.party("rm"))
    async with registering(wire.party("tm")) as registration:
        await until(lambda: rm.beats)
        wire.faults.drop = 1.0
        assert 4.0 < await took(lambda: registration.leader is None) < 9.0
        wire.faults.drop = 0.0
        await until(lambda: rm.registrations == 2)
    await wire.aclose()


async def test_it_gives_up_after_the_registration_timeout() -> None:
    """Otherwise a TaskManager that nobody needs would stay for good (R15)."""
    async with registering(LocalNetwork(), give_up_after=30.0) as registration:
        assert 30.0 <= await took(lambda: registration.exits) < 33.0
        (given_up,) = registration.exits
        assert given_up.failed
        assert "no ResourceManager took the registration" in given_up.reason
        assert [e["reason"] for e in registration.logs if e["log_level"] == "warning"] == [given_up.reason]


async def test_it_never_gives_up_where_no_timeout_is_set() -> None:
    """R15."""
    network = LocalNetwork()
    async with registering(network) as registration:
        await asyncio.sleep(3_000)
        assert registration.exits == []
        FakeResourceManager(network)
        assert await took(lambda: registration.leader) < 2.5


async def test_a_request_that_fails_on_its_way_has_an_outcome_too() -> None:
    """Whatever goes wrong while it is sent, the registration goes on (m4)."""
    rm = FakeResourceManager(network := LocalNetwork())
    async with registering(network, broken=2) as registration:
        assert await took(lambda: rm.beats) < 2.0
        assert rm.registrations == 1
        registration.broken = 1
        await until(lambda: not registration.broken)
        await until(lambda: rm.beats == 3)
        assert rm.registrations == 1


async def test_a_core_that_fails_in_deciding_takes_no_message_any_more() -> None:
    """A state that cannot be trusted must not answer. The owner of the process is told to end it."""
    network = LocalNetwork()
    rm = FakeResourceManager(network)
    async with registering(network) as registration:
        await until(lambda: rm.beats)
        with pytest.raises(Crashed):
            registration.decide(lambda now: 1 / 0)
        with pytest.raises(Crashed):
            registration.enter(m.SessionPhase.READY)
        with pytest.raises(Unreachable):
            await network.ask(task_manager(TM), m.ExitTaskManager(reason="test"), timeout=1.0)


async def test_a_core_whose_command_fails_takes_no_message_any_more() -> None:
    """The commands after the failed one are lost, and the state records steps that were never carried out."""
    network = LocalNetwork()
    rm = FakeResourceManager(network)
    async with registering(network) as registration:
        await until(lambda: rm.beats)
        registration.helpless = True
        with pytest.raises(Unreachable, match="too many open files"):
            await network.ask(
                task_manager(TM), m.ExitTaskManager(reason="test"), timeout=1.0, fence=registration.leader
            )
        assert registration.crashed.is_set()
