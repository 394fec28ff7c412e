"""The driver of a core over a real network, in virtual time (A1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import messages as m
from minflinkd.rpc.core_driver import CoreDriver
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Address, Fenced, Mailbox, Unreachable
from minflinkd.rpc.party import Answered, Ask, Tell, Unknown
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import Conflict, RemoteError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, ResourceId
from tests.unit.rpc.parties import ScriptedCore

pytestmark = pytest.mark.looptime
HERE, THERE = Address("here"), Address("there")
EXIT = m.ExitTaskManager(reason="why not")
LOST = m.TaskManagerLost(resource_id=ResourceId("tm-1"), reason="gone")
CANCEL = m.CancelTask(job_id=JobId("1" * 32), attempt_id=AttemptId("2" * 32))


class Driver(CoreDriver[ScriptedCore]):
    """Carries out strings. "fail" fails."""

    def __init__(self, network: LocalNetwork, *, fence: LeaderId | None = None) -> None:
        super().__init__("party", ScriptedCore(), address=HERE, network=network, clock=SystemClock(), fence=fence)
        self.core = self._core
        self.done: list[str] = []
        self.clock = self._clock
        self.broken = False

    def _carry_out_own(self, command: object) -> None:
        if command == "fail":
            raise OSError("too many open files")
        if not isinstance(command, str):
            return super()._carry_out_own(command)
        self.done.append(command)
        return None

    def _complete(self, request: m.Request[Any]) -> m.Request[Any]:
        if self.broken:
            raise OSError("too many open files")
        return request


class World:
    def __init__(self) -> None:
        self.network = LocalNetwork()
        self.told: list[m.Message] = []
        self.there = Mailbox(THERE)
        self.there.on(m.ExitTaskManager, self._note)
        self.there.on_notice(m.TaskManagerLost, self._note)
        self.network.attach(self.there)

    async def _note(self, message: m.Message) -> m.Done:
        self.told.append(message)
        return m.Done()

    @asynccontextmanager
    async def driver(self, *, fence: LeaderId | None = None) -> AsyncIterator[Driver]:
        with capture_logs():
            async with Driver(self.network, fence=fence) as driver:
                yield driver


async def settled() -> None:
    """Let everything happen that needs no more than a second."""
    await asyncio.sleep(1)


async def test_a_command_of_a_step_that_was_refused_is_carried_out() -> None:
    """The asker gets the refusal, and whoever the core decided to tell is told."""
    world = World()
    async with world.driver() as driver:
        driver.core.on_message = lambda _: driver.core.decides("end tasks", Tell(THERE, LOST), refuses=Conflict("no"))()
        with pytest.raises(RemoteError, match="no"):
            await world.network.ask(HERE, CANCEL, timeout=1)
        await settled()
        assert (driver.done, world.told) == (["end tasks"], [LOST])
        assert driver.running


async def test_the_timer_notices_what_a_refused_message_has_made_due() -> None:
    world = World()
    async with world.driver() as driver:

        def refuse(_: m.Message) -> None:
            driver.core.wake = driver.clock.monotonic() + 3
            raise Conflict("no")

        driver.core.on_message = refuse
        with pytest.raises(RemoteError):
            await world.network.ask(HERE, CANCEL, timeout=1)
        await asyncio.sleep(4)
        assert len(driver.core.ticks) == 1


async def test_every_request_has_one_outcome() -> None:
    world = World()
    async with world.driver() as driver:
        driver.inform(driver_asks(driver))
        await settled()
        world.network.detach(world.there)
        driver.inform(driver_asks(driver))
        await settled()
        answered, unreachable = (outcome for _, outcome in driver.core.outcomes)
        assert answered == Answered(m.Done())
        assert isinstance(unreachable, Unknown)


async def test_a_request_that_cannot_be_completed_has_an_unknown_outcome() -> None:
    """Otherwise the core would wait for ever."""
    world = World()
    async with world.driver() as driver:
        driver.broken = True
        driver.inform(driver_asks(driver))
        await settled()
        ((_, outcome),) = driver.core.outcomes
        assert isinstance(outcome, Unknown)
        assert world.told == []


async def test_an_outcome_that_the_core_refuses_is_a_crash() -> None:
    """Nobody asked. The core has lost the outcome, and would wait for it for ever."""
    world = World()
    async with world.driver() as driver:

        def refuse() -> None:
            raise Conflict("no")

        driver.core.on_outcome = refuse
        driver.inform(driver_asks(driver))
        await settled()
        assert str(driver.crash_cause) == "no"


@pytest.mark.parametrize("how", ["the core fails", "a command fails", "nobody knows the command"])
async def test_a_party_that_cannot_be_trusted_takes_no_message_any_more(how: str) -> None:
    """For the asker the outcome is unknown, as after the death of a process (A1)."""
    world = World()
    async with world.driver() as driver:
        core = driver.core
        decision = {
            "the core fails": core.decides("first", refuses=ValueError("broken")),
            "a command fails": core.decides("fail", "first"),
            "nobody knows the command": core.decides(7, "first"),
        }[how]
        core.on_message = lambda _: decision()
        with pytest.raises(Unreachable, match="crashed"):
            await world.network.ask(HERE, CANCEL, timeout=1)
        assert driver.done == []
        assert driver.crashed.is_set()
        with pytest.raises(Unreachable, match="nobody answers"):
            await world.network.ask(HERE, CANCEL, timeout=1)
        for act in (driver.decide, driver.inform):
            with pytest.raises(Crashed):
                act(lambda _: pytest.fail("it was asked"))


async def test_a_party_that_closes_takes_no_message_and_its_decisions_have_no_commands() -> None:
    world = World()
    async with world.driver() as driver:
        await driver.aclose()
        with pytest.raises(Unreachable):
            await world.network.ask(HERE, CANCEL, timeout=1)
        assert driver.decide(lambda _: driver.core.decides("first", Ask(THERE, EXIT, 1))()) == "decided"
        assert driver.done == []
        assert not driver.crashed.is_set()


async def test_a_handler_answers_only_what_the_core_accepts() -> None:
    """The core knows which leader may send what. Without it, a handler would obey a leader that was replaced (R1)."""
    world = World()
    async with world.driver() as driver:
        cancelled: list[m.CancelTask] = []

        async def cancel(request: m.CancelTask) -> m.Done:
            cancelled.append(request)
            return m.Done()

        driver.mailbox.on_accepted(m.CancelTask, cancel)
        driver.core.on_message = lambda _: driver.core.decides(refuses=Fenced("an old leader"))()
        with pytest.raises(Fenced):
            await world.network.ask(HERE, CANCEL, timeout=1)
        assert cancelled == []
        driver.core.on_message = lambda _: m.Done()
        assert await world.network.ask(HERE, CANCEL, timeout=1) == m.Done()
        assert cancelled == [CANCEL]


async def test_a_message_with_a_handler_of_its_own_does_not_reach_the_core() -> None:
    """It is fenced by the party's own token."""
    world = World()
    leader = LeaderId("one")
    async with world.driver(fence=leader) as driver:

        async def answer(_: m.CancelTask) -> m.Done:
            return m.Done()

        driver.core.on_message = lambda _: pytest.fail("the core was asked")
        driver.mailbox.on(m.CancelTask, answer)
        assert await world.network.ask(HERE, CANCEL, timeout=1, fence=leader) == m.Done()
        with pytest.raises(Fenced):
            await world.network.ask(HERE, CANCEL, timeout=1, fence=LeaderId("two"))


def driver_asks(driver: Driver) -> Any:
    decision = driver.core.decides(Ask(THERE, EXIT, 1.0, about="it"))
    return lambda _: decision()
