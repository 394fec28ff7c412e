"""A TaskManager's registration with the ResourceManager: register, beat, register again (m4 - m6, R10, R15). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from minflinkd.rpc.messages import Registered
from minflinkd.runtime import machine
from minflinkd.runtime.ids import InstanceId, LeaderId
from minflinkd.runtime.machine import InvariantViolated, move, table

FIRST_PAUSE = 0.1  # seconds between two tries; doubled with each failure
LONGEST_PAUSE = 2.0
UNREACHABLE_IS_LOST = 2  # failed connections in a row
TRY_TIMEOUT = 5.0  # seconds for one try
TRY_MARGIN = 1.0  # seconds added to it, for the outcome to be reported
STATE_IS_LOST = 60.0  # seconds in which only an earlier leader answers; too long for a late answer of a replaced one


class Phase(Enum):
    UNREGISTERED = auto()  # waits for the next try
    REGISTERING = auto()  # a try is under way
    REGISTERED = auto()
    GIVEN_UP = auto()


LEGAL = table(
    {
        Phase.UNREGISTERED: {Phase.REGISTERING},
        Phase.REGISTERING: {Phase.REGISTERED, Phase.UNREGISTERED, Phase.GIVEN_UP},
        Phase.REGISTERED: {Phase.UNREGISTERED},
        Phase.GIVEN_UP: set(),
    }
)


@dataclass(frozen=True)
class Registration:
    """`leader` is the latest ResourceManager ever followed. An earlier one is never followed again."""

    since: float  # seconds; since when there is no ResourceManager, and nothing runs here
    due: float  # time of the next try, of the end of a try without outcome, or of the next beat
    phase: Phase = Phase.UNREGISTERED
    number: int = 0  # of the try; its beats have the same number, so that late outcomes are recognized
    pause: float = FIRST_PAUSE
    give_up_after: float = 0.0  # 0: never
    leader: LeaderId | None = None
    earlier_since: float | None = None  # since when every try was answered by an earlier leader than `leader`
    registered: Registered | None = None
    heard: float = 0.0  # when the last answer to this registration or its beats came
    unreachable: int = 0  # unreachable beats in a row
    why: str = ""  # why the last registration ended, or the last try failed


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    busy: bool = False  # tasks run here, or failures are unreported: wait longer for a ResourceManager (A14)


@dataclass(frozen=True)
class Accepted:
    number: int
    registered: Registered


@dataclass(frozen=True)
class NotAccepted:
    number: int
    why: str


@dataclass(frozen=True)
class BeatAnswered:
    number: int


@dataclass(frozen=True)
class BeatRefused:
    number: int
    why: str


@dataclass(frozen=True)
class BeatLost:
    number: int
    why: str
    unreachable: bool  # there was no connection, rather than no answer


Event = Tick | Accepted | NotAccepted | BeatAnswered | BeatRefused | BeatLost


# --- commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Register:
    number: int


@dataclass(frozen=True)
class Beat:
    number: int
    instance_id: InstanceId
    leader_id: LeaderId
    timeout: float


@dataclass(frozen=True)
class GiveUp:
    reason: str


Command = Register | Beat | GiveUp


class Step(machine.Step[Registration, Command]):
    """One step of the registration, and the ways in which a phase ends."""

    def enter(self, phase: Phase, **changes: Any) -> None:
        self.set(phase=move(LEGAL, self.state.phase, phase, what="registration"), **changes)

    def again(self, why: str) -> None:
        """The try failed. Try again after a pause, or give up after so many failures."""
        waited = self.now - self.state.since
        if 0 < self.state.give_up_after <= waited:
            self.give_up(f"no ResourceManager took the registration for {waited:.0f} s: {why}")
            return
        pause = min(2 * self.state.pause, LONGEST_PAUSE)
        self.enter(Phase.UNREGISTERED, due=self.now + self.state.pause, pause=pause, why=why)

    def give_up(self, reason: str) -> None:
        self.enter(Phase.GIVEN_UP)
        self.commands.append(GiveUp(reason))

    def lose(self, why: str) -> None:
        """End the registration. The next try is due at once."""
        self.enter(Phase.UNREGISTERED, registered=None, since=self.now, due=self.now, why=why)


def step(state: Registration, event: Event, now: float) -> tuple[Registration, tuple[Command, ...]]:
    """Apply one event.

    Outcomes of an earlier registration change nothing (R8). Otherwise the late refusal of a heartbeat to one
    ResourceManager would end the registration with the next.
    """
    this = Step(state, now)
    if isinstance(event, Tick) and event.busy and state.phase is not Phase.GIVEN_UP:
        this.set(since=now)
    if isinstance(event, Tick) or event.number == state.number:
        _react(this, event)
    return this.result()


def _react(this: Step, event: Event) -> None:
    state, now = this.state, this.now
    match state.phase, event:
        case Phase.UNREGISTERED, Tick() if now >= state.due:
            number = state.number + 1
            this.enter(Phase.REGISTERING, number=number, due=now + TRY_TIMEOUT + TRY_MARGIN)
            this.commands.append(Register(number))
        case Phase.REGISTERING, Tick() if now >= state.due:
            this.set(earlier_since=None)
            this.again("the last try has no outcome")
        case Phase.REGISTERING, Accepted(_, registered):
            if state.leader is not None and registered.leader_id < state.leader:
                _replaced(this, registered.leader_id)
            else:
                _registered(this, registered)
        case Phase.REGISTERING, NotAccepted(_, why):
            this.set(earlier_since=None)
            this.again(why)
        case Phase.REGISTERED, Tick():
            _beat(this)
        case Phase.REGISTERED, BeatAnswered():
            this.set(heard=now, unreachable=0)
        case Phase.REGISTERED, BeatRefused(_, why):
            this.lose(why)
        case Phase.REGISTERED, BeatLost(_, why, unreachable):
            this.set(unreachable=state.unreachable + 1 if unreachable else 0)
            if this.state.unreachable >= UNREACHABLE_IS_LOST:
                this.lose(why)


def next_wakeup(state: Registration) -> float | None:
    if state.phase is Phase.REGISTERED and state.registered is not None:
        return min(state.due, state.heard + state.registered.heartbeat_timeout)
    return state.due if state.phase in (Phase.UNREGISTERED, Phase.REGISTERING) else None


def check_invariants(state: Registration) -> None:
    """Check the state. Raises InvariantViolated."""
    if (state.phase is Phase.REGISTERED) != (state.registered is not None):
        raise InvariantViolated(f"{state.phase.name} with {state.registered}")
    if state.registered is not None and state.registered.leader_id != state.leader:
        raise InvariantViolated(f"registered with {state.registered.leader_id}, but {state.leader} is followed")


def _registered(this: Step, registered: Registered) -> None:
    this.enter(
        Phase.REGISTERED,
        leader=registered.leader_id,
        earlier_since=None,
        registered=registered,
        heard=this.now,
        unreachable=0,
        due=this.now + registered.heartbeat_interval,
        pause=FIRST_PAUSE,
    )


def _replaced(this: Step, leader: LeaderId) -> None:
    """R1: Do not follow an earlier leader. If only that one answers for long, the daemon has lost its state.

    Then this process gives up: only a process that remembers no later leader can follow it, and whoever started this
    one starts another.
    """
    state, now = this.state, this.now
    since = now if state.earlier_since is None else state.earlier_since
    if now - since >= STATE_IS_LOST:
        only = f"for {now - since:.0f} s only {leader} answers, which is earlier than {state.leader}"
        this.give_up(f"the ResourceManager has lost its state: {only}")
        return
    this.set(earlier_since=since)
    this.again(f"the ResourceManager {leader} was replaced")


def _beat(this: Step) -> None:
    """Send a heartbeat each interval, even if the last one was not answered: one lost beat must not delay the next."""
    state, now, registered = this.state, this.now, this.state.registered
    assert registered is not None
    if now >= state.heard + registered.heartbeat_timeout:
        this.lose(f"the ResourceManager is silent for {now - state.heard:.1f} s")
    elif now >= state.due:
        this.set(due=now + registered.heartbeat_interval)
        this.commands.append(
            Beat(state.number, registered.instance_id, registered.leader_id, 2 * registered.heartbeat_interval)
        )
