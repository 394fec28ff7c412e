"""A TaskManager's process around its real core. Its session and tasks take random times to start and to end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as copy

from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.rpc import messages as m
from minflinkd.rpc.libraries import clash
from minflinkd.rpc.network import Address, Fenced, job_master, task_manager
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Unknown
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AllocationId, AttemptId, LeaderId, ResourceId
from minflinkd.taskmanager.child.protocol import NotResizable, SessionLost, UnknownAttempt
from minflinkd.taskmanager.exchange.log import ExchangeDamaged
from minflinkd.taskmanager.slots.core import Exit, RenewSession, TaskManagerCore, TaskManagerOptions
from minflinkd.taskmanager.slots.events import Adopted, EndTasks, ForgetJob, StartTask
from minflinkd.taskmanager.slots.state import SlotOptions, Slots
from minflinkd.taskmanager.slots.table import SlotState, SlotTable
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.party import Party
from tests.sim.protocol.profiles import PROFILES
from tests.sim.protocol.wire import Later

if TYPE_CHECKING:
    from tests.sim.protocol.world import World

STATUS_TIMEOUT = 2.0  # in seconds
STATUS_PAUSE = 0.5
STATUS_TRIES = 10
LIVE = frozenset({m.TaskState.DEPLOYING, m.TaskState.INITIALIZING, m.TaskState.RUNNING, m.TaskState.INPUT_ENDED})
ENDED = frozenset({m.TaskState.CANCELED, m.TaskState.FAILED})
DONE = Answered(m.Done())


def says_kept(attempt_id: AttemptId) -> bool:
    """Whether the attempt reports that its readers can restart alone."""
    return int(attempt_id[:2], 16) % 4 > 0


def has_kept(attempt_id: AttemptId) -> bool:
    """Whether they really can: what it reports may be old."""
    return says_kept(attempt_id) and int(attempt_id[:2], 16) % 16 > 1


def keeps_state(attempt_id: AttemptId) -> bool:
    return int(attempt_id[4:6], 16) % 3 > 0


def is_rigid(attempt_id: AttemptId) -> bool:
    """Whether the attempt cannot have other slots while it runs."""
    return int(attempt_id[2:4], 16) % 4 == 0


@dataclass
class Attempt:
    deployment: m.DeployTask
    leader: LeaderId
    parallelism: int
    state: m.TaskState = m.TaskState.INITIALIZING
    error: ErrorInfo | None = None
    telling: bool = False  # its JobMaster is being told
    tries: int = 0

    def status(self) -> m.TaskStatus:
        deployed = self.deployment
        kept = says_kept(deployed.attempt_id)
        metrics = m.TaskMetrics(batches=1, replayable=kept) if self.state in LIVE else m.TaskMetrics()
        return m.TaskStatus(
            attempt_id=deployed.attempt_id,
            task_id=deployed.task.id,
            state=self.state,
            metrics=metrics,
            error=self.error,
        )

    def offered(self) -> m.OfferedTask:
        deployed = self.deployment
        return m.OfferedTask(
            status=self.status(),
            allocation_id=deployed.allocation_id,
            attempt_number=deployed.attempt_number,
            parallelism=self.parallelism,
            partitions=deployed.partitions if keeps_state(deployed.attempt_id) else 0,
            version=deployed.job.version,
            inputs=deployed.inputs,
            deployed_by=deployed.job_leader_id,
        )


@dataclass(frozen=True)
class _Status:
    attempt_id: AttemptId
    state: m.TaskState
    leader: LeaderId  # who is told


class TaskManagerParty(Party[TaskManagerCore]):
    """`local`: the host notices the end of its process, and can kill it. `standalone`: it started by itself."""

    def __init__(
        self,
        world: World,
        resource_id: ResourceId,
        *,
        pid: int,
        standalone: bool,
        local: bool,
        size: TaskManagerSize | None = None,
    ) -> None:
        plan = world.plan
        size = size or TaskManagerSize(plan.slots_per_tm, PROFILES[plan.profile])
        self.profile = size.profile
        self.world = world
        self.resource_id = resource_id
        self.standalone = standalone
        self.local = local
        self.attempts: dict[AttemptId, Attempt] = {}
        self._waiting: list[tuple[frozenset[AttemptId], Later]] = []
        self._generation = 0
        self._loaded: set[m.Library] = set()  # libraries in the present session
        self._unwanted: set[AttemptId] = set()  # attempts that JobMasters have cancelled
        self._offers: dict[Address, int] = {}  # the version of the last offer to each JobMaster
        address = task_manager(resource_id)
        report = m.TaskManagerReport(resource_id=resource_id, slots=(), session=m.SessionPhase.STARTING)
        hello = m.RegisterTaskManager(
            address=address,
            pid=pid,
            hardware=m.Hardware(cpu_cores=4, memory_bytes=1 << 32),
            log_directory="",
            report=report,
            standalone=standalone,
            slot_profile=size.profile,
        )
        slots = SlotOptions(
            heartbeat_timeout=plan.heartbeat_timeout,
            hold_timeout=plan.hold_timeout,
            orphan_timeout=plan.orphan_timeout,
        )
        give_up = 0.0 if standalone else plan.registration_timeout
        options = TaskManagerOptions(slots=slots, registration_timeout=give_up)
        core = TaskManagerCore(hello, slots=size.slots, options=options, now=world.universe.now)
        super().__init__(world.universe, address, core)
        self._checked: Slots | None = None
        self.start_session()

    # --- session -----------------------------------------------------------------------------------------------------

    def start_session(self) -> None:
        self._generation += 1
        self._session(m.SessionPhase.STARTING)
        self._loaded.clear()
        self.after(self.world.start_delay(), self._ready, self._generation)

    def _ready(self, generation: int) -> None:
        if generation == self._generation:
            self._session(m.SessionPhase.READY)

    def lose_session(self, lasts: float) -> None:
        """Lose the session. Its tasks fail with it, and a new child starts."""
        self.universe.note("{}: its SESSION is lost", self.address)
        self._generation += 1
        self._session(m.SessionPhase.LOST)
        for attempt_id in sorted(self.attempts):
            attempt = self.attempts[attempt_id]
            if attempt.state not in ENDED:
                attempt.error = SessionLost("the session was lost").info()
                self._ended(attempt, m.TaskState.FAILED)
        self.after(lasts, self.start_session)

    def _session(self, phase: m.SessionPhase, *, aged: bool = False) -> None:
        self.step(self.core.session_changed, phase, self._generation, aged, self._engine.now)

    # --- core --------------------------------------------------------------------------------------------------------

    def receive(self, message: m.Message, fence: LeaderId | None) -> Any:
        stale = self._is_stale(message, fence)
        before = (self.core.slots, self.core.registration)
        try:
            answer = super().receive(message, fence)
            self._forget_failures()
        finally:
            if stale and before != (self.core.slots, self.core.registration):
                raise Violation(f"{self.address} was changed by {type(message).__name__} of an earlier leader")
        match message:
            case m.CancelTask():
                self._unwanted.add(message.attempt_id)
                return self._when_ended([message.attempt_id])
            case m.ResizeTask():
                self._resize(message)
            case m.FreeSlots():
                on = [a for a, x in self.attempts.items() if x.deployment.allocation_id in message.allocations]
                return self._when_ended(on)
            case m.HeartbeatFromJobMaster():
                mine = [x for _, x in sorted(self.attempts.items()) if x.deployment.job.job_id == message.job_id]
                return copy(answer, tasks=tuple(x.status() for x in mine))
        return answer

    def _is_stale(self, message: m.Message, fence: LeaderId | None) -> bool:
        leader = self.core.registration.leader
        if isinstance(message, m.AllocateSlots | m.JobMasterChanged):
            if fence is None or leader is None or fence < leader:
                return True
            known = self.core.slots.jobs.get(message.job_id)
            named = message.job_leader_id if isinstance(message, m.AllocateSlots) else message.leader_id
            return known is not None and named < known.leader
        if isinstance(message, m.RenewSession | m.ExitTaskManager):
            return fence is None or leader is None or fence < leader
        job_id = message.job.job_id if isinstance(message, m.DeployTask) else getattr(message, "job_id", None)
        known = self.core.slots.jobs.get(job_id) if job_id is not None else None
        return known is not None and (fence or "") < known.leader

    def answered(self, ask: Ask, outcome: Outcome) -> None:
        self._forget_failures()
        if isinstance(ask.about, _Status):
            self._told(ask.about, outcome)
            return
        before, registration, request = self.core.slots.table.bindings, self.core.registration, ask.request
        late = isinstance(request, m.OfferSlots) and request.version < self._offers[ask.target]
        registers = isinstance(request, m.RegisterTaskManager | m.HeartbeatFromTaskManager)
        super().answered(ask, outcome)
        if late and self.core.slots.table.bindings != before:
            raise Violation(f"{self.address} was changed by the answer to an offer that was not its last")
        if registers and ask.about.number != registration.number and self.core.registration != registration:
            raise Violation(f"{self.address} was changed by the outcome of an earlier registration")

    def complete(self, ask: Ask) -> Ask:
        if not isinstance(ask.request, m.OfferSlots):
            return ask
        slots = {offer.allocation_id for offer in ask.request.offers}
        there = [x for x in self.attempts.values() if x.deployment.allocation_id in slots and self._is_offered(x)]
        return replace(ask, request=copy(ask.request, tasks=tuple(x.offered() for x in there)))

    def _is_offered(self, attempt: Attempt) -> bool:
        """Whether it runs, or has failed and the present JobMaster can learn that from an offer only (A14a)."""
        deployed = attempt.deployment
        if attempt.state is m.TaskState.FAILED and deployed.attempt_id in self.core.slots.unheard:
            return not attempt.telling or self.core.slots.jobs[deployed.job.job_id].leader != attempt.leader
        return attempt.state in LIVE

    def sends(self, ask: Ask) -> None:
        if isinstance(ask.request, m.OfferSlots):
            self._offers[ask.target] = ask.request.version

    def carry_out(self, command: Any) -> None:
        match command:
            case StartTask(deployment):
                attempt = Attempt(deployment, deployment.job_leader_id, deployment.task.parallelism)
                self.attempts[deployment.attempt_id] = attempt
                self._begin(deployment)
                self.world.deployed(self, deployment)
                self._tell(attempt)
                self.after(self._task_time(), self._up, attempt)
            case Adopted(attempts, leader):
                for attempt_id in attempts:
                    self.attempts[attempt_id].leader = leader
                    if not self.attempts[attempt_id].telling:
                        self._tell(self.attempts[attempt_id])
            case EndTasks(attempts, reason):
                self.universe.note("{} ends {}: {}", self.address, attempts, reason)
                for attempt_id in attempts:
                    self._end(attempt_id)
            case ForgetJob():
                pass
            case RenewSession():
                self.start_session()
            case Exit(reason):
                self.universe.note("{} EXITS: {}", self.address, reason)
                self.world.exited(self, reason)
            case _:
                super().carry_out(command)

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _begin(self, deployment: m.DeployTask) -> None:
        if deployment.attempt_id in self._unwanted:
            raise Violation(f"{self.address} starts {deployment.attempt_id}, which was cancelled before")
        if deployment.attempt_id in self.world.started:
            raise Violation(f"{self.address} starts {deployment.attempt_id}, which was started before")
        self.world.started.add(deployment.attempt_id)
        self._loaded |= set(deployment.job.libraries)
        if units := clash(self._loaded, ()):
            raise Violation(f"{self.address}: its session holds two versions of {units}: {self._loaded}")

    def _task_time(self) -> float:
        return self.world.plan.task_time * self.universe.rng.random()

    def _up(self, attempt: Attempt) -> None:
        if attempt.state is m.TaskState.INITIALIZING and self._finds_input_gone(attempt.deployment):
            attempt.error = ExchangeDamaged("the entries that it would read are gone").info()
            self._ended(attempt, m.TaskState.FAILED)
        elif attempt.state is m.TaskState.INITIALIZING:
            self._to(attempt, m.TaskState.RUNNING)
            self.after(self._task_time(), self.at_end_of_input, attempt)
            if not self.world.calm and self.universe.rng.random() < self.world.plan.task_failures:
                self.after(self._task_time(), self._fails, attempt)

    def _finds_input_gone(self, deployment: m.DeployTask) -> bool:
        """Whether an earlier attempt of the task has read what it would read, and that was not kept."""
        gone = False
        for source in deployment.inputs:
            first = self.world.first_readers.setdefault((source.attempt_id, deployment.task.id), deployment.attempt_id)
            gone = gone or (first != deployment.attempt_id and not has_kept(source.attempt_id))
        return gone

    def _fails(self, attempt: Attempt) -> None:
        if attempt.state in LIVE:
            attempt.error = ErrorInfo(code="user-code", message="boom", consequence=Consequence.RETRYABLE)
            self._ended(attempt, m.TaskState.FAILED)

    def at_end_of_input(self, attempt: Attempt) -> None:
        if attempt.state is m.TaskState.RUNNING and attempt.deployment.job.job_id in self.world.input_ended:
            self._to(attempt, m.TaskState.INPUT_ENDED)

    def _end(self, attempt_id: AttemptId) -> None:
        attempt = self.attempts[attempt_id]
        if attempt.state in LIVE:
            self._to(attempt, m.TaskState.CANCELING)
            self.after(self._task_time(), self._cancelled, attempt)

    def _cancelled(self, attempt: Attempt) -> None:
        if attempt.state is m.TaskState.CANCELING:
            self._ended(attempt, m.TaskState.CANCELED)

    def _ended(self, attempt: Attempt, state: m.TaskState) -> None:
        self._to(attempt, state)
        failed = partial(self.core.attempt_ended, failed=state is m.TaskState.FAILED)
        self.step(failed, attempt.deployment.attempt_id, self._engine.now)
        if self.core.session.phase is m.SessionPhase.READY and self.universe.rng.random() < self.world.plan.ageing:
            self._session(m.SessionPhase.READY, aged=True)
        for wanted, later in tuple(self._waiting):
            if not self._living(wanted):
                self._waiting.remove((wanted, later))
                later.answer(DONE)

    def _living(self, attempts: frozenset[AttemptId]) -> bool:
        return any(a in self.attempts and self.attempts[a].state not in ENDED for a in attempts)

    def _when_ended(self, attempts: list[AttemptId]) -> Any:
        wanted = frozenset(attempts)
        if not self._living(wanted):
            return m.Done()
        later = Later()
        self._waiting.append((wanted, later))
        return later

    def _resize(self, request: m.ResizeTask) -> None:
        attempt = self.attempts.get(request.attempt_id)
        if attempt is None or attempt.state not in LIVE:
            raise UnknownAttempt(f"{request.attempt_id} does not run")
        if is_rigid(request.attempt_id):
            raise NotResizable("its plan was made for its slots")
        self.universe.note("{}: {} has {} slots", self.address, request.attempt_id, request.parallelism)
        attempt.parallelism = request.parallelism

    # --- statuses, at least once -------------------------------------------------------------------------------------

    def _to(self, attempt: Attempt, state: m.TaskState) -> None:
        self.universe.note("{}: {} is {}", self.address, attempt.deployment.attempt_id, state.value)
        attempt.state, attempt.tries = state, 0
        if not attempt.telling:
            self._tell(attempt)

    def _tell(self, attempt: Attempt, after: float = 0.0) -> None:
        attempt.telling = True
        deployed = attempt.deployment
        request = m.TaskStateChanged(resource_id=self.resource_id, status=attempt.status())
        about = _Status(deployed.attempt_id, attempt.state, attempt.leader)
        target, fence = job_master(deployed.job.job_id), attempt.leader
        self.universe.wire.ask(self, Ask(target, request, STATUS_TIMEOUT, fence=fence, about=about, after=after))

    def _told(self, about: _Status, outcome: Outcome) -> None:
        attempt = self.attempts[about.attempt_id]
        attempt.telling = False
        if (about.state, about.leader) != (attempt.state, attempt.leader):
            self._tell(attempt)
        elif isinstance(outcome, Unknown) and attempt.tries < STATUS_TRIES:
            attempt.tries += 1
            self._tell(attempt, after=STATUS_PAUSE)
        elif attempt.state in ENDED:
            fenced = isinstance(outcome, Refused) and isinstance(outcome.error, Fenced)
            if not fenced and not isinstance(outcome, Unknown):
                self.step(self.core.failure_taken, about.attempt_id, self._engine.now)
            self._forget_failures()

    def _forget_failures(self) -> None:
        """Forget attempts that have ended, unless a JobMaster is still to hear of it."""
        for attempt_id, attempt in list(self.attempts.items()):
            if attempt.state in ENDED and not attempt.telling and attempt_id not in self.core.slots.unheard:
                del self.attempts[attempt_id]

    # --- what must hold ----------------------------------------------------------------------------------------------

    def checked(self) -> None:
        before, slots = self._checked, self.core.slots
        if slots is not before:
            self._checked = slots
            self.check()
            if before is not None and slots.table is not before.table:
                self._check_version(before.table, slots.table)

    def _check_version(self, before: SlotTable, table: SlotTable) -> None:
        """Check that a report with other slots than the last one is later (R8)."""
        if table.version <= before.version and table.report() != before.report():
            raise Violation(f"{self.address} reports {table.report()} as version {table.version}, like the one before")

    def check(self) -> None:
        """Check slots and tasks.

        No slot is held twice, an exclusive job is alone, and no task runs where its JobMaster has no slot.
        """
        bindings = self.core.slots.table.bindings
        held = Counter(slot for binding in bindings.values() for slot in binding.slots)
        if any(count > 1 for count in held.values()):
            raise Violation(f"{self.address}: a slot is held by two allocations: {dict(bindings)}")
        free = {status.index for status in self.core.slots.table.report() if status.allocation_id is None}
        if taken := sorted(held.keys() & free):
            raise Violation(f"{self.address} reports slots {taken} as free, but they are held: {dict(bindings)}")
        jobs = {binding.job_id for binding in bindings.values()}
        if len(jobs) > 1 and any(self.world.is_exclusive(job_id) for job_id in jobs):
            raise Violation(f"{self.address} serves an exclusive job and another one: {dict(bindings)}")
        for attempt_id, attempt in self.attempts.items():
            if attempt.state in ENDED:
                continue
            deployed = attempt.deployment
            binding = bindings.get(deployed.allocation_id)
            if binding is None or binding.job_id != deployed.job.job_id:
                raise Violation(f"{self.address}: {attempt_id} is {attempt.state} on slots that are not its job's")
            leader = self.core.slots.jobs[binding.job_id].leader
            led = binding.state is not SlotState.ACTIVE or leader == attempt.leader
            if attempt.state in LIVE and (binding.state is SlotState.RELEASING or not led):
                raise Violation(f"{self.address}: {attempt_id} is {attempt.state} on {binding.state} slots of {leader}")

    def held(self) -> frozenset[AllocationId]:
        return frozenset(self.core.slots.table.bindings)
