"""Which needs find room on the TaskManagers that there are or will be, and what size is missing for the others. Pure.

Each need is laid in a room, those with the largest demands first, then the largest in slots. What is laid is a forecast
(R3): `placement` decides who gets which slots.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import covered, is_special, least
from minflinkd.resourcemanager.sizes import TaskManagerSize, size_for
from minflinkd.resourcemanager.state import Resources
from minflinkd.resourcemanager.task_managers import Presence, Shelf, TaskManager
from minflinkd.rpc.libraries import clash, together
from minflinkd.rpc.messages import Library
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile


def is_coming(tm: TaskManager, options: ResourceManagerOptions, now: float) -> bool:
    """Whether its slots can be expected soon: it has registered, and its session is starting."""
    return tm.registered and not tm.ready and now - max(tm.readiness_since, tm.got_on) < options.start_timeout


class Room(NamedTuple):
    """Free room on a TaskManager. Rooms sort in the order in which they are taken: the tightest first."""

    aged: bool
    whole: bool  # nothing is placed in it
    free: int  # slots
    libraries: tuple[Library, ...] = ()
    profile: ResourceProfile = NO_PROFILE  # of each slot
    special: bool = False  # kept for who wants what only its slots have (R40)
    unknown: bool = False  # an earlier ResourceManager started it, and it has not said yet what its slots have

    def after(self, slots: int, libraries: tuple[Library, ...]) -> Room:
        whole = self.whole and slots == 0
        return self._replace(whole=whole, free=self.free - slots, libraries=together(self.libraries, libraries))


class Missing(NamedTuple):
    """A TaskManager of this size has to be started, for who wants this of a slot."""

    size: TaskManagerSize
    profile: ResourceProfile


class Wanted(NamedTuple):
    """Slots for one need or wish. `size`: of the TaskManager that would be started for it."""

    slots: int
    profile: ResourceProfile
    libraries: tuple[Library, ...]
    size: TaskManagerSize

    @property
    def order(self) -> tuple[float, ...]:
        return *(-amount for amount in self.profile.rank), -self.slots


class Rooms:
    """Rooms on TaskManagers for any job, present or coming.

    Needs are placed in them; one is added if none takes a need. `to_any`: slots of special TaskManagers are also for
    who wants nothing special, as is so if no other can be started.
    """

    def __init__(self, state: Resources, options: ResourceManagerOptions, now: float, *, to_any: bool = False) -> None:
        self.added: list[Missing] = []
        self._to_any = to_any
        self._kept_for = _kept_for(state, options)
        self._counts: Counter[Room] = Counter()
        for shelf, found in state.shelves.items():
            if shelf.dedicated_to:
                continue
            count = len(found)
            if shelf.presence is Presence.COMING:
                count = sum(is_coming(state.task_managers[resource_id], options, now) for resource_id in found)
            self._counts[room_of(shelf, options)] += count

    def take(self, wanted: Wanted, *, whole: bool = False) -> Room:
        """Remove the tightest fitting room and return it. If none fits, a TaskManager is added."""
        fitting = [room for room, count in self._counts.items() if count and self._fits(room, wanted, whole=whole)]
        if not fitting:
            self.added.append(Missing(wanted.size, wanted.profile))
            return Room(False, True, wanted.size.slots, (), wanted.size.profile, bool(wanted.profile))
        room = min(fitting, key=lambda room: (room.profile.excess(wanted.profile) if wanted.profile else (), room))
        self._counts[room] -= 1
        return room

    def _fits(self, room: Room, wanted: Wanted, *, whole: bool) -> bool:
        if room.free < wanted.slots or (whole and not room.whole) or clash(room.libraries, wanted.libraries):
            return False
        if room.unknown:
            return True
        if not room.profile.covers(wanted.profile) or (room.special and not wanted.profile and not self._to_any):
            return False
        return not any(p.rank > wanted.profile.rank and room.profile.covers(p) for p in self._kept_for)

    def put(self, room: Room) -> None:
        self._counts[room] += 1

    def untouched(self, room: Room) -> bool:
        """Whether there is such a room in which nothing is laid."""
        return room.whole and self._counts[room] > 0

    def spares(self) -> int:
        return sum(count for room, count in self._counts.items() if room.whole and not (room.aged or room.special))


def room_of(shelf: Shelf, options: ResourceManagerOptions) -> Room:
    """Return the room on each TaskManager of this shelf."""
    special = is_special(shelf, options)
    if shelf.presence is Presence.STARTING:
        profile = shelf.profile or options.profile
        unknown = shelf.proven and not shelf.profile
        return Room(False, True, shelf.size or options.slots_per_tm, (), profile, special, unknown)
    aged = shelf.aged and shelf.presence is Presence.READY
    return Room(aged, shelf.idle, shelf.free, shelf.libraries, shelf.profile, special)


def _kept_for(state: Resources, options: ResourceManagerOptions) -> list[ResourceProfile]:
    """Return the demands of open needs for which no TaskManager can be started: what serves them is kept for them."""
    needs = (need for needs in state.open_needs.values() for need in needs if need.profile and need.beside is None)
    return [need.profile for need in needs if size_for(options, need.profile, need.slots, least(need)) is None]


def lay(state: Resources, options: ResourceManagerOptions, now: float, rooms: Rooms, most: float = math.inf) -> None:
    """Place needs and wishes in the rooms, until `most` were added."""
    shared: list[Wanted] = []
    own: list[tuple[list[tuple[int, ResourceProfile]], list[Wanted]]] = []
    for wish in state.wishes.values():
        slots = min(wish.slots, options.slots_per_tm) if wish.exclusive else wish.slots
        size = size_for(options, wish.profile, slots or options.slots_per_tm, slots)
        if size is None:
            continue
        wanted = Wanted(slots, wish.profile, wish.libraries, size)
        if wish.exclusive:
            own.append(([], [wanted]))
        else:
            shared.append(wanted)
    for job_id in sorted(state.open_needs, key=lambda job_id: state.jobs[job_id].number):
        needs = _laid_needs(state, options, job_id, now)
        if state.jobs[job_id].exclusive:
            own.append((_dedicated_rooms(state, job_id), needs))
        else:
            shared += needs
    for wanted in sorted(shared, key=lambda wanted: wanted.order):
        if len(rooms.added) >= most:
            return
        rooms.put(rooms.take(wanted).after(wanted.slots, wanted.libraries))
    for mine, needs in own:
        for wanted in sorted(needs, key=lambda wanted: wanted.order):
            if len(rooms.added) >= most:
                return
            fitting = [room for room in mine if room[0] >= wanted.slots and room[1].covers(wanted.profile)]
            if fitting:
                tightest = min(fitting)
                mine.remove(tightest)
            else:
                room = rooms.take(wanted, whole=True)
                tightest = room.free, room.profile
            mine.append((tightest[0] - wanted.slots, tightest[1]))


def _laid_needs(state: Resources, options: ResourceManagerOptions, job_id: JobId, now: float) -> list[Wanted]:
    """Return the job's open needs for which a TaskManager could be started, with as many slots as it would have."""
    later, found = covered(state, job_id, options, now), []
    for need in state.open_needs[job_id]:
        if need.beside is not None or need.allocation_id in later:
            continue
        if (size := size_for(options, need.profile, need.slots, least(need))) is not None:
            slots = min(need.slots, size.slots)
            found.append(Wanted(slots, need.profile, state.jobs[job_id].libraries, size))
    return found


def _dedicated_rooms(state: Resources, job_id: JobId) -> list[tuple[int, ResourceProfile]]:
    mine = ((shelf, found) for shelf, found in state.shelves.items() if shelf.dedicated_to == job_id)
    return [(shelf.free, shelf.profile) for shelf, found in mine for _ in found]
