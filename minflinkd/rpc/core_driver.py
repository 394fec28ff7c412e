"""Drives a core in production: gives it messages, outcomes and time, and carries out its commands.

ResourceManager, JobMaster and TaskManager use the same loop. What it does without clock and network, `CoreSteps`, the
simulation uses, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import structlog

from minflinkd.rpc.messages import Message, Request
from minflinkd.rpc.network import Address, Handler, Mailbox, Network, Unreachable
from minflinkd.rpc.party import Answered, Ask, Core, CoreSteps, Outcome, Tell, Unknown, outcome_of
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component, Crashed
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.machine_driver import Timer

log = structlog.get_logger(__name__)

C = TypeVar("C", bound=Core)
R = TypeVar("R")


class CoreMailbox(Mailbox):
    """Passes messages to the core, with their tokens. The core knows who may send what.

    A message with a handler (`on`) does not reach the core; it is fenced by `fence` alone.
    """

    def __init__(
        self, address: Address, receive: Callable[[Message, LeaderId | None], Any], *, fence: LeaderId | None = None
    ) -> None:
        super().__init__(address, fence=fence)
        self._receive = receive
        self._after_core: dict[type[Message], Handler] = {}

    def on_accepted(self, kind: type[Request[R]], handler: Callable[[Any], Awaitable[R]]) -> None:
        """Pass requests of this type to the core. If it does not refuse them, the handler returns the answer."""
        self._after_core[kind] = handler

    async def deliver(self, message: Message, fence: LeaderId | None) -> Any:
        kind = type(message)
        if kind in self._handlers:
            return await super().deliver(message, fence)
        answer = self._receive(message, fence)
        handler = self._after_core.get(kind)
        return answer if handler is None else await handler(message)


class CoreDriver(Component, Generic[C]):
    """A party. Subclasses carry out the commands that are not messages.

    If the core raises an unexpected exception, or a command fails, the party crashes (A1).
    """

    def __init__(
        self,
        name: str,
        core: C,
        *,
        address: Address,
        network: Network,
        clock: Clock,
        fence: LeaderId | None = None,
    ) -> None:
        """`fence` is for messages that have a handler in the mailbox, and do not reach the core."""
        super().__init__(name)
        self.mailbox = CoreMailbox(address, self._receive, fence=fence)
        self._core = core
        self._network = network
        self._clock = clock
        self._steps = CoreSteps(core, carry_out=self._carry_out, decided=self._after_decision, crash=self.crash)
        self._timer = Timer(clock, due=core.next_wakeup, tick=lambda _: self.inform(core.tick))

    # --- for subclasses ------------------------------------------------------------------------------------------

    def _carry_out_own(self, command: object) -> None:
        """Carry out a command that is not a message. It must not wait."""
        raise AssertionError(f"nobody carries out {command}")

    def _decided(self) -> None:
        """The core has decided something. Its commands are carried out after this."""

    def _complete(self, request: Request[Any]) -> Request[Any]:
        """Add to a request what the core does not know. An error that this raises is the request's outcome."""
        return request

    def _answered(self, ask: Ask, outcome: Outcome) -> None:
        self.inform(lambda now: self._core.answered(ask.about, outcome, now))

    # --- steps ---------------------------------------------------------------------------------------------------

    def decide(self, decision: Callable[[float], R]) -> R:
        """Call `decision` with the time in seconds, and carry out what follows.

        Raises the core's refusals, and Crashed.
        """
        self.raise_if_crashed()
        return self._steps.decide(lambda: decision(self._timer.now()))

    def inform(self, decision: Callable[[float], R]) -> R:
        """Like `decide`, for what has happened. Nobody can refuse it: the core crashes if it tries. Raises Crashed."""
        self.raise_if_crashed()
        return self._steps.inform(lambda: decision(self._timer.now()))

    def _receive(self, message: Message, fence: LeaderId | None) -> Any:
        return self.decide(lambda now: self._core.receive(message, fence, now))

    def _after_decision(self) -> None:
        self._timer.changed()
        self._decided()

    def _carry_out(self, command: object) -> None:
        match command:
            case Ask(target, request):
                name = f"{type(request).__name__} to {target}"
                self.tasks.job(name, self._ask(command), on_error=self._job_failed)
            case Tell(target, notice, fence):
                self._network.tell(target, notice, fence=fence)
            case _:
                self._carry_out_own(command)

    async def _ask(self, ask: Ask) -> None:
        self._answered(ask, await self._outcome(ask))

    async def _outcome(self, ask: Ask) -> Outcome:
        """Send a request when it is due. There is always an outcome, because the core waits for one."""
        if ask.after:
            await self._clock.sleep(ask.after)
        try:
            request = self._complete(ask.request)
            return Answered(await self._network.ask(ask.target, request, timeout=ask.timeout, fence=ask.fence))
        except MinflinkError as error:
            log.debug("no answer", request=type(ask.request).__name__, target=ask.target, error=str(error))
            return outcome_of(error)
        except Exception as error:
            log.exception("a request failed unexpectedly", request=type(ask.request).__name__, target=ask.target)
            return Unknown(Unreachable(f"{ask.target} could not be asked: {type(error).__name__}: {error}"))

    def _job_failed(self, error: Exception) -> None:
        """Crash: otherwise whoever waits for the outcome would wait for ever."""
        if not isinstance(error, Crashed):  # a crash was already logged where it happened
            self.crash(error)

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._network.attach(self.mailbox)
        self.tasks.loop("timer", self._timer.run)

    async def _before_stop(self) -> None:
        self._end_steps()

    async def _stop(self) -> None:
        self._end_steps()

    def _on_crash(self) -> None:
        self._end_steps()

    def _end_steps(self) -> None:
        """Take no more messages. Decisions that are made while this closes have no commands: its tasks end."""
        self._network.detach(self.mailbox)
        self._steps.stop()
