"""How many slots a job wants, and whether those that it holds suffice for now (R20). Pure queries on its state.

The number of partitions of a task's state is decided here as well: it says up to how many slots the task can use.

A job waits for all slots that it wants, or for as many as it last ran with. After `resource_wait_timeout` its least
parallelism suffices. It keeps asking for the missing slots, so that it can grow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minflinkd.jobmaster.scheduler.placement import Barred, Bounds, Placement, place
from minflinkd.jobmaster.scheduler.slot_pool import Want
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.libraries import clash
from minflinkd.rpc.messages import Library
from minflinkd.runtime.ids import ResourceId, TaskId
from minflinkd.runtime.resource_profile import NO_PROFILE

_IDLE = frozenset({ExecutionState.CREATED, ExecutionState.CANCELED, ExecutionState.FAILED})


def idle_tasks(state: JobState) -> frozenset[TaskId]:
    """Return the tasks that wait to be deployed."""
    return frozenset(t for t, e in state.executions.items() if e.state in _IDLE)


def plan(state: JobState) -> Placement:
    """Return a placement for deploying the idle tasks now, while the other tasks stay as they are."""
    fixed = _groups_up(state)
    if not state.narrowed:
        return _place(state, state.pool.groups, present=state.placement, fixed=fixed)
    present = {**state.proven_on, **{group: state.placement[group] for group in fixed}}
    groups = {g: _no_wider(b, state.proven.get(g, b.desired)) for g, b in state.pool.groups.items()}
    return _place(state, groups, present=present, fixed=fixed)


def _place(
    state: JobState,
    groups: Mapping[str, Bounds],
    *,
    present: Placement,
    fixed: Collection[str] = (),
    divide: bool = True,
    for_next: bool = False,
) -> Placement:
    """`for_next`: the job's next version is to run there."""
    pool = state.pool
    closed = closed_to_next(state) if for_next else pool.closed_to(pool.libraries)
    barred = barred_to_next(state) if for_next else pool.barred(pool.profiles)
    return place(groups, pool.holdings, present=present, fixed=fixed, divide=divide, closed=closed, barred=barred)


def _groups_up(state: JobState) -> frozenset[str]:
    """Return the groups of which some task is up, or coming up. They stay where they are."""
    return frozenset(state.group_of(e.task_id) for e in state.live if e.state is not ExecutionState.CANCELING)


def groups_leaving(state: JobState) -> frozenset[str]:
    """Return the groups of a running job that its next version cannot leave where they are (A15b, B31, R40)."""
    if state.running is None:
        return frozenset()
    closed, barred = closed_to_next(state), barred_to_next(state)
    found = ((g, share.resource_id) for g, share in state.placement.items())
    return frozenset(g for g, there in found if there in closed or there in barred.get(g, ()))


def closed_to_next(state: JobState) -> frozenset[ResourceId]:
    """Return the TaskManagers on which the job's next version cannot run.

    Their sessions hold what this version has loaded, even if they did not say so when they offered their slots.
    """
    pool = state.pool
    closed = pool.closed_to(state.next_libraries)
    if clash(pool.libraries, state.next_libraries):
        closed |= {share.resource_id for share in state.placement.values()}
    return closed


def barred_to_next(state: JobState) -> Barred:
    """Return where groups of the next version cannot run, because the slots there have less than it wants (R40)."""
    profiles = state.pool.profiles if state.next_profiles is None else state.next_profiles
    return state.pool.barred(profiles)


def libraries_wanted(state: JobState) -> tuple[Library, ...]:
    """Return the libraries for which slots are asked: those of the next version while they are to be elsewhere."""
    return state.next_libraries if groups_leaving(state) and state.reserving is not None else state.pool.libraries


def partitions_of(parallelism: int, desired: int, highest: int | None, recorded: int = 0) -> int:
    """Return how many partitions the state of a task's next attempt has.

    A job with `max-parallelism: 8` and `parallelism: 2` has 8 partitions, of which 2 are computed at a time. With a
    parallelism of 4 it continues with the same 8, and nothing of its state has to be rewritten.

    `parallelism`: of the attempt. `desired`: what the task wants; it has less while slots are lacking. `highest`: the
    job's max-parallelism, if it states one. `recorded`: partitions of the state that the attempt restores; 0: none.
    """
    return max(parallelism, max(desired, recorded) if highest is None else highest)


def _no_wider(bounds: Bounds, width: int) -> Bounds:
    return Bounds(min(bounds.desired, width), min(bounds.least, width))


def plan_anew(state: JobState, *, for_next: bool = False) -> Placement:
    """Return the best placement that would be possible if all tasks were stopped.

    `for_next`: for the job's next version, which may be unable to use the slots of this one.
    """
    return _place(state, state.pool.groups, present=state.placement, for_next=for_next)


def lean(state: JobState, now: float) -> bool:
    """Whether the job has waited long enough to start with the least parallelism."""
    wait = min(state.options.resource_wait_timeout, state.options.slot_request_timeout)
    return state.lacking_since is not None and now - state.lacking_since >= wait


def enough(state: JobState, placement: Placement, now: float) -> bool:
    return all(g in placement and placement[g].parallelism >= _target(state, g, now) for g in state.pool.groups)


def _target(state: JobState, group: str, now: float) -> int:
    bounds = state.pool.groups[group]
    if lean(state, now):
        return bounds.least
    return min(bounds.desired, max(bounds.least, state.ran_with.get(group, bounds.desired)))


def wants(state: JobState, now: float) -> Mapping[str, Want]:
    """Return the missing slots by group. A group that has some wants more beside them, or all of them elsewhere.

    A group that was asked to leave its TaskManager wants all of them elsewhere, and so does one on a draining
    TaskManager that is not up (A15b, B31). What is reserved for the next version must have what that wants (R40).
    """
    groups, profiles = state.pool.groups, state.pool.profiles
    if state.reserving is not None and state.next_profiles is not None:
        profiles = state.next_profiles
    leaving = groups_leaving(state) if state.reserving is not None else frozenset()
    up = {group: state.placement[group].parallelism for group in _groups_up(state) - leaving}
    # A running group keeps its slots. Another one on its TaskManager must ask for its own.
    full = [g for g, width in up.items() if width >= groups[g].desired]
    firm = _place(state, groups, present=state.placement, fixed=full, divide=False, for_next=bool(leaving))
    found: dict[str, Want] = {}
    for group, bounds in groups.items():
        share = firm.get(group)
        has = share.parallelism if share is not None else 0
        running = up.get(group, 0)
        if max(has, running) >= bounds.desired:
            continue
        least = max(has, running) + 1 if running else max(_target(state, group, now), has + 1)
        beside = share.resource_id if share is not None else None
        profile = profiles.get(group, NO_PROFILE)
        found[group] = Want(bounds.desired, min(least, bounds.desired), beside, has, profile)
    return found
