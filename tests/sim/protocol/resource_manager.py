"""The ResourceManager's process around its real core. The simulated host is its launcher."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from minflinkd.resourcemanager.core import ResourceManagerCore
from minflinkd.resourcemanager.events import SendAllocate, StartTaskManager, StopTaskManager
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.provisioning import FAILED_STARTS
from minflinkd.resourcemanager.reservations import RESERVATION_TIMEOUT
from minflinkd.resourcemanager.slot_manager import LONGEST_RETURN_REST, is_stale
from minflinkd.resourcemanager.state import JobNeeds, Resources
from minflinkd.resourcemanager.task_managers import SlotState, TaskManager
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Fenced
from minflinkd.rpc.party import Answered, Ask, Outcome, Tell
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.party import Party
from tests.sim.protocol.profiles import PROFILES

if TYPE_CHECKING:
    from tests.sim.protocol.world import World

START_TIMEOUT = 10.0  # in seconds
OFTEN = 10.0  # seconds in which slots are given for one need, and come back, at most MOST_RETURNS times
MOST_RETURNS = 5


class ResourceManagerParty(Party[ResourceManagerCore]):
    def __init__(self, world: World) -> None:
        plan = world.plan
        options = ResourceManagerOptions(
            slots_per_tm=plan.slots_per_tm,
            profile=PROFILES[plan.profile] if plan.can_start else NO_PROFILE,
            can_start=plan.can_start,
            min=plan.min,
            standby=plan.standby,
            max=plan.max,
            taskmanager_timeout=plan.taskmanager_timeout,
            start_timeout=START_TIMEOUT,
            heartbeat_interval=plan.heartbeat_interval,
            heartbeat_timeout=plan.heartbeat_timeout,
            max_concurrent_starts=2,
        )
        core = ResourceManagerCore(ids=world.ids, options=options, check=True)
        super().__init__(world.universe, RESOURCE_MANAGER, core)
        self.world = world
        self.zombie = False  # another one leads, and the driver ignores this one
        self._seen: dict[ResourceId, int] = {}  # the latest version of each TaskManager's reports
        self._before: Resources = core.state
        self._asked: set[tuple[ResourceId, AllocationId]] = set()  # which slots this step has requested
        self._declared: dict[JobId, float] = {}  # when each job's JobMaster was last heard
        self._told: set[tuple[ResourceId, Address]] = set()  # who was told of which lost TaskManager in this step
        self._answers: tuple[ResourceId, AllocationId] | None = None  # the request that the present step answers
        self._given = False  # whether that answer says yes
        self._returns: dict[AllocationId, tuple[m.DeclareNeeds, list[float]]] = {}  # when slots for a need came back
        self._had: dict[LeaderId, frozenset[AllocationId]] = {}  # what each JobMaster has said that it holds
        self.universe.note("{} BEGINS as {}", self.address, core.leader_id)
        self.step(core.found, world.host.living(), world.universe.now)

    def receive(self, message: m.Message, fence: LeaderId | None) -> Any:
        before = self.core.state
        if isinstance(message, m.DeclareNeeds):
            self._declared[message.job_id] = self.universe.now
        elif isinstance(message, m.JobMasterEnded):
            self._declared.pop(message.job_id, None)
        stale = self._is_stale(message, fence)
        report = message.report if isinstance(message, m.HeartbeatFromTaskManager | m.SlotsFree) else None
        old = report is not None and report.version < self._seen.get(report.resource_id, -1)
        try:
            answer = super().receive(message, fence)
            self._check_ended(answer)
            return answer
        except Fenced as error:
            if isinstance(message, m.DeclareNeeds) and self.world.leads(message.job_id, message.leader_id):
                raise Violation(f"{self.address} refuses the JobMaster that leads: {error}") from error
            raise
        finally:
            if stale and self.core.state != before:
                raise Violation(f"{self.address} was changed by {type(message).__name__} of an earlier leader")
            if old and report is not None and not stale:
                self._unchanged(report.resource_id, before)
            elif report is not None and not stale:
                self._seen[report.resource_id] = report.version

    def _check_ended(self, answer: Any) -> None:
        """Check that no job counts as ended that is to run: its tasks would end (A14)."""
        if isinstance(answer, m.Registered | m.HeartbeatAnswer) and (
            wrong := {*answer.ended_jobs} & {*self.world.to_run()}
        ):
            raise Violation(f"{self.address} says that {', '.join(sorted(wrong))} has ended")

    def _is_stale(self, message: m.Message, fence: LeaderId | None) -> bool:
        if isinstance(message, m.DeclareNeeds):
            return is_stale(self.core.state, message.job_id, message.leader_id)
        return isinstance(message, m.HeartbeatFromTaskManager | m.SlotsFree) and fence != self.core.leader_id

    def _unchanged(self, resource_id: ResourceId, before: Resources) -> None:
        """Check that a report older than one that was taken changes nothing (R8)."""
        was, now = before.task_managers.get(resource_id), self.core.state.task_managers.get(resource_id)
        if was is None or now is None:
            return
        for i, (a, b) in enumerate(zip(was.slots, now.slots, strict=False)):
            taken = a.state is not SlotState.RESERVED or self.universe.now - a.since < RESERVATION_TIMEOUT
            if taken and a.state is not SlotState.FREE and (a.state, a.allocation_id) != (b.state, b.allocation_id):
                raise Violation(f"{self.address}: an old report of {resource_id} changed slot {i} from {a} to {b}")

    def answered(self, ask: Ask, outcome: Outcome) -> None:
        self._asked.clear()
        if isinstance(ask.about, SendAllocate) and isinstance(outcome, Answered):
            self._answers = (ask.about.resource_id, ask.about.request.allocation_id)
            self._given = outcome.value.allocated
        try:
            super().answered(ask, outcome)
        finally:
            self._answers, self._given = None, False
        if isinstance(ask.about, SendAllocate) and isinstance(outcome, Answered):
            self._check_settled(ask.about.resource_id, ask.about.request.allocation_id)
        elif isinstance(ask.about, SendAllocate):
            self._check_repeated(ask.about.resource_id, ask.about.request)

    def tells(self, tell: Tell) -> None:
        if isinstance(tell.notice, m.TaskManagerLost):
            self._told.add((tell.notice.resource_id, tell.target))

    def carry_out(self, command: Any) -> None:
        match command:
            case StartTaskManager(resource_id, size):
                self.universe.note("{} STARTS {} ({})", self.address, resource_id, size or "default")
                living = self.core.state.count()
                if living > self.world.plan.max:
                    raise Violation(
                        f"{self.address} has {living} TaskManagers with the one that it starts now: too many"
                    )
                if not self.zombie:
                    self.world.host.start(self, resource_id, size)
            case StopTaskManager(resource_id, reason, kill):
                self.universe.note("{} {} {}: {}", self.address, "KILLS" if kill else "STOPS", resource_id, reason)
                if not self.zombie:
                    self.world.host.stop(resource_id, kill=kill)
            case _:
                super().carry_out(command)

    # --- what must hold ----------------------------------------------------------------------------------------------

    def sends(self, ask: Ask) -> None:
        """Check that slots are marked taken for an allocation before they are requested (m7)."""
        allocate = ask.about
        if not isinstance(allocate, SendAllocate):
            return
        self._asked.add((allocate.resource_id, allocate.request.allocation_id))
        tm, request = self.core.state.task_managers.get(allocate.resource_id), allocate.request
        if tm is None or not tm.registered:
            return  # lost in the same step
        marked = tm.slots_of(request.allocation_id)
        if not set(request.slots) <= set(marked):
            raise Violation(
                f"{self.address} asks {allocate.resource_id} for slots {request.slots} that are not marked taken for "
                f"{request.allocation_id}: {marked}"
            )
        if not allocate.again:
            self._check_fit(tm, request)

    def _check_fit(self, tm: TaskManager, request: m.AllocateSlots) -> None:
        """Check that slots have what is wanted of them, and that nobody waits for them who cannot have others (R40)."""
        state, plan = self.core.state, self.world.plan
        job = state.jobs[request.job_id]
        need = job.needs[request.allocation_id]
        if not tm.profile.covers(need.profile):
            raise Violation(f"{self.address} gives slots of {tm.profile} for {need}")
        special = plan.can_start and not tm.standalone and not PROFILES[plan.profile].covers(tm.profile)
        may_start = plan.can_start and state.count() < plan.max and state.starts.failed < FAILED_STARTS
        if special and not need.profile and may_start and need.beside is None and tm.dedicated_to is None:
            raise Violation(f"{self.address} gives slots of {tm.profile} for {need}, which wants nothing special")
        if plan.can_start:
            return
        for job_id, other in state.unserved():
            older = state.jobs[job_id].number < job.number or need.beside is not None
            if older and other.profile.rank > need.profile.rank and self._waits(job_id, other, tm):
                raise Violation(f"{self.address} gives slots of {tm.resource_id} for {need}: {other} came before it")

    def _waits(self, job_id: JobId, need: m.SlotNeed, tm: TaskManager) -> bool:
        """Whether the need waits for slots of this TaskManager, and cannot have those of just any other."""
        state, job = self.core.state, self.core.state.jobs[job_id]
        anywhere = all(shelf.profile.covers(need.profile) for shelf in state.shelves)
        alone = job.exclusive or job.libraries or tm.dedicated_to is not None
        rests = self._rests(job, need.allocation_id) or self._may_be_offered(state, job_id, job)
        wide = len(tm.slots) >= (need.least or need.slots)
        return tm.profile.covers(need.profile) and wide and not (anywhere or alone or rests or need.beside is not None)

    def checked(self) -> None:
        before, state = self._before, self.core.state
        told, self._told = self._told, set()
        if state is before:
            return
        self._before = state
        for job_id, job in state.jobs.items():
            if job is not before.jobs.get(job_id):
                self._had[job.leader_id] = self._had.get(job.leader_id, frozenset()) | job.held
        self._note_returns(before, state)
        self._check_served(state)
        for job_id in before.jobs.keys() - state.jobs.keys():
            if self.universe.now < self._declared.get(job_id, -math.inf) + self.world.plan.heartbeat_timeout:
                raise Violation(f"{self.address} drops the needs of {job_id}, whose JobMaster it hears")
        if state.task_managers is before.task_managers:
            return
        for resource_id, tm in state.task_managers.items():
            was = before.task_managers.get(resource_id)
            if was is tm or was is None:
                continue
            self._check_reservations(was, tm)
        for resource_id, was in before.task_managers.items():
            self._check_told(was, state.task_managers.get(resource_id), before, told)
        self._check_reserved_once(state)

    def _check_told(
        self, was: TaskManager, tm: TaskManager | None, before: Resources, told: set[tuple[ResourceId, Address]]
    ) -> None:
        """Check that jobs are told at once of a lost TaskManager on which they have slots (R11)."""
        if was is tm or not was.registered or (tm is not None and tm.instance_id == was.instance_id):
            return
        for job_id in was.jobs:
            job = before.jobs.get(job_id)
            if job is not None and (was.resource_id, Address(job.address)) not in told:
                raise Violation(f"{self.address} forgets {was.resource_id} and does not tell {job.address}")

    def _check_settled(self, resource_id: ResourceId, allocation: AllocationId) -> None:
        """Check that a reservation ends with the answer to its request (m8). A new one may begin with the same step."""
        tm = self.core.state.task_managers.get(resource_id)
        slots = [tm.slots[i] for i in tm.slots_of(allocation)] if tm is not None else []
        if any(slot.state is SlotState.RESERVED and slot.since < self.universe.now for slot in slots):
            raise Violation(f"{self.address} has its answer from {resource_id}, and still reserves {allocation}")

    def _check_repeated(self, resource_id: ResourceId, request: m.AllocateSlots) -> None:
        """Check that a request without an outcome is repeated while its reservation stands and it is wanted (m7)."""
        state, allocation = self.core.state, request.allocation_id
        tm, job = state.task_managers.get(resource_id), state.jobs.get(request.job_id)
        stands = tm is not None and any(tm.slots[i].state is SlotState.RESERVED for i in tm.slots_of(allocation))
        if stands and job is not None and allocation in job.needs and (resource_id, allocation) not in self._asked:
            raise Violation(f"{self.address} does not ask {resource_id} again for {allocation}")

    def _note_returns(self, before: Resources, state: Resources) -> None:
        """Note slots that were given for a need and came back, and check that they do not go back and forth (R8)."""
        now = self.universe.now
        for resource_id, was in before.task_managers.items():
            tm = state.task_managers.get(resource_id)
            if tm is was or tm is None or tm.instance_id != was.instance_id or not tm.registered:
                continue
            for allocation, job_id in was.allocations.items():
                given = allocation in was.granted or (self._given and self._answers == (resource_id, allocation))
                job = state.jobs.get(job_id)
                if allocation in tm.granted or not given or job is None or allocation not in job.needs:
                    continue
                declaration, times = self._returns.get(allocation, (job.declaration, []))
                times = [at for at in times if declaration == job.declaration and now - at < OFTEN]
                self._returns[allocation] = job.declaration, [*times, now]
                if len(times) >= MOST_RETURNS:
                    raise Violation(f"{self.address} gives slots for {allocation} again and again, and they come back")

    def _rests(self, job: JobNeeds, allocation: AllocationId) -> bool:
        """Whether slots for the need came back a while ago, and its JobMaster has not declared anything else since."""
        declaration, times = self._returns.get(allocation, (None, []))
        return declaration == job.declaration and self.universe.now < times[-1] + LONGEST_RETURN_REST

    def _may_be_offered(self, state: Resources, job_id: JobId, job: JobNeeds) -> bool:
        """Whether a TaskManager holds slots that the job's JobMaster, a new one, has not been offered yet (R13)."""
        if self.universe.now >= job.since + self.world.plan.heartbeat_timeout:
            return False
        return bool(state.holdings.get(job_id, {}).keys() - job.needs.keys() - self._had[job.leader_id])

    def _check_served(self, state: Resources) -> None:
        """Check that no need stays open while a TaskManager has free slots for it (R3).

        It may while slots of the job, or TaskManagers of an earlier ResourceManager, have yet to be reported, and for a
        while after slots for it came back.
        """
        now = self.universe.now
        if not state.open_needs or now < state.recovering_until:
            return
        for job_id, need in state.unserved():
            job = state.jobs[job_id]
            if self._may_be_offered(state, job_id, job) or self._rests(job, need.allocation_id):
                continue
            if job.exclusive or job.libraries or need.beside is not None:
                continue
            for tm in state.task_managers.values():
                free = sum(slot.state is SlotState.FREE for slot in tm.slots)
                if not tm.profile.covers(need.profile) or self._is_kept(state, tm, need):
                    continue
                if tm.ready and tm.dedicated_to in (None, job_id) and free >= need.slots and now >= tm.rest_until:
                    raise Violation(f"{self.address} leaves {need} open, and {tm.resource_id} has {free} free slots")

    def _is_kept(self, state: Resources, tm: TaskManager, need: m.SlotNeed) -> bool:
        """Whether the TaskManager's slots may be for others: it has more than the need wants, and somebody wants it."""
        if tm.profile and not need.profile and not PROFILES[self.world.plan.profile].covers(tm.profile):
            return self.world.plan.can_start
        others = (other.profile for _, other in state.unserved() if other.allocation_id != need.allocation_id)
        return any(profile.rank > need.profile.rank and tm.profile.covers(profile) for profile in others)

    def _check_reserved_once(self, state: Resources) -> None:
        """Check that the slots of one need are on one TaskManager (R3)."""
        places: dict[AllocationId, ResourceId] = {}
        for resource_id, tm in state.task_managers.items():
            for slot in tm.slots:
                if slot.state is not SlotState.RESERVED or slot.allocation_id is None:
                    continue
                first = places.setdefault(slot.allocation_id, resource_id)
                if first != resource_id:
                    raise Violation(
                        f"{self.address} reserves for {slot.allocation_id} slots of {first} and of {resource_id}"
                    )

    def _check_reservations(self, was: TaskManager, tm: TaskManager) -> None:
        """Check that a mark stays until the TaskManager contradicts it (R2) or it is too old (R9)."""
        if was.instance_id != tm.instance_id or not tm.registered or tm.report is None:
            return
        told = tm.report.slots
        contradicted = {
            slot.allocation_id
            for slot, status in zip(was.slots, told, strict=False)
            if slot.state is SlotState.RESERVED and status.allocation_id not in (None, slot.allocation_id)
        }
        for i, (a, b) in enumerate(zip(was.slots, tm.slots, strict=False)):
            if a.state is not SlotState.RESERVED or a.allocation_id == b.allocation_id:
                continue
            fair = (
                self._answers == (tm.resource_id, a.allocation_id)
                or a.allocation_id in contradicted
                or self.universe.now - a.since >= RESERVATION_TIMEOUT
                or tm.report.dedicated_to not in (None, a.job_id)
            )
            if not fair:
                raise Violation(f"{self.address} gave up the reservation of slot {i} of {tm.resource_id}: {a} is {b}")
