"""Decides how many TaskManagers there should be: which start, end, or renew their session (R3, R6, R6a, R24). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import is_special, least
from minflinkd.resourcemanager.rooms import Missing, Rooms, is_coming, lay, room_of
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import Presence, Shelf, TaskManager, TaskManagerState
from minflinkd.runtime.ids import JobId

FAILED_STARTS = 3  # in a row, before those who wait are told that none will come
CALM = 10.0  # seconds without a slot taken or an analysis begun, before a session may be renewed
DOUBLED = 3  # number of times that the time for a start is doubled, at most
LONGEST_START = 10.0  # start timeouts that the start of a session may take, even if it makes progress
RECOVERY = 3.0  # seconds after a loss that jobs noticed, in which no spare is started: it would slow them down
LONELY = 30.0  # seconds that an idle dedicated TaskManager waits for its job, or the job's next JobMaster


def cannot_start(state: Resources, options: ResourceManagerOptions) -> str | None:
    """Return why no further TaskManager is started, however much one is wanted; None if one can be."""
    if not options.can_start:
        return "none is started here, they register by themselves (resourcemanager.driver: standalone)"
    if state.count() >= options.max:
        return f"no more than {options.max} TaskManagers may run (resourcemanager.max-taskmanagers)"
    return None


def no_start(state: Resources) -> str | None:
    """Return why no TaskManager will come; None if one may."""
    if state.starts.failed < FAILED_STARTS:
        return None
    return f"no TaskManager could be started: {state.starts.failed} starts in a row failed, the last: " + (
        state.starts.reason
    )


def start_patience(state: Resources, options: ResourceManagerOptions) -> float:
    """Return the seconds without progress after which a start is given up.

    They double with each failed start. On a busy machine, a time too short for the last start may be enough for the
    next.
    """
    return options.start_timeout * 2.0 ** min(state.starts.failed, DOUBLED)


def hangs(tm: TaskManager, state: Resources, options: ResourceManagerOptions, now: float) -> str | None:
    """Return why a starting TaskManager is given up. If its session makes progress, it is waited for, up to a limit."""
    patience = start_patience(state, options)
    if tm.state is TaskManagerState.STARTING:
        why = f": {tm.waits}" if tm.waits else ""
        return f"it did not register within {patience:g} s{why}" if now - tm.since >= patience else None
    if not tm.idle or tm.ready or tm.standalone:
        return None
    taken = now - tm.readiness_since
    if now - max(tm.readiness_since, tm.got_on) >= patience or taken >= LONGEST_START * options.start_timeout:
        return f"its session was not ready for {taken:.0f} s"
    return None


def coming(state: Resources, options: ResourceManagerOptions, now: float) -> int:
    """Return how many TaskManagers, or their sessions, are starting."""
    return sum(
        len(found)
        if shelf.presence is Presence.STARTING
        else sum(is_coming(state.task_managers[resource_id], options, now) for resource_id in found)
        for shelf, found in state.shelves.items()
        if shelf.presence is not Presence.READY
    )


def starts_wanted(state: Resources, options: ResourceManagerOptions, now: float) -> tuple[TaskManagerSize, ...]:
    """Return the sizes of TaskManagers to start now, so that all needs have room and `standby` is kept.

    Each need is placed, the largest first, in the tightest room that takes it: coming slots serve one need each (R3). A
    need to grow beside a TaskManager starts nothing: what it was not given at once is wished for (R20). Standbys have
    the default size.
    """
    if cannot_start(state, options) is not None or now < state.starts.not_before:
        return ()
    most = min(options.max - state.count(), options.max_concurrent_starts - _starts_under_way(state, options, now))
    if most <= 0:
        return ()
    rooms = Rooms(state, options, now)
    lay(state, options, now, rooms, most)
    spares = max(0, options.standby - rooms.spares()) if now >= state.spares_from else 0
    sizes = [missing.size for missing in rooms.added] + [options.size] * spares
    return tuple(sizes[:most])


def in_the_way(state: Resources, options: ResourceManagerOptions, now: float) -> tuple[TaskManager, str] | None:
    """Return an idle TaskManager that has to end so that one of another size can start, and why (R40).

    That is so if there are as many as there may be, and nobody who waits can use it. It may be a standby: the longest
    idle one ends.
    """
    if not any(need.profile for needs in state.open_needs.values() for need in needs):
        return None
    if not options.can_start or state.count() < options.max or now < state.starts.not_before or no_start(state):
        return None
    if _starts_under_way(state, options, now) >= options.max_concurrent_starts:
        return None
    rooms = Rooms(state, options, now, to_any=True)
    lay(state, options, now, rooms)
    wanted = next((missing for missing in rooms.added if missing.profile), None)
    if wanted is None:
        return None
    idle = [tm for tm in state.living() if tm.idle and not (tm.standalone or tm.analysing) and tm.shelf is not None]
    for tm in sorted(idle, key=lambda tm: tm.idle_since):
        if tm.shelf is not None and _makes_way(state, options, rooms, tm.shelf, wanted):
            return tm, f"it makes way for a TaskManager of {wanted.size}"
    return None


def _makes_way(state: Resources, options: ResourceManagerOptions, rooms: Rooms, shelf: Shelf, wanted: Missing) -> bool:
    """Whether nobody who waits can use an idle TaskManager of this shelf."""
    if not shelf.dedicated_to:
        return rooms.untouched(room_of(shelf, options))
    needs = state.open_needs.get(JobId(shelf.dedicated_to), ())
    return bool(needs) and not any(shelf.profile.covers(n.profile) and shelf.free >= least(n) for n in needs)


def _starts_under_way(state: Resources, options: ResourceManagerOptions, now: float) -> int:
    """Count the starts of processes and of first sessions in them.

    A start that takes long may hang, so it is not counted and keeps no other from starting.
    """
    return sum(
        now - state.task_managers[resource_id].readiness_since < options.start_timeout / 2
        for shelf, found in state.shelves.items()
        if shelf.presence is not Presence.READY and not shelf.proven
        for resource_id in found
    )


def spares(state: Resources, options: ResourceManagerOptions) -> int:
    """Return the number of wholly free TaskManagers for any job, ready or on their way.

    Aged ones do not count, nor do those that are kept for jobs with special demands.
    """
    return sum(len(found) for shelf, found in state.shelves.items() if _is_spare(shelf, options))


def _is_spare(shelf: Shelf, options: ResourceManagerOptions) -> bool:
    return shelf.idle and not shelf.dedicated_to and not shelf.aged and not is_special(shelf, options)


def surplus(state: Resources, options: ResourceManagerOptions, now: float) -> Iterator[tuple[TaskManager, str]]:
    """Yield idle TaskManagers that should end, and why; the longest idle first.

    There are three kinds. Draining TaskManagers end at once (A15b). TaskManagers beyond `standby` and `min` end after
    they have been idle for too long (R6), unless they are standalone. Dedicated ones end if their job does not need
    them (R24), because no other job can use them.
    """
    total, spare = state.count(), spares(state, options)
    waiting = any(need.beside is None for needs in state.open_needs.values() for need in needs)
    wanted = options.standby if options.standby or not state.wishes else 1
    for tm in sorted((tm for tm in state.living() if tm.idle), key=lambda tm: tm.idle_since):
        idle = now - tm.idle_since
        if tm.draining:
            if not tm.analysing:
                yield tm, "it is draining, and all its slots are free"
            continue
        if tm.dedicated_to is not None:
            past = state.past.get(tm.dedicated_to)
            if not tm.analysing and (idle >= LONELY or (past is not None and past.ended)):
                total -= 1
                yield tm, f"job {tm.dedicated_to}, whose own it was, does not need it any more"
            continue
        if tm.standalone or tm.analysing or waiting or idle < options.taskmanager_timeout or total <= options.min:
            continue
        counts = tm.shelf is not None and _is_spare(tm.shelf, options)
        if not counts or spare > wanted:
            spare, total = spare - counts, total - 1
            yield tm, f"idle for {idle:.0f} s, and not needed as a standby"


def to_renew(state: Resources, options: ResourceManagerOptions, now: float) -> Iterator[TaskManager]:
    """Yield idle TaskManagers with an aged session, the longest aged first.

    If a standby is kept, a spare must be ready to stand in. If no spare can be had, none is waited for, because that
    would never end.
    """
    aged = [
        state.task_managers[resource_id]
        for shelf, found in state.shelves.items()
        if shelf.presence is Presence.READY and shelf.aged and shelf.idle
        for resource_id in found
    ]
    if not aged:
        return
    ready = sum(
        len(found) for s, found in state.shelves.items() if s.presence is Presence.READY and _is_spare(s, options)
    )
    helpless = cannot_start(state, options) is not None or state.starts.failed > 0
    if ready < min(1, options.standby) and not helpless:
        return
    renewing = sum(len(found) for shelf, found in state.shelves.items() if shelf.presence is Presence.COMING)
    calm = [tm for tm in aged if not tm.analysing and now >= tm.rest_until and now - tm.idle_since >= CALM]
    yield from calm[: max(0, options.max_concurrent_starts - renewing)]
