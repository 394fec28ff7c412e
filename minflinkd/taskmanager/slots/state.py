"""What a TaskManager knows about its slots, the jobs that have or had some, and the attempts that run on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minflinkd.rpc.messages import AllocateSlots, DeployTask
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId, TaskId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.taskmanager.slots import table as st
from minflinkd.taskmanager.slots.table import SlotState, SlotTable

# States in which tasks can be on the slot.
OCCUPIED = frozenset({SlotState.ALLOCATED, SlotState.ACTIVE, SlotState.HELD, SlotState.RELEASING})


@dataclass(frozen=True)
class SlotOptions:
    """Times are in seconds."""

    heartbeat_timeout: float = 5.0  # for JobMasters
    hold_timeout: float = 30.0  # how long slots wait for the job's next JobMaster
    orphan_timeout: float = 600.0  # the same for slots of a job whose tasks run on here (A14)
    reservation_timeout: float = 10.0  # how long slots wait for a JobMaster's first acceptance (R9)


@dataclass(frozen=True)
class Offer:
    """m9: An offer that is not answered yet."""

    version: int
    allocations: tuple[AllocationId, ...]
    failed: int = 0  # tries in a row
    repeat_at: float | None = None  # None while an answer is awaited


@dataclass(frozen=True)
class Job:
    """A job. `leader` is the latest JobMaster ever heard of. Messages from earlier ones are refused."""

    leader: LeaderId
    address: str
    heard: float  # seconds; the leader's last message, or when this TaskManager learned of it
    silent: bool = False  # for so long that its tasks run on without it
    named: tuple[float, float] | None = None  # the first and last time that it was said to live although it is silent
    ended: bool = False  # for good, according to its JobMaster
    forgotten: bool = False  # nothing of it is left here
    offer: Offer | None = None
    # The last attempts deployed by the leader.
    deployed: Mapping[TaskId, tuple[int, AttemptId]] = field(default_factory=dict)
    cancelled: tuple[AttemptId, ...] = ()  # or refused, before they ran: later deployments of them are refused


@dataclass(frozen=True)
class Running:
    job_id: JobId
    task: TaskId
    allocation_id: AllocationId
    leader: LeaderId  # the leader that deployed it, or has adopted it since
    ending: bool = False


@dataclass(frozen=True)
class Slots:
    options: SlotOptions
    table: SlotTable
    jobs: Mapping[JobId, Job] = field(default_factory=dict)
    attempts: Mapping[AttemptId, Running] = field(default_factory=dict)
    unheard: Mapping[AttemptId, Running] = field(default_factory=dict)  # failed, and no JobMaster knows it yet
    offers: int = 0  # number of offers made so far, and the version of the last one

    def on(self, *allocations: AllocationId) -> tuple[AttemptId, ...]:
        return tuple(sorted(a for a, r in self.attempts.items() if r.allocation_id in allocations))

    def of(self, job_id: JobId) -> tuple[AttemptId, ...]:
        """Return the job's attempts that run and were not told to end."""
        return tuple(sorted(a for a, r in self.attempts.items() if r.job_id == job_id and not r.ending))

    def awaited_by(self, job_id: JobId) -> bool:
        """Whether the job's next JobMaster needs something that only this TaskManager has: a task, or a failure."""
        return bool(self.of(job_id)) or any(r.job_id == job_id for r in self.unheard.values())

    def vacant(self, job_id: JobId) -> bool:
        """Whether the job has no slots here, and so no attempts."""
        return not self.table.of_job(job_id)

    def kept_for(self, job_id: JobId) -> tuple[AllocationId, ...]:
        """Return the allocations that the job's JobMaster can rely on, now or after it has accepted them."""
        return self.table.of_job(job_id, SlotState.ALLOCATED, SlotState.ACTIVE, SlotState.HELD)

    def with_job(self, job_id: JobId, job: Job) -> Slots:
        return replace(self, jobs={**self.jobs, job_id: job})

    def is_allocated(self, request: AllocateSlots) -> bool:
        """m8: Whether the slots belong to this allocation under this JobMaster."""
        binding, job = self.table.bindings.get(request.allocation_id), self.jobs.get(request.job_id)
        return (
            binding is not None
            and job is not None
            and binding.state is not SlotState.RELEASING
            and (binding.job_id, binding.slots) == (request.job_id, tuple(sorted(set(request.slots))))
            and job.leader == request.job_leader_id
        )

    def is_deployed(self, request: DeployTask) -> bool:
        """m12: Whether this deployment is a repetition, even of an attempt that has ended since."""
        job = self.jobs.get(request.job.job_id)
        known = (request.attempt_number, request.attempt_id)
        return request.attempt_id in self.attempts or (
            job is not None and job.deployed.get(request.task.id) == known and job.leader == request.job_leader_id
        )

    def fault_of(self, request: DeployTask) -> str:
        """m12: Return why the deployment is refused, or an empty string."""
        job_id, binding = request.job.job_id, self.table.bindings.get(request.allocation_id)
        if binding is None or binding.job_id != job_id:
            return f"allocation {request.allocation_id} is not bound to job {job_id}"
        job = self.jobs[job_id]
        if job.leader != request.job_leader_id:
            return f"allocation {request.allocation_id} is bound to job {job_id} under another JobMaster"
        if binding.state not in (SlotState.ACTIVE, SlotState.ALLOCATED):
            return f"allocation {request.allocation_id} is {binding.state.name}: it carries no new task now"
        if request.attempt_number < job.deployed.get(request.task.id, (0, ""))[0]:
            return f"a later attempt of task {request.task.id} was deployed before"
        before = [a for a, r in self.attempts.items() if (r.job_id, r.task) == (job_id, request.task.id)]
        if before:
            return f"attempt {min(before)} of task {request.task.id} has not ended yet"
        if request.attempt_id in job.cancelled:
            return f"attempt {request.attempt_id} was cancelled before its deployment came, or refused"
        return ""


def check_invariants(slots: Slots) -> None:
    """Check the state. Raises InvariantViolated."""
    st.check_invariants(slots.table)
    for allocation, binding in slots.table.bindings.items():
        job = slots.jobs.get(binding.job_id)
        if job is None:
            raise InvariantViolated(f"allocation {allocation} of an unknown job")
        if binding.state is SlotState.ALLOCATED and (job.offer is None or allocation not in job.offer.allocations):
            raise InvariantViolated(f"allocation {allocation} is offered to nobody")
        if binding.state is SlotState.RELEASING and not slots.on(allocation):
            raise InvariantViolated(f"allocation {allocation} is being released, but nothing runs on it")
    if len({(r.job_id, r.task) for r in slots.attempts.values()}) < len(slots.attempts):
        raise InvariantViolated(f"two attempts of a task: {sorted(slots.attempts)}")
    for attempt, failed in slots.unheard.items():
        on = slots.table.bindings.get(failed.allocation_id)
        if on is None or on.job_id != failed.job_id or on.state is SlotState.RELEASING or attempt in slots.attempts:
            raise InvariantViolated(f"the failure of attempt {attempt} is kept for nobody, on {on}")
    for attempt, running in slots.attempts.items():
        on = slots.table.bindings.get(running.allocation_id)
        if on is None or on.job_id != running.job_id or on.state not in OCCUPIED:
            raise InvariantViolated(f"attempt {attempt} runs on {on}")
        led = running.leader == slots.jobs[running.job_id].leader
        if not running.ending and (on.state is SlotState.RELEASING or (on.state is SlotState.ACTIVE and not led)):
            raise InvariantViolated(f"attempt {attempt} runs on a slot that is not its JobMaster's: {on}")
