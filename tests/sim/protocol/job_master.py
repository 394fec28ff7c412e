"""A JobMaster's process around its real core; checkpoints and sinks take a while and succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minflinkd.jobgraph.model import Checkpointing, Input, RestartKind, RestartStrategy, RuntimeMode, Task, Vertex
from minflinkd.jobmaster.core import JobMasterCore
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.phases import Predecessors
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import ExecutionState
from minflinkd.rpc.network import job_master
from minflinkd.rpc.party import Ask
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, Chance, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.runtime.resource_profile import NO_PROFILE
from minflinkd.runtime.units import Duration
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.party import Party
from tests.sim.protocol.plan import JobPlan
from tests.sim.protocol.profiles import profile_of
from tests.sim.protocol.task_manager import ENDED, says_kept

if TYPE_CHECKING:
    from tests.sim.protocol.world import Job, World

LIVE = frozenset({ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING})
STORAGE = (0.01, 0.3)  # seconds that a restore point, a final checkpoint or the sinks take
ROBUST = RestartStrategy(kind=RestartKind.EXPONENTIAL_DELAY, max_backoff=Duration(2.0))
FRAGILE = RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=1)
STORAGE_AWAY = ErrorInfo(code="storage", message="the storage is away", consequence=Consequence.RETRYABLE)


def tasks_of(plan: JobPlan) -> tuple[Task, ...]:
    """Return one task for each slot sharing group, and a narrow one that shares the first group's slots."""
    widths = [(f"g{i}", slots) for i, slots in enumerate(plan.groups)]
    return tuple(
        Task(
            id=TaskId(f"t{i}"),
            vertices=(Vertex(id=VertexId(f"t{i}"), inputs=_inputs(plan, i)),),
            parallelism=parallelism,
            slot_sharing_group=group,
        )
        for i, (group, parallelism) in enumerate([*widths, ("g0", 1)])
    )


def _inputs(plan: JobPlan, i: int) -> tuple[Input, ...]:
    return (Input(id=VertexId(f"t{i - 1}")),) if plan.connected and i else ()


class JobMasterParty(Party[JobMasterCore]):
    def __init__(self, world: World, job: Job, heralded: tuple[ResourceId, ...] = ()) -> None:
        leader_id = world.ids.leader()
        libraries = (m.Library("java:com/acme", job.plan.version),) if job.plan.version else ()
        context = m.JobContext(
            job_id=job.job_id,
            name="sim",
            params={},
            mode=RuntimeMode.STREAMING,
            checkpointing=Checkpointing(),
            checkpoint_root="file:///nowhere",
            libraries=libraries,
            version=job.plan.code,
        )
        options = JobMasterOptions(
            heartbeat_interval=world.plan.heartbeat_interval,
            heartbeat_timeout=world.plan.heartbeat_timeout,
            slot_request_timeout=30.0,
            slot_idle_timeout=6.0,
            cancellation_timeout=4.0,
            restart_strategy=FRAGILE if job.plan.fragile else ROBUST,
            adaptive=job.plan.adaptive,
            resource_wait_timeout=4.0,
            resource_stabilization_timeout=2.0,
            cooldown_after_rescaling=3.0,
            exclusive=job.plan.exclusive,
            libraries=libraries,
            profiles={f"g{i}": profile_of(job.plan, f"g{i}") for i in range(len(job.plan.groups))},
            max_parallelism=world.plan.slots_per_tm if job.plan.runs_on else None,
        )
        core = JobMasterCore(
            job_id=job.job_id,
            leader_id=leader_id,
            tasks=tasks_of(job.plan),
            context=context,
            options=options,
            chance=Chance(world.ids, world.universe.rng),
            heralded=heralded,
        )
        super().__init__(world.universe, job_master(job.job_id), core)
        self.world = world
        self.job = job
        self.zombie = False
        self.cancelled: set[AttemptId] = set()  # attempts whose end it has asked for
        self._failed: set[AttemptId] = set()  # attempts of which it was told that they have failed
        self._status = core.state.status
        self._version = context.version
        job.master = self
        self.universe.note("{} BEGINS as {}", self.address, leader_id)
        # One that stood down has stopped its tasks. After any other, they may still run.
        before = Predecessors(
            context.version,
            latest=job.checkpoints,
            attempts=frozenset(job.checkpointed.values()),
            completed=self.completed(),
            ran=job.ran_as == context.version,
        )
        preceded, job.preceded = job.preceded, True
        self.feed(
            ev.Started(
                recovered=bool(job.checkpoint),
                cancelled=job.cancelled,
                ran_with=job.checkpoint,
                predecessors=before if preceded else None,
            )
        )

    def completed(self) -> frozenset[int]:
        """Return the job's checkpoints that are complete."""
        return frozenset(range(1, self.job.checkpoints + 1))

    def feed(self, event: ev.Event) -> None:
        self.step(self.core.feed, event, self._engine.now)

    def receive(self, message: m.Message, fence: LeaderId | None) -> Any:
        before = self.core.state
        try:
            answer = super().receive(message, fence)
        finally:
            if fence != self.core.leader_id and self.core.state is not before:
                raise Violation(f"{self.address} was changed by {type(message).__name__} for another leader")
        self._note_failures(message)
        if isinstance(message, m.OfferSlots):
            held = self.core.state.pool.held
            for allocation in answer.accepted:
                if allocation not in held or held[allocation].resource_id != message.resource_id:
                    where = held[allocation].resource_id if allocation in held else "nowhere"
                    raise Violation(f"{self.address} accepts {allocation} of {message.resource_id}: it has it {where}")
        return answer

    def _note_failures(self, message: m.Message) -> None:
        told: tuple[m.TaskStatus, ...] = ()
        match message:
            case m.OfferSlots():
                told = tuple(task.status for task in message.tasks)
            case m.TaskStateChanged():
                told = (message.status,)
        self._failed |= {status.attempt_id for status in told if status.state is m.TaskState.FAILED}

    def carry_out(self, command: Any) -> None:
        match command:
            case ev.FindRestorePoint(number):
                found = ev.RestorePointFound(number, self.job.checkpoints or None, {})
                self._later(ev.RestorePointFailed(number, STORAGE_AWAY) if self._storage_fails() else found)
            case ev.AdoptTasks(attempts):
                self._adopts(attempts)
            case ev.StartCheckpoints(attempts):
                executions = self.core.state.executions
                self.job.checkpoint = {task_id: e.parallelism for task_id, e in executions.items()}
                self.job.checkpointed, self.job.checkpoints = dict(attempts), self.job.checkpoints + 1
                if self._storage_fails():
                    self._later(ev.CheckpointsFailed(STORAGE_AWAY))
            case ev.TakeRescaleCheckpoint(number):
                done = self.universe.rng.random() < 0.8
                self._later(ev.RescaleCheckpointDone(number) if done else ev.RescaleCheckpointFailed(number))
            case ev.StopCheckpoints() | ev.HastenCheckpoint():
                pass
            case ev.TakeFinalCheckpoint(number):
                self._later(ev.FinalCheckpointDone(number))
            case ev.SettleSinks():
                self._later(ev.SinksSettled())
            case ev.StoodDown():
                if not self.zombie:
                    self.world.stood_down(self)
            case ev.End(status):
                if not self.zombie:
                    self.world.job_ended(self, status)
            case _:
                super().carry_out(command)

    def sends(self, ask: Ask) -> None:
        """Check that no attempt is deployed that was given up."""
        if isinstance(ask.request, m.DeployTask):
            execution = self.core.state.by_attempt(ask.request.attempt_id)
            if execution is None or execution.state not in LIVE:
                raise Violation(f"{self.address} deploys {ask.request.attempt_id}, which it has given up")
            self._alone(ask.request)
            self._reads(ask.request)
        elif isinstance(ask.request, m.CancelTask):
            self.cancelled.add(ask.request.attempt_id)

    def _adopts(self, attempts: frozenset[AttemptId]) -> None:
        """Check that the attempts run where it thinks, as it would have them; none has failed, none was replaced."""
        self.universe.note("{} ADOPTS {}", self.address, sorted(attempts))
        if ended := attempts & self._failed:
            raise Violation(f"{self.address} adopts {sorted(ended)}, and was told before that they have failed")
        for attempt_id in attempts:
            execution = self.core.state.by_attempt(attempt_id)
            found = [tm for tm in self.world.task_managers() if attempt_id in tm.attempts]
            if execution is None or len(found) > 1:
                raise Violation(f"{self.address} adopts {attempt_id} as {execution}, which runs at {found}")
            latest = self.job.checkpointed.get(execution.task_id)
            if latest is not None and latest != attempt_id and not self.began_with_it(attempt_id):
                raise Violation(
                    f"{self.address} adopts {attempt_id}, and {latest} has taken part in a checkpoint since"
                )
            there = {e.attempt_id for e in self.core.state.live}
            for tm in found:  # it may have ended, or its process, while its offer was under way
                deployed = tm.attempts[attempt_id].deployment
                if deployed.job.version != self.job.plan.code:
                    raise Violation(f"{self.address} adopts {attempt_id} of version {deployed.job.version}")
                if missing := [source.attempt_id for source in deployed.inputs if source.attempt_id not in there]:
                    raise Violation(f"{self.address} adopts {attempt_id}, which reads from {missing}")

    def began_with_it(self, attempt_id: AttemptId) -> bool:
        """Whether an attempt started from the latest checkpoint."""
        return False

    def _alone(self, deployment: m.DeployTask) -> None:
        """Check that nothing runs of earlier attempts of the task on slots that it has, even if it is ending.

        What later JobMasters have deployed does not count: TaskManagers refuse a zombie's deployment.
        """
        for tm in self.world.task_managers():
            mine = self.core.state.pool.on(tm.resource_id)
            for attempt_id, attempt in tm.attempts.items():
                first = attempt.deployment
                same = first.task.id == deployment.task.id and first.allocation_id in mine
                earlier = attempt.leader <= self.core.leader_id
                if same and earlier and attempt_id != deployment.attempt_id and attempt.state not in ENDED:
                    raise Violation(
                        f"{self.address} deploys {deployment.attempt_id} of {first.task.id} while {attempt_id} is "
                        f"{attempt.state} at {tm.address}, on slots that it has"
                    )

    def _reads(self, deployment: m.DeployTask) -> None:
        """Check that a task that restarts alone reads from attempts that say that they have kept its input (R16)."""
        for source in deployment.inputs:
            first = self.world.first_readers.get((source.attempt_id, deployment.task.id), deployment.attempt_id)
            if first != deployment.attempt_id and not says_kept(source.attempt_id):
                raise Violation(f"{deployment.attempt_id} reads again from {source.attempt_id}, which has kept nothing")

    def _check_sizes(self) -> None:
        """Check that no group runs on slots that have less than it wants (R40)."""
        state = self.core.state
        for execution in state.live:
            held = state.pool.held.get(execution.allocation_id) if execution.allocation_id is not None else None
            tm = self.world.task_manager(held.resource_id) if held is not None else None
            group = state.group_of(execution.task_id)
            if tm is not None and not tm.profile.covers(state.pool.profiles.get(group, NO_PROFILE)):
                raise Violation(f"{self.address} has {execution.task_id} on slots of {tm.profile}: it wants more")

    def _storage_fails(self) -> bool:
        return not self.world.calm and self.universe.rng.random() < self.world.plan.storage_failures

    def _later(self, event: ev.Event) -> None:
        least, most = STORAGE
        self.after(least + (most - least) * self.universe.rng.random(), self.feed, event)

    def checked(self) -> None:
        self._check_sizes()
        if self.core.state.status is not self._status:
            self._status = self.core.state.status
            self.universe.note("{} is {}", self.address, self._status.value)
            self.job.ran_as = "" if self.core.state.running is None else self._version
