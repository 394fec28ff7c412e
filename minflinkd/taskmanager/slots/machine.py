"""Decides about the slots of a TaskManager (resources.md m7 - m13, R8 - R15). Pure.

Each event is handled first. Then one function, `_settle`, does what follows from the new state: slots without running
tasks become free or are offered to the next JobMaster, slots not accepted yet are offered, ended jobs are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from minflinkd.rpc.network import job_master
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId
from minflinkd.taskmanager.slots import events as ev
from minflinkd.taskmanager.slots import table as st
from minflinkd.taskmanager.slots.state import Job, Offer, Running, Slots
from minflinkd.taskmanager.slots.table import SlotState

FIRST_PAUSE = 0.1  # seconds before an offer is repeated; doubled with each failure
LONGEST_PAUSE = 2.0
CANCELLED_KEPT = 100  # attempts; deployments of earlier ones were delivered long ago
NOBODY = LeaderId("")  # earlier than every leader

Step = tuple[Slots, tuple[ev.Command, ...]]


def step(state: Slots, event: ev.Event, now: float) -> Step:
    state, commands = _react(state, event, now)
    state, more = _settle(state, now)
    return state, (*commands, *more)


def next_wakeup(state: Slots) -> float | None:
    due = [b.until for b in state.table.bindings.values() if b.until is not None]
    for job_id, job in state.jobs.items():
        if not job.silent and state.table.of_job(job_id, SlotState.ACTIVE):
            due.append(job.heard + state.options.heartbeat_timeout)
        if job.offer is not None and job.offer.repeat_at is not None:
            due.append(job.offer.repeat_at)
        if state.vacant(job_id):
            due.append(_forget_at(state, job))
    return min(due, default=None)


def _react(state: Slots, event: ev.Event, now: float) -> Step:
    match event:
        case ev.Allocate():
            return _allocate(state, event, now)
        case ev.Announced(job_id, leader):
            known = state.jobs.get(job_id)
            return _led_by(state, job_id, leader, now) if known is not None and leader > known.leader else (state, ())
        case ev.Heard(job_id, leader):
            return _hear(state, job_id, leader, now)
        case ev.Beat():
            return _beat(state, event, now)
        case ev.Deploy():
            return _deploy(state, event, now)
        case ev.Cancel():
            return _cancel(state, event, now)
        case ev.Free():
            return _free(state, event, now)
        case ev.OfferAnswered():
            return _offer_answered(state, event, now)
        case ev.OfferFailed(job_id, version):
            return _offer_failed(state, job_id, version, now), ()
        case ev.AttemptEnded(attempt_id):
            return replace(state, attempts={a: r for a, r in state.attempts.items() if a != attempt_id}), ()
        case ev.Analysed(job_id, libraries):
            state = replace(state, table=st.brought(state.table, libraries))
            return _analysed(state, job_id, now), ()
        case ev.SessionBegan():
            return replace(state, table=st.with_new_session(state.table)), ()
        case ev.Tick():
            return _tick(state, now)


# --- from the ResourceManager ------------------------------------------------------------------------------------


def _allocate(state: Slots, event: ev.Allocate, now: float) -> Step:
    """m7: Allocate the slots if possible. `Slots.is_allocated` says whether that was done."""
    request, commands = event.request, tuple[ev.Command, ...]()
    job_id, leader = request.job_id, request.job_leader_id
    job = state.jobs.get(job_id)
    if job is not None and leader > job.leader:
        state, commands = _led_by(state, job_id, leader, now)
        job = state.jobs[job_id]
    if request.allocation_id in state.table.bindings or (job is not None and (job.ended or leader < job.leader)):
        return state, commands
    wanted = tuple(sorted(set(request.slots)))
    if not st.fits(state.table, job_id, wanted, exclusive=request.exclusive, libraries=request.libraries):
        return state, commands
    job = job or Job(leader, request.job_master, heard=now)
    table = st.allocated(
        state.table,
        request.allocation_id,
        job_id,
        wanted,
        exclusive=request.exclusive,
        libraries=request.libraries,
        now=now,
        until=now + state.options.reservation_timeout,
    )
    return replace(state, table=table).with_job(job_id, replace(job, address=request.job_master)), commands


def _led_by(state: Slots, job_id: JobId, leader: LeaderId, now: float) -> Step:
    """R13: A later JobMaster takes over. The tasks of the earlier one end; its slots are held for the later one."""
    state = state.with_job(job_id, Job(leader, state.jobs[job_id].address, heard=now))
    state = _held(state, job_id, now, SlotState.ALLOCATED, SlotState.ACTIVE)
    attempts = [a for a, r in state.attempts.items() if r.job_id == job_id]
    return _end(state, attempts, f"the job has a new JobMaster, {leader}")


def _held(state: Slots, job_id: JobId, now: float, *states: SlotState) -> Slots:
    """Hold the slots in these states from now on. Slots already held are held for the full time again."""
    until = now + state.options.hold_timeout
    table = st.kept_until(state.table, state.table.of_job(job_id, SlotState.HELD), until)
    return replace(state, table=st.moved(table, table.of_job(job_id, *states), SlotState.HELD, now, until=until))


# --- from JobMasters ---------------------------------------------------------------------------------------------


def _hear(state: Slots, job_id: JobId, leader: LeaderId, now: float) -> Step:
    job = state.jobs.get(job_id)
    if job is None:
        return state, ()
    if leader > job.leader:
        return _led_by(state, job_id, leader, now)
    return state.with_job(job_id, replace(job, heard=now, silent=False)), ()


def _beat(state: Slots, event: ev.Beat, now: float) -> Step:
    """R10: Compare a JobMaster's heartbeat with the slots here.

    Slots that the JobMaster names, it has accepted. Slots that it does not know are freed, unless they are too new for
    it to know.
    """
    state, commands = _hear(state, event.job_id, event.leader, now)
    state = _resume(state, now)
    offered = state.table.of_job(event.job_id, SlotState.ALLOCATED)
    state = _accepted(state, [a for a in offered if a in event.allocations], now)
    young = now - state.options.reservation_timeout
    unknown = [
        a
        for a in state.table.of_job(event.job_id, SlotState.ACTIVE)
        if a not in event.allocations and state.table.bindings[a].since < young
    ]
    state, ends = _release(state, unknown, "its JobMaster does not know the slots", now)
    return state, (*commands, *ends)


def _deploy(state: Slots, event: ev.Deploy, now: float) -> Step:
    """m12: Start a task. If its slot is only offered, the deployment counts as acceptance.

    The answer to the offer may arrive after the deployment.
    """
    request = event.request
    state, commands = _hear(state, request.job.job_id, request.job_leader_id, now)
    if state.table.bindings[request.allocation_id].state is SlotState.ALLOCATED:
        state = _accepted(state, [request.allocation_id], now)
    job = state.jobs[request.job.job_id]
    deployed = {**job.deployed, request.task.id: (request.attempt_number, request.attempt_id)}
    running = Running(request.job.job_id, request.task.id, request.allocation_id, request.job_leader_id)
    state = replace(state, attempts={**state.attempts, request.attempt_id: running})
    state = state.with_job(request.job.job_id, replace(job, deployed=deployed))
    return state, (*commands, ev.StartTask(request))


def _cancel(state: Slots, event: ev.Cancel, now: float) -> Step:
    """m12: Cancel an attempt, and refuse a deployment of it that comes later.

    The answer promises that nothing of the attempt is left.
    """
    state, commands = _hear(state, event.job_id, event.leader, now)
    job = state.jobs.get(event.job_id)
    if job is not None and event.attempt_id not in state.attempts and event.attempt_id not in job.cancelled:
        cancelled = (*job.cancelled, event.attempt_id)[-CANCELLED_KEPT:]
        state = state.with_job(event.job_id, replace(job, cancelled=cancelled))
    state, ends = _end(state, [event.attempt_id], "its JobMaster cancels it")
    return state, (*commands, *ends)


def _free(state: Slots, event: ev.Free, now: float) -> Step:
    state, commands = _hear(state, event.job_id, event.leader, now)
    job = state.jobs.get(event.job_id)
    if job is None:
        # Local copies from earlier slots of the job may be left here.
        job = Job(event.leader, job_master(event.job_id), heard=now)
    if event.job_ended:
        state = state.with_job(event.job_id, replace(job, ended=True))
    given = [a for a in state.kept_for(event.job_id) if event.job_ended or a in event.allocations]
    kept = {a: event.surplus[a] for a in state.kept_for(event.job_id) if a in event.surplus and a not in given}
    state = replace(state, table=st.narrowed(state.table, kept))
    state, ends = _release(state, given, "its JobMaster gave the slots back", now)
    return state, (*commands, *ends)


def _offer_answered(state: Slots, event: ev.OfferAnswered, now: float) -> Step:
    """m10: Apply the answer to an offer. It does not affect slots accepted already; heartbeats decide about those."""
    job = state.jobs.get(event.job_id)
    if job is None or job.offer is None or job.offer.version != event.version:
        return state, ()  # an answer to an earlier offer (R8)
    state = state.with_job(event.job_id, replace(job, heard=now, silent=False, offer=None))
    offered = [a for a in state.table.of_job(event.job_id, SlotState.ALLOCATED) if a in job.offer.allocations]
    state = _accepted(state, [a for a in offered if a in event.accepted], now)
    return _release(state, [a for a in offered if a not in event.accepted], "not accepted", now)


def _offer_failed(state: Slots, job_id: JobId, version: int, now: float) -> Slots:
    job = state.jobs.get(job_id)
    if job is None or job.offer is None or job.offer.version != version:
        return state
    pause = min(FIRST_PAUSE * 2**job.offer.failed, LONGEST_PAUSE)
    offer = replace(job.offer, failed=job.offer.failed + 1, repeat_at=now + pause)
    return state.with_job(job_id, replace(job, offer=offer))


# --- from here ---------------------------------------------------------------------------------------------------


def _analysed(state: Slots, job_id: JobId, now: float) -> Slots:
    job = state.jobs.get(job_id) or Job(NOBODY, job_master(job_id), heard=now)
    if not state.vacant(job_id):
        return state
    return state.with_job(job_id, replace(job, heard=now, ended=False, forgotten=False))


def _tick(state: Slots, now: float) -> Step:
    commands: tuple[ev.Command, ...] = ()
    late = [a for a, b in state.table.bindings.items() if b.until is not None and now >= b.until]
    state, commands = _release(state, sorted(late), "no JobMaster took the slots in time", now)
    for job_id, job in sorted(state.jobs.items()):
        active = state.table.of_job(job_id, SlotState.ACTIVE)
        # Use the same expression as `next_wakeup`: `now - heard` rounds differently, and a tick would stay due forever.
        if active and not job.silent and now >= job.heard + state.options.heartbeat_timeout:  # R13
            state = _held(state.with_job(job_id, replace(job, silent=True)), job_id, now, SlotState.ACTIVE)
            state, ends = _end(state, state.on(*active), f"its JobMaster is silent for {now - job.heard:.1f} s")
            commands += ends
        if state.vacant(job_id) and now >= _forget_at(state, job):
            state = replace(state, jobs={j: other for j, other in state.jobs.items() if j != job_id})
            commands += () if job.forgotten else (ev.ForgetJob(job_id),)
    return state, commands


def _forget_at(state: Slots, job: Job) -> float:
    """Return when to forget a job that has nothing here.

    It may have gone elsewhere without telling this TaskManager.
    """
    return job.heard + state.options.heartbeat_timeout + state.options.hold_timeout


# --- what follows ------------------------------------------------------------------------------------------------


def _settle(state: Slots, now: float) -> Step:
    done = [a for a, b in state.table.bindings.items() if b.state is SlotState.RELEASING and not state.on(a)]
    state = _resume(replace(state, table=st.freed(state.table, done)), now)
    commands: list[ev.Command] = []
    for job_id, job in sorted(state.jobs.items()):
        waiting = set(state.table.of_job(job_id, SlotState.ALLOCATED))
        offer = job.offer
        if not waiting:
            state = state.with_job(job_id, replace(job, offer=None)) if offer is not None else state
        elif offer is None or not waiting <= set(offer.allocations) or _is_due(offer, now):
            state, command = _offer(state, job_id, now)
            commands.append(command)
        if job.ended and not job.forgotten and state.vacant(job_id):
            state = state.with_job(job_id, replace(state.jobs[job_id], forgotten=True))
            commands.append(ev.ForgetJob(job_id))
    return state, tuple(commands)


def _is_due(offer: Offer, now: float) -> bool:
    return offer.repeat_at is not None and now >= offer.repeat_at


def _resume(state: Slots, now: float) -> Slots:
    """Promise held slots to a JobMaster that is not silent, once nothing runs on them any more."""
    table = state.table
    for job_id, job in sorted(state.jobs.items()):
        held = table.of_job(job_id, SlotState.HELD)
        if job.silent or state.on(*held):
            continue
        for allocation in held:
            until = max(table.bindings[allocation].until or now, now + state.options.reservation_timeout)
            table = st.moved(table, [allocation], SlotState.ALLOCATED, now, until=until)
    return replace(state, table=table)


def _offer(state: Slots, job_id: JobId, now: float) -> tuple[Slots, ev.Command]:
    """Offer all slots of the job (R8). The answer to an earlier offer no longer counts."""
    job, offers, version = state.jobs[job_id], state.table.offers(job_id), state.offers + 1
    failed = job.offer.failed if job.offer is not None and _is_due(job.offer, now) else 0
    offer = Offer(version, tuple(o.allocation_id for o in offers), failed)
    state = replace(state, offers=version).with_job(job_id, replace(job, offer=offer))
    return state, ev.MakeOffer(job_id, job.address, job.leader, version, offers)


def _accepted(state: Slots, allocations: Iterable[AllocationId], now: float) -> Slots:
    return replace(state, table=st.moved(state.table, allocations, SlotState.ACTIVE, now))


def _release(state: Slots, allocations: Iterable[AllocationId], reason: str, now: float) -> Step:
    """Free these slots: at once if nothing runs on them, otherwise when it has ended."""
    given = list(allocations)
    busy = [a for a in given if state.on(a)]
    table = st.freed(state.table, set(given) - set(busy))
    state = replace(state, table=st.moved(table, busy, SlotState.RELEASING, now))
    return _end(state, state.on(*busy), reason)


def _end(state: Slots, attempts: Iterable[AttemptId], reason: str) -> Step:
    """End these attempts. Each attempt is ended only once, however often this is called."""
    running = {a: state.attempts[a] for a in sorted(attempts) if a in state.attempts}
    ending = {a: replace(r, ending=True) for a, r in running.items() if not r.ending}
    if not ending:
        return state, ()
    return replace(state, attempts={**state.attempts, **ending}), (ev.EndTasks(tuple(ending), reason),)
