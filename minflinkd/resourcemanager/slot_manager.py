"""The decisions of the ResourceManager: who gets which slots, which TaskManagers start and stop. Pure.

`step` takes an event to a new state and commands. Then `_advance` does what any event may have made possible: it serves
needs from free slots, and starts TaskManagers. What only the passing of time causes is left to `Tick`. One need is
served by slots of one TaskManager. `core` notices the silence of parties and reports it as an event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import covered, least, place, recovering
from minflinkd.resourcemanager.provisioning import hangs, starts_wanted, surplus, to_renew
from minflinkd.resourcemanager.reservations import follow, overdue, reserve
from minflinkd.resourcemanager.state import JobNeeds, Past, Resources, Starts, Wish
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

Commands = tuple[ev.Command, ...]
Step = tuple[Resources, Commands]

FIRST_BACKOFF = 0.5  # seconds between failed starts; doubled with each
LONGEST_BACKOFF = 30.0
WISH_TIMEOUT = LONGEST_BACKOFF + 10.0  # a wish outlives the pause after a failed start
STOPPING_TIMEOUT = 30.0  # seconds after which a TaskManager that was told to exit is forgotten
REST = 1.0  # seconds in which a TaskManager that refused is not asked again
RENEWAL_REST = 10.0  # the same for a TaskManager that was asked for a new session


@dataclass(frozen=True)
class Setting:
    """What decisions depend on besides the state."""

    options: ResourceManagerOptions
    new_resource_id: Callable[[], ResourceId]


def step(setting: Setting, state: Resources, event: ev.Event, now: float) -> Step:
    """Apply one event. Late events, of forgotten TaskManagers and replaced leaders, change nothing."""
    state, commands = _react(setting, state, event, now)
    state, more = _advance(setting, state, now)
    return state, (*commands, *more)


def _react(setting: Setting, state: Resources, event: ev.Event, now: float) -> Step:
    match event:
        case ev.TaskManagersFound(resource_ids):
            return _found(setting, state, resource_ids, now), ()
        case ev.TaskManagerRegistered():
            return _registered(state, event, now)
        case ev.Reported(report):
            return _reported(state, report, now), ()
        case ev.TaskManagerFailed(resource_id, reason):
            return _failed(state, resource_id, reason, now)
        case ev.ExitAnswered(resource_id, reason):
            return state, _asked_to_exit(state, resource_id, reason)
        case ev.NeedsDeclared(declaration):
            return _declared(state, declaration, now)
        case ev.JobMasterGone(job_id, leader_id, for_good):
            return _job_master_gone(state, job_id, leader_id, for_good), ()
        case ev.AllocationAnswered(allocation, allocated, report):
            return _answered(state, allocation, allocated, report, now), ()
        case ev.AllocationUnknown(resource_id, allocation):
            return state, _repeated(state, resource_id, allocation)
        case ev.SessionWanted(libraries):
            return _with_wish(state, "session", Wish(0, now + WISH_TIMEOUT, libraries=libraries)), ()
        case ev.SessionLent(resource_id):
            return _lent(state, resource_id, now), ()
        case ev.Tick():
            return _timed_out(setting, state, now)


def _advance(setting: Setting, state: Resources, now: float) -> Step:
    commands: tuple[ev.Command, ...] = ()
    if state.open_needs and not recovering(state, now):
        state, commands = _serve(setting, state, now)
    starts = []
    for _ in range(starts_wanted(state, setting.options, now)):
        resource_id = setting.new_resource_id()
        state = state.with_task_manager(TaskManager(resource_id, since=now, readiness_since=now, idle_since=now))
        starts.append(ev.StartTaskManager(resource_id))
    return state, (*commands, *starts)


# --- slots -----------------------------------------------------------------------------------------------------------


def _serve(setting: Setting, state: Resources, now: float) -> Step:
    """Serve open needs, the oldest job first.

    Needs that only let a job grow come last, and get what no waiting job can use now (R20).
    """
    commands: list[ev.Command] = []
    nowhere = most_slots(state) + 1
    later = {job_id: covered(state, job_id, setting.options, now) for job_id in state.open_needs}
    for job_id, need in sorted(state.unserved(), key=lambda wanted: wanted[1].beside is not None):
        if need.allocation_id in later[job_id]:
            continue
        job = state.jobs[job_id]
        shared = need.beside is None and not job.exclusive and not job.libraries
        placement = place(state, job_id, need, now) if not shared or least(need) < nowhere else None
        if placement is not None:
            state, command = _reserved(setting, state, job_id, need, placement.task_manager, placement.slots, now)
            commands.append(command)
        elif shared:
            nowhere = min(nowhere, least(need))  # no TaskManager has room for more than that either
    return state, tuple(commands)


def most_slots(state: Resources) -> int:
    return max((shelf.size for shelf in state.shelves), default=0)


def _reserved(
    setting: Setting, state: Resources, job_id: JobId, need: SlotNeed, tm: TaskManager, count: int, now: float
) -> tuple[Resources, ev.Command]:
    job, allocation = state.jobs[job_id], need.allocation_id
    tm, chosen = reserve(tm, job_id, allocation, count, now, exclusive=job.exclusive, libraries=job.libraries)
    state = state.with_task_manager(tm)
    growth = f"growth of job {job_id}"
    fresh = min(need.slots, setting.options.slots_per_tm)  # what a newly started TaskManager would provide
    if need.beside is not None:
        state = _without_wish(state, growth)
    elif count < fresh:
        # The job begins with what is free. A TaskManager for more is started anyway, once.
        state = _with_wish(
            state, growth, Wish(fresh, now + setting.options.start_timeout, job.exclusive, job.libraries)
        )
    return state, ev.SendAllocate(tm.resource_id, _request(job_id, job, allocation, chosen))


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


def _answered(
    state: Resources, allocation: AllocationId, allocated: bool, report: TaskManagerReport, now: float
) -> Resources:
    """The reservation is settled: the report shows the facts. A TaskManager that refused is left alone for a while."""
    state = _reported(state, report, now, settled=allocation)
    tm = state.task_managers.get(report.resource_id)
    if allocated or tm is None:
        return state
    return state.with_task_manager(replace(tm, rest_until=now + REST))


def _repeated(state: Resources, resource_id: ResourceId, allocation: AllocationId) -> Commands:
    """m7: Repeat it, with the same allocation and slots, while it is wanted and its reservation stands."""
    tm = state.task_managers.get(resource_id)
    if tm is None:
        return ()
    slots = tuple(i for i in tm.slots_of(allocation) if tm.slots[i].state is SlotState.RESERVED)
    job_id = tm.slots[slots[0]].job_id if slots else None
    job = state.jobs.get(job_id) if job_id is not None else None
    if job_id is None or job is None or allocation not in job.needs:
        return ()
    return (ev.SendAllocate(resource_id, _request(job_id, job, allocation, slots), again=True),)


# --- TaskManagers ----------------------------------------------------------------------------------------------------


def _found(setting: Setting, state: Resources, resource_ids: tuple[ResourceId, ...], now: float) -> Resources:
    """Found TaskManagers count as starting, so no duplicate is started (R7). They do not count as our own starts."""
    for resource_id in resource_ids:
        if resource_id not in state.task_managers:
            tm = TaskManager(resource_id, since=now, was_ready=True, readiness_since=now, idle_since=now)
            state = state.with_task_manager(tm)
    return replace(state, recovering_until=now + setting.options.heartbeat_timeout)


def _registered(state: Resources, event: ev.TaskManagerRegistered, now: float) -> Step:
    """R9: A repetition (the same process) is only a report. Another process replaces the earlier one."""
    hello = event.hello
    resource_id = hello.report.resource_id
    tm = state.task_managers.get(resource_id)
    commands: Commands = ()
    if tm is not None and tm.hello is not None:
        if _process(tm.hello) == _process(hello):
            return (_reported(state, hello.report, now) if tm.registered else state), ()
        state, commands = _lost(state, tm, "another process registered in its place", now)
        tm = None
    if tm is not None and tm.state is TaskManagerState.STOPPING:
        return state, ()
    fresh = tm or TaskManager(resource_id, since=now)
    fresh = replace(
        fresh.to(TaskManagerState.REGISTERED, now),
        instance_id=event.instance_id,
        hello=hello,
        was_ready=hello.report.session is SessionPhase.READY,
        readiness_since=now,
        idle_since=now,
    )
    state = state.with_task_manager(follow(fresh, hello.report, now))
    return (_started(state) if fresh.was_ready else state), commands


def _process(hello: RegisterTaskManager) -> tuple[object, ...]:
    """Return what identifies the process. In a container, the next one may have the same pid."""
    return hello.pid, hello.address, hello.nonce


def _reported(
    state: Resources, report: TaskManagerReport, now: float, settled: AllocationId | None = None
) -> Resources:
    tm = state.task_managers.get(report.resource_id)
    if tm is None or not tm.registered or tm.report is None:
        return state
    if report.version < tm.report.version:
        return state.with_task_manager(follow(tm, tm.report, now, settled))
    was_ready = tm.ready
    tm = follow(tm, report, now, settled)
    if report.session_steps > tm.steps:
        failed = bool(report.session_error)  # it starts over, perhaps for ever
        tm = replace(tm, steps=report.session_steps, got_on=tm.got_on if failed else now)
    if tm.ready is was_ready:  # a session that starts over and is lost again makes no progress
        return state.with_task_manager(tm)
    tm = replace(tm, was_ready=tm.was_ready or tm.ready, readiness_since=now, idle_since=now, rest_until=0.0)
    state = state.with_task_manager(tm)
    return _started(state) if tm.ready else state


def _started(state: Resources) -> Resources:
    """A start succeeded, so the failures before it no longer count."""
    return replace(state, starts=Starts()) if state.starts.failed else state


def _failed(state: Resources, resource_id: ResourceId, reason: str, now: float) -> Step:
    """The TaskManager is lost: forget it, kill it if it may still run, and tell the jobs with slots there (R11)."""
    tm = state.task_managers.get(resource_id)
    if tm is None:
        return state, ()
    state, commands = _lost(state, tm, reason, now)
    if tm.standalone:
        return state, commands
    return state, (ev.StopTaskManager(resource_id, reason, kill=True), *commands)


def _lost(state: Resources, tm: TaskManager, reason: str, now: float) -> Step:
    resource_id = tm.resource_id
    tm.to(TaskManagerState.GONE, now)
    state = state.without_task_manager(resource_id)
    if tm.state is TaskManagerState.STOPPING:
        return state, ()
    if tm.registered:
        state = replace(state, lost=state.lost + 1)
    if not tm.was_ready and not tm.standalone:
        failed = state.starts.failed + 1
        pause = min(FIRST_BACKOFF * 2 ** min(failed - 1, 10), LONGEST_BACKOFF)
        state = replace(state, starts=Starts(failed, _why(tm, reason), now + pause))
    affected = [job_id for job_id in tm.jobs if job_id in state.jobs]
    if not affected:
        return state, ()
    # These jobs will need as much again. Make room before they ask, unless they have already noticed.
    for job_id in affected:
        held = state.jobs[job_id].held
        lost = sum(slot.allocation_id in held for slot in tm.slots)
        if lost:
            wish = Wish(lost, now + WISH_TIMEOUT, state.jobs[job_id].exclusive, state.jobs[job_id].libraries)
            state = _with_wish(state, f"job {job_id}", wish)
    masters = tuple((state.jobs[j].address, state.jobs[j].leader_id) for j in affected)
    return state, (ev.NotifyLost(resource_id, reason, masters),)


def _why(tm: TaskManager, reason: str) -> str:
    """Return why its start failed, with its session's error (R5)."""
    said = tm.report.session_error if tm.report is not None else ""
    return f"{reason}: {said}" if said not in reason else reason


def _told_to_exit(state: Resources, tm: TaskManager, reason: str, now: float) -> tuple[Resources, ev.Command]:
    stopping = replace(tm.to(TaskManagerState.STOPPING, now), slots=())
    return state.with_task_manager(stopping), ev.SendExit(tm.resource_id, reason)


def _asked_to_exit(state: Resources, resource_id: ResourceId, reason: str) -> Commands:
    """Whatever it answered, the launcher makes sure that it ends. A standalone one is not ours to stop."""
    tm = state.task_managers.get(resource_id)
    if tm is None or tm.standalone or tm.state is not TaskManagerState.STOPPING:
        return ()
    return (ev.StopTaskManager(resource_id, reason, kill=False),)


def _lent(state: Resources, resource_id: ResourceId, now: float) -> Resources:
    tm = state.task_managers.get(resource_id)
    state = _without_wish(state, "session")
    return state.with_task_manager(replace(tm, idle_since=now)) if tm is not None else state


# --- jobs ------------------------------------------------------------------------------------------------------------


def is_stale(state: Resources, job_id: JobId, leader_id: LeaderId) -> bool:
    """Whether a later JobMaster of the job is known, or this one has ended (R1)."""
    past = state.past.get(job_id)
    if past is not None and past.ended:
        return leader_id <= past.leader_id
    present = state.present_leader(job_id)
    return present is not None and leader_id < present


def _declared(state: Resources, declaration: DeclareNeeds, now: float) -> Step:
    job_id, leader_id = declaration.job_id, declaration.leader_id
    known = state.jobs.get(job_id)
    if is_stale(state, job_id, leader_id):
        return state, ()
    if known is not None and known.leader_id == leader_id:
        if declaration.version < known.declaration.version:
            return state, ()
        job = replace(known, declaration=declaration)
    else:
        number = known.number if known is not None else state.arrivals
        job = JobNeeds(declaration, since=now, number=number)
        state = replace(state, arrivals=max(state.arrivals, number + 1))
    commands: Commands = ()
    if known is None or known.leader_id != leader_id:
        holders = {resource_id for held in state.holdings.get(job_id, {}).values() for resource_id in held}
        if holders:
            commands = (ev.AnnounceJobMaster(job_id, leader_id, tuple(sorted(holders))),)
    if declaration.needs:
        state = _without_wish(state, f"job {job_id}")
    return state.with_job(job_id, job), commands


def _job_master_gone(state: Resources, job_id: JobId, leader_id: LeaderId, for_good: bool) -> Resources:
    """A replaced JobMaster changes nothing. One that has ended is remembered, even if it was not known."""
    if is_stale(state, job_id, leader_id) or (job_id not in state.jobs and not for_good):
        return state
    state = _without_wish(_without_wish(state, f"job {job_id}"), f"growth of job {job_id}")
    return state.without_job(job_id, Past(leader_id, for_good))


def _with_wish(state: Resources, key: str, wish: Wish) -> Resources:
    return replace(state, wishes={**state.wishes, key: wish})


def _without_wish(state: Resources, key: str) -> Resources:
    return replace(state, wishes={k: w for k, w in state.wishes.items() if k != key}) if key in state.wishes else state


# --- time ------------------------------------------------------------------------------------------------------------


def _timed_out(setting: Setting, state: Resources, now: float) -> Step:
    commands: list[ev.Command] = []
    if any(now >= wish.until for wish in state.wishes.values()):
        state = replace(state, wishes={k: w for k, w in state.wishes.items() if now < w.until})
    for tm in tuple(state.task_managers.values()):
        why = hangs(tm, state, setting.options, now)
        if tm.state is TaskManagerState.STOPPING and now - tm.since >= STOPPING_TIMEOUT:
            why = f"it did not exit within {STOPPING_TIMEOUT:g} s"
        if why is not None:
            state, more = _failed(state, tm.resource_id, why, now)
            commands += more
        elif overdue(tm, now) and tm.report is not None:
            state = state.with_task_manager(follow(tm, tm.report, now))
    for tm, why in tuple(surplus(state, setting.options, now)):
        state, command = _told_to_exit(state, tm, why, now)
        commands.append(command)
    for tm in tuple(to_renew(state, setting.options, now)):
        state = state.with_task_manager(replace(tm, rest_until=now + RENEWAL_REST))
        commands.append(ev.SendRenew(tm.resource_id, "its session has aged"))
    return state, tuple(commands)
