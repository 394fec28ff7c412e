"""Slots that the next version of the job wants, held while this version runs (H4).

If the job is to leave draining TaskManagers, these are as many slots on other TaskManagers as it has there (A15b). It
also leaves sessions that cannot hold the next version's libraries beside those that they hold (B31), and slots that
have less than the next version wants (R40).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minflinkd.jobmaster.scheduler.sizing import groups_leaving, plan_anew
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.rpc.messages import Library
from minflinkd.runtime.resource_profile import ResourceProfile


def reserve(
    this: Step,
    groups: Mapping[str, int],
    libraries: tuple[Library, ...],
    profiles: Mapping[str, ResourceProfile] | None,
) -> None:
    """Ask for more slots for these groups, for the version that will follow. Without groups, stop asking.

    `libraries`, `profiles`: of that version.
    """
    this.set(next_libraries=libraries if groups else (), next_profiles=profiles if groups else None)
    state = this.state
    own = state.pool.groups if state.reserving is None else state.reserving
    wider = {g: replace(own[g], desired=n) for g, n in groups.items() if g in own and n > own[g].desired}
    wanted = bool(wider) or (bool(groups) and bool(groups_leaving(state)))
    this.set(pool=replace(state.pool, groups={**own, **wider}), reserving=own if wanted else None)


def has_reserved(state: JobState) -> bool:
    """Whether the version that will follow would get everything that was asked for, at no running group's expense."""
    if not (wanted := _reserved(state)):
        return True
    running = {g: share.parallelism for g, share in state.placement.items()} if state.running is not None else {}
    best = plan_anew(state, for_next=True)
    return all(g in best and best[g].parallelism >= slots for g, slots in {**running, **wanted}.items())


def wider_than_any(state: JobState) -> tuple[str, int] | None:
    """Return a group, and its width, that the next version wants and no TaskManager will ever have room for."""
    if not state.largest:
        return None
    return next(((g, slots) for g, slots in sorted(_reserved(state).items()) if slots > state.largest), None)


def _reserved(state: JobState) -> dict[str, int]:
    """Return the groups for which the job has asked for other or more slots than it has, and how many.

    Those that leave a TaskManager want as many as they run with. The others may lack slots, as the job runs with fewer
    than it wants: that does not concern the next version.
    """
    if state.reserving is None:
        return {}
    own, groups = state.reserving, state.pool.groups
    moved = {g: state.placement[g].parallelism for g in groups_leaving(state)}
    return moved | {g: bounds.desired for g, bounds in groups.items() if bounds.desired > own[g].desired}
