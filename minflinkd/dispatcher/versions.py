"""The versions of one job, and the hot restart that leads from one to the next (H1 - H3, H7 - H9). Pure.

    HANDING_OVER   the old version is current; it takes its last checkpoint, and its tasks end (or are left to the new
                   version, if that is the same with other slots)
    STARTING       the new version is current; it has not completed a checkpoint yet
    ON_TRIAL       the same, but it has found no input; lasts as long as none comes
    TURNING_BACK   the new version is current, and failed; its tasks end

`LEGAL` has every move of one restart. `hot_restart.py` tells the whole way in order.

`Versions` is stored as a whole, before anything is done that follows from it. So whoever brings the job up, whatever
else was lost, brings up the current version recorded there. No version is brought up before the previous one has stood
down or is fenced off by a later JobMaster (R13). So exactly one runs (H8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobmaster.sinks import sink_roots
from minflinkd.rpc.jobs import HotRestart, Rescaled
from minflinkd.rpc.jobs import RestartState as State
from minflinkd.runtime import machine
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.machine import InvariantViolated, move, table

KEPT = 32  # ended restarts

LEGAL = table(
    {
        State.HANDING_OVER: {
            State.STARTING,  # the old version has made way
            State.FAILED,  # it has not, and goes on
            State.TURNING_BACK,  # the daemon died, and the current version was not proven either
            State.REPLACED,
            State.ABANDONED,
        },
        State.STARTING: {State.ON_TRIAL, State.COMPLETED, State.TURNING_BACK, State.REPLACED, State.ABANDONED},
        State.ON_TRIAL: {State.COMPLETED, State.TURNING_BACK, State.REPLACED, State.ABANDONED},
        State.TURNING_BACK: {
            State.ROLLED_BACK,
            State.COMPLETED,  # its first checkpoint was complete after all
            State.REPLACED,
            State.ABANDONED,
        },
        # Ended. Another restart has another number.
        State.COMPLETED: set(),
        State.ROLLED_BACK: set(),
        State.FAILED: set(),
        State.REPLACED: set(),
        State.ABANDONED: set(),
    }
)

INTERRUPTED = ErrorInfo(
    code="hot-restart-interrupted",
    message="the daemon ended before the running version had made way",
    consequence=Consequence.RETRYABLE,
    hint="ask for it again",
)
_REPLACED = ErrorInfo(code="hot-restart-replaced", message="another hot restart took its place")
_JOB_ENDED = ErrorInfo(code="hot-restart-abandoned", message="the job was cancelled, or ended, before it was done")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """`base`: the last checkpoint before this version's own. State up to it belongs to an earlier version.

    `base_published`: the sinks of the earlier version have committed all that `base` covers, including sinks that are
    gone.
    """

    graph: JobGraph
    base: int = 0
    base_published: bool = False
    allow_non_restored: bool = False
    allow_changed: bool = False


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """`old`: the version to go back to. It is set once another version is current and not proven."""

    number: int
    requested_ms: int
    target: JobGraph
    phase: State = State.HANDING_OVER
    allow_non_restored: bool = False
    allow_changed: bool = False
    final: bool = True  # take a last checkpoint; otherwise start from the last completed one
    moves: bool = False  # the same version, on other TaskManagers than the draining ones (A15b)
    rescales: bool = False  # the same version, with other slots: nobody wants its tasks to be started again
    old: Version | None = None
    checkpoint_id: int = 0  # the new version starts from it; 0: not settled, or from none
    phases: dict[str, float] = {}  # seconds since the request
    error: ErrorInfo | None = None
    rescaled: tuple[Rescaled, ...] = ()
    reason: str = ""  # why the autoscaler has asked for it; "": somebody else has

    @property
    def unproven(self) -> bool:
        """Whether the new version is current but may yet be rolled back."""
        return self.phase in (State.STARTING, State.ON_TRIAL)

    def to(self, phase: State) -> Restart:
        """Move to `phase`. Raises IllegalTransition."""
        if phase is self.phase:
            return self
        return replace(self, phase=move(LEGAL, self.phase, phase, what=f"hot restart {self.number}"))


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """`current`: the version to bring up, whoever brings the job up."""

    current: Version
    restart: Restart | None = None
    past: tuple[HotRestart, ...] = ()  # newest last
    restarts: int = 0  # requested so far
    sinks: tuple[tuple[VertexId, str], ...] = ()  # of all versions so far: where they write files
    outcomes: dict[str, int] = {}  # number of ended restarts, by outcome

    @property
    def graphs(self) -> tuple[JobGraph, ...]:
        """The versions that may be brought up."""
        if (restart := self.restart) is None:
            return (self.current.graph,)
        return (self.current.graph, restart.target, *([restart.old.graph] if restart.old is not None else []))


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requested:
    """A version that was checked. Its artifacts are available."""

    graph: JobGraph = field(repr=False)  # too long for the machine's story
    allow_non_restored: bool = False
    allow_changed: bool = False
    final: bool = True
    replace: bool = False
    moves: bool = False
    rescales: bool = False
    reason: str = ""


@dataclass(frozen=True)
class StoodDown:
    """Nothing of the current version runs any more. `latest`: the last complete checkpoint; 0 for none.

    `published`: its tasks have reported that all of it is committed. `tasks_run`: its tasks run on, because the next
    version only wants other slots for them (R20).
    """

    latest: int
    published: bool = False
    tasks_run: bool = False


@dataclass(frozen=True)
class NotStoodDown:
    error: ErrorInfo


@dataclass(frozen=True)
class Running:
    """All tasks of the new version are RUNNING. `milestones`: phase -> when it ended, in milliseconds."""

    milestones: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Idle:
    """The new version runs and has looked for input, but found none. Nothing shows yet how it handles rows."""


@dataclass(frozen=True)
class Proven:
    """The current version has completed a checkpoint."""

    checkpoint_id: int
    milestones: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Disproved:
    """The current version failed."""

    error: ErrorInfo


@dataclass(frozen=True)
class Overdue:
    """The new version has not become RUNNING for the first time within its time limit."""

    error: ErrorInfo


@dataclass(frozen=True)
class Recovered:
    """The job is up again after what interrupted its restart, in the current version. `latest`: its last checkpoint."""

    latest: int
    why: ErrorInfo = INTERRUPTED


@dataclass(frozen=True)
class Ended:
    """The job is cancelled, or in its terminal state. `finished`: the current version has processed all input."""

    finished: bool = False


Event = Requested | StoodDown | NotStoodDown | Running | Idle | Proven | Disproved | Overdue | Recovered | Ended


class Command(StrEnum):
    """What to do once the new state is stored."""

    TAKE_CHECKPOINT_AND_STAND_DOWN = "take-checkpoint-and-stand-down"
    STAND_DOWN = "stand-down"
    BRING_UP = "bring-up"  # the version that is current now
    TAKE_OVER = "take-over"  # the same, and it goes on with the tasks that run
    GO_ON = "go-on"  # the version that was to stand down keeps running


class Step(machine.Step[Versions, Command]):
    @property
    def now_ms(self) -> int:
        return round(self.now * 1000)

    def end(self, restart: Restart, outcome: State) -> None:
        """The restart is over."""
        past = (*self.state.past, record(restart.to(outcome)))[-KEPT:]
        outcomes = {**self.state.outcomes, outcome.value: self.state.outcomes.get(outcome.value, 0) + 1}
        self.set(restart=None, past=past, outcomes=outcomes)

    def fail(self, restart: Restart, error: ErrorInfo) -> None:
        """The restart came to nothing. The current version stays."""
        self.end(replace(_marked(restart, {"failed": self.now_ms}), error=error), State.FAILED)

    def turn_back(self, restart: Restart, error: ErrorInfo) -> None:
        """The current version makes way for the one before it."""
        self.set(restart=replace(_marked(restart, {"failed": self.now_ms}).to(State.TURNING_BACK), error=error))
        self.commands.append(Command.STAND_DOWN)


def step(state: Versions, event: Event, now: float) -> tuple[Versions, tuple[Command, ...]]:
    """Apply one event. A late event changes nothing. `now`: seconds since 1970, as the record outlives the daemon.

    Raises Conflict for a request that cannot be accepted (H9).
    """
    this = Step(state, now)
    if isinstance(event, Requested):
        _requested(this, event)
    elif state.restart is not None:
        _react(this, state.restart, event)
    return this.result()


def _react(this: Step, restart: Restart, event: Event) -> None:
    """Apply an event that is about the restart under way."""
    match event:
        case StoodDown():
            _stood_down(this, restart, event)
        case NotStoodDown(error):
            _not_stood_down(this, restart, error)
        case Running(milestones) if restart.unproven:
            this.set(restart=_marked(restart, {**milestones, "running": this.now_ms}))
        case Idle() if restart.phase is State.STARTING:
            this.set(restart=restart.to(State.ON_TRIAL))
        case Proven(latest, milestones) if restart.unproven and latest > this.state.current.base:
            this.end(_marked(restart, {**milestones, "first_checkpoint": this.now_ms}), State.COMPLETED)
        case Disproved(error) if restart.unproven:
            this.turn_back(restart, error)
        case Overdue(error) if restart.phase is State.STARTING and "running" not in restart.phases:
            this.turn_back(restart, error)
        case Recovered(latest, why):
            _recovered(this, restart, latest, why)
        case Ended(finished) if finished and restart.unproven:
            this.end(restart, State.COMPLETED)
        case Ended():
            this.end(replace(restart, error=_JOB_ENDED), State.ABANDONED)


def refuse_beside_another(state: Versions, *, replaces: bool, moves: bool = False) -> None:
    """H9: Raises Conflict if a restart is under way, unless the request replaces it.

    A version on trial may be replaced. So may a move (A15b), because it may wait for slots for minutes. A user's
    request goes first, and the job moves with it or afterwards. A request that only `moves` the job replaces nothing.
    """
    under_way = state.restart
    if under_way is None or replaces:
        return
    if moves or not (under_way.phase is State.ON_TRIAL or (under_way.moves and under_way.phase is State.HANDING_OVER)):
        raise Conflict(
            f"hot restart {under_way.number} of the job is under way ({under_way.phase.value})",
            hint="wait for its end, or replace it (`minflinkd hot-restart --replace`)",
        )


def _requested(this: Step, event: Requested) -> None:
    refuse_beside_another(this.state, replaces=event.replace, moves=event.moves)
    before = this.state.restart
    restart = Restart(
        number=this.state.restarts + 1,
        requested_ms=this.now_ms,
        target=event.graph,
        allow_non_restored=event.allow_non_restored,
        allow_changed=event.allow_changed,
        final=event.final,
        moves=event.moves,
        rescales=event.rescales,
        old=before.old if before is not None else None,
        rescaled=rescaled(this.state.current.graph, event.graph),
        reason=event.reason,
    )
    if before is not None:
        this.end(replace(before, error=_REPLACED), State.REPLACED)
    if before is None and event.final:
        this.commands.append(Command.TAKE_CHECKPOINT_AND_STAND_DOWN)
    elif before is None or before.unproven:  # an unproven version has nothing worth a checkpoint
        this.commands.append(Command.STAND_DOWN)
    # Otherwise the current version already stands down.
    old_sinks, new_sinks = sink_roots(this.state.current.graph), sink_roots(event.graph)
    sinks = tuple(dict.fromkeys((*this.state.sinks, *old_sinks, *new_sinks)))
    this.set(restart=restart, restarts=restart.number, sinks=sinks)


def _stood_down(this: Step, restart: Restart, event: StoodDown) -> None:
    if restart.unproven:
        return
    latest, current = event.latest, this.state.current
    restart = _marked(restart, {"handed_over" if event.tasks_run else "stopped": this.now_ms})
    unproven = restart.old is not None and latest <= current.base
    if restart.phase is State.HANDING_OVER:
        target = Version(
            graph=restart.target,
            base=latest,
            base_published=event.published,
            allow_non_restored=restart.allow_non_restored,
            allow_changed=restart.allow_changed,
        )
        back = restart.old if unproven else current
        this.set(current=target, restart=replace(restart.to(State.STARTING), old=back, checkpoint_id=latest))
    elif unproven:
        assert restart.old is not None
        this.set(current=restart.old)
        this.end(restart, State.ROLLED_BACK)
    else:  # its first checkpoint was complete after all
        this.end(replace(restart, error=None), State.COMPLETED)
    this.commands.append(Command.TAKE_OVER if event.tasks_run else Command.BRING_UP)


def _not_stood_down(this: Step, restart: Restart, error: ErrorInfo) -> None:
    """A version that must be left for good is asked again. One that may stay keeps running."""
    if restart.unproven:
        return
    if restart.old is not None:
        this.commands.append(Command.STAND_DOWN)
    else:
        this.fail(restart, error)
        this.commands.append(Command.GO_ON)


def _recovered(this: Step, restart: Restart, latest: int, why: ErrorInfo) -> None:
    proven = restart.old is not None and latest > this.state.current.base
    if proven and restart.phase is not State.HANDING_OVER:
        this.end(replace(restart, error=None), State.COMPLETED)
    elif proven or restart.old is None:
        this.fail(restart, restart.error or why)
    elif not restart.unproven:
        this.turn_back(restart, restart.error or why)


def _marked(restart: Restart, times: Mapping[str, int]) -> Restart:
    """Record when these phases were reached, in milliseconds. The first time counts."""
    fresh = {phase: at_ms for phase, at_ms in times.items() if phase not in restart.phases}
    seconds = {phase: max(0, at_ms - restart.requested_ms) / 1000 for phase, at_ms in fresh.items()}
    return replace(restart, phases={**restart.phases, **seconds})


def durable(state: Versions) -> Versions:
    """Return what is worth a write: the state without the phase times of a restart that is under way."""
    return state if state.restart is None else replace(state, restart=replace(state.restart, phases={}))


def record(restart: Restart) -> HotRestart:
    return HotRestart(
        number=restart.number,
        state=restart.phase,
        requested_ms=restart.requested_ms,
        checkpoint_id=restart.checkpoint_id or None,
        phases=restart.phases,
        error=restart.error,
        rescaled=restart.rescaled,
        reason=restart.reason,
    )


def rescaled(before: JobGraph, after: JobGraph) -> tuple[Rescaled, ...]:
    """Return the vertices of both versions whose parallelism differs."""
    old = {vertex.id: vertex.parallelism or before.parallelism for vertex in before.vertices}
    new = {vertex.id: vertex.parallelism or after.parallelism for vertex in after.vertices}
    return tuple(Rescaled(vertex, old[vertex], n) for vertex, n in new.items() if old.get(vertex, n) != n)


def shown(versions: Versions) -> tuple[HotRestart, ...]:
    """H10: Return the restarts, newest first."""
    under_way = () if versions.restart is None else (record(versions.restart),)
    return (*under_way, *reversed(versions.past))


def check_invariants(state: Versions) -> None:
    """Raises InvariantViolated."""
    restart = state.restart
    if any(not record.state.over for record in state.past):
        raise InvariantViolated("a restart among the ended ones has not ended")
    if restart is None:
        return
    if restart.number != state.restarts:
        raise InvariantViolated(f"restart {restart.number} is under way, and {state.restarts} were requested")
    if restart.phase.over:
        raise InvariantViolated(f"the restart under way has ended: {restart.phase.value}")
    if restart.phase is not State.HANDING_OVER and restart.old is None:
        raise InvariantViolated("a version on trial has none before it to go back to")
    if restart.unproven and restart.target != state.current.graph:
        raise InvariantViolated("the version that starts is not the one that was asked for")
    if any(record.number >= restart.number for record in state.past):
        raise InvariantViolated("a restart that has ended is later than the one under way")
