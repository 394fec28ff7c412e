"""How many slots a job wants, and whether those that it holds suffice for now (R20). Pure queries on its state.

A job waits for all slots that it wants, or for as many as it last ran with. After `resource_wait_timeout` its least
parallelism suffices. It keeps asking for the missing slots, so that it can grow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minflinkd.jobmaster.scheduler.placement import Bounds, Placement, place
from minflinkd.jobmaster.scheduler.slot_pool import Want
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.runtime.ids import TaskId

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
) -> Placement:
    pool = state.pool
    return place(groups, pool.holdings, present=present, fixed=fixed, divide=divide, draining=pool.draining)


def _groups_up(state: JobState) -> frozenset[str]:
    """Return the groups of which some task is up, or coming up. They stay where they are."""
    return frozenset(state.group_of(e.task_id) for e in state.live if e.state is not ExecutionState.CANCELING)


def groups_leaving(state: JobState) -> frozenset[str]:
    """Return the groups of a running job that run on draining TaskManagers (A15b)."""
    if state.running is None:
        return frozenset()
    return frozenset(g for g, share in state.placement.items() if share.resource_id in state.pool.draining)


def _no_wider(bounds: Bounds, width: int) -> Bounds:
    return Bounds(min(bounds.desired, width), min(bounds.least, width))


def plan_anew(state: JobState) -> Placement:
    """Return the best placement that would be possible if all tasks were stopped."""
    return _place(state, state.pool.groups, present=state.placement)


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

    A group on a draining TaskManager wants all of them elsewhere, if it was asked to leave or is not up (A15b).
    """
    groups = state.pool.groups
    leaving = groups_leaving(state) if state.reserving is not None else frozenset()
    up = {group: state.placement[group].parallelism for group in _groups_up(state) - leaving}
    # A running group keeps its slots. Another one on its TaskManager must ask for its own.
    full = [g for g, width in up.items() if width >= groups[g].desired]
    firm = _place(state, groups, present=state.placement, fixed=full, divide=False)
    found: dict[str, Want] = {}
    for group, bounds in groups.items():
        share = firm.get(group)
        has = share.parallelism if share is not None else 0
        running = up.get(group, 0)
        if max(has, running) >= bounds.desired:
            continue
        least = max(has, running) + 1 if running else max(_target(state, group, now), has + 1)
        beside = share.resource_id if share is not None else None
        found[group] = Want(bounds.desired, min(least, bounds.desired), beside, has)
    return found
