"""Running and Rescaling: what a job does while all its tasks run.

It grows into unused slots (R20), or gives them back (R4). On the TaskManagers where it runs, it grows at once and
without a stop (`resizing`). Growth elsewhere uses a last checkpoint, as a hot restart does: the tasks process nothing
after it, stop, and restart from it with more parallelism. Nothing is read twice, and no slot is given back in between.
Any failure on the way leads to an ordinary restart. If a job that has grown does not come up, for a reason that would
end it, it restarts with the parallelism that it had before. After every such failure it waits longer before it grows
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import resizing, slot_pool
from minflinkd.jobmaster.scheduler.phases import Growth, Rescaling, Running, WaitingForSlots
from minflinkd.jobmaster.scheduler.placement import total
from minflinkd.jobmaster.scheduler.sizing import plan_anew
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.jobmaster.scheduler.streak import NO_FAILURES
from minflinkd.runtime.ids import AllocationId, AttemptId

DOUBLINGS = 6  # at most this many doublings of the cooldown


def begin(this: Step) -> None:
    state = this.state
    this.mark("running")
    this.enter(
        Running(
            since=this.now,
            checkpointed=state.options.checkpoints.interval <= 0,
            hastened=not (state.rollouts and state.rollouts[-1].cause),
        ),
        has_run=True,
        takeover=None,
        proven={group: share.parallelism for group, share in state.placement.items()},
        proven_on=state.placement,
        failed_growths=state.failed_growths if state.narrowed else 0,
    )
    attempts = {t: e.attempt_id for t, e in state.executions.items() if e.attempt_id is not None}
    this.commands.append(ev.StartCheckpoints(attempts))


def advance(this: Step, running: Running) -> None:
    note_progress(this, running)
    running = _hasten_checkpoint(this, running)
    if not running.final_checkpoint_asked and all(e.input_ended for e in this.state.executions.values()):
        this.enter(replace(running, final_checkpoint_asked=True))
        this.commands.append(ev.TakeFinalCheckpoint(this.state.round))
        return
    if not running.rigid and not resizing.is_ending(this.state, running):
        running = _resize_in_place(this, running)
    running = _use_slots(this, running)
    if _may_grow(this.state, running, this.now):
        this.enter(Rescaling(running))
        this.commands.append(ev.TakeRescaleCheckpoint(this.state.round))


def note_progress(this: Step, running: Running) -> None:
    """Note the first micro-batch, and that the job has proved healthy."""
    state = this.state
    if state.has_processed:
        this.mark("first_batch")
    if state.streak.failures and state.streak.is_over(running.since, this.now, checkpointed=running.checkpointed):
        this.set(streak=NO_FAILURES)


def _hasten_checkpoint(this: Step, running: Running) -> Running:
    """After a restart, take a checkpoint as soon as all tasks have read again, not only when the interval is over.

    Exactly-once output appears with a checkpoint, and none since the restart has had rows of all tasks.
    """
    if running.hastened or not this.state.has_read:
        return running
    running = replace(running, hastened=True)
    this.enter(running)
    this.commands.append(ev.HastenCheckpoint())
    return running


def next_wakeup(state: JobState, running: Running) -> tuple[float | None, ...]:
    proved = running.since + state.streak.probation if state.streak.failures and running.checkpointed else None
    idle = min((since + state.options.slot_idle_timeout for since in running.idle.values()), default=None)
    return _growth_due(state, running), idle, proved


# --- other slots without a stop --------------------------------------------------------------------------------------


def _resize_in_place(this: Step, running: Running) -> Running:
    """Use the slots that are held, as far as no task has to stop for that. Slots for another version are left alone.

    After growth that failed, this waits as long as other growth does.
    """
    if (narrow := resizing.narrower(this.state)) is not None:
        running = resizing.resize(this, running, narrow)
    state = this.state
    waits = state.failed_growths and (running.growth is None or this.now < _pause_ends(state))
    if resizing.lacks_slots(state) and state.reserving is None and not waits:
        better = plan_anew(state)
        wide = resizing.in_place(state, better) if total(better) > total(state.placement) else None
        if wide is not None:
            this.set(narrowed=False)
            running = resizing.resize(this, running, wide)
    if running.resized_from is not None and not resizing.misfits(this.state):
        running = resizing.confirmed(this, running, running.resized_from)
    resizing.tell_tasks(this)
    return running


def task_resized(this: Step, attempt_id: AttemptId, parallelism: int) -> None:
    if (execution := this.state.by_attempt(attempt_id)) is not None:
        this.put(replace(execution, parallelism=parallelism, asked=0))


def task_not_resized(this: Step, attempt_id: AttemptId) -> None:
    """Note that it takes a restart from a checkpoint."""
    if (execution := this.state.by_attempt(attempt_id)) is None:
        return
    this.put(replace(execution, asked=0))
    match this.state.phase:
        case Running() as phase:
            this.enter(replace(phase, rigid=True))
        case Rescaling(before):
            this.enter(Rescaling(replace(before, rigid=True)))


# --- unused slots ----------------------------------------------------------------------------------------------------


def _use_slots(this: Step, running: Running) -> Running:
    """Note which slots are unused, and give back those that have been idle for a while.

    Idle slots on draining TaskManagers are given back at once. Slots reserved for another version are neither used nor
    given back.
    """
    state = this.state
    if state.reserving is not None:
        return _noted(this, running, None, {})
    better = plan_anew(state)
    growing = total(better) > total(state.placement)
    growth = running.growth if growing else None
    if growing and (growth is None or growth.parallelism != total(better)):
        growth = Growth(total(better), this.now)
    used = {a for p in (state.placement, better if growing else {}) for share in p.values() for a in share.allocations}
    wide = {} if growing else slot_pool.surplus(state.pool, state.placement)
    idle = {a: running.idle.get(a, this.now) for a in sorted(state.pool.held) if a not in used or a in wide}
    drained = {a for a in idle if state.pool.held[a].resource_id in state.pool.draining and a not in wide}
    over = [a for a, since in idle.items() if a in drained or this.now - since >= state.options.slot_idle_timeout]
    _give_back_idle(this, over, wide)
    return _noted(this, running, growth, {a: since for a, since in idle.items() if a not in over})


def _noted(this: Step, running: Running, growth: Growth | None, idle: Mapping[AllocationId, float]) -> Running:
    # Usually nothing has changed: this runs for every micro-batch of every job.
    if (growth, idle) != (running.growth, running.idle):
        running = replace(running, growth=growth, idle=idle)
        this.enter(running)
    return running


def _give_back_idle(this: Step, over: list[AllocationId], wide: Mapping[AllocationId, tuple[int, ...]]) -> None:
    """R4, H4: Give back idle allocations, and the surplus slots (`wide`) of allocations that the job runs on."""
    give_back(this, [a for a in over if a not in wide])
    by_address: dict[str, dict[AllocationId, tuple[int, ...]]] = {}
    for allocation in (a for a in over if a in wide):
        by_address.setdefault(this.state.pool.held[allocation].address, {})[allocation] = wide[allocation]
    for address, unused in by_address.items():
        this.set(pool=slot_pool.narrowed(this.state.pool, unused))
        this.commands.append(ev.FreeAllocations(address, (), job_ended=False, surplus=unused))


def give_back(this: Step, allocations: list[AllocationId], *, job_ended: bool = False) -> None:
    if not allocations:
        return
    by_address: dict[str, list[AllocationId]] = {}
    for allocation in sorted(allocations):
        by_address.setdefault(this.state.pool.held[allocation].address, []).append(allocation)
    this.commands += [ev.FreeAllocations(address, tuple(a), job_ended) for address, a in by_address.items()]
    this.set(pool=slot_pool.dropped(this.state.pool, tuple(allocations)))


# --- growth ----------------------------------------------------------------------------------------------------------


def _growth_due(state: JobState, running: Running) -> float | None:
    """Return when the job may restart with other slots, or None.

    While the held slots are fewer than the job wants, it waits a while for more.
    """
    if running.rigid and resizing.misfits(state):
        return _pause_ends(state)
    if (growth := running.growth) is None:
        return None
    all_wanted = growth.parallelism == sum(b.desired for b in state.pool.groups.values())
    wait = 0.0 if all_wanted else state.options.resource_stabilization_timeout
    return max(growth.since + wait, _pause_ends(state))


def _pause_ends(state: JobState) -> float:
    return state.changed_at + state.options.cooldown_after_rescaling * 2.0 ** min(state.failed_growths, DOUBLINGS)


def _may_grow(state: JobState, running: Running, now: float) -> bool:
    due = _growth_due(state, running)
    may = not resizing.is_ending(state, running) and not state.on_trial  # a checkpoint would end the trial (H7)
    return due is not None and now >= due and may


def rescale_checkpoint_done(this: Step) -> None:
    # `after` is no wider if slots were lost meanwhile. The job restarts anyway: its tasks process nothing more.
    before = resizing.actual_widths(this.state)
    after = {g: share.parallelism for g, share in plan_anew(this.state).items()}
    this.stop(this.state.tasks)
    this.set(narrowed=False)
    this.restart(WaitingForSlots(restart_at=this.now), cause=resizing.text(before, after), rescale=True)


def rescale_checkpoint_failed(this: Step, phase: Rescaling) -> None:
    """Let the job run on as it is. It tries to grow again after the cooldown."""
    this.enter(phase.before, changed_at=this.now)
