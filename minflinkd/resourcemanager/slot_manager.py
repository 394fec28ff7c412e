"""The decisions of the ResourceManager: who gets which slots, which TaskManagers start and stop. Pure.

`step` takes an event to a new state and commands; `_advance` then draws the conclusions that any event may have made
possible: it serves needs from free slots, and starts and stops TaskManagers. One need is served by slots of one
TaskManager. Silence of parties is noticed by the driver of this machine, and comes as an event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.provisioning import starts_wanted, surplus
from minflinkd.resourcemanager.state import (
    RETIRED_KEPT,
    JobNeeds,
    Resources,
    Slot,
    SlotState,
    Starts,
    TaskManager,
    TaskManagerState,
    Wish,
)
from minflinkd.rpc.messages import DeclareNeeds, SessionPhase, TaskManagerReport
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId, ResourceId

Commands = tuple[ev.Command, ...]
Step = tuple[Resources, Commands]

RESERVATION_TIMEOUT = 10.0  # seconds (R9)
STOPPING_TIMEOUT = 30.0  # after which a TaskManager that was told to exit is forgotten
WISH_TIMEOUT = 10.0
REST = 1.0  # in which a TaskManager that said no is not asked again
FIRST_BACKOFF = 0.5  # between failed starts; doubled with each
LONGEST_BACKOFF = 30.0


@dataclass(frozen=True)
class Setting:
    """What decisions depend on beside the state."""

    options: ResourceManagerOptions
    new_resource_id: Callable[[], ResourceId]


def step(setting: Setting, state: Resources, event: ev.Event, now: float) -> Step:
    """Move by one event. Late events, of forgotten TaskManagers and replaced leaders, change nothing."""
    state, commands = _react(setting, state, event, now)
    state, more = _advance(setting, state, now)
    return state, (*commands, *more)


def _react(setting: Setting, state: Resources, event: ev.Event, now: float) -> Step:
    match event:
        case ev.TaskManagersFound(resource_ids):
            return _found(state, resource_ids, now), ()
        case ev.TaskManagerRegistered():
            return _registered(state, event, now), ()
        case ev.Reported(report):
            return _reported(state, report, now), ()
        case ev.TaskManagerFailed(resource_id, reason):
            return _failed(state, resource_id, reason, now)
        case ev.NeedsDeclared(declaration):
            return _declared(state, declaration), ()
        case ev.JobMasterGone(job_id, leader_id, for_good):
            return _job_master_gone(state, job_id, leader_id, for_good), ()
        case ev.AllocationAnswered(allocation, allocated, report):
            return _answered(state, allocation, allocated, report, now), ()
        case ev.AllocationUnknown(resource_id, allocation):
            return state, _repeated(state, resource_id, allocation)
        case ev.SessionWanted():
            return replace(state, wishes={**state.wishes, "session": Wish(0, now + WISH_TIMEOUT)}), ()
        case ev.SessionLent(resource_id):
            return _lent(state, resource_id, now), ()
        case ev.Tick():
            return _timed_out(setting, state, now)


def _advance(setting: Setting, state: Resources, now: float) -> Step:
    commands: list[ev.Command] = []
    for job_id, allocation, slots in tuple(state.unserved()):
        tm = _best(state, job_id, slots, now)
        if tm is not None:
            state, command = _reserve(state, tm, job_id, allocation, slots, now)
            commands.append(command)
    for tm in tuple(surplus(state, setting.options, now)):
        reason = f"idle for {now - tm.idle_since:.0f} s, and not needed as a standby"
        state = state.with_task_manager(replace(tm.to(TaskManagerState.STOPPING, now), slots=()))
        commands.append(ev.StopTaskManager(tm.resource_id, reason, kill=False))
    for _ in range(starts_wanted(state, setting.options, now)):
        resource_id = setting.new_resource_id()
        state = state.with_task_manager(TaskManager(resource_id, since=now, phase_since=now, idle_since=now))
        commands.append(ev.StartTaskManager(resource_id))
    return state, tuple(commands)


# --- slots -----------------------------------------------------------------------------------------------------------


def _best(state: Resources, job_id: JobId, slots: int, now: float) -> TaskManager | None:
    """One that holds slots of the job already, then the fullest: wholly free ones stay standbys."""
    fitting = [tm for tm in state.living() if tm.ready and len(tm.free) >= slots and now >= tm.rest_until]
    key = lambda tm: (job_id not in tm.jobs(), tm.idle, len(tm.free), tm.since)  # noqa: E731
    return min(fitting, key=key, default=None)


def _reserve(
    state: Resources, tm: TaskManager, job_id: JobId, allocation: AllocationId, slots: int, now: float
) -> tuple[Resources, ev.Command]:
    chosen = tm.free[:slots]
    what = f"slots {chosen} of {tm.resource_id}"
    taken = tuple(
        slot.to(SlotState.RESERVED, what, job_id=job_id, allocation_id=allocation, since=now) if i in chosen else slot
        for i, slot in enumerate(tm.slots)
    )
    job = state.jobs[job_id]
    command = ev.SendAllocate(tm.resource_id, chosen, job_id, allocation, job.address, job.leader_id)
    return state.with_task_manager(replace(tm, slots=taken)), command


def _answered(
    state: Resources, allocation: AllocationId, allocated: bool, report: TaskManagerReport, now: float
) -> Resources:
    """The reservation has done its duty: the report says what is so. One that says no is left alone for a while."""
    state = _reported(state, report, now, settled=allocation)
    tm = state.task_managers.get(report.resource_id)
    if allocated or tm is None:
        return state
    return state.with_task_manager(replace(tm, rest_until=now + REST))


def _repeated(state: Resources, resource_id: ResourceId, allocation: AllocationId) -> Commands:
    """m7 again, with the same allocation and slots, while it is wanted and its reservation stands."""
    tm = state.task_managers.get(resource_id)
    if tm is None:
        return ()
    slots = tuple(i for i in tm.slots_of(allocation) if tm.slots[i].state is SlotState.RESERVED)
    job_id = tm.slots[slots[0]].job_id if slots else None
    job = state.jobs.get(job_id) if job_id is not None else None
    if job_id is None or job is None or allocation not in job.needs:
        return ()
    return (ev.SendAllocate(resource_id, slots, job_id, allocation, job.address, job.leader_id, again=True),)


def _follow(tm: TaskManager, now: float, settled: AllocationId | None = None) -> TaskManager:
    """The slots as the last report says, but for reservations that the report may be too old to know of."""
    assert tm.report is not None
    slots: list[Slot] = []
    for slot, status in zip(_sized(tm.slots, len(tm.report.slots)), tm.report.slots, strict=True):
        pending = (
            slot.state is SlotState.RESERVED
            and status.allocation_id is None
            and slot.allocation_id != settled
            and now - slot.since < RESERVATION_TIMEOUT
        )
        slots.append(slot if pending else slot.follow(status, f"slot {status.index} of {tm.resource_id}"))
    # An allocation's slots move together: where another holds one of them, the reservation of the rest is void.
    void = {
        old.allocation_id
        for old, new in zip(tm.slots, slots, strict=False)
        if old.state is SlotState.RESERVED and new.allocation_id != old.allocation_id
    }
    slots = [s.to(SlotState.FREE, tm.resource_id) if _reserved_for(s, void) else s for s in slots]
    followed = replace(tm, slots=tuple(slots))
    return replace(followed, idle_since=now) if followed.idle and not tm.idle else followed


def _reserved_for(slot: Slot, allocations: set[AllocationId | None]) -> bool:
    return slot.state is SlotState.RESERVED and slot.allocation_id in allocations


def _sized(slots: tuple[Slot, ...], size: int) -> tuple[Slot, ...]:
    return (*slots[:size], *(Slot() for _ in range(size - len(slots))))


# --- TaskManagers ----------------------------------------------------------------------------------------------------


def _found(state: Resources, resource_ids: tuple[ResourceId, ...], now: float) -> Resources:
    """They count as starting, so that no duplicate is started (R7), but not as starts of ours that may fail."""
    for resource_id in resource_ids:
        if resource_id not in state.task_managers:
            tm = TaskManager(resource_id, since=now, was_ready=True, phase_since=now, idle_since=now)
            state = state.with_task_manager(tm)
    return state


def _registered(state: Resources, event: ev.TaskManagerRegistered, now: float) -> Resources:
    """R9. A repetition (the same process) is a report and no more; another process replaces what was there."""
    hello = event.hello
    resource_id = hello.report.resource_id
    tm = state.task_managers.get(resource_id)
    if tm is not None and tm.state is TaskManagerState.STOPPING:
        return state
    if tm is not None and tm.hello is not None and (tm.hello.pid, tm.hello.address) == (hello.pid, hello.address):
        return _reported(state, hello.report, now)
    fresh = tm if tm is not None and not tm.registered else TaskManager(resource_id, since=now)
    fresh = replace(
        fresh.to(TaskManagerState.REGISTERED, now),
        instance_id=event.instance_id,
        hello=hello,
        report=hello.report,
        was_ready=hello.report.session is SessionPhase.READY,
        phase_since=now,
        idle_since=now,
    )
    state = state.with_task_manager(_follow(fresh, now))
    return _started(state) if fresh.was_ready else state


def _reported(
    state: Resources, report: TaskManagerReport, now: float, settled: AllocationId | None = None
) -> Resources:
    tm = state.task_managers.get(report.resource_id)
    if tm is None or not tm.registered or tm.report is None:
        return state
    became_ready = False
    if report.version >= tm.report.version:
        changed = report.session is not tm.report.session
        became_ready = changed and report.session is SessionPhase.READY
        tm = replace(
            tm,
            report=report,
            was_ready=tm.was_ready or became_ready,
            phase_since=now if changed else tm.phase_since,
            idle_since=now if changed else tm.idle_since,
        )
    state = state.with_task_manager(_follow(tm, now, settled))
    return _started(state) if became_ready else state


def _started(state: Resources) -> Resources:
    """A start came to its end: the failures before it no longer count."""
    return replace(state, starts=Starts())


def _failed(state: Resources, resource_id: ResourceId, reason: str, now: float) -> Step:
    """It is lost: forgotten here, killed where it may still run, told to the jobs that had slots there (R11)."""
    tm = state.task_managers.get(resource_id)
    if tm is None:
        return state, ()
    tm.to(TaskManagerState.GONE, now)
    state = replace(state, task_managers={r: t for r, t in state.task_managers.items() if r != resource_id})
    commands: list[ev.Command] = [ev.StopTaskManager(resource_id, reason, kill=True)]
    if tm.state is TaskManagerState.STOPPING:
        return state, tuple(commands)
    if tm.registered:
        state = replace(state, lost=state.lost + 1)
    if not tm.was_ready:
        failed = state.starts.failed + 1
        pause = min(FIRST_BACKOFF * 2 ** min(failed - 1, 10), LONGEST_BACKOFF)
        state = replace(state, starts=Starts(failed, reason, now + pause))
    affected = [job_id for job_id in sorted(tm.jobs()) if job_id in state.jobs]
    if affected:
        masters = tuple((state.jobs[j].address, state.jobs[j].leader_id) for j in affected)
        commands.append(ev.NotifyLost(resource_id, reason, masters))
    # These jobs will want as much again: room for it is made before they ask.
    wishes = {
        f"job {job_id}": Wish(sum(slot.job_id == job_id for slot in tm.slots), now + WISH_TIMEOUT)
        for job_id in affected
        if any(s.job_id == job_id and s.state is SlotState.ALLOCATED for s in tm.slots)
    }
    return replace(state, wishes={**state.wishes, **wishes}), tuple(commands)


def _lent(state: Resources, resource_id: ResourceId, now: float) -> Resources:
    tm = state.task_managers.get(resource_id)
    state = _without_wish(state, "session")
    return state.with_task_manager(replace(tm, idle_since=now)) if tm is not None else state


# --- jobs ------------------------------------------------------------------------------------------------------------


def _declared(state: Resources, declaration: DeclareNeeds) -> Resources:
    known = state.jobs.get(declaration.job_id)
    if declaration.leader_id in state.retired:
        return state
    if known is not None and known.leader_id == declaration.leader_id:
        if declaration.version < known.version:
            return state
    elif known is not None:
        state = _retire(state, known.leader_id)
    job = JobNeeds.of(declaration)
    if job.needs:
        state = _without_wish(state, f"job {declaration.job_id}")
    return replace(state, jobs={**state.jobs, declaration.job_id: job})


def _job_master_gone(state: Resources, job_id: JobId, leader_id: LeaderId, for_good: bool) -> Resources:
    if for_good:
        state = _retire(state, leader_id)
    known = state.jobs.get(job_id)
    if known is None or known.leader_id != leader_id:
        return state
    state = _without_wish(state, f"job {job_id}")
    return replace(state, jobs={j: needs for j, needs in state.jobs.items() if j != job_id})


def _retire(state: Resources, leader_id: LeaderId) -> Resources:
    return replace(state, retired=(*state.retired, leader_id)[-RETIRED_KEPT:])


def _without_wish(state: Resources, key: str) -> Resources:
    return replace(state, wishes={k: w for k, w in state.wishes.items() if k != key}) if key in state.wishes else state


# --- time ------------------------------------------------------------------------------------------------------------


def _timed_out(setting: Setting, state: Resources, now: float) -> Step:
    timeout = setting.options.start_timeout
    commands: list[ev.Command] = []
    state = replace(state, wishes={k: w for k, w in state.wishes.items() if now < w.until})
    for tm in tuple(state.task_managers.values()):
        why = None
        if tm.state is TaskManagerState.STARTING and now - tm.since >= timeout:
            why = f"it did not register within {timeout:g} s"
        elif tm.idle and not tm.ready and now - tm.phase_since >= timeout:
            why = f"its session was {tm.session.value} for {timeout:g} s"
        elif tm.state is TaskManagerState.STOPPING and now - tm.since >= STOPPING_TIMEOUT:
            why = f"it did not exit within {STOPPING_TIMEOUT:g} s"
        if why is not None:
            state, more = _failed(state, tm.resource_id, why, now)
            commands += more
        elif any(_overdue(slot, now) for slot in tm.slots):
            state = state.with_task_manager(_follow(tm, now))
    return state, tuple(commands)


def _overdue(slot: Slot, now: float) -> bool:
    return slot.state is SlotState.RESERVED and now - slot.since >= RESERVATION_TIMEOUT
