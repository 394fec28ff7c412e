"""A process with a core, which can be stopped and continued, and die.

It drives the core by the same `CoreSteps` as `rpc.core_driver`, in virtual time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from minflinkd.rpc.messages import Message
from minflinkd.rpc.network import Address
from minflinkd.rpc.party import Ask, Core, CoreSteps, Outcome, Tell
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated
from tests.sim.protocol.journal import Violation

if TYPE_CHECKING:
    from tests.sim.protocol.universe import Universe

C = TypeVar("C", bound=Core)

LEAST_PAUSE = 0.001  # seconds between two ticks
WAKING = 0.05  # seconds in which a continued process handles what has arrived
MOST_IDLE_TICKS = 200  # ticks in a row that are due at once; a core that asks for more spins


class _Decided:
    """A core whose commands are noted: each must be carried out, in this order."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.commands: deque[object] = deque()

    def take_commands(self) -> tuple[object, ...]:
        commands = self._core.take_commands()
        self.commands += commands
        return commands

    def receive(self, message: Message, fence: LeaderId | None, now: float) -> Any:
        return self._core.receive(message, fence, now)

    def answered(self, about: object, outcome: Outcome, now: float) -> None:
        self._core.answered(about, outcome, now)

    def tick(self, now: float) -> None:
        self._core.tick(now)

    def next_wakeup(self) -> float | None:
        return self._core.next_wakeup()


class Party(Generic[C]):
    """Subclasses carry out commands that are not messages, and check the core after each step."""

    def __init__(self, universe: Universe, address: Address, core: C) -> None:
        self.universe = universe
        self.address = address
        self.core = core
        self.alive = True
        self.stopped = False  # as by SIGSTOP: whatever arrives waits
        self._engine = universe.engine
        self._decided = _Decided(core)
        self._steps = CoreSteps(self._decided, carry_out=self._carry_out, crash=self._crash)
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._tick_at: float | None = None
        self._ticks_in_a_row = 0
        universe.wire.parties[address] = self

    def __repr__(self) -> str:
        return str(self.address)

    # --- process -----------------------------------------------------------------------------------------------------

    def gate(self, act: Callable[..., None], *args: Any) -> None:
        """Let something happen to the process. Every event comes through here."""
        if self.stopped:
            self._backlog.append((act, args))
        elif self.alive:
            act(*args)

    def after(self, delay: float, act: Callable[..., None], *args: Any) -> None:
        """Act in this process after the delay, if it lives then."""
        self._engine.after(delay, self.gate, act, *args)

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        """Continue. What arrived meanwhile happens now, sockets and timers in any order."""
        self.stopped = False
        backlog, self._backlog = self._backlog, []
        for act, args in backlog:
            self.after(WAKING * self.universe.rng.random(), act, *args)

    def die(self) -> None:
        self.alive = self.stopped = False
        self._backlog.clear()
        self._steps.stop()
        if self.universe.wire.parties.get(self.address) is self:
            del self.universe.wire.parties[self.address]

    # --- core --------------------------------------------------------------------------------------------------------

    def receive(self, message: Message, fence: LeaderId | None) -> Any:
        """Give a message to the core. Raises MinflinkError if it is refused."""
        try:
            answer = self._steps.decide(lambda: self.core.receive(message, fence, self._engine.now))
        except MinflinkError:
            self._stepped()
            raise
        self._stepped()
        return answer

    def answered(self, ask: Ask, outcome: Outcome) -> None:
        self.step(self.core.answered, ask.about, outcome, self._engine.now)

    def step(self, act: Callable[..., Any], *args: Any) -> None:
        """Let something happen to the core, carry out its commands, and check everything."""
        self._steps.inform(lambda: act(*args))
        self._stepped()

    def _stepped(self) -> None:
        if self.alive and not self._steps.busy:
            self._plan_tick()
            self.checked()

    def _crash(self, error: Exception) -> Exception:
        """No party may crash by itself."""
        if isinstance(error, Violation):
            return error
        if isinstance(error, IllegalTransition | InvariantViolated):
            return Violation(f"{self.address}: {error}")
        return Violation(f"{self.address} failed: {error!r}")

    def _carry_out(self, command: object) -> None:
        if command is not (due := self._decided.commands.popleft()):
            raise Violation(f"{self.address} carries out {command}, but {due} comes first")
        match command:
            case Ask():
                ask = self.complete(command)
                self.sends(ask)
                self.universe.wire.ask(self, ask)
            case Tell():
                self.tells(command)
                self.universe.wire.tell(self, command)
            case _:
                self.carry_out(command)

    def carry_out(self, command: Any) -> None:
        raise Violation(f"{self.address} does not know the command {command}")

    def complete(self, ask: Ask) -> Ask:
        """Add to a request what the core does not know."""
        return ask

    def sends(self, ask: Ask) -> None:
        """Check a request before it is sent. Raises Violation."""

    def tells(self, tell: Tell) -> None:
        """Note a notice before it is sent."""

    def checked(self) -> None:
        """Check the core after a step. Raises Violation."""

    def _plan_tick(self) -> None:
        due = self.core.next_wakeup()
        if due is None:
            return
        planned = max(due, self._engine.now + LEAST_PAUSE)
        if self._tick_at is None or planned < self._tick_at:
            self._tick_at = planned
            self._engine.at(planned, self.gate, self._tick, planned)

    def _tick(self, planned: float) -> None:
        if planned != self._tick_at:
            return  # an earlier tick was planned in its place
        self._tick_at = None
        due, now = self.core.next_wakeup(), self._engine.now
        if due is None or due > now:
            self._plan_tick()
            return
        self.step(self.core.tick, now)
        due = self.core.next_wakeup()
        self._ticks_in_a_row = self._ticks_in_a_row + 1 if due is not None and due <= now else 0
        if self._ticks_in_a_row > MOST_IDLE_TICKS:
            raise Violation(f"{self.address} wants to be woken at once, again and again")
