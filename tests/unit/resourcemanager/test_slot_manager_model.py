"""The slot manager against true slot tables, over a network that loses, delays and reorders (resources.md R2, R30)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.slot_manager import RESERVATION_TIMEOUT, Setting, step
from minflinkd.resourcemanager.state import Resources, SlotState, check_invariants
from minflinkd.rpc.messages import (
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
JOBS = tuple(JobId(str(n) * 32) for n in (1, 2))


@dataclass
class TrueTaskManager:
    """What runs in reality: the slot table, and what is under way from it."""

    resource_id: ResourceId
    slots: list[tuple[JobId, AllocationId] | None] = field(default_factory=lambda: [None, None])
    session: SessionPhase = SessionPhase.STARTING
    registered: bool = False
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
            version=self.version,
        )

    def allocate(self, command: ev.SendAllocate) -> bool:
        wanted = (command.job_id, command.allocation_id)
        held = tuple(i for i, h in enumerate(self.slots) if h is not None and h[1] == command.allocation_id)
        if held:
            return held == command.slots
        if any(self.slots[i] is not None for i in command.slots):
            return False
        for i in command.slots:
            self.slots[i] = wanted
        return True

    def free(self, allocation: AllocationId) -> None:
        self.slots = [None if h is not None and h[1] == allocation else h for h in self.slots]


@dataclass
class TrueJob:
    needs: dict[AllocationId, int] = field(default_factory=dict)
    held: dict[AllocationId, ResourceId] = field(default_factory=dict)
    version: int = 0


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.state = Resources()
        self.tms: dict[ResourceId, TrueTaskManager] = {}
        self.jobs = {job: TrueJob() for job in JOBS}
        self.allocates: list[ev.SendAllocate] = []  # under way
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
                case ev.SendAllocate():
                    if not command.again:
                        self.no_other_is_under_way(command)
                    marked = self.state.task_managers[command.resource_id].slots
                    assert all(marked[i].allocation_id == command.allocation_id for i in command.slots)
                    self.allocates.append(command)
                case ev.StartTaskManager(resource_id):
                    self.tms[resource_id] = TrueTaskManager(resource_id)
                case ev.StopTaskManager(resource_id, _, kill):
                    assert kill or all(h is None for h in self.state.task_managers[resource_id].slots)
                    self.die(resource_id)
                case ev.NotifyLost():
                    pass

    def no_other_is_under_way(self, command: ev.SendAllocate) -> None:
        """R2: what was asked for, and not answered, is asked for no second time before the reservation times out."""
        allocation = command.allocation_id
        recent = self.now - self.sent.get(allocation, -RESERVATION_TIMEOUT) < RESERVATION_TIMEOUT
        same = [c for c in self.allocates if (c.resource_id, c.allocation_id) == (command.resource_id, allocation)]
        assert not (recent and same)
        self.sent[allocation] = self.now

    def die(self, resource_id: ResourceId) -> None:
        if self.tms.pop(resource_id, None) is not None:
            self.late.append(ev.TaskManagerFailed(resource_id, "its process ended"))
            for job in self.jobs.values():
                job.held = {a: r for a, r in job.held.items() if r != resource_id}

    def declare(self, job_id: JobId) -> ev.NeedsDeclared:
        job = self.jobs[job_id]
        return ev.NeedsDeclared(
            DeclareNeeds(
                job_id=job_id,
                leader_id=LeaderId(f"leader of {job_id}"),
                address=f"jobmaster/{job_id}",
                version=job.version,
                needs=tuple(SlotNeed(allocation_id=a, slots=n) for a, n in job.needs.items()),
                held=tuple(job.held),
            )
        )

    def offer(self, tm: TrueTaskManager) -> None:
        """m9, m10: what the JobMaster does not accept, the TaskManager frees."""
        for job_id, allocation in {h for h in tm.slots if h is not None}:
            job = self.jobs[job_id]
            if allocation in job.needs:
                del job.needs[allocation]
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

    @rule(job=st.sampled_from(JOBS), slots=st.integers(1, 2))
    def a_job_wants_slots(self, job: JobId, slots: int) -> None:
        if len(self.jobs[job].needs) < 2:
            self.jobs[job].needs[AllocationId(f"a{next(self.numbers)}")] = slots
            self.jobs[job].version += 1
            self.feed(self.declare(job))

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
    @rule(data=st.data(), session=st.sampled_from(SessionPhase))
    def a_session_changes(self, data: st.DataObject, session: SessionPhase) -> None:
        self.tms[data.draw(st.sampled_from(sorted(self.tms)))].session = session

    @precondition(lambda self: self.allocates)
    @rule(data=st.data(), fate=st.sampled_from(["answered", "answered late", "answer lost", "lost"]))
    def an_allocation_is_asked_for(self, data: st.DataObject, fate: str) -> None:
        command = self.allocates.pop(data.draw(st.integers(0, len(self.allocates) - 1)))
        tm = self.tms.get(command.resource_id)
        if tm is None or fate == "lost":
            self.feed(ev.AllocationUnknown(command.resource_id, command.allocation_id))
            return
        answer = ev.AllocationAnswered(command.allocation_id, tm.allocate(command), tm.report())
        self.offer(tm)
        if fate == "answered":
            self.feed(answer)
        elif fate == "answered late":
            self.late.append(answer)
        else:
            self.feed(ev.AllocationUnknown(command.resource_id, command.allocation_id))

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
        assert sum(1 for _ in self.state.living()) <= OPTIONS.max

    def teardown(self) -> None:
        """When faults stop: every need is served, the view equals the slot tables, and no TaskManager is kept idle."""
        for event in self.late:
            self.feed(event)
        self.late = []
        for _ in range(60):
            self.quiet_second()
        for job in self.jobs.values():
            room = max((tm.slots.count(None) for tm in self.tms.values()), default=0)
            for slots in job.needs.values():
                assert (len(self.tms), room < slots) == (OPTIONS.max, True)
            job.needs, job.held = {}, {}
            job.version += 1
        for _ in range(60):
            self.quiet_second()
        assert set(self.state.task_managers) == set(self.tms)
        assert all(s.state is SlotState.FREE for tm in self.state.task_managers.values() for s in tm.slots)
        assert len(self.tms) == OPTIONS.standby

    @rule()
    def quiet_second(self) -> None:
        """Nothing goes wrong, and everybody does what is due."""
        self.now += 1.0
        for tm in list(self.tms.values()):
            tm.session = SessionPhase.READY
            self.offer(tm)
            if tm.registered:
                self.feed(ev.Reported(tm.report()))
            else:
                self.register(tm)
        for job_id in JOBS:
            self.feed(self.declare(job_id))
        for command in [self.allocates.pop() for _ in range(len(self.allocates))]:
            true = self.tms.get(command.resource_id)
            if true is not None:
                allocated = true.allocate(command)
                self.feed(ev.AllocationAnswered(command.allocation_id, allocated, true.report()))
                self.offer(true)
        for event in [self.late.pop() for _ in range(len(self.late))]:
            self.feed(event)
        self.feed(ev.Tick())


World.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestWorld = World.TestCase
