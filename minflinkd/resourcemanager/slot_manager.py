"""The decisions of the ResourceManager: who gets which slots, which TaskManagers start and stop. Pure.

`step` takes an event to a new state and commands. Then `_advance` does what any event may have made possible: it serves
needs from free slots, and starts TaskManagers. What only the passing of time causes is left to `Tick`. One need is
served by slots of one TaskManager. `core` notices the silence of parties and reports it as an event.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.claims import claims
from minflinkd.resourcemanager.placement import covered, is_special, least, place, recovering
from minflinkd.resourcemanager.provisioning import RECOVERY, hangs, in_the_way, starts_wanted, surplus, to_renew
from minflinkd.resourcemanager.reservations import follow, overdue, reserve
from minflinkd.resourcemanager.sizes import TaskManagerSize, falls_short, size_for
from minflinkd.resourcemanager.state import KEPT_LOSSES, JobNeeds, Loss, Past, Resources, Returned, Starts, Wish
from minflinkd.resourcemanager.step import Setting, Step
from minflinkd.resourcemanager.task_managers import SlotState, TaskManager, TaskManagerState
from minflinkd.rpc.messages import (
    AllocateSlots,
    DeclareNeeds,
    RegisterTaskManager,
    SessionPhase,
    SlotNeed,
    TaskManagerReport,
)
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile

FIRST_BACKOFF = 0.5  # seconds between failed starts; doubled with each
LONGEST_BACKOFF = 30.0
WISH_TIMEOUT = LONGEST_BACKOFF + 10.0  # a wish outlives the pause after a failed start
STOPPING_TIMEOUT = 30.0  # seconds after which a TaskManager that was told to exit is forgotten
REST = 1.0  # seconds in which a TaskManager that refused is not asked again
RENEWAL_REST = 10.0  # the same for a TaskManager that was asked for a new session
RETURN_REST = 0.5  # seconds in which a need is not served again after its slots came back; doubled each time
LONGEST_RETURN_REST = 5.0


def step(setting: Setting, state: Resources, event: ev.Event, now: float) -> tuple[Resources, tuple[ev.Command, ...]]:
    """Apply one event. Late events, of forgotten TaskManagers and replaced leaders, change nothing."""
    this = Step(setting, state, now)
    _react(this, event)
    _advance(this)
    return this.result()


def _react(this: Step, event: ev.Event) -> None:
    match event:
        case ev.TaskManagersFound(resource_ids):
            _found(this, resource_ids)
        case ev.TaskManagerRegistered():
            _registered(this, event)
        case ev.Reported(report):
            _reported(this, report)
        case ev.TaskManagerFailed(resource_id, reason):
            _failed(this, resource_id, reason)
        case ev.ExitAnswered(resource_id, reason):
            _asked_to_exit(this, resource_id, reason)
        case ev.NeedsDeclared(declaration):
            _declared(this, declaration)
        case ev.JobMasterGone(job_id, leader_id, for_good):
            _job_master_gone(this, job_id, leader_id, for_good)
        case ev.JobsListed(jobs):
            _listed(this, jobs)
        case ev.AllocationAnswered(allocation, allocated, report):
            _answered(this, allocation, allocated, report)
        case ev.AllocationUnknown(resource_id, allocation):
            _repeat(this, resource_id, allocation)
        case ev.StartWaits(resource_id, why):
            _start_waits(this, resource_id, why)
        case ev.DrainAsked(resource_id, undo):
            _drain_asked(this, resource_id, draining=not undo)
        case ev.DrainAnswered(number, report):
            _drain_answered(this, number, report)
        case ev.SessionWanted(libraries, exclusive, profile):
            this.wish("session", Wish(0, this.now + WISH_TIMEOUT, exclusive, libraries, profile))
        case ev.SessionLent(resource_id):
            _lent(this, resource_id)
        case ev.Tick():
            _timed_out(this)


def _advance(this: Step) -> None:
    if this.state.open_needs and not recovering(this.state, this.now):
        _serve(this)
    if (found := in_the_way(this.state, this.options, this.now)) is not None:
        _tell_to_exit(this, *found)
    for wanted in starts_wanted(this.state, this.options, this.now):
        resource_id, size = this.new_resource_id(), None if wanted == this.options.size else wanted
        this.put(TaskManager(resource_id, since=this.now, readiness_since=this.now, size=size))
        this.commands.append(ev.StartTaskManager(resource_id, size))


# --- slots -----------------------------------------------------------------------------------------------------------


def _serve(this: Step) -> None:
    """Serve open needs, the oldest job first, and of a job the needs with the largest demands.

    Needs that only let a job grow come last, and get what no waiting job can use now (R20).
    """
    nowhere: dict[ResourceProfile, int] = defaultdict(lambda: most_slots(this.state) + 1)
    claimed = claims(this.state, this.options, this.now)
    later = {job_id: covered(this.state, job_id, this.options, this.now) for job_id in this.state.open_needs}
    for job_id, need in sorted(this.state.unserved(), key=lambda wanted: _turn(this.state, *wanted)):
        job = this.state.jobs[job_id]
        if need.allocation_id in later[job_id] or job.rests(need.allocation_id, this.now):
            continue
        shared = need.beside is None and not job.exclusive and not job.libraries and not claimed.any
        if shared and least(need) >= nowhere[need.profile]:
            continue
        kept = partial(claimed.keep, job_id=job_id, need=need) if claimed.any else None
        placement = place(this.state, job_id, need, this.now, kept=kept)
        if placement is not None:
            _reserve(this, job_id, need, placement.task_manager, placement.slots)
            claimed = claimed.without(this.state, need.allocation_id)
        elif shared:
            nowhere[need.profile] = least(need)  # no TaskManager has room for more than that either


def _turn(state: Resources, job_id: JobId, need: SlotNeed) -> tuple[object, ...]:
    """Return a key that sorts needs in the order in which they are served."""
    return need.beside is not None, state.jobs[job_id].number, *(-amount for amount in need.profile.rank)


def most_slots(state: Resources) -> int:
    return max((shelf.size for shelf in state.shelves), default=0)


def _reserve(this: Step, job_id: JobId, need: SlotNeed, tm: TaskManager, count: int) -> None:
    job, allocation, now = this.state.jobs[job_id], need.allocation_id, this.now
    tm, chosen = reserve(tm, job_id, allocation, count, now, exclusive=job.exclusive, libraries=job.libraries)
    this.put(tm)
    growth = f"growth of job {job_id}"
    size = size_for(this.options, need.profile, need.slots, 1)
    fresh = min(need.slots, size.slots) if size is not None else 0  # what a newly started TaskManager would provide
    if need.beside is not None:
        this.drop_wish(growth)
    elif count < fresh:
        # The job begins with what is free. A TaskManager for more is started anyway, once.
        until = now + this.options.start_timeout
        this.wish(growth, Wish(fresh, until, job.exclusive, job.libraries, need.profile))
    this.commands.append(ev.SendAllocate(tm.resource_id, _request(job_id, job, allocation, chosen)))


def _request(job_id: JobId, job: JobNeeds, allocation: AllocationId, slots: tuple[int, ...]) -> AllocateSlots:
    return AllocateSlots(
        job_id=job_id,
        allocation_id=allocation,
        slots=slots,
        job_master=job.address,
        job_leader_id=job.leader_id,
        exclusive=job.exclusive,
        libraries=job.libraries,
    )


def _answered(this: Step, allocation: AllocationId, allocated: bool, report: TaskManagerReport) -> None:
    """The reservation is settled: the report shows the facts. A TaskManager that refused is left alone for a while."""
    before = this.state.task_managers.get(report.resource_id)
    _reported(this, report, settled=allocation)
    tm = this.state.task_managers.get(report.resource_id)
    if tm is None or before is None:
        return
    if not allocated:
        this.put(replace(tm, rest_until=this.now + REST))
    elif allocation not in before.granted and allocation in before.allocations and allocation not in tm.allocations:
        _came_back(this, before.allocations[allocation], allocation)  # a later report was faster than this answer


def _came_back(this: Step, job_id: JobId, allocation: AllocationId) -> None:
    """R8: Let the need rest, until its JobMaster declares its needs anew or some time has passed.

    The JobMaster did not want the slots, and may be cut off from here. If the need were served at once, slots would go
    back and forth as fast as messages travel.
    """
    job = this.state.jobs.get(job_id)
    if job is None or allocation not in job.needs:
        return
    times = job.returned[allocation].times + 1 if allocation in job.returned else 1
    rest = min(RETURN_REST * 2 ** min(times - 1, 10), LONGEST_RETURN_REST)
    returned = {**job.returned, allocation: Returned(times, this.now + rest)}
    this.state = this.state.with_job(job_id, replace(job, returned=returned))


def _repeat(this: Step, resource_id: ResourceId, allocation: AllocationId) -> None:
    """m7: Repeat it, with the same allocation and slots, while it is wanted and its reservation stands."""
    tm = this.state.task_managers.get(resource_id)
    if tm is None or not tm.registered:  # one that was told to exit gives no slots any more
        return
    if tm.draining and tm.report is not None:
        this.put(follow(tm, tm.report, this.now, settled=allocation))
        return
    slots = tuple(i for i in tm.slots_of(allocation) if tm.slots[i].state is SlotState.RESERVED)
    job_id = tm.slots[slots[0]].job_id if slots else None
    job = this.state.jobs.get(job_id) if job_id is not None else None
    if job_id is not None and job is not None and allocation in job.needs:
        this.commands.append(ev.SendAllocate(resource_id, _request(job_id, job, allocation, slots), again=True))


# --- TaskManagers ----------------------------------------------------------------------------------------------------


def _found(this: Step, resource_ids: tuple[ResourceId, ...]) -> None:
    """Found TaskManagers count as starting, so no duplicate is started (R7). They do not count as our own starts."""
    now = this.now
    for resource_id in resource_ids:
        if resource_id not in this.state.task_managers:
            this.put(TaskManager(resource_id, since=now, was_ready=True))
    this.set(recovering_until=now + this.options.heartbeat_timeout)


def _registered(this: Step, event: ev.TaskManagerRegistered) -> None:
    """R9: A repetition (the same process) is only a report. Another process replaces the earlier one."""
    hello, now = event.hello, this.now
    resource_id = hello.report.resource_id
    tm = this.state.task_managers.get(resource_id)
    if tm is not None and tm.hello is not None:
        if _process(tm.hello) == _process(hello):
            _reported(this, hello.report)
            return
        _lose(this, tm, "another process registered in its place")
        tm = None
    if tm is not None and tm.state is TaskManagerState.STOPPING:
        return
    fresh = tm or TaskManager(resource_id, since=now)
    fresh = replace(
        fresh.to(TaskManagerState.REGISTERED, now),
        instance_id=event.instance_id,
        hello=hello,
        waits="",
        was_ready=hello.report.session is SessionPhase.READY,
        readiness_since=now,
        idle_since=now,
    )
    this.put(follow(fresh, hello.report, now))
    if why := falls_short(fresh.size, TaskManagerSize(len(hello.report.slots), hello.slot_profile)):
        _failed(this, resource_id, why)
    elif fresh.was_ready:
        _started(this)


def _process(hello: RegisterTaskManager) -> tuple[object, ...]:
    """Return what identifies the process. In a container, the next one may have the same pid."""
    return hello.pid, hello.address, hello.nonce


def _reported(this: Step, report: TaskManagerReport, settled: AllocationId | None = None) -> None:
    now = this.now
    tm = this.state.task_managers.get(report.resource_id)
    if tm is None or not tm.registered or tm.report is None:
        return
    if report.version < tm.report.version:
        this.put(follow(tm, tm.report, now, settled))
        return
    was_ready, granted, analysed = tm.ready, tm.granted, tm.analysing
    tm = follow(tm, report, now, settled)
    if report.session_steps > tm.steps:
        failed = bool(report.session_error)  # it starts over, perhaps for ever
        tm = replace(tm, steps=report.session_steps, got_on=tm.got_on if failed else now)
    if tm.ready is not was_ready:  # not if a session starts over and is lost again: that is no progress
        tm = replace(tm, was_ready=tm.was_ready or tm.ready, readiness_since=now, idle_since=now, rest_until=0.0)
        if tm.ready:
            _started(this)
    if tm.analysing or analysed:
        tm = replace(tm, idle_since=now)
    this.put(tm)
    for allocation in sorted(granted.keys() - tm.allocations.keys()):
        _came_back(this, granted[allocation], allocation)


def _started(this: Step) -> None:
    """A start succeeded, so the failures before it no longer count."""
    if this.state.starts.failed:
        this.set(starts=Starts())


def _failed(this: Step, resource_id: ResourceId, reason: str) -> None:
    """The TaskManager is lost: forget it, kill it if it may still run, and tell the jobs with slots there (R11)."""
    tm = this.state.task_managers.get(resource_id)
    if tm is None:
        return
    if not tm.standalone:
        this.commands.append(ev.StopTaskManager(resource_id, reason, kill=True))
    _lose(this, tm, reason)


def _lose(this: Step, tm: TaskManager, reason: str) -> None:
    resource_id, now = tm.resource_id, this.now
    tm.to(TaskManagerState.GONE, now)
    this.state = this.state.without_task_manager(resource_id)
    if tm.state is TaskManagerState.STOPPING:
        return
    if tm.registered:
        losses = (Loss(resource_id, now, reason), *this.state.losses)[:KEPT_LOSSES]
        this.set(lost=this.state.lost + 1, losses=losses)
    if not tm.was_ready and not tm.standalone:
        failed = this.state.starts.failed + 1
        pause = min(FIRST_BACKOFF * 2 ** min(failed - 1, 10), LONGEST_BACKOFF)
        this.set(starts=Starts(failed, _why(tm, reason), now + pause))
    jobs = this.state.jobs
    affected = [job_id for job_id in tm.jobs if job_id in jobs]
    # These jobs will need as much again. Make room before they ask, unless they have already noticed.
    for job_id in affected:
        job = jobs[job_id]
        if lost := sum(slot.allocation_id in job.held for slot in tm.slots):
            special = tm.shelf is not None and is_special(tm.shelf, this.options)
            profile = tm.profile if special else NO_PROFILE
            this.wish(f"job {job_id}", Wish(lost, now + WISH_TIMEOUT, job.exclusive, job.libraries, profile))
    if affected:
        this.set(spares_from=now + RECOVERY)
        masters = tuple((jobs[j].address, jobs[j].leader_id) for j in affected)
        this.commands.append(ev.NotifyLost(resource_id, reason, masters))


def _why(tm: TaskManager, reason: str) -> str:
    """Return why its start failed, with its session's error (R5)."""
    said = tm.report.session_error if tm.report is not None else ""
    return f"{reason}: {said}" if said not in reason else reason


def _tell_to_exit(this: Step, tm: TaskManager, reason: str) -> None:
    this.put(replace(tm.to(TaskManagerState.STOPPING, this.now), slots=()))
    this.commands.append(ev.SendExit(tm.resource_id, reason))


def _asked_to_exit(this: Step, resource_id: ResourceId, reason: str) -> None:
    """Whatever it answered, the launcher makes sure that it ends. A standalone one is not ours to stop."""
    tm = this.state.task_managers.get(resource_id)
    if tm is not None and not tm.standalone and tm.state is TaskManagerState.STOPPING:
        this.commands.append(ev.StopTaskManager(resource_id, reason, kill=False))


def _start_waits(this: Step, resource_id: ResourceId, why: str) -> None:
    """Note why it does not run yet. Nothing follows from it: it is only told to those who wait."""
    tm = this.state.task_managers.get(resource_id)
    if tm is not None and tm.state is TaskManagerState.STARTING:
        this.put(replace(tm, waits=why))


def _drain_asked(this: Step, resource_id: ResourceId, *, draining: bool) -> None:
    """A15b: From this step on, give out no slot of it. Tell the TaskManager, so that this outlives this process."""
    tm = this.state.task_managers.get(resource_id)
    if tm is None or not tm.registered or tm.draining is draining:
        return
    this.put(replace(tm, drain=draining, drains=tm.drains + 1))
    this.commands.append(ev.SendDraining(resource_id, draining, tm.drains + 1))


def _drain_answered(this: Step, number: int, report: TaskManagerReport) -> None:
    _reported(this, report)
    tm = this.state.task_managers.get(report.resource_id)
    if tm is not None and tm.drain is not None and tm.drains == number:
        this.put(replace(tm, drain=None))


def _lent(this: Step, resource_id: ResourceId) -> None:
    this.drop_wish("session")
    if (tm := this.state.task_managers.get(resource_id)) is not None:
        this.put(replace(tm, idle_since=this.now))


# --- jobs ------------------------------------------------------------------------------------------------------------


def is_stale(state: Resources, job_id: JobId, leader_id: LeaderId) -> bool:
    """Whether a later JobMaster of the job is known, or this one has ended (R1)."""
    past = state.past.get(job_id)
    if past is not None and past.ended:
        return leader_id <= past.leader_id
    present = state.present_leader(job_id)
    return present is not None and leader_id < present


def _declared(this: Step, declaration: DeclareNeeds) -> None:
    job_id, leader_id = declaration.job_id, declaration.leader_id
    known = this.state.jobs.get(job_id)
    if is_stale(this.state, job_id, leader_id):
        return
    if known is not None and known.leader_id == leader_id:
        if declaration.version < known.declaration.version:
            return
        soon = this.now < known.since + this.options.heartbeat_timeout
        given_up = (known.given_up | known.held) - set(declaration.held) if soon else frozenset()
        job = replace(known, declaration=declaration, returned={}, given_up=given_up)
    else:
        number = known.number if known is not None else this.state.arrivals
        past = this.state.past.get(job_id)
        # A JobMaster that was silent is not a new one.
        before = past.since if past is not None and past.leader_id == leader_id else None
        job = JobNeeds(declaration, since=this.now if before is None else before, number=number)
        this.set(arrivals=max(this.state.arrivals, number + 1))
        if holders := {holder for held in this.state.holdings.get(job_id, {}).values() for holder in held}:
            this.commands.append(ev.AnnounceJobMaster(job_id, leader_id, tuple(sorted(holders))))
    if declaration.needs:
        this.drop_wish(f"job {job_id}")
    this.state = this.state.with_job(job_id, job)


def _job_master_gone(this: Step, job_id: JobId, leader_id: LeaderId, for_good: bool) -> None:
    """A replaced JobMaster changes nothing. One that has ended is remembered, even if it was not known."""
    if is_stale(this.state, job_id, leader_id) or (job_id not in this.state.jobs and not for_good):
        return
    this.drop_wish(f"job {job_id}")
    this.drop_wish(f"growth of job {job_id}")
    job = this.state.jobs.get(job_id)
    since = job.since if job is not None and job.leader_id == leader_id else None
    this.state = this.state.without_job(job_id, Past(leader_id, for_good, since))


def _listed(this: Step, jobs: tuple[JobId, ...]) -> None:
    """From now on it is known of every job whether it has ended.

    A job on the list whose end was heard meanwhile counts as not ended, because a mistake would cost it its tasks.
    """
    this.set(listed=True, unended=this.state.unended.union(jobs))


# --- time ------------------------------------------------------------------------------------------------------------


def _timed_out(this: Step) -> None:
    now, wishes = this.now, this.state.wishes
    if any(now >= wish.until for wish in wishes.values()):
        this.set(wishes={key: wish for key, wish in wishes.items() if now < wish.until})
    for tm in tuple(this.state.task_managers.values()):
        why = hangs(tm, this.state, this.options, now)
        if tm.state is TaskManagerState.STOPPING and now - tm.since >= STOPPING_TIMEOUT:
            why = f"it did not exit within {STOPPING_TIMEOUT:g} s"
        if why is not None:
            _failed(this, tm.resource_id, why)
        elif overdue(tm, now) and tm.report is not None:
            this.put(follow(tm, tm.report, now))
        if tm.drain is not None and tm.registered and why is None:
            this.commands.append(ev.SendDraining(tm.resource_id, tm.drain, tm.drains))
    for tm, why in tuple(surplus(this.state, this.options, now)):
        _tell_to_exit(this, tm, why)
    for tm in tuple(to_renew(this.state, this.options, now)):
        this.put(replace(tm, rest_until=now + RENEWAL_REST))
        this.commands.append(ev.SendRenew(tm.resource_id, "its session has aged"))
