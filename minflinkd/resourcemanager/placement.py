"""Decides which TaskManager serves a need (R3, R13, R20, R24). Pure.

A need goes to the TaskManager that provides most of it. Among those, the order of preference is: one whose slots have
the least more than is wanted (R40), one that the job is already on, one that was dedicated to it when it was analysed,
one of the daemon's version, one with a session that has not aged, one in use, so that spares stay whole, one that holds
the job's libraries, and the fullest one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.state import JobNeeds, Resources
from minflinkd.resourcemanager.task_managers import Presence, Shelf, SlotState, TaskManager
from minflinkd.rpc.libraries import clash, contains
from minflinkd.rpc.messages import Library, SlotNeed
from minflinkd.runtime.ids import AllocationId, JobId, ResourceId
from minflinkd.runtime.resource_profile import KNOWN, NO_PROFILE, ResourceProfile

_OF_HOSTS: Final = ("cpu", "disk")


@dataclass(frozen=True)
class Placement:
    task_manager: TaskManager
    slots: int


def clashing(state: Resources, libraries: tuple[Library, ...]) -> int:
    """Return how many registered TaskManagers have sessions with other versions of these libraries."""
    return sum(len(found) for shelf, found in state.shelves.items() if clash(shelf.libraries, libraries))


def least(need: SlotNeed) -> int:
    """Return the number of slots that is enough."""
    return need.least or need.slots


def is_special(shelf: Shelf, options: ResourceManagerOptions) -> bool:
    """Whether these TaskManagers are for jobs that want more of a slot than one has by default (R40).

    Others get slots there only if they cannot have any elsewhere. Cores and disk make none special: they may be those
    of another host, on which an earlier leader has started it. A standalone TaskManager is special only for named
    extras, such as a GPU: it may well be larger than those of this host, and is there anyway.
    """
    if not options.can_start or shelf.profile in (NO_PROFILE, options.profile):
        return False
    of_all = KNOWN if shelf.standalone else _OF_HOSTS
    return any(name not in of_all for name in options.profile.missing(shelf.profile))


def place(
    state: Resources,
    job_id: JobId,
    need: SlotNeed,
    now: float,
    *,
    kept: Callable[[TaskManager], bool] | None = None,
) -> Placement | None:
    """Return where the need is served now, and with how many slots; None: nowhere.

    `kept`: which TaskManagers' slots are for others (`claims`).
    """
    return _place(state, job_id, need, now, own=_own(state, job_id), kept=kept)


def hot_standby(state: Resources, job_id: JobId, now: float) -> ResourceId | None:
    """Return where the job would go on now if it lost its TaskManagers; None: nowhere, or it does not ask (R32).

    That is where `place` would put its largest allocation, but for a session that has aged: it is to be replaced.
    """
    own = _own(state, job_id)
    if not own or not state.jobs[job_id].declaration.hot_standby:
        return None
    held = state.holdings[job_id].items()
    most = max(len(state.task_managers[r].slots_of(allocation)) for allocation, found in held for r in found)
    profile = state.jobs[job_id].declaration.standby_profile
    need = SlotNeed(allocation_id=AllocationId(""), slots=most, profile=profile)
    found = _place(state, job_id, need, now, own=frozenset(), lost=own)
    return None if found is None or found.task_manager.aged else found.task_manager.resource_id


def _own(state: Resources, job_id: JobId) -> frozenset[ResourceId]:
    """Return the TaskManagers that hold slots for the job."""
    return frozenset(r for held in state.holdings.get(job_id, {}).values() for r in held)


def _place(
    state: Resources,
    job_id: JobId,
    need: SlotNeed,
    now: float,
    *,
    own: Collection[ResourceId],
    lost: Collection[ResourceId] = (),
    kept: Callable[[TaskManager], bool] | None = None,
) -> Placement | None:
    """`own`: the TaskManagers that the job is on. `lost`: those that do not count."""
    job = state.jobs[job_id]
    best: tuple[tuple[object, ...], Placement] | None = None
    for tm in _candidates(state, job_id, need.profile, sorted(own), lost, now):
        if (job.exclusive and any(other != job_id for other in tm.jobs)) or (kept is not None and kept(tm)):
            continue
        here = tm.resource_id == need.beside
        worth = min(len(tm.free) + (need.held if here else 0), need.slots)
        slots = worth - need.held if here else worth
        if worth < least(need) or (need.beside is not None and worth <= need.held):
            continue
        mine = tm.resource_id in own
        # Any other session would have to be renewed after the job, too. If an idle session with the job's libraries has
        # aged, perhaps that is only because it holds them: most often the job was analysed there.
        known = contains(tm.libraries, job.libraries)
        aged = tm.aged and not (known and tm.idle)
        key = (
            -worth,
            not here,
            tm.profile.excess(need.profile) if need.profile else (),
            not mine,
            tm.dedicated_to is None,
            tm.outdated,
            aged,
            tm.idle,
            not known,
            len(tm.free),
            tm.since,
            tm.resource_id,
        )
        if best is None or key < best[0]:
            best = key, Placement(tm, slots)
    return best[1] if best is not None else None


def _candidates(
    state: Resources,
    job_id: JobId,
    profile: ResourceProfile,
    own: list[ResourceId],
    lost: Collection[ResourceId],
    now: float,
) -> Iterator[TaskManager]:
    """Yield those that the job is on, and one of each kind of the others, without other versions of its libraries.

    Their slots have what `profile` says.
    """
    libraries = state.jobs[job_id].libraries
    for resource_id in own:
        tm = state.task_managers[resource_id]
        free = tm.ready and not tm.draining and tm.free and now >= tm.rest_until and tm.dedicated_to in (None, job_id)
        if free and not clash(tm.libraries, libraries) and tm.profile.covers(profile):
            yield tm
    for shelf, found in state.shelves.items():
        free = shelf.presence is Presence.READY and shelf.free > 0 and shelf.dedicated_to in ("", job_id)
        if free and not clash(shelf.libraries, libraries) and shelf.profile.covers(profile):
            tms = (state.task_managers[resource_id] for resource_id in found if resource_id not in lost)
            yield from islice((tm for tm in tms if now >= tm.rest_until), 1)


def largest(state: Resources, options: ResourceManagerOptions) -> int:
    """Return the slots of the largest TaskManager that exists, or that could be started if any can."""
    return max([options.slots_per_tm, *(shelf.size for shelf in state.shelves)])


def recovering(state: Resources, now: float) -> bool:
    """Whether TaskManagers of an earlier ResourceManager have yet to report who holds their slots (R12, R13)."""
    return now < state.recovering_until and any(s.presence is Presence.STARTING and s.proven for s in state.shelves)


def covered(state: Resources, job_id: JobId, options: ResourceManagerOptions, now: float) -> frozenset[AllocationId]:
    """Return open needs for which the job's TaskManagers hold slots that its new JobMaster does not know yet (R13).

    These slots will be offered to it. For as long as that may take, nothing is taken elsewhere for these needs.
    """
    job = state.jobs[job_id]
    if now >= job.since + options.heartbeat_timeout:
        return frozenset()
    unknown = _unknown_to(state, job_id, job)
    found = set()
    for need in sorted(state.open_needs[job_id], key=lambda need: (-need.slots, need.allocation_id)):
        fitting = [each for each in unknown if each[0] >= least(need) and each[1].covers(need.profile)]
        if fitting:
            unknown.remove(min(fitting, key=lambda each: (each[0] < need.slots, abs(each[0] - need.slots), each[1])))
            found.add(need.allocation_id)
    return frozenset(found)


def _unknown_to(state: Resources, job_id: JobId, job: JobNeeds) -> list[tuple[int, ResourceProfile]]:
    """Return the allocations that TaskManagers hold for the job, and that its JobMaster may still be offered.

    Of each, the number of slots, and what they have. The JobMaster neither holds nor wants them. What it has held and
    given up, it does not take again.
    """
    found = []
    for allocation, resource_ids in state.holdings.get(job_id, {}).items():
        if allocation not in job.held and allocation not in job.needs and allocation not in job.given_up:
            tm = state.task_managers[resource_ids[0]]
            slots = tm.slots_of(allocation)
            if not tm.draining and all(tm.slots[i].state is SlotState.ALLOCATED for i in slots):
                found.append((len(slots), tm.profile))
    return found
