"""How many TaskManagers there are to be (R3, R5, R6), and what a job that waits for one is told. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.state import Resources, TaskManager, TaskManagerState
from minflinkd.rpc.messages import NeedsAnswer
from minflinkd.runtime.ids import JobId

FAILED_STARTS = 3  # in a row, before who waits is told that there will be none


@dataclass
class _Room:
    """A TaskManager that is there or coming, while needs are laid into it."""

    free: int
    whole: bool  # a spare one: nothing lies in it


def is_coming(tm: TaskManager, options: ResourceManagerOptions, now: float) -> bool:
    """Whether its slots can be counted on soon: it starts, or its session does."""
    if tm.state is TaskManagerState.STARTING:
        return True
    return tm.registered and not tm.ready and now - tm.phase_since < options.start_timeout


def starts_wanted(state: Resources, options: ResourceManagerOptions, now: float) -> int:
    """TaskManagers to start now, so that all needs have room, and `standby` and `min` are kept.

    Needs are laid, the largest first, into the tightest room that takes them: coming slots serve one need each (R3).
    """
    if now < state.starts.not_before:
        return 0
    living = list(state.living())
    rooms = list(_rooms(living, options, now))
    wanted = [slots for _, _, slots in state.unserved()] + [wish.slots for wish in state.wishes.values()]
    starts = 0
    for slots in sorted(wanted, reverse=True):
        if slots > options.slots_per_tm:
            continue  # no start would help
        fitting = [room for room in rooms if room.free >= slots]
        if fitting:
            room = min(fitting, key=lambda room: room.free)
        else:
            room = _Room(options.slots_per_tm, whole=True)
            rooms.append(room)
            starts += 1
        room.free -= slots
        room.whole = room.whole and slots == 0
    starts += max(0, options.standby - sum(room.whole for room in rooms))
    starts = max(starts, options.min - len(living))
    in_progress = sum(is_coming(tm, options, now) and not tm.was_ready for tm in living)
    return max(0, min(starts, options.max - len(living), options.max_concurrent_starts - in_progress))


def surplus(state: Resources, options: ResourceManagerOptions, now: float) -> Iterator[TaskManager]:
    """Idle TaskManagers beyond `standby` and `min`, whose time is over (R6); the longest idle first."""
    if any(True for _ in state.unserved()):
        return
    living = list(state.living())
    spare = sum(room.whole for room in _rooms(living, options, now))
    total = len(living)
    wanted = options.standby if options.standby or not state.wishes else 1
    for tm in sorted(living, key=lambda tm: tm.idle_since):
        if tm.idle and now - tm.idle_since >= options.taskmanager_timeout and spare > wanted and total > options.min:
            spare, total = spare - 1, total - 1
            yield tm


def needs_answer(state: Resources, options: ResourceManagerOptions, job_id: JobId, now: float) -> NeedsAnswer:
    """What becomes of the needs that have no slots yet (R5)."""
    largest = max([options.slots_per_tm, *(len(tm.slots) for tm in state.living())])
    refused, waiting = {}, {}
    for job, allocation, slots in state.unserved():
        if job != job_id:
            continue
        if slots > largest:
            refused[allocation] = f"{slots} slots of one TaskManager are needed; a TaskManager has {largest}"
        elif (why := no_start(state)) is not None:
            refused[allocation] = f"{slots} slots are needed, {_free(state)} are free; {why}"
        else:
            waiting[allocation] = f"{slots} slots are needed, {_free(state)} are free; {_outlook(state, options, now)}"
    return NeedsAnswer(refused=refused, waiting=waiting)


def no_start(state: Resources) -> str | None:
    """Why no TaskManager will come, where that is so."""
    if state.starts.failed < FAILED_STARTS:
        return None
    return f"no TaskManager could be started: {state.starts.failed} starts in a row failed, the last: " + (
        state.starts.reason
    )


def _rooms(living: list[TaskManager], options: ResourceManagerOptions, now: float) -> Iterator[_Room]:
    for tm in living:
        if tm.state is TaskManagerState.STARTING:
            yield _Room(options.slots_per_tm, whole=True)
        elif tm.ready or is_coming(tm, options, now):
            yield _Room(len(tm.free), whole=tm.idle)


def _free(state: Resources) -> int:
    return sum(len(tm.free) for tm in state.living() if tm.ready)


def _outlook(state: Resources, options: ResourceManagerOptions, now: float) -> str:
    coming = sum(is_coming(tm, options, now) for tm in state.living())
    if coming:
        return f"waiting for {coming} TaskManager{'s' if coming > 1 else ''} to become ready"
    if state.starts.failed:
        return f"the last start of a TaskManager failed and will be repeated: {state.starts.reason}"
    if sum(1 for _ in state.living()) >= options.max:
        return f"no more than {options.max} TaskManagers may run (resourcemanager.max-taskmanagers)"
    return "a TaskManager will be started"
