"""The elector at a coordination service that fails in every way that nobody foresaw (A11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from minflinkd.ha.election import Phase, Timing
from minflinkd.ha.elector import Elector
from minflinkd.ha.embedded import UnusableEpoch
from minflinkd.ha.service import Member, ServiceUnavailable
from minflinkd.runtime.clock import SystemClock
from tests.waiting import until

pytestmark = pytest.mark.looptime
TIMING = Timing(lease=5.1, renewal=1.0)


class Service:
    """A ballot in which one daemon alone takes part. `wrong`: the error of each method that fails, by its name."""

    def __init__(self, **wrong: Exception) -> None:
        self.wrong = wrong
        self.claims = 0
        self.there = False  # the claim
        self.asked: list[str] = []

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if (error := self.wrong.get(what)) is not None:
            raise error

    async def join(self, member: Member) -> None:
        self._ask("join")
        self.there = True

    async def before(self) -> str | None:
        self._ask("before")
        return None

    async def change_of(self, claim: str) -> None:
        raise AssertionError(claim)

    async def record(self) -> int:
        self._ask("record")
        return 1

    async def confirm(self) -> None:
        self._ask("confirm")

    async def describe(self, member: Member) -> None:
        self._ask("describe")

    async def withdraw(self) -> None:
        self._ask("withdraw")
        self.there = False

    async def leave(self) -> None:
        self.there = False

    async def members(self) -> tuple[Member, ...]:
        return ()

    def is_away(self) -> None:
        away = ServiceUnavailable("no connection")
        self.wrong = dict.fromkeys(("join", "before", "record", "confirm", "describe", "withdraw"), away)


@asynccontextmanager
async def electing(service: Service) -> AsyncIterator[Elector]:
    elector = Elector(
        service,
        member=Member(name="host:1", url="http://127.0.0.1:8081"),
        timing=TIMING,
        lead=lambda _: None,
        step_down=lambda _: None,
        clock=SystemClock(),
    )
    async with elector:
        yield elector


async def leads(elector: Elector) -> None:
    await until(lambda: elector.leads(1), "it leads")


@pytest.mark.parametrize("request_of", ["join", "before", "record", "confirm", "withdraw"])
async def test_an_error_that_nobody_foresaw_ends_the_elector(request_of: str) -> None:
    """A claim that waits for ever keeps its place: in the end nobody would lead. The process starts again (A11)."""
    service, strange = Service(), RuntimeError("strange")
    with capture_logs():
        async with electing(service) as elector:
            if request_of in ("confirm", "withdraw"):
                await leads(elector)
            service.wrong[request_of] = strange
            if request_of == "withdraw":
                elector.resign("test")
            await until(elector.crashed.is_set, "it has crashed")
            assert elector.crash_cause is strange
            assert not elector.leads(1)


async def test_a_claim_that_could_not_be_withdrawn_is_withdrawn_when_the_connection_is_back() -> None:
    """The session has not expired, so the claim would keep others from the lead until everything is closed (A11)."""
    service = Service()
    with capture_logs() as logs:
        async with electing(service) as elector:
            await leads(elector)
            service.is_away()
            await until(lambda: elector.state.phase is Phase.LOST, "its lease ends")
            await until(lambda: service.asked.count("withdraw") > 2, "it tries again")
            service.wrong = {}
            await until(lambda: not service.there, "the claim is gone")
            assert elector.state.phase is Phase.LOST
            asked = service.asked.count("withdraw")
            await asyncio.sleep(10 * TIMING.renewal)
            assert service.asked.count("withdraw") == asked
    assert [line["event"] for line in logs].count("the next leader has to wait until this claim is gone") == 1


async def test_the_next_claim_of_a_daemon_ends_the_tries_to_withdraw_the_one_before() -> None:
    """Whoever joins deletes what is left of earlier claims (A11)."""
    service = Service()
    with capture_logs():
        async with electing(service) as elector:
            await leads(elector)
            service.is_away()
            await until(lambda: service.asked.count("withdraw") > 1, "it has tried")
            elector.stepped_down()
            await until(lambda: service.asked.count("join") > 2, "it tries to join")
            asked = service.asked.count("withdraw")
            del service.wrong["join"]
            await until(lambda: elector.state.phase is Phase.STANDBY, "it stands by")
            await asyncio.sleep(10 * TIMING.renewal)
            assert (service.asked.count("withdraw"), service.there) == (asked, True)


async def test_an_epoch_that_cannot_be_read_is_told_and_asked_for_again() -> None:
    """A process that ends again and again would not say so. When the node is mended, the daemon leads (A12)."""
    service = Service(record=UnusableEpoch("/epoch holds b'x', which is no epoch", hint="put a number into it"))
    with capture_logs():
        async with electing(service) as elector:
            await until(lambda: elector.trouble, "it says so")
            assert elector.trouble == "unusable-epoch: /epoch holds b'x', which is no epoch; put a number into it"
            await until(lambda: service.asked.count("record") > 2, "it asks again")
            service.wrong = {}
            await leads(elector)
            assert elector.trouble == ""
