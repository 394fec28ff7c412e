"""The election of the leader, as one daemon sees it (A11). Pure; `elector` carries out the commands.

A daemon that takes part in the election has a claim in a coordination service. The service keeps claims in order, and
deletes a claim when it has heard nothing from the daemon for the session timeout. The daemon with the first claim
leads:

    OUTSIDE -> STANDBY -> CANDIDATE -> LEADING <-> SUSPENDED -> LOST -> OUTSIDE

A leader asks the service periodically whether its claim still exists. Each answer shows that nobody else can lead
before the session timeout has passed, counted from the moment when the question was *sent*. The lease is shorter than
the session timeout. So a leader without an answer has neither lost the leadership nor is it sure of it: it continues
until its lease ends. If an answer comes in time, nothing has happened. Otherwise the leader stops acting before another
daemon can begin to act.

The clock must run on while the process is stopped (SIGSTOP) or the machine sleeps. Then a process that wakes up notices
that its lease is over before it does anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from minflinkd.runtime.machine import InvariantViolated, Step, move, table


class Phase(Enum):
    OUTSIDE = auto()  # no claim, or none that this daemon knows of
    STANDBY = auto()  # other claims come first
    CANDIDATE = auto()  # the claim is first; the service has not yet recorded a new leadership
    LEADING = auto()
    SUSPENDED = auto()  # leads, but the connection to the service is lost; it acts until its lease ends
    LOST = auto()  # no longer leads; what it ran as the leader is being closed


LEGAL = table(
    {
        Phase.OUTSIDE: {Phase.STANDBY},
        Phase.STANDBY: {Phase.CANDIDATE, Phase.OUTSIDE},
        Phase.CANDIDATE: {Phase.LEADING, Phase.OUTSIDE},
        Phase.LEADING: {Phase.SUSPENDED, Phase.LOST},
        Phase.SUSPENDED: {Phase.LEADING, Phase.LOST},
        Phase.LOST: {Phase.OUTSIDE},
    }
)
LEADS = frozenset({Phase.LEADING, Phase.SUSPENDED})


@dataclass(frozen=True)
class Timing:
    """Durations in seconds. `lease` is shorter than the service's session timeout."""

    lease: float
    renewal: float  # between two checks of the claim while leading, and before anything that failed is tried again


# --- events -----------------------------------------------------------------------------------------------------------
# `claim` numbers the claims of this daemon. An event about an earlier claim comes too late and changes nothing.


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Joined:
    """The claim is in the service."""

    claim: int


@dataclass(frozen=True)
class First:
    """All claims before this one are gone."""

    claim: int


@dataclass(frozen=True)
class Recorded:
    """The service has recorded a new leadership for this claim. The request was sent at `asked_at`."""

    claim: int
    epoch: int
    asked_at: float


@dataclass(frozen=True)
class Confirmed:
    """The claim was there when the service answered a question sent at `asked_at`."""

    claim: int
    asked_at: float


@dataclass(frozen=True)
class Unanswered:
    """A request got no answer, or an answer that says nothing about the claim. It may have been carried out."""

    claim: int


@dataclass(frozen=True)
class Disconnected:
    """The connection to the service is lost. The claim may still be there."""


@dataclass(frozen=True)
class Gone:
    """The claim is not in the service any more: the session has expired, or somebody deleted it."""

    claim: int
    reason: str


@dataclass(frozen=True)
class Resigned:
    """This daemon cannot or will not lead: a component did not start, or it was told to hand over."""

    reason: str


@dataclass(frozen=True)
class SteppedDown:
    """All components of the leadership are closed."""


Event = Tick | Joined | First | Recorded | Confirmed | Unanswered | Disconnected | Gone | Resigned | SteppedDown

# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """Delete earlier claims that are left, and put a new claim into the service."""

    claim: int


@dataclass(frozen=True)
class Record:
    """Have the service record a new leadership, with a higher epoch than all before it, if the claim exists."""

    claim: int


@dataclass(frozen=True)
class Confirm:
    """Ask whether the claim exists."""

    claim: int


@dataclass(frozen=True)
class Lead:
    """Begin to lead."""

    epoch: int


@dataclass(frozen=True)
class StepDown:
    """Close all components of the leadership. TaskManagers and tasks keep running."""

    reason: str


@dataclass(frozen=True)
class Leave:
    """Delete the claim, so that another daemon can lead at once, however long this one takes to step down.

    If this fails, the next `Join` deletes the claim, or the service does when the session ends.
    """

    claim: int


Command = Join | Record | Confirm | Lead | StepDown | Leave

# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Election:
    timing: Timing
    phase: Phase = Phase.OUTSIDE
    claim: int = 0
    epoch: int = 0  # of this daemon's latest leadership
    confirmed_at: float = 0.0  # when the latest check that found the claim was sent
    asking: bool = False  # a request about the present claim is in flight
    due: float | None = 0.0  # when the next request is to be sent; None while one is in flight

    @property
    def lease_ends(self) -> float:
        return self.confirmed_at + self.timing.lease

    def may_act(self, now: float) -> bool:
        """Whether it is certain at `now` that nobody else leads."""
        return self.phase in LEADS and now < self.lease_ends

    @property
    def next_due(self) -> float | None:
        """When the machine wants a tick."""
        times = [] if self.due is None else [self.due]
        if self.phase in LEADS:
            times.append(self.lease_ends)
        return min(times, default=None)


_Step = Step[Election, Command]


def step(state: Election, event: Event, now: float) -> tuple[Election, tuple[Command, ...]]:
    this = _Step(state, now)
    if state.phase in LEADS and now >= state.lease_ends:
        # Even if the event is the answer: another daemon may have led since the lease ended.
        _lose(this, f"the coordination service has not answered for {now - state.confirmed_at:.1f} s")
        this.commands.append(Leave(state.claim))
    if getattr(event, "claim", this.state.claim) == this.state.claim:
        _take(this, event)
    return this.result()


def _take(this: _Step, event: Event) -> None:
    phase = this.state.phase
    match event:
        case Tick():
            _tick(this)
        case Joined() if phase is Phase.OUTSIDE:
            _to(this, Phase.STANDBY, asking=False, due=None)
        case First() if phase is Phase.STANDBY:
            _to(this, Phase.CANDIDATE, asking=True, due=None)
            this.commands.append(Record(this.state.claim))
        case Recorded(_, epoch, asked_at) if phase is Phase.CANDIDATE:
            _recorded(this, epoch, asked_at)
        case Confirmed(_, asked_at) if phase in LEADS:
            confirmed_at = max(asked_at, this.state.confirmed_at)
            this.set(asking=False, confirmed_at=confirmed_at, due=this.now + this.state.timing.renewal)
            if phase is Phase.SUSPENDED:
                _to(this, Phase.LEADING)
        case Unanswered() if this.state.asking:
            # A leader has little time: its lease began before it sent the unanswered question.
            pause = this.state.timing.renewal / (4 if phase in LEADS else 1)
            this.set(asking=False, due=this.now + pause)
        case Disconnected() if phase is Phase.LEADING:
            _to(this, Phase.SUSPENDED)
        case Gone() | Resigned():
            _gone(this, event)
        case SteppedDown() if phase is Phase.LOST:
            _outside(this)
        case _:
            pass  # of no interest in this phase, such as First when it leads already


def _tick(this: _Step) -> None:
    state = this.state
    if state.due is None or this.now < state.due:
        return
    this.set(asking=True, due=None)
    match state.phase:
        case Phase.OUTSIDE:
            this.set(claim=state.claim + 1)
            this.commands.append(Join(this.state.claim))
        case Phase.CANDIDATE:
            this.commands.append(Record(state.claim))
        case Phase.LEADING | Phase.SUSPENDED:
            this.commands.append(Confirm(state.claim))
        case Phase.STANDBY | Phase.LOST:
            this.set(asking=False)


def _recorded(this: _Step, epoch: int, asked_at: float) -> None:
    this.set(asking=False)
    if this.now >= asked_at + this.state.timing.lease:  # the answer is too old to say anything about now
        this.set(due=this.now)
        _tick(this)
        return
    _to(this, Phase.LEADING, epoch=epoch, confirmed_at=asked_at, due=this.now + this.state.timing.renewal)
    this.commands.append(Lead(epoch))


def _gone(this: _Step, event: Gone | Resigned) -> None:
    reason = event.reason
    if this.state.phase in LEADS:
        _lose(this, reason)
        if isinstance(event, Resigned):
            this.commands.append(Leave(this.state.claim))
    elif this.state.phase is not Phase.LOST:
        _outside(this)


def _lose(this: _Step, reason: str) -> None:
    _to(this, Phase.LOST, asking=False, due=None)
    this.commands.append(StepDown(reason))


def _outside(this: _Step) -> None:
    """Join again after a pause: a daemon that has just failed to lead lets others try first."""
    if this.state.phase is not Phase.OUTSIDE:
        _to(this, Phase.OUTSIDE)
    this.set(asking=False, due=this.now + this.state.timing.renewal)


def _to(this: _Step, phase: Phase, **changes: object) -> None:
    this.set(phase=move(LEGAL, this.state.phase, phase, what="election"), **changes)


def check_invariants(state: Election) -> None:
    """Raises InvariantViolated."""
    if state.phase in LEADS and state.epoch <= 0:
        raise InvariantViolated("a leader has no epoch")
    if state.phase in (Phase.OUTSIDE, Phase.CANDIDATE, *LEADS) and state.due is None and not state.asking:
        raise InvariantViolated(f"{state.phase.name} waits for nothing")
    if state.asking and state.due is not None:
        raise InvariantViolated(f"{state.phase.name} asks, and is to ask again")
    if state.phase in (Phase.STANDBY, Phase.LOST) and (state.asking or state.due is not None):
        raise InvariantViolated(f"{state.phase.name} asks for something")
