"""Decides how many TaskManagers there should be: which start, end, or renew their session (R3, R6, R6a, R24). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import covered, least
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import Presence, Shelf, TaskManager, TaskManagerState
from minflinkd.rpc.libraries import clash, together
from minflinkd.rpc.messages import Library
from minflinkd.runtime.ids import JobId

FAILED_STARTS = 3  # in a row, before those who wait are told that none will come
CALM = 10.0  # seconds without a slot taken or an analysis begun, before a session may be renewed
DOUBLED = 3  # number of times that the time for a start is doubled, at most
LONGEST_START = 10.0  # start timeouts that the start of a session may take, even if it makes progress
RECOVERY = 3.0  # seconds after a loss that jobs noticed, in which no spare is started: it would slow them down
LONELY = 30.0  # seconds that an idle dedicated TaskManager waits for its job, or the job's next JobMaster


class Room(NamedTuple):
    """Free room on a TaskManager. Rooms sort in the order in which they are taken: the tightest first."""

    aged: bool
    whole: bool  # nothing is placed in it
    free: int  # slots
    libraries: tuple[Library, ...] = ()

    def after(self, slots: int, libraries: tuple[Library, ...]) -> Room:
        return Room(self.aged, self.whole and slots == 0, self.free - slots, together(self.libraries, libraries))


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


def is_coming(tm: TaskManager, options: ResourceManagerOptions, now: float) -> bool:
    """Whether its slots can be expected soon: it has registered, and its session is starting."""
    return tm.registered and not tm.ready and now - max(tm.readiness_since, tm.got_on) < options.start_timeout


def coming(state: Resources, options: ResourceManagerOptions, now: float) -> int:
    """Return how many TaskManagers, or their sessions, are starting."""
    return sum(
        len(found)
        if shelf.presence is Presence.STARTING
        else sum(is_coming(state.task_managers[resource_id], options, now) for resource_id in found)
        for shelf, found in state.shelves.items()
        if shelf.presence is not Presence.READY
    )


def starts_wanted(state: Resources, options: ResourceManagerOptions, now: float) -> int:
    """Return how many TaskManagers to start now, so that all needs have room and `standby` is kept.

    Each need is placed, the largest first, in the tightest room that takes it: coming slots serve one need each (R3). A
    need to grow beside a TaskManager starts nothing: what it was not given at once is wished for (R20).
    """
    if cannot_start(state, options) is not None or now < state.starts.not_before:
        return 0
    most = min(options.max - state.count(), options.max_concurrent_starts - _starts_under_way(state, options, now))
    if most <= 0:
        return 0
    rooms = _Rooms(state, options, now)
    _lay(state, options, now, rooms, most)
    spares = max(0, options.standby - rooms.spares()) if now >= state.spares_from else 0
    return min(most, rooms.added + spares)


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


class _Rooms:
    """Rooms on TaskManagers for any job, present or coming.

    Needs are placed in them; one is added if none takes a need.
    """

    def __init__(self, state: Resources, options: ResourceManagerOptions, now: float) -> None:
        self.added = 0
        self._size = options.slots_per_tm
        self._counts: Counter[Room] = Counter()
        for shelf, found in state.shelves.items():
            if shelf.dedicated_to:
                continue
            if shelf.presence is Presence.STARTING:
                self._counts[Room(False, True, options.slots_per_tm)] += len(found)
            elif shelf.presence is Presence.READY:
                self._counts[Room(shelf.aged, shelf.idle, shelf.free, shelf.libraries)] += len(found)
            else:
                count = sum(is_coming(state.task_managers[resource_id], options, now) for resource_id in found)
                self._counts[Room(False, shelf.idle, shelf.free, shelf.libraries)] += count

    def take(self, slots: int, libraries: tuple[Library, ...], *, whole: bool = False) -> Room:
        """Remove the tightest fitting room and return it. If none fits, a TaskManager is added."""
        fitting = (
            room
            for room, count in self._counts.items()
            if count and room.free >= slots and (room.whole or not whole) and not clash(room.libraries, libraries)
        )
        if (room := min(fitting, default=None)) is None:
            self.added += 1
            return Room(False, True, self._size)
        self._counts[room] -= 1
        return room

    def put(self, room: Room) -> None:
        self._counts[room] += 1

    def spares(self) -> int:
        return sum(count for room, count in self._counts.items() if room.whole and not room.aged)


def _lay(state: Resources, options: ResourceManagerOptions, now: float, rooms: _Rooms, most: int) -> None:
    """Place needs and wishes in the rooms, until `most` were added."""
    shared = [(wish.slots, wish.libraries) for wish in state.wishes.values() if not wish.exclusive]
    own = [
        (list[int](), [min(wish.slots, options.slots_per_tm)], wish.libraries)
        for wish in state.wishes.values()
        if wish.exclusive
    ]
    for job_id in sorted(state.open_needs, key=lambda job_id: state.jobs[job_id].number):
        later = covered(state, job_id, options, now)
        wanted = [
            min(need.slots, options.slots_per_tm)
            for need in state.open_needs[job_id]
            if need.beside is None and need.allocation_id not in later and least(need) <= options.slots_per_tm
        ]
        libraries = state.jobs[job_id].libraries
        if state.jobs[job_id].exclusive:
            own.append((_dedicated_rooms(state, job_id), wanted, libraries))
        else:
            shared += [(slots, libraries) for slots in wanted]
    for slots, libraries in sorted(shared, key=lambda wanted: -wanted[0]):
        if slots > options.slots_per_tm:
            continue
        if rooms.added >= most:
            return
        rooms.put(rooms.take(slots, libraries).after(slots, libraries))
    for mine, wanted, libraries in own:
        for slots in sorted(wanted, reverse=True):
            if rooms.added >= most:
                return
            if (tightest := min((free for free in mine if free >= slots), default=None)) is not None:
                mine.remove(tightest)
            else:
                tightest = rooms.take(slots, libraries, whole=True).free
            mine.append(tightest - slots)


def _dedicated_rooms(state: Resources, job_id: JobId) -> list[int]:
    mine = ((shelf, found) for shelf, found in state.shelves.items() if shelf.dedicated_to == job_id)
    return [shelf.free for shelf, found in mine for _ in found]


def spares(state: Resources) -> int:
    """Return the number of wholly free TaskManagers for any job, ready or on their way. Aged ones do not count."""
    return sum(len(found) for shelf, found in state.shelves.items() if _is_spare(shelf))


def _is_spare(shelf: Shelf) -> bool:
    return shelf.idle and not shelf.dedicated_to and not shelf.aged


def surplus(state: Resources, options: ResourceManagerOptions, now: float) -> Iterator[tuple[TaskManager, str]]:
    """Yield idle TaskManagers that should end, and why; the longest idle first.

    There are three kinds. Draining TaskManagers end at once (A15b). TaskManagers beyond `standby` and `min` end after
    they have been idle for too long (R6), unless they are standalone. Dedicated ones end if their job does not need
    them (R24), because no other job can use them.
    """
    total, spare = state.count(), spares(state)
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
        counts = tm.shelf is not None and _is_spare(tm.shelf)
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
    ready = sum(len(found) for s, found in state.shelves.items() if s.presence is Presence.READY and _is_spare(s))
    helpless = cannot_start(state, options) is not None or state.starts.failed > 0
    if ready < min(1, options.standby) and not helpless:
        return
    renewing = sum(len(found) for shelf, found in state.shelves.items() if shelf.presence is Presence.COMING)
    calm = [tm for tm in aged if not tm.analysing and now >= tm.rest_until and now - tm.idle_since >= CALM]
    yield from calm[: max(0, options.max_concurrent_starts - renewing)]
