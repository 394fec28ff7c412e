"""The slot manager against true slot tables, over a network that loses, delays and reorders (resources.md R2, R30)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.placement import least
from minflinkd.resourcemanager.reservations import RESERVATION_TIMEOUT
from minflinkd.resourcemanager.slot_manager import step
from minflinkd.resourcemanager.state import Resources, check_invariants
from minflinkd.resourcemanager.step import Setting
from minflinkd.resourcemanager.task_managers import SlotState
from minflinkd.rpc.messages import (
    AllocateSlots,
    DeclareNeeds,
    Hardware,
    RegisterTaskManager,
    SessionPhase,
    SlotNeed,
    SlotStatus,
    TaskManagerReport,
)
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId

OPTIONS = ResourceManagerOptions(slots_per_tm=2, standby=1, max=2, start_timeout=30, taskmanager_timeout=20)
JOBS = tuple(JobId(str(n) * 32) for n in (1, 2, 3))
EXCLUSIVE = JOBS[2]  # it wants TaskManagers of its own (R24)


@dataclass
class TrueTaskManager:
    """What really runs: the slot table, the session, and the job that owns the TaskManager."""

    resource_id: ResourceId
    slots: list[tuple[JobId, AllocationId] | None] = field(default_factory=lambda: [None, None])
    session: SessionPhase = SessionPhase.STARTING
    registered: bool = False
    aged: bool = False
    dedicated_to: JobId | None = None
    draining: bool = False
    drains: int = 0  # number of the last request to drain it, or to undo that
    version: int = 0

    def report(self) -> TaskManagerReport:
        self.version += 1
        return TaskManagerReport(
            resource_id=self.resource_id,
            slots=tuple(
                SlotStatus(index=i, job_id=h[0], allocation_id=h[1]) if h else SlotStatus(index=i)
                for i, h in enumerate(self.slots)
            ),
            session=self.session,
            session_aged=self.aged,
            dedicated_to=self.dedicated_to,
            draining=self.draining,
            version=self.version,
        )

    def allocate(self, request: AllocateSlots) -> bool:
        wanted = (request.job_id, request.allocation_id)
        held = tuple(i for i, h in enumerate(self.slots) if h is not None and h[1] == request.allocation_id)
        if held:
            return held == request.slots
        if any(self.slots[i] is not None for i in request.slots) or self.draining:
            return False
        others = {h[0] for h in self.slots if h is not None} - {request.job_id}
        if self.dedicated_to not in (None, request.job_id) or (request.exclusive and others):
            return False
        if request.exclusive:
            self.dedicated_to = request.job_id
        for i in request.slots:
            self.slots[i] = wanted
        return True

    def set_draining(self, command: ev.SendDraining) -> None:
        if command.number > self.drains:
            self.draining, self.drains = command.draining, command.number

    def free(self, allocation: AllocationId) -> None:
        self.slots = [None if h is not None and h[1] == allocation else h for h in self.slots]


@dataclass
class TrueJob:
    needs: dict[AllocationId, SlotNeed] = field(default_factory=dict)
    held: dict[AllocationId, ResourceId] = field(default_factory=dict)
    version: int = 0
    leaders: int = 1


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.state = Resources()
        self.tms: dict[ResourceId, TrueTaskManager] = {}
        self.jobs = {job: TrueJob() for job in JOBS}
        self.allocates: list[ev.SendAllocate] = []  # under way
        self.drainings: list[ev.SendDraining] = []  # under way
        self.late: list[ev.Event] = []  # reports and answers under way, in any order
        self.numbers = itertools.count(1)
        self.sent: dict[AllocationId, float] = {}

    # --- the world ---

    def feed(self, event: ev.Event) -> None:
        self.state, commands = step(
            Setting(OPTIONS, lambda: ResourceId(f"tm-{next(self.numbers)}")), self.state, event, self.now
        )
        check_invariants(self.state)
        for command in commands:
            match command:
                case ev.SendAllocate(resource_id, request):
                    assert not self.state.task_managers[resource_id].draining, "no slot of one that is drained (A15b)"
                    if not command.again:
                        self.no_other_is_under_way(command)
                    marked = self.state.task_managers[resource_id].slots
                    assert all(marked[i].allocation_id == request.allocation_id for i in request.slots)
                    self.allocates.append(command)
                case ev.StartTaskManager(resource_id):
                    assert sum(1 for _ in self.state.living()) <= OPTIONS.max + bool(self.state.draining())
                    self.tms[resource_id] = TrueTaskManager(resource_id)
                case ev.SendExit(resource_id, reason):
                    self.late.append(ev.ExitAnswered(resource_id, reason))
                case ev.StopTaskManager(resource_id):
                    self.die(resource_id)
                case ev.SendRenew(resource_id):
                    self.renew(resource_id)
                case ev.SendDraining():
                    self.drainings.append(command)
                case ev.AnnounceJobMaster(job_id, leader_id, resource_ids):
                    assert leader_id == self.leader(job_id)
                    assert all(job_id in self.state.task_managers[r].jobs for r in resource_ids)
                case ev.NotifyLost():
                    pass

    def no_other_is_under_way(self, command: ev.SendAllocate) -> None:
        """Slots that were requested are not requested again before the answer or the reservation timeout (R2)."""
        resource_id, allocation = command.resource_id, command.request.allocation_id
        recent = self.now - self.sent.get(allocation, -RESERVATION_TIMEOUT) < RESERVATION_TIMEOUT
        others = [(c.resource_id, c.request.allocation_id) for c in self.allocates]
        assert not (recent and (resource_id, allocation) in others)
        self.sent[allocation] = self.now

    def die(self, resource_id: ResourceId) -> None:
        if self.tms.pop(resource_id, None) is not None:
            self.late.append(ev.TaskManagerFailed(resource_id, "its process ended"))
            for job in self.jobs.values():
                job.held = {a: r for a, r in job.held.items() if r != resource_id}

    def renew(self, resource_id: ResourceId) -> None:
        tm = self.tms.get(resource_id)
        if tm is not None and all(h is None for h in tm.slots):
            tm.session, tm.aged = SessionPhase.STARTING, False

    def leader(self, job_id: JobId) -> LeaderId:
        return LeaderId(f"leader of {job_id}, {self.jobs[job_id].leaders:04}")

    def declare(self, job_id: JobId) -> ev.NeedsDeclared:
        job = self.jobs[job_id]
        return ev.NeedsDeclared(
            DeclareNeeds(
                job_id=job_id,
                leader_id=self.leader(job_id),
                address=f"jobmaster/{job_id}",
                version=job.version,
                needs=tuple(job.needs.values()),
                held=tuple(job.held),
                exclusive=job_id == EXCLUSIVE,
            )
        )

    def offer(self, tm: TrueTaskManager) -> None:
        """The TaskManager frees what the JobMaster does not accept (m9, m10).

        The JobMaster accepts what it asked for. It also accepts allocations of the job's earlier JobMaster if they
        serve a need (R13).
        """
        for job_id, allocation in sorted({h for h in tm.slots if h is not None}):
            job = self.jobs[job_id]
            size = sum(h == (job_id, allocation) for h in tm.slots)
            here = tm.resource_id
            fitting = [a for a, n in job.needs.items() if size + (n.held if n.beside == here else 0) >= least(n)]
            if allocation not in job.held and fitting:
                del job.needs[allocation if allocation in job.needs else fitting[0]]
                job.held[allocation] = tm.resource_id
                job.version += 1
            elif job.held.get(allocation) != tm.resource_id:
                tm.free(allocation)

    def register(self, tm: TrueTaskManager) -> None:
        tm.registered = True
        hello = RegisterTaskManager(
            address=f"taskmanager/{tm.resource_id}",
            pid=1,
            hardware=Hardware(cpu_cores=2, memory_bytes=1),
            log_directory="",
            report=tm.report(),
        )
        self.feed(ev.TaskManagerRegistered(InstanceId(str(next(self.numbers))), hello))

    # --- what may happen ---

    @rule(job=st.sampled_from(JOBS), slots=st.integers(1, 2), at_least=st.integers(0, 2))
    def a_job_wants_slots(self, job: JobId, slots: int, at_least: int) -> None:
        if len(self.jobs[job].needs) < 2:
            self.wants(job, slots, min(at_least, slots))
            self.feed(self.declare(job))

    def wants(self, job: JobId, slots: int, at_least: int, beside: ResourceId | None = None, held: int = 0) -> None:
        allocation = AllocationId(f"a{next(self.numbers)}")
        self.jobs[job].needs[allocation] = SlotNeed(
            allocation_id=allocation, slots=slots, least=at_least, beside=beside, held=held
        )
        self.jobs[job].version += 1

    @precondition(lambda self: any(job.held for job in self.jobs.values()))
    @rule(data=st.data())
    def a_job_would_grow(self, data: st.DataObject) -> None:
        """R20."""
        job = data.draw(st.sampled_from([j for j in JOBS if self.jobs[j].held]))
        if len(self.jobs[job].needs) < 2:
            self.wants(job, 2, 2, beside=data.draw(st.sampled_from(sorted(self.jobs[job].held.values()))), held=1)
            self.feed(self.declare(job))

    @rule(job=st.sampled_from(JOBS))
    def a_jobmaster_crashes_and_another_takes_over(self, job: JobId) -> None:
        """The new one wants as much, and knows nothing (R13). Late messages of the earlier one change nothing (R1)."""
        late = self.declare(job)
        true = self.jobs[job]
        sizes = [sum(h == (job, a) for tm in self.tms.values() for h in tm.slots) for a in true.held]
        self.jobs[job] = TrueJob(leaders=true.leaders + 1)
        for size in sizes[:2]:
            self.wants(job, max(1, min(size, 2)), 1)
        self.feed(self.declare(job))
        before = self.state
        self.feed(late)
        assert self.state.jobs == before.jobs

    @rule(job=st.sampled_from(JOBS))
    def a_job_cancels_its_needs(self, job: JobId) -> None:
        self.jobs[job].needs = {}
        self.jobs[job].version += 1
        self.feed(self.declare(job))

    @rule(job=st.sampled_from(JOBS))
    def a_declaration_is_delayed(self, job: JobId) -> None:
        self.late.append(self.declare(job))

    @precondition(lambda self: any(job.held for job in self.jobs.values()))
    @rule(data=st.data())
    def a_job_gives_slots_back(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from([j for j in JOBS if self.jobs[j].held]))
        allocation, where = self.jobs[job].held.popitem()
        self.jobs[job].version += 1
        self.tms[where].free(allocation)

    @precondition(lambda self: self.tms)
    @rule(data=st.data(), late=st.booleans())
    def a_taskmanager_reports(self, data: st.DataObject, late: bool) -> None:
        tm = self.tms[data.draw(st.sampled_from(sorted(self.tms)))]
        if not tm.registered:
            self.register(tm)
        elif late:
            self.late.append(ev.Reported(tm.report()))
        else:
            self.feed(ev.Reported(tm.report()))

    @precondition(lambda self: self.tms)
    @rule(data=st.data(), session=st.sampled_from(SessionPhase), aged=st.booleans())
    def a_session_changes(self, data: st.DataObject, session: SessionPhase, aged: bool) -> None:
        tm = self.tms[data.draw(st.sampled_from(sorted(self.tms)))]
        tm.session, tm.aged = session, aged

    @precondition(lambda self: self.allocates)
    @rule(data=st.data(), fate=st.sampled_from(["answered", "answered late", "answer lost", "lost"]))
    def an_allocation_is_asked_for(self, data: st.DataObject, fate: str) -> None:
        command = self.allocates.pop(data.draw(st.integers(0, len(self.allocates) - 1)))
        tm = self.tms.get(command.resource_id)
        if tm is None or fate == "lost":
            self.feed(ev.AllocationUnknown(command.resource_id, command.request.allocation_id))
            return
        answer = ev.AllocationAnswered(command.request.allocation_id, tm.allocate(command.request), tm.report())
        self.offer(tm)
        if fate == "answered":
            self.feed(answer)
        elif fate == "answered late":
            self.late.append(answer)
        else:
            self.feed(ev.AllocationUnknown(command.resource_id, command.request.allocation_id))

    @precondition(lambda self: self.tms)
    @rule(data=st.data(), undo=st.booleans())
    def a_taskmanager_is_drained_or_not_any_more(self, data: st.DataObject, undo: bool) -> None:
        """A15b. A job asks for slots right then."""
        tm = self.tms[data.draw(st.sampled_from(sorted(self.tms)))]
        tm.session = SessionPhase.READY
        if tm.registered:
            self.feed(ev.Reported(tm.report()))
        else:
            self.register(tm)
        self.feed(ev.DrainAsked(tm.resource_id, undo))
        job = data.draw(st.sampled_from(JOBS))
        if len(self.jobs[job].needs) < 2:
            self.wants(job, 1, 1)
            self.feed(self.declare(job))

    @precondition(lambda self: self.drainings)
    @rule(data=st.data(), fate=st.sampled_from(["answered", "answered late", "answer lost", "lost", "doubled"]))
    def a_taskmanager_hears_that_it_is_drained(self, data: st.DataObject, fate: str) -> None:
        command = self.drainings.pop(data.draw(st.integers(0, len(self.drainings) - 1)))
        tm = self.tms.get(command.resource_id)
        if tm is None or not tm.registered or fate == "lost":
            return
        tm.set_draining(command)
        if fate == "doubled":
            self.drainings.append(command)
        answer = ev.DrainAnswered(command.number, tm.report())
        if fate == "answered late":
            self.late.append(answer)
        elif fate != "answer lost":
            self.feed(answer)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_late_message_arrives(self, data: st.DataObject) -> None:
        self.feed(self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))

    @precondition(lambda self: self.tms)
    @rule(data=st.data())
    def a_taskmanager_dies(self, data: st.DataObject) -> None:
        self.die(data.draw(st.sampled_from(sorted(self.tms))))

    @rule(seconds=st.sampled_from([0.5, 5.0, 15.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(ev.Tick())

    # --- what must hold ---

    @invariant()
    def no_more_taskmanagers_than_may_run(self) -> None:
        """One more may have been started in the place of one that was drained."""
        assert sum(1 for _ in self.state.living()) <= OPTIONS.max + 1

    def teardown(self) -> None:
        """When faults stop, every need is served, the view equals the slot tables, and no TaskManager is kept idle."""
        for event in self.late:
            self.feed(event)
        self.late = []
        for _ in range(60):
            self.quiet_second()
        somebody_waits = any(need.beside is None for job in self.jobs.values() for need in job.needs.values())
        for job_id, job in self.jobs.items():
            for need in job.needs.values():
                room = max((self.room(tm, job_id, need) for tm in self.tms.values()), default=0)
                if need.beside is None:
                    assert (len(self.tms) >= OPTIONS.max, room < least(need)) == (True, True)
                else:
                    assert somebody_waits or room < least(need)
        for job_id, job in self.jobs.items():
            job.needs, job.held = {}, {}
            job.version += 1
            for tm in self.tms.values():
                assert tm.dedicated_to in (None, EXCLUSIVE)
                assert (
                    job_id == tm.dedicated_to or tm.dedicated_to is None or job_id not in {h[0] for h in tm.slots if h}
                )
        for _ in range(60):
            self.quiet_second()
        assert set(self.state.task_managers) == set(self.tms)
        assert not any(tm.draining for tm in self.tms.values()), "it ends when its slots are free"
        assert all(s.state is SlotState.FREE for tm in self.state.task_managers.values() for s in tm.slots)
        assert len(self.tms) == OPTIONS.standby
        assert not any(tm.aged for tm in self.tms.values())
        assert self.state.open_needs == {}
        assert self.state.holdings == {}

    def room(self, tm: TrueTaskManager, job_id: JobId, need: SlotNeed) -> int:
        """Return how many slots the job could have there, including those that it has."""
        others = {h[0] for h in tm.slots if h is not None} - {job_id}
        if tm.dedicated_to not in (None, job_id) or (job_id == EXCLUSIVE and others):
            return 0
        free = tm.slots.count(None)
        return free + need.held if free and tm.resource_id == need.beside else free

    def jobs_leave(self, tm: TrueTaskManager) -> None:
        """The jobs ask for as many slots elsewhere."""
        for job_id, allocation in sorted({h for h in tm.slots if h is not None}):
            if self.jobs[job_id].held.get(allocation) == tm.resource_id:
                del self.jobs[job_id].held[allocation]
                self.wants(job_id, tm.slots.count((job_id, allocation)), 0)
            tm.free(allocation)

    @rule()
    def quiet_second(self) -> None:
        """Let a second pass without faults, in which everybody does what is due."""
        self.now += 1.0
        for tm in list(self.tms.values()):
            tm.session = SessionPhase.READY
            self.offer(tm)
            if tm.registered:
                self.feed(ev.Reported(tm.report()))
            else:
                self.register(tm)
            if tm.draining:
                self.jobs_leave(tm)
        for job_id in JOBS:
            self.feed(self.declare(job_id))
        for draining in [self.drainings.pop() for _ in range(len(self.drainings))]:
            told = self.tms.get(draining.resource_id)
            if told is not None and told.registered:
                told.set_draining(draining)
                self.feed(ev.DrainAnswered(draining.number, told.report()))
        for command in [self.allocates.pop() for _ in range(len(self.allocates))]:
            true = self.tms.get(command.resource_id)
            if true is not None:
                allocated = true.allocate(command.request)
                self.feed(ev.AllocationAnswered(command.request.allocation_id, allocated, true.report()))
                self.offer(true)
        for event in [self.late.pop() for _ in range(len(self.late))]:
            self.feed(event)
        self.feed(ev.Tick())


World.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestWorld = World.TestCase
