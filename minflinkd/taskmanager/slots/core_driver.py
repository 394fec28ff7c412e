"""Drives a TaskManager's core: passes it messages, outcomes and time, and carries out its commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from minflinkd.rpc.asking import outcome_of_asking
from minflinkd.rpc.messages import AnalyzeJob, ListLogs, Message, ReadCollected, ReadLog, Registered, Request
from minflinkd.rpc.network import Address, Mailbox, Network
from minflinkd.rpc.party import Ask, Tell
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.timer import Timer
from minflinkd.taskmanager.slots.core import Exit, RenewSession, TaskManagerCore
from minflinkd.taskmanager.slots.events import EndTasks, ForgetJob, StartTask

log = structlog.get_logger(__name__)

T = TypeVar("T")
OwnCommand = StartTask | EndTasks | ForgetJob | RenewSession | Exit
OF_NO_LEADER = (AnalyzeJob, ListLogs, ReadCollected, ReadLog)  # requests that do no harm, whoever sends them


class CoreMailbox(Mailbox):
    """Passes every message to the core first. If there is a handler, it then answers what the core accepted."""

    def __init__(self, address: Address, receive: Callable[[Message, LeaderId | None], Any]) -> None:
        super().__init__(address)
        self._receive = receive

    async def deliver(self, message: Message, fence: LeaderId | None) -> Any:
        if isinstance(message, OF_NO_LEADER):
            return await super().deliver(message, fence)
        answer = self._receive(message, fence)
        return await super().deliver(message, fence) if type(message) in self._handlers else answer


class CoreDriver(Component):
    """`carry_out` gets the commands that are not messages. `complete` adds to a request what the core does not know.

    If the core raises an unexpected exception, or a command fails, this component crashes and calls `on_crash`.
    """

    def __init__(
        self,
        core: TaskManagerCore,
        *,
        address: Address,
        network: Network,
        clock: Clock,
        carry_out: Callable[[OwnCommand], None],
        complete: Callable[[Request[Any]], Request[Any]] = lambda request: request,
        on_registered: Callable[[Registered], None] = lambda _: None,
        on_crash: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__("core of the TaskManager")
        self.mailbox = CoreMailbox(address, self._receive)
        self._core = core
        self._network = network
        self._clock = clock
        self._carry_out_own = carry_out
        self._complete = complete
        self._on_registered = on_registered
        self._tell_crash = on_crash
        self._timer = Timer(
            clock,
            due=core.next_wakeup,
            tick=lambda at: self.decide(lambda now: core.tick(max(now, at))),
        )
        self._closing = False

    def decide(self, decision: Callable[[float], T]) -> T:
        """Call `decision` with the time in seconds, and carry out what follows.

        Raises the core's refusals, and Crashed.
        """
        before = self._core.registration
        try:
            decided = self.deciding(lambda: decision(self._clock.monotonic()))
            if self._core.registration.registered != before.registered:
                self._registration_changed()
            return decided
        finally:  # even a refusal may leave commands
            if not self.crashed.is_set():
                self._carry_out()

    async def _start(self) -> None:
        self._network.attach(self.mailbox)
        self.tasks.loop("timer", self._timer.run)

    async def _before_stop(self) -> None:
        self._closing = True
        self._network.detach(self.mailbox)

    async def _stop(self) -> None:
        self._network.detach(self.mailbox)

    def _on_crash(self) -> None:
        self._network.detach(self.mailbox)
        self._tell_crash(str(self.crash_cause))

    def _receive(self, message: Message, fence: LeaderId | None) -> Any:
        return self.decide(lambda now: self._core.receive(message, fence, now))

    def _carry_out(self) -> None:
        try:
            for command in self._core.take_commands():
                self._carry(command)
        except Exception as error:
            raise self.crash(error) from error
        self._timer.changed()

    def _carry(self, command: Ask | Tell | OwnCommand) -> None:
        match command:
            case _ if self._closing:
                pass  # whoever closes this also ends what runs here
            case Ask(target, request):
                self.tasks.job(f"{type(request).__name__} to {target}", self._ask(command))
            case Tell(target, notice, fence):
                self._network.tell(target, notice, fence=fence)
            case _:
                if isinstance(command, Exit) and command.failed:
                    log.warning("the TaskManager cannot go on", reason=command.reason)
                self._carry_out_own(command)

    async def _ask(self, ask: Ask) -> None:
        outcome = await outcome_of_asking(self._network, self._clock, ask, complete=self._complete)
        self.decide(lambda now: self._core.answered(ask.about, outcome, now))

    def _registration_changed(self) -> None:
        registered = self._core.registration.registered
        if registered is None:
            log.warning("no longer registered", reason=self._core.registration.why)
            return
        log.info("registered", leader=registered.leader_id, instance=registered.instance_id)
        self._on_registered(registered)
