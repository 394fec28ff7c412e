"""A TaskManager's registration with the ResourceManager: register, beat, register again (m4 - m6, R10, R15). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from minflinkd.rpc.messages import Registered
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

    since: float  # seconds; since when there is no ResourceManager
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
    pass


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
Step = tuple[Registration, tuple[Command, ...]]


def step(state: Registration, event: Event, now: float) -> Step:
    if not isinstance(event, Tick) and event.number != state.number:
        return state, ()  # an outcome of an earlier registration
    match state.phase, event:
        case Phase.UNREGISTERED, Tick() if now >= state.due:
            number = state.number + 1
            state = replace(_to(state, Phase.REGISTERING), number=number, due=now + TRY_TIMEOUT + TRY_MARGIN)
            return state, (Register(number),)
        case Phase.REGISTERING, Tick() if now >= state.due:
            return _again(replace(state, earlier_since=None), "the last try has no outcome", now)
        case Phase.REGISTERING, Accepted(_, registered):
            if state.leader is not None and registered.leader_id < state.leader:
                return _replaced(state, registered.leader_id, now)
            return _registered(state, registered, now), ()
        case Phase.REGISTERING, NotAccepted(_, why):
            return _again(replace(state, earlier_since=None), why, now)
        case Phase.REGISTERED, Tick():
            return _beat(state, now)
        case Phase.REGISTERED, BeatAnswered():
            return replace(state, heard=now, unreachable=0), ()
        case Phase.REGISTERED, BeatRefused(_, why):
            return _lost(state, why, now), ()
        case Phase.REGISTERED, BeatLost(_, why, unreachable):
            state = replace(state, unreachable=state.unreachable + 1 if unreachable else 0)
            return (_lost(state, why, now) if state.unreachable >= UNREACHABLE_IS_LOST else state), ()
    return state, ()


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


def _to(state: Registration, phase: Phase) -> Registration:
    return replace(state, phase=move(LEGAL, state.phase, phase, what="registration"))


def _registered(state: Registration, registered: Registered, now: float) -> Registration:
    return replace(
        _to(state, Phase.REGISTERED),
        leader=registered.leader_id,
        earlier_since=None,
        registered=registered,
        heard=now,
        unreachable=0,
        due=now + registered.heartbeat_interval,
        pause=FIRST_PAUSE,
    )


def _replaced(state: Registration, leader: LeaderId, now: float) -> Step:
    """R1: Do not follow an earlier leader. If only that one answers for long, the daemon has lost its state.

    Then this process gives up: only a process that remembers no later leader can follow it, and whoever started this
    one starts another.
    """
    since = now if state.earlier_since is None else state.earlier_since
    if now - since >= STATE_IS_LOST:
        only = f"for {now - since:.0f} s only {leader} answers, which is earlier than {state.leader}"
        return _to(state, Phase.GIVEN_UP), (GiveUp(f"the ResourceManager has lost its state: {only}"),)
    return _again(replace(state, earlier_since=since), f"the ResourceManager {leader} was replaced", now)


def _again(state: Registration, why: str, now: float) -> Step:
    waited = now - state.since
    if 0 < state.give_up_after <= waited:
        reason = f"no ResourceManager took the registration for {waited:.0f} s: {why}"
        return _to(state, Phase.GIVEN_UP), (GiveUp(reason),)
    pause = min(2 * state.pause, LONGEST_PAUSE)
    return replace(_to(state, Phase.UNREGISTERED), due=now + state.pause, pause=pause, why=why), ()


def _beat(state: Registration, now: float) -> Step:
    """Send a heartbeat each interval, even if the last one was not answered: one lost beat must not delay the next."""
    registered = state.registered
    assert registered is not None
    if now >= state.heard + registered.heartbeat_timeout:
        return _lost(state, f"the ResourceManager is silent for {now - state.heard:.1f} s", now), ()
    if now < state.due:
        return state, ()
    beat = Beat(state.number, registered.instance_id, registered.leader_id, 2 * registered.heartbeat_interval)
    return replace(state, due=now + registered.heartbeat_interval), (beat,)


def _lost(state: Registration, why: str, now: float) -> Registration:
    """End the registration. The next try is due at once."""
    lost = replace(_to(state, Phase.UNREGISTERED), registered=None, since=now, due=now)
    return replace(lost, pause=FIRST_PAUSE, why=why)
