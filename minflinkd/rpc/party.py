"""The interface between what a party decides and how it is carried out.

ResourceManager, JobMaster and TaskManager each have a *core*: synchronous, deterministic, without clock, socket, task
or Spark. A core is told what was received, the outcomes of its requests, and the time. It returns commands.

In production `rpc.core_driver` carries them out, in the simulation a discrete-event loop (resources.md R30). The code
that decides is the same, and so is `CoreSteps`: in which order commands are carried out, what follows a refusal, and
when a party crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from minflinkd.rpc.messages import Message, Notice, Request
from minflinkd.rpc.network import Address, Fenced, RpcTimeout, Unreachable
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated
from minflinkd.runtime.machine_driver import CommandQueue

R = TypeVar("R")


@dataclass(frozen=True)
class Ask:
    """Send `request`. Its outcome comes back as `core.answered(about, outcome, now)`, once and not before `after`."""

    target: Address
    request: Request[Any]
    timeout: float  # seconds, from the sending
    fence: LeaderId | None = None
    about: object = None  # handed back to the core with the outcome
    after: float = 0.0  # seconds to wait before it is sent


@dataclass(frozen=True)
class Tell:
    """Send `notice` and forget it."""

    target: Address
    notice: Notice
    fence: LeaderId | None = None


@dataclass(frozen=True)
class Answered:
    value: Any


@dataclass(frozen=True)
class Refused:
    """The party understood the request and refused it; the error says why."""

    error: MinflinkError


@dataclass(frozen=True)
class Unknown:
    """The request may or may not have been carried out."""

    error: MinflinkError


Outcome = Answered | Refused | Unknown


def outcome_of(error: MinflinkError) -> Outcome:
    return Unknown(error) if isinstance(error, Unreachable | RpcTimeout) else Refused(error)


class Core(Protocol):
    """What the drivers need from every core. They call `take_commands` after every other call (`CoreSteps`).

    Only `receive`, and methods that a driver calls for somebody who asked, may refuse.
    """

    def receive(self, message: Message, fence: LeaderId | None, now: float) -> Any:
        """Return the answer to a request; None for a notice.

        Raises MinflinkError for a refusal, Fenced for a stale token.
        """
        ...

    def answered(self, about: object, outcome: Outcome, now: float) -> None: ...

    def tick(self, now: float) -> None:
        """Do what is due. Called at `next_wakeup()` or later; an earlier call is harmless."""
        ...

    def next_wakeup(self) -> float | None: ...

    def take_commands(self) -> tuple[object, ...]:
        """Return and clear the commands: Ask, Tell, and the party's own."""
        ...


class CoreSteps:
    """The steps of one core: each is a decision, and then the commands that it left.

    - Commands are carried out in the order in which they were decided. If carrying one out leads to the next decision,
      the commands of that one wait for those before them.
    - They are carried out after a refusal, too. A refusal answers one message; it does not undo what the core noted
      before it refused. For example, a TaskManager that refuses a deployment still follows the new JobMaster that sent
      it, and must end the tasks of the old one.
    - Any other error of the core, or of a command, means that the state cannot be trusted. The party crashes, and the
      remaining commands are dropped.
    """

    def __init__(
        self,
        core: Core,
        *,
        carry_out: Callable[[object], None],
        crash: Callable[[Exception], Exception],
        decided: Callable[[], None] = lambda: None,
    ) -> None:
        """`decided` is called after each decision, before its commands. `crash` returns the error for the caller."""
        self._core = core
        self._crash = crash
        self._decided = decided
        self._commands = CommandQueue(carry_out)
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Whether commands are being carried out."""
        return self._commands.busy

    def stop(self) -> None:
        """Drop all commands from now on: the party ends, and nobody would carry them out."""
        self._stopped = True
        self._commands.clear()

    def decide(self, decision: Callable[[], R]) -> R:
        """Take a step for somebody who waits for the answer. Raises the core's refusals, and what `crash` returns."""
        return self._step(decision, may_refuse=True)

    def inform(self, decision: Callable[[], R]) -> R:
        """Take a step because something has happened. Raises what `crash` returns, also for a refusal.

        Nobody asked, so nobody would learn of the refusal, and the core has lost an event.
        """
        return self._step(decision, may_refuse=False)

    def _step(self, decision: Callable[[], R], *, may_refuse: bool) -> R:
        try:
            result = decision()
        except Exception as error:
            if not (may_refuse and _is_refusal(error)):
                raise self._crashed(error) from error
            self._follow()
            raise
        self._follow()
        return result

    def _follow(self) -> None:
        """Carry out what the core has decided."""
        try:
            commands = self._core.take_commands()
            self._decided()
            if not self._stopped:
                self._commands.add(commands)
        except Exception as error:
            raise self._crashed(error) from error

    def _crashed(self, error: Exception) -> Exception:
        self.stop()
        return self._crash(error)


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, MinflinkError) and not isinstance(error, IllegalTransition | InvariantViolated)


def fenced(party: Address, message: Message, fence: LeaderId | None) -> Fenced:
    return Fenced(
        f"{party} refuses {type(message).__name__}: its token {fence} is not the present leader's",
        hint="the sender must register with the present leader",
    )
