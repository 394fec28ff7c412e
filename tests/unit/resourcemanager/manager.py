"""A slot manager to which tests feed events by hand, with a short notation for reports and needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.outlook import needs_answer
from minflinkd.resourcemanager.slot_manager import step
from minflinkd.resourcemanager.state import Resources, check_invariants
from minflinkd.resourcemanager.step import Setting
from minflinkd.resourcemanager.task_managers import SlotState
from minflinkd.rpc.messages import (
    AllocateSlots,
    DeclareNeeds,
    Hardware,
    Library,
    NeedsAnswer,
    RegisterTaskManager,
    SessionPhase,
    SlotNeed,
    SlotStatus,
    TaskManagerReport,
)
from minflinkd.runtime.ids import AllocationId, InstanceId, JobId, LeaderId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile

JOB1, JOB2 = JobId("1" * 32), JobId("2" * 32)
A, B, C = AllocationId("a"), AllocationId("b"), AllocationId("c")
TM1, TM2, TM3 = ResourceId("tm-1"), ResourceId("tm-2"), ResourceId("tm-3")
READY, STARTING, LOST = SessionPhase.READY, SessionPhase.STARTING, SessionPhase.LOST
NO_STANDBY = ResourceManagerOptions(slots_per_tm=2, standby=0)


def leader(job: JobId) -> LeaderId:
    return LeaderId(f"leader of {job[0]}")


@dataclass
class Manager:
    """Feeds a slot manager with events and remembers its commands. TaskManagers are named tm-1, tm-2, ... in order."""

    options: ResourceManagerOptions = NO_STANDBY
    now: float = 0.0
    state: Resources = field(default_factory=Resources)
    started: int = 0
    versions: dict[ResourceId, int] = field(default_factory=dict)

    def feed(self, event: ev.Event) -> list[ev.Command]:
        self.state, commands = step(Setting(self.options, self.new_id), self.state, event, self.now)
        check_invariants(self.state)
        return list(commands)

    def new_id(self) -> ResourceId:
        self.started += 1
        return ResourceId(f"tm-{self.started}")

    def last_started(self) -> ResourceId:
        return ResourceId(f"tm-{self.started}")

    def tick(self, after: float = 0.0) -> list[ev.Command]:
        self.now += after
        return self.feed(ev.Tick())

    def report(
        self, tm: ResourceId, session: SessionPhase = READY, slots: int | None = None, /, **held: AllocationId
    ) -> TaskManagerReport:
        """Feed a report. `held` says who holds which slot, as s0=A, s1=A. C belongs to JOB2, the others to JOB1."""
        self.versions[tm] = self.versions.get(tm, 0) + 1
        slots = tuple(
            SlotStatus(index=i, job_id=JOB2 if holder == C else JOB1, allocation_id=holder)
            if (holder := held.get(f"s{i}")) is not None
            else SlotStatus(index=i)
            for i in range(slots or self.options.slots_per_tm)
        )
        return TaskManagerReport(resource_id=tm, slots=slots, session=session, version=self.versions[tm])

    def report_with(
        self,
        tm: ResourceId,
        session: SessionPhase = READY,
        *,
        session_aged: bool = False,
        session_error: str = "",
        dedicated_to: JobId | None = None,
        libraries: tuple[Library, ...] = (),
        analysing: bool = False,
        **held: AllocationId,
    ) -> TaskManagerReport:
        return copy(
            self.report(tm, session, **held),
            session_aged=session_aged,
            session_error=session_error,
            dedicated_to=dedicated_to,
            libraries=libraries,
            analysing=analysing,
        )

    def register(
        self,
        tm: ResourceId,
        session: SessionPhase = READY,
        pid: int = 1,
        standalone: bool = False,
        as_report: TaskManagerReport | None = None,
        slots: int | None = None,
        nonce: str = "",
        build: str = "",
        profile: ResourceProfile = NO_PROFILE,
        **held: AllocationId,
    ) -> list[ev.Command]:
        hello = RegisterTaskManager(
            address=f"taskmanager/{tm}",
            pid=pid,
            hardware=Hardware(cpu_cores=2, memory_bytes=1),
            log_directory="",
            report=as_report or self.report(tm, session, slots, **held),
            standalone=standalone,
            nonce=nonce,
            build=build,
            slot_profile=profile,
        )
        return self.feed(ev.TaskManagerRegistered(InstanceId(f"{tm} of {pid}{nonce} at {self.now}"), hello))

    def needs(
        self,
        job: JobId = JOB1,
        /,
        version: int = 1,
        held: tuple[AllocationId, ...] = (),
        by: str = "",
        exclusive: bool = False,
        libraries: tuple[Library, ...] = (),
        **needs: int | SlotNeed,
    ) -> list[ev.Command]:
        """Declare needs. a=2 means two slots for allocation A; a value may also be a whole SlotNeed."""
        declaration = self.declaration(job, version, held, by, exclusive, **needs)
        return self.feed(ev.NeedsDeclared(copy(declaration, libraries=libraries)))

    def declaration(
        self,
        job: JobId,
        version: int,
        held: tuple[AllocationId, ...],
        by: str,
        exclusive: bool,
        **needs: int | SlotNeed,
    ) -> DeclareNeeds:
        return DeclareNeeds(
            job_id=job,
            leader_id=LeaderId(by) if by else leader(job),
            address=f"jobmaster/{job}",
            version=version,
            needs=tuple(
                need if isinstance(need, SlotNeed) else SlotNeed(allocation_id=AllocationId(allocation), slots=need)
                for allocation, need in needs.items()
            ),
            held=held,
            exclusive=exclusive,
        )

    def answer(self, job: JobId = JOB1) -> NeedsAnswer:
        return needs_answer(self.state, self.options, job, self.now)

    def slot_states(self, tm: ResourceId) -> list[SlotState]:
        return [slot.state for slot in self.state.task_managers[tm].slots]


def allocate(
    tm: ResourceId,
    slots: tuple[int, ...],
    allocation: AllocationId,
    job: JobId = JOB1,
    *,
    by: str = "",
    exclusive: bool = False,
    again: bool = False,
    libraries: tuple[Library, ...] = (),
) -> ev.SendAllocate:
    request = AllocateSlots(
        job_id=job,
        allocation_id=allocation,
        slots=slots,
        job_master=f"jobmaster/{job}",
        job_leader_id=LeaderId(by) if by else leader(job),
        exclusive=exclusive,
        libraries=libraries,
    )
    return ev.SendAllocate(tm, request, again)
