"""What a running job does with unused slots: it grows into them (R20), or gives them back (R4). Pure.

Growth uses a last checkpoint, as a hot restart does: the tasks process nothing after it, stop, and restart from it with
more parallelism. Nothing is read twice, and no slot is given back in between. Any failure on the way leads to an
ordinary restart. If a job that has grown does not come up, for a reason that would end it, it restarts with the
parallelism that it had before. After every such failure it waits longer before it grows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster import slot_pool
from minflinkd.jobmaster.failover import begin_rollout, stop
from minflinkd.jobmaster.job_state import Growth, JobState, Step
from minflinkd.jobmaster.placement import total
from minflinkd.jobmaster.rollout import Rollout
from minflinkd.jobmaster.sizing import plan_anew
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.ids import AllocationId

DOUBLINGS = 6  # at most this many doublings of the cooldown


def use_slots(state: JobState, now: float) -> Step:
    """Grow or give back, while the job runs. Slots reserved for another version are neither used nor given back."""
    if state.reserving is not None:
        return replace(state, growth=None, idle={}), ()
    better = plan_anew(state)
    growing = total(better) > total(state.placement)
    growth = state.growth if growing else None
    if growing and (growth is None or growth.parallelism != total(better)):
        growth = Growth(total(better), now)
    used = {a for p in (state.placement, better if growing else {}) for share in p.values() for a in share.allocations}
    wide = {} if growing else slot_pool.surplus(state.pool, state.placement)
    idle = {a: state.idle.get(a, now) for a in sorted(state.pool.held) if a not in used or a in wide}
    # Usually nothing has changed: this runs for every micro-batch of every job.
    if (growth, idle) != (state.growth, state.idle):
        state = replace(state, growth=growth, idle=idle)
    state, commands = _give_back_idle(state, wide, now)
    due = growth_due(state)
    ending = state.final_checkpoint_asked or any(e.input_ended for e in state.executions.values())
    if due is None or now < due or ending or state.on_trial:  # a checkpoint would end the trial (H7)
        return state, commands
    return replace(state, rescaling=True), (*commands, ev.TakeRescaleCheckpoint(state.round))


def reserve(state: JobState, groups: Mapping[str, int]) -> JobState:
    """H4: Ask for more slots for these groups, for the version that will follow."""
    own = state.pool.groups if state.reserving is None else state.reserving
    wider = {g: replace(own[g], desired=n) for g, n in groups.items() if g in own and n > own[g].desired}
    pool = replace(state.pool, groups={**own, **wider})
    return replace(state, pool=pool, reserving=own if wider else None)


def has_reserved(state: JobState) -> bool:
    """Whether the version that will follow would get everything that was asked for."""
    wanted = _reserved(state)
    best = plan_anew(state) if wanted else {}
    return all(g in best and best[g].parallelism >= slots for g, slots in wanted.items())


def wider_than_any(state: JobState) -> tuple[str, int] | None:
    """Return a group, and its width, that the next version wants and no TaskManager will ever have room for."""
    if not state.largest:
        return None
    return next(((g, slots) for g, slots in sorted(_reserved(state).items()) if slots > state.largest), None)


def _reserved(state: JobState) -> dict[str, int]:
    """Return the groups for which more slots were asked than the job wants for itself, and how many.

    The other groups may lack slots, as the job runs with fewer than it wants: that does not concern the next version.
    """
    if state.reserving is None:
        return {}
    own, groups = state.reserving, state.pool.groups
    return {g: bounds.desired for g, bounds in groups.items() if bounds.desired > own[g].desired}


def growth_due(state: JobState) -> float | None:
    """Return when the job may grow, or None.

    While the held slots are fewer than the job wants, it waits a while for more.
    """
    if state.growth is None or state.rescaling or state.status is not JobStatus.RUNNING:
        return None
    all_wanted = state.growth.parallelism == sum(b.desired for b in state.pool.groups.values())
    wait = 0.0 if all_wanted else state.options.resource_stabilization_timeout
    cooldown = state.options.cooldown_after_rescaling * 2.0 ** min(state.failed_growths, DOUBLINGS)
    return max(state.growth.since + wait, state.changed_at + cooldown)


def idle_due(state: JobState) -> float | None:
    return min((since + state.options.slot_idle_timeout for since in state.idle.values()), default=None)


def checkpoint_done(state: JobState, number: int, now: float) -> Step:
    if not state.rescaling or number != state.round or state.status is not JobStatus.RUNNING:
        return state, ()
    # `after` is no wider if slots were lost meanwhile. The job restarts anyway: its tasks process nothing more.
    before, after = state.placement, plan_anew(state)
    state, commands = stop(state, frozenset(state.tasks), now)
    widths = ", ".join(f"{g} {before[g].parallelism} -> {s.parallelism}" for g, s in sorted(after.items()))
    state = begin_rollout(state, Rollout(now, cause=f"rescale: {widths}", rescale=True))
    return replace(state.to(JobStatus.RESTARTING, now), restart_at=now, narrowed=False), commands


def checkpoint_failed(state: JobState, number: int, now: float) -> JobState:
    """Let the job run on as it is. It tries to grow again later."""
    if not state.rescaling or number != state.round:
        return state
    return replace(state, rescaling=False, growth=None, changed_at=now)


def _give_back_idle(state: JobState, wide: Mapping[AllocationId, tuple[int, ...]], now: float) -> Step:
    """R4, H4: Give back idle allocations, and the surplus slots (`wide`) of allocations that the job runs on."""
    over = [a for a, since in state.idle.items() if now - since >= state.options.slot_idle_timeout]
    state, commands = give_back(state, tuple(a for a in over if a not in wide))
    by_address: dict[str, dict[AllocationId, tuple[int, ...]]] = {}
    for allocation in (a for a in over if a in wide):
        by_address.setdefault(state.pool.held[allocation].address, {})[allocation] = wide[allocation]
    for address, unused in by_address.items():
        pool = slot_pool.narrowed(state.pool, unused)
        state = replace(state, pool=pool, idle={a: t for a, t in state.idle.items() if a not in unused})
        commands = (*commands, ev.FreeAllocations(address, (), job_ended=False, surplus=unused))
    return state, commands


def give_back(state: JobState, allocations: tuple[AllocationId, ...], *, job_ended: bool = False) -> Step:
    if not allocations:
        return state, ()
    by_address: dict[str, list[AllocationId]] = {}
    for allocation in sorted(allocations):
        by_address.setdefault(state.pool.held[allocation].address, []).append(allocation)
    commands = [ev.FreeAllocations(address, tuple(a), job_ended) for address, a in by_address.items()]
    idle = {a: since for a, since in state.idle.items() if a not in allocations}
    return replace(state, pool=slot_pool.dropped(state.pool, allocations), idle=idle), tuple(commands)
