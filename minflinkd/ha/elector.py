"""Takes part in the election for one daemon: carries out the decisions of `election`, and tells the daemon (A11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

import structlog

from minflinkd.ha import election as e
from minflinkd.ha.embedded import UnusableEpoch
from minflinkd.ha.service import Ballot, ClaimGone, Member, ServiceRefused, ServiceUnavailable, told
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.machine import Machine
from minflinkd.runtime.machine_driver import MachineDriver

log = structlog.get_logger(__name__)

LEAVING = 2.0  # seconds for the service to delete the claim at the end


class BootClock(SystemClock):
    """Runs on while the process is stopped or the machine sleeps: others may begin to lead in this time."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class Elector(Component):
    """Calls `lead` and then `step_down` once for each leadership. The caller answers `step_down` with `stepped_down`.

    Check `leads` before each action: the call of `step_down` may come too late, `leads` never does.
    """

    def __init__(
        self,
        ballot: Ballot,
        *,
        member: Member,
        timing: e.Timing,
        lead: Callable[[int], None],
        step_down: Callable[[str], None],
        clock: SystemClock | None = None,
    ) -> None:
        super().__init__("elector")
        self.member = member
        self.trouble = ""  # why the coordination service cannot be used at present
        self._ballot = ballot
        self._lead = lead
        self._step_down = step_down
        self._clock = clock or BootClock()
        machine = Machine(e.Election(timing), e.step, e.check_invariants, name="election")
        self._driver = MachineDriver(
            machine,
            clock=self._clock,
            due=lambda state, _: state.next_due,
            tick=e.Tick(),
            carry_out=self._carry_out,
            ended=lambda: self.tasks.closed,
            crash=self.crash,
        )

    @property
    def state(self) -> e.Election:
        return self._driver.state

    def leads(self, epoch: int) -> bool:
        """Whether it is certain at this moment that the leadership of this epoch lasts, so no other daemon leads.

        After it has returned False, it stays False, even if this daemon leads again later.
        """
        state = self.state
        ended = self.crashed.is_set() or self.tasks.closed  # then nobody confirms the claim, or it is deleted
        return not ended and state.epoch == epoch and state.may_act(self._clock.monotonic())

    def disconnected(self) -> None:
        self._driver.feed(e.Disconnected())

    def gone(self, reason: str) -> None:
        """The service has ended the session, and with it every claim."""
        self._driver.feed(e.Gone(self.state.claim, reason))

    def resign(self, reason: str) -> None:
        self._driver.feed(e.Resigned(reason))

    def stepped_down(self) -> None:
        """Note that everything of the leadership is closed, so this daemon takes part in the election again."""
        self._driver.feed(e.SteppedDown())

    async def describe(self, member: Member) -> None:
        """Publish this description of the present leadership to the other daemons. Raises MinflinkError."""
        self.member = member
        await self._ballot.describe(member)

    async def _start(self) -> None:
        self.tasks.loop("time", self._driver.run)

    async def _stop(self) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Let the next daemon lead at once. Call this after all components of the leadership are closed."""
        try:
            async with asyncio.timeout(LEAVING):
                await self._ballot.leave()
        except (MinflinkError, TimeoutError) as error:
            log.warning("the next leader has to wait until the session of this daemon expires", error=str(error))

    def _carry_out(self, command: e.Command) -> None:
        match command:
            case e.Join(claim):
                self._ask("join", claim, self._join(claim))
            case e.Record(claim):
                self._ask("record", claim, self._record(claim))
            case e.Confirm(claim):
                self._ask("confirm", claim, self._confirm(claim))
            case e.Lead(epoch):
                log.info("this daemon leads", epoch=epoch)
                self._lead(epoch)
            case e.StepDown(reason):
                log.warning("this daemon no longer leads", epoch=self.state.epoch, reason=reason)
                self._step_down(reason)
            case e.Leave(claim):
                self.tasks.job(f"leave {claim}", self._leave(claim), on_error=self.crash)

    def _ask(self, what: str, claim: int, request: Coroutine[None, None, None]) -> None:
        def failed(error: Exception) -> None:
            if isinstance(error, ClaimGone):
                self._driver.feed(e.Gone(claim, error.message))
            elif isinstance(error, ServiceUnavailable | ServiceRefused | UnusableEpoch):
                if told(error) != self.trouble:
                    log.warning("the coordination service cannot be used", request=what, error=str(error))
                self.trouble = told(error)
                self._driver.feed(e.Unanswered(claim))
            else:
                self.crash(error)

        self.tasks.job(f"{what} {claim}", request, on_error=failed)

    async def _join(self, claim: int) -> None:
        await self._ballot.join(self.member)
        self.trouble = ""
        self._driver.feed(e.Joined(claim))
        if not self.tasks.closed:
            self.tasks.job(f"first {claim}", self._first(claim), on_error=self.crash)

    async def _leave(self, claim: int) -> None:
        """Withdraw the claim. Try until that is done, or until this daemon joins again, which withdraws it as well.

        If the connection comes back in time, the session stays, and with it the claim: nobody else could lead.
        """
        pause, told_so = self.state.timing.renewal / 4, False
        while True:
            try:
                await self._ballot.withdraw()
                return
            except (ServiceUnavailable, ServiceRefused) as error:
                if not told_so:
                    log.warning("the next leader has to wait until this claim is gone", error=str(error))
                told_so = True
            await self._clock.sleep(pause)
            pause = min(2 * pause, self.state.timing.renewal)
            if self.state.claim != claim or self.state.phase is not e.Phase.LOST:
                return

    async def _first(self, claim: int) -> None:
        """Wait until this daemon's claim is first. Without an answer, ask again: the claim keeps its place."""
        while self.state.claim == claim and self.state.phase is e.Phase.STANDBY:
            try:
                before = await self._ballot.before()
                self.trouble = ""
                if before is None:
                    self._driver.feed(e.First(claim))
                else:
                    await self._ballot.change_of(before)
            except (ServiceUnavailable, ServiceRefused) as error:
                self.trouble = told(error)
                await self._clock.sleep(self.state.timing.renewal)
            except ClaimGone as error:
                self._driver.feed(e.Gone(claim, error.message))

    async def _record(self, claim: int) -> None:
        asked_at = self._clock.monotonic()
        epoch = await self._ballot.record()
        self.trouble = ""
        self._driver.feed(e.Recorded(claim, epoch, asked_at))

    async def _confirm(self, claim: int) -> None:
        asked_at = self._clock.monotonic()
        await self._ballot.confirm()
        self.trouble = ""
        self._driver.feed(e.Confirmed(claim, asked_at))
