"""Decides about the slots of a TaskManager (resources.md m7 - m13, R8 - R15). Pure.

Each event is handled first. Then one function, `_settle`, does what follows from the new state: released slots without
tasks become free, held slots are offered to the next JobMaster with the tasks that run on them, slots not accepted yet
are offered again, ended jobs are forgotten.
"""

from __future__ import annotations

from dataclasses import replace

from minflinkd.rpc.network import job_master
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId
from minflinkd.taskmanager.slots import events as ev
from minflinkd.taskmanager.slots import table as st
from minflinkd.taskmanager.slots.state import Job, Offer, Running, Slots
from minflinkd.taskmanager.slots.step import Step
from minflinkd.taskmanager.slots.table import SlotState

FIRST_PAUSE = 0.1  # seconds before an offer is repeated; doubled with each failure
LONGEST_PAUSE = 2.0
CANCELLED_KEPT = 100  # attempts; deployments of earlier ones were delivered long ago
NOBODY = LeaderId("")  # earlier than every leader
# A JobMaster that the ResourceManager names after it was silent here for so many heartbeat timeouts is not dead: the
# ResourceManager would have forgotten it. It does without this TaskManager.
NAMED_FOR = 3


def step(state: Slots, event: ev.Event, now: float) -> tuple[Slots, tuple[ev.Command, ...]]:
    this = Step(state, now)
    _react(this, event)
    _settle(this)
    return this.result()


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


def _react(this: Step, event: ev.Event) -> None:
    match event:
        case ev.Allocate():
            _allocate(this, event)
        case ev.Announced(job_id, leader):
            _announced(this, job_id, leader)
        case ev.JobEnded(job_id):
            _job_ended(this, job_id)
        case ev.Heard(job_id, leader):
            _hear(this, job_id, leader)
        case ev.Beat():
            _beat(this, event)
        case ev.Deploy():
            _deploy(this, event)
        case ev.Cancel():
            _cancel(this, event)
        case ev.Free():
            _free(this, event)
        case ev.OfferAnswered():
            _offer_answered(this, event)
        case ev.OfferFailed(job_id, version):
            _offer_failed(this, job_id, version)
        case ev.AttemptEnded(attempt_id, failed):
            _attempt_ended(this, attempt_id, failed=failed)
        case ev.FailureTaken(attempt_id):
            this.hears([attempt_id])
        case ev.Analysed(job_id, libraries, exclusive):
            table = st.brought(this.state.table, libraries)
            this.set(table=st.dedicated(table, job_id) if exclusive else table)
            _analysed(this, job_id)
        case ev.SessionBegan():
            this.set(table=st.with_new_session(this.state.table))
        case ev.Tick():
            _tick(this)


# --- from the ResourceManager ------------------------------------------------------------------------------------


def _allocate(this: Step, event: ev.Allocate) -> None:
    """m7: Allocate the slots if possible. `Slots.is_allocated` says whether that was done."""
    request = event.request
    job_id, leader = request.job_id, request.job_leader_id
    job = this.state.jobs.get(job_id)
    if job is not None and leader > job.leader:
        job = _follow(this, job_id, leader)
    table = this.state.table
    if request.allocation_id in table.bindings or (job is not None and (job.ended or leader < job.leader)):
        return
    wanted = tuple(sorted(set(request.slots)))
    if not st.fits(table, job_id, wanted, exclusive=request.exclusive, libraries=request.libraries):
        return
    table = st.allocated(
        table,
        request.allocation_id,
        job_id,
        wanted,
        exclusive=request.exclusive,
        libraries=request.libraries,
        now=this.now,
        until=this.now + this.state.options.reservation_timeout,
    )
    this.set(table=table)
    job = job or Job(leader, request.job_master, heard=this.now)
    this.put(job_id, replace(job, address=request.job_master))


def _announced(this: Step, job_id: JobId, leader: LeaderId) -> None:
    known = this.state.jobs.get(job_id)
    if known is None:
        return
    if leader > known.leader:
        _follow(this, job_id, leader)
        return
    if leader == known.leader and known.silent:
        _named(this, job_id, known)


def _named(this: Step, job_id: JobId, job: Job) -> None:
    """The ResourceManager says that a JobMaster lives that is silent here.

    That is believed only if it says so for a while: after a daemon was stopped, its ResourceManager may be heard a
    moment before its JobMasters.
    """
    timeout = this.state.options.heartbeat_timeout
    first, last = job.named or (this.now, this.now)
    first = first if this.now - last <= timeout else this.now
    this.put(job_id, replace(job, named=(first, this.now)))
    silence = this.now - job.heard
    if silence >= NAMED_FOR * timeout and this.now - first >= timeout:
        held = this.state.table.of_job(job_id, SlotState.HELD)
        this.release(held, f"its JobMaster lives, and has not talked to this TaskManager for {silence:.0f} s")


def _job_ended(this: Step, job_id: JobId) -> None:
    """Nobody is left to say so but the ResourceManager. A JobMaster that still talks frees its slots itself."""
    job = this.state.jobs.get(job_id)
    if job is not None and (job.silent or not this.state.table.of_job(job_id, SlotState.ACTIVE)):
        this.put(job_id, replace(job, ended=True))
        this.release(this.state.kept_for(job_id), "its job has ended")


def _follow(this: Step, job_id: JobId, leader: LeaderId) -> Job:
    """R13: A later JobMaster takes over. Its slots are held for it, and offered with the tasks that run on (A14a)."""
    job = Job(leader, this.state.jobs[job_id].address, heard=this.now)
    this.put(job_id, job)
    this.hold(job_id, SlotState.ALLOCATED, SlotState.ACTIVE)
    return job


# --- from JobMasters ---------------------------------------------------------------------------------------------


def _hear(this: Step, job_id: JobId, leader: LeaderId) -> None:
    job = this.state.jobs.get(job_id)
    if job is None:
        return
    if leader > job.leader:
        _follow(this, job_id, leader)
    else:
        this.put(job_id, replace(job, heard=this.now, silent=False, named=None))


def _beat(this: Step, event: ev.Beat) -> None:
    """R10: Compare a JobMaster's heartbeat with the slots here.

    Slots that the JobMaster names, it has accepted. Slots that it does not know are freed, unless they are too new for
    it to know.
    """
    _hear(this, event.job_id, event.leader)
    _resume(this)
    offered = this.state.table.of_job(event.job_id, SlotState.ALLOCATED)
    this.accept(a for a in offered if a in event.allocations)
    table = this.state.table
    young = this.now - this.state.options.reservation_timeout
    unknown = [
        a
        for a in table.of_job(event.job_id, SlotState.ACTIVE)
        if a not in event.allocations and table.bindings[a].since < young
    ]
    this.release(unknown, "its JobMaster does not know the slots")


def _deploy(this: Step, event: ev.Deploy) -> None:
    """m12: Start a task. If its slot is only offered, the deployment counts as acceptance.

    The answer to the offer may arrive after the deployment.
    """
    request = event.request
    if this.state.table.bindings[request.allocation_id].state is SlotState.ALLOCATED:
        this.accept([request.allocation_id])
    job = this.state.jobs[request.job.job_id]
    deployed = {**job.deployed, request.task.id: (request.attempt_number, request.attempt_id)}
    running = Running(request.job.job_id, request.task.id, request.allocation_id, request.job_leader_id)
    this.set(attempts={**this.state.attempts, request.attempt_id: running})
    this.hears(a for a, r in this.state.unheard.items() if (r.job_id, r.task) == (running.job_id, running.task))
    this.put(request.job.job_id, replace(job, deployed=deployed))
    this.commands.append(ev.StartTask(request))


def _cancel(this: Step, event: ev.Cancel) -> None:
    """m12: Cancel an attempt, and refuse a deployment of it that comes later.

    The answer promises that nothing of the attempt is left.
    """
    _hear(this, event.job_id, event.leader)
    job = this.state.jobs.get(event.job_id)
    if job is not None and event.attempt_id not in this.state.attempts and event.attempt_id not in job.cancelled:
        cancelled = (*job.cancelled, event.attempt_id)[-CANCELLED_KEPT:]
        this.put(event.job_id, replace(job, cancelled=cancelled))
    this.hears([event.attempt_id])  # the JobMaster that cancels it needs no report of its failure
    this.end([event.attempt_id], "its JobMaster cancels it")


def _free(this: Step, event: ev.Free) -> None:
    _hear(this, event.job_id, event.leader)
    job = this.state.jobs.get(event.job_id)
    if job is None:
        # Local copies from earlier slots of the job may be left here.
        job = Job(event.leader, job_master(event.job_id), heard=this.now)
    if event.job_ended:
        this.put(event.job_id, replace(job, ended=True))
    relied_on = this.state.kept_for(event.job_id)
    given = [a for a in relied_on if event.job_ended or a in event.allocations]
    kept = {a: event.surplus[a] for a in relied_on if a in event.surplus and a not in given}
    this.set(table=st.narrowed(this.state.table, kept))
    this.release(given, "its JobMaster gave the slots back")


def _offer_answered(this: Step, event: ev.OfferAnswered) -> None:
    """m10: Apply the answer to an offer. It does not affect slots accepted already; heartbeats decide about those."""
    job = this.state.jobs.get(event.job_id)
    if job is None or job.offer is None or job.offer.version != event.version:
        return  # an answer to an earlier offer (R8)
    this.put(event.job_id, replace(job, heard=this.now, silent=False, named=None, offer=None))
    offered = [a for a in this.state.table.of_job(event.job_id, SlotState.ALLOCATED) if a in job.offer.allocations]
    this.accept(a for a in offered if a in event.accepted)
    this.release([a for a in offered if a not in event.accepted])


def _offer_failed(this: Step, job_id: JobId, version: int) -> None:
    job = this.state.jobs.get(job_id)
    if job is None or job.offer is None or job.offer.version != version:
        return
    pause = min(FIRST_PAUSE * 2**job.offer.failed, LONGEST_PAUSE)
    offer = replace(job.offer, failed=job.offer.failed + 1, repeat_at=this.now + pause)
    this.put(job_id, replace(job, offer=offer))


# --- from here ---------------------------------------------------------------------------------------------------


def _attempt_ended(this: Step, attempt_id: AttemptId, *, failed: bool) -> None:
    """Keep a failure until a JobMaster knows it (A14a). An attempt that was told to end needs no report."""
    ended = this.state.attempts.get(attempt_id)
    this.set(attempts={a: r for a, r in this.state.attempts.items() if a != attempt_id})
    if failed and ended is not None and not ended.ending:
        this.set(unheard={**this.state.unheard, attempt_id: ended})


def _analysed(this: Step, job_id: JobId) -> None:
    if this.state.vacant(job_id):
        job = this.state.jobs.get(job_id) or Job(NOBODY, job_master(job_id), heard=this.now)
        this.put(job_id, replace(job, heard=this.now, ended=False, forgotten=False))


def _tick(this: Step) -> None:
    late = [a for a, b in this.state.table.bindings.items() if b.until is not None and this.now >= b.until]
    this.release(sorted(late), "no JobMaster has come for it")
    for job_id, job in sorted(this.state.jobs.items()):
        active = this.state.table.of_job(job_id, SlotState.ACTIVE)
        # Use the same expression as `next_wakeup`: `now - heard` rounds differently, and a tick would stay due forever.
        if active and not job.silent and this.now >= job.heard + this.state.options.heartbeat_timeout:  # R13
            this.put(job_id, replace(job, silent=True))
            this.hold(job_id, SlotState.ACTIVE)
        if this.state.vacant(job_id) and this.now >= _forget_at(this.state, job):
            this.set(jobs={j: other for j, other in this.state.jobs.items() if j != job_id})
            if not job.forgotten:
                this.commands.append(ev.ForgetJob(job_id))


def _forget_at(state: Slots, job: Job) -> float:
    """Return when to forget a job that has nothing here.

    It may have gone elsewhere without telling this TaskManager.
    """
    return job.heard + state.options.heartbeat_timeout + state.options.hold_timeout


# --- what follows ------------------------------------------------------------------------------------------------


def _settle(this: Step) -> None:
    state = this.state
    done = [a for a, b in state.table.bindings.items() if b.state is SlotState.RELEASING and not state.on(a)]
    this.set(table=st.freed(state.table, done))
    bindings = this.state.table.bindings
    kept = {a for a, b in bindings.items() if b.state is not SlotState.RELEASING}
    this.hears(a for a, r in this.state.unheard.items() if r.allocation_id not in kept)  # nobody will ask for it
    _resume(this)
    for job_id, job in sorted(this.state.jobs.items()):
        waiting = set(this.state.table.of_job(job_id, SlotState.ALLOCATED))
        offer = job.offer
        if not waiting:
            if offer is not None:
                this.put(job_id, replace(job, offer=None))
        elif offer is None or not waiting <= set(offer.allocations) or _is_due(offer, this.now):
            _offer(this, job_id)
        if job.ended and not job.forgotten and this.state.vacant(job_id):
            this.put(job_id, replace(this.state.jobs[job_id], forgotten=True))
            this.commands.append(ev.ForgetJob(job_id))


def _is_due(offer: Offer, now: float) -> bool:
    return offer.repeat_at is not None and now >= offer.repeat_at


def _resume(this: Step) -> None:
    """Promise held slots to a JobMaster that is not silent, once nothing that was told to end is left on them."""
    state, now = this.state, this.now
    table = state.table
    for job_id, job in sorted(state.jobs.items()):
        held = table.of_job(job_id, SlotState.HELD)
        if job.silent or any(state.attempts[a].ending for a in state.on(*held)):
            continue
        for allocation in held:
            until = max(table.bindings[allocation].until or now, now + state.options.reservation_timeout)
            table = st.moved(table, [allocation], SlotState.ALLOCATED, now, until=until)
    this.set(table=table)


def _offer(this: Step, job_id: JobId) -> None:
    """Offer all slots of the job (R8). The answer to an earlier offer no longer counts."""
    state = this.state
    job, offers, version = state.jobs[job_id], state.table.offers(job_id), state.offers + 1
    failed = job.offer.failed if job.offer is not None and _is_due(job.offer, this.now) else 0
    offer = Offer(version, tuple(o.allocation_id for o in offers), failed)
    this.set(offers=version)
    this.put(job_id, replace(job, offer=offer))
    this.commands.append(ev.MakeOffer(job_id, job.address, job.leader, version, offers))
