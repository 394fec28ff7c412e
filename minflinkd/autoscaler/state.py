"""What the autoscaler remembers of a job between two readings, and what a change leaves of it. Pure.

All of it is in memory. After the daemon's death it begins anew, which is safe: it then knows less, and waits for more.
What must outlive the daemon is in the job's versions: its parallelism, and when it was changed last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from minflinkd.autoscaler.demand import GroupDemand
from minflinkd.autoscaler.effect import LEAST, OVER, Ceiling, Trial, gain
from minflinkd.autoscaler.readings import Change, JobReading, Track
from minflinkd.rpc.autoscaler import LIMITED
from minflinkd.runtime.ids import TaskId

KEPT: Final = 3600.0  # seconds for which a ceiling and a floor hold
FIRST_PAUSE: Final = 300.0  # seconds after slots could not be had; doubled with each time
LONGEST_PAUSE: Final = 1800.0


class Verdict(StrEnum):
    """What comes of a reading."""

    STAYS = "stays"  # it has what it needs
    UP = "scale-up"
    DOWN = "scale-down"
    WAITS = "waits"  # for the cool-down, for figures, for a restart to end
    LIMITED = LIMITED  # it needs more than it can get


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the job file says. Times in seconds."""

    target: float
    least: int
    most: int
    cool_down: float
    down_delay: float
    catch_up: float


@dataclass(frozen=True, kw_only=True)
class Floor:
    """So many slots were too few for so many rows per second."""

    slots: int
    rate: float
    until: float


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """Slots that could not be had."""

    wanted: Mapping[str, int]
    until: float
    times: int
    why: str


@dataclass(frozen=True)
class Need:
    """What was needed at one moment: slots, and whether that is certain enough to act on."""

    at: float
    wanted: float
    too_few: bool
    quiet: bool  # its micro-batches are short, and nothing waits


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The change that was asked for last."""

    at: float
    number: int = 0  # of the restart; 0: not accepted yet, or refused
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, kw_only=True)
class State:
    """What is remembered of a job between two readings. A new one is safe: it only knows less, and waits for more."""

    tracks: Mapping[TaskId, Track] = field(default_factory=dict)
    needs: Mapping[str, tuple[Need, ...]] = field(default_factory=dict)  # by group, since the last change
    asked: Asked | None = None
    seen: int | None = None  # number of the newest change that is accounted for; None: not looked yet
    trials: tuple[Trial, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    floors: Mapping[str, Floor] = field(default_factory=dict)
    lowered: Mapping[str, int] = field(default_factory=dict)  # by group: to how many slots it was scaled down last
    blocked: Blocked | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and why. `wanted`: slots by group, to have now; empty: nothing changes."""

    verdict: Verdict
    why: str
    wanted: Mapping[str, int] = field(default_factory=dict)
    demands: tuple[GroupDemand, ...] = ()


def accepted(state: State, number: int) -> State:
    """The change that was decided on is restart `number`."""
    return state if state.asked is None else replace(state, asked=replace(state.asked, number=number))


def refused(state: State, why: str, now: float) -> State:
    """The change that was decided on was refused."""
    return state if state.asked is None else _blocked(replace(state, trials=()), state.asked.after, why, now)


def noted(state: State, reading: JobReading) -> State:
    """Account for changes. After one of somebody else's, what was learned before does not count any more."""
    change = reading.last_change
    if change is None or not change.over or change.number == state.seen:
        return replace(state, seen=0) if state.seen is None and change is None else state
    if state.asked is not None and state.asked.number == change.number:
        return _own_change(state, state.asked, change)
    return replace(state, seen=change.number) if state.seen is None else State(seen=change.number)


def _own_change(state: State, asked: Asked, change: Change) -> State:
    state = replace(state, seen=change.number, needs={})
    if change.error:
        return _blocked(state, asked.after, change.error, change.at)
    lowered = {group: n for group, n in asked.after.items() if n < asked.before.get(group, n)}
    return replace(state, trials=asked.trials, lowered={**state.lowered, **lowered}, blocked=None)


def _blocked(state: State, wanted: Mapping[str, int], why: str, now: float) -> State:
    times = 1 if state.blocked is None else state.blocked.times + 1
    pause = min(FIRST_PAUSE * 2.0 ** (times - 1), LONGEST_PAUSE)
    return replace(state, blocked=Blocked(wanted=wanted, until=now + pause, times=times, why=why))


def judged(state: State, reading: JobReading) -> State:
    """See whether more slots have helped, and forget what is too old."""
    now, left = reading.at, list[Trial]()
    ceilings = [ceiling for ceiling in state.ceilings if ceiling.until > now]
    for trial in state.trials:
        track = state.tracks.get(trial.task)
        found = None if track is None else gain(trial, track.batches)
        if found is None:
            if track is not None and now < trial.at + OVER:
                left.append(trial)
        elif found < LEAST:
            why = (
                f"{trial.after} slots instead of {trial.before} saved {max(0.0, found):.0%} of the time that they "
                f"should have saved for task {trial.name}"
            )
            ceilings.append(Ceiling(group=trial.group, slots=trial.after, until=now + KEPT, why=why))
    floors = {group: floor for group, floor in state.floors.items() if floor.until > now}
    return replace(state, trials=tuple(left), ceilings=tuple(ceilings), floors=floors)
