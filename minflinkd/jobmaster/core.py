"""What one JobMaster decides and says, without clock, socket or asyncio task (rpc.party).

It holds the scheduler's machine, talks to the ResourceManager and the TaskManagers, and detects who is silent. It
returns the rest to the driver as commands from `jobmaster.events`: checkpoints, sinks, the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import Task
from minflinkd.jobmaster.errands import Errand, Errands
from minflinkd.jobmaster.heartbeats import Beat, TaskManagerBeats, contradictions, strays
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler import machine as scheduler
from minflinkd.jobmaster.scheduler.sizing import libraries_wanted
from minflinkd.jobmaster.scheduler.state import JobState, check_invariants, new_job
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import ExecutionState, JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Unreachable, job_master, task_manager
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Unknown, fenced
from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.ids import AttemptId, Chance, JobId, LeaderId, ResourceId
from minflinkd.runtime.machine import Machine
from minflinkd.runtime.resource_profile import NO_PROFILE

CANCEL_PATIENCE = 4  # cancellation timeouts; a TaskManager gives up on a task's session child sooner than this


@dataclass(frozen=True)
class _Declaration:
    version: int


@dataclass(frozen=True)
class _Stray:
    attempt_id: AttemptId


class JobMasterCore:
    """A rpc.party.Core. The driver feeds it `Started` first, and later the outcomes of its own commands."""

    def __init__(
        self,
        *,
        job_id: JobId,
        leader_id: LeaderId,
        tasks: tuple[Task, ...],
        context: m.JobContext,
        options: JobMasterOptions,
        chance: Chance,
        heralded: tuple[ResourceId, ...] = (),
    ) -> None:
        """`heralded` are TaskManagers that hold slots of the job.

        This leader introduces itself to them at its start. It waits for their offers before it asks others for slots.
        """
        self.job_id = job_id
        self.leader_id = leader_id
        self.address = job_master(job_id)
        self.task_phases: dict[AttemptId, dict[str, float]] = {}  # only of each task's last attempt
        self._context = context
        self._heralded = set(heralded)  # TaskManagers with offers still to come
        self._heralded_until = 0.0
        self._options = options
        self._machine: Machine[JobState, ev.Event, ev.Command] = Machine(
            new_job(tasks, options), partial(scheduler.step, chance), check_invariants, name=str(self.address)
        )
        self._beats = TaskManagerBeats(interval=options.heartbeat_interval, timeout=options.heartbeat_timeout)
        self._errands = Errands(patience=options.heartbeat_timeout / 2, fence=leader_id)
        self.hot_standby: ResourceId | None = None  # the TaskManager that should be ready to go on with the tasks
        self._declare_at: float | None = None
        self._declared = -1  # version of the pool that was last declared
        self._freeing = 0
        self._strays: set[AttemptId] = set()
        self._seen_to_run: dict[ResourceId, frozenset[AttemptId]] = {}  # by the last heartbeat
        self._insisted: set[AttemptId] = set()  # that were cancelled for twice the usual time
        self._end: ev.End | None = None
        self._commands: list[object] = []
        self._now = 0.0

    @property
    def state(self) -> JobState:
        return self._machine.state

    # --- the party's contract ------------------------------------------------------------------------------------

    def receive(self, message: m.Message, fence: LeaderId | None, now: float) -> Any:
        if fence != self.leader_id:
            raise fenced(self.address, message, fence)
        match message:
            case m.OfferSlots(resource_id=resource, address=address, offers=offers):
                self._heralded.discard(resource)
                offered = ev.SlotsOffered(
                    resource,
                    address,
                    offers,
                    message.data_url,
                    message.tasks,
                    message.draining,
                    message.libraries,
                    message.slot_profile,
                )
                self.feed(offered, now)
                self._beats.heard(resource, now)
                return m.OffersAccepted(accepted=self.state.pool.accepted(resource, offers))
            case m.TaskStateChanged(resource_id=resource, status=status):
                self._beats.heard(resource, now)
                self.feed(ev.TaskChanged(status), now)
                if status.phases:
                    last = {e.attempt_id for e in self.state.executions.values()}
                    phases = {**self.task_phases, status.attempt_id: status.phases}
                    self.task_phases = {a: p for a, p in phases.items() if a in last}
                return m.Done()
            case m.TaskProgress(attempt_id=attempt, metrics=metrics):
                return self.feed(ev.TaskProgressed(attempt, metrics), now)
            case m.TaskManagerLost(resource_id=resource, reason=reason):
                return self.feed(ev.TaskManagerGone(resource, reason), now)
            case _:
                raise Unreachable(f"{self.address} does not take {type(message).__name__}")

    def answered(self, about: object, outcome: Outcome, now: float) -> None:
        match about:
            case Errand():
                if self._errands.settled(about, outcome, now):
                    self._errand_ended(about, outcome, now)
            case Beat():
                self._beat_answered(about, outcome, now)
            case _Declaration(version) if isinstance(outcome, Answered) and version == self.state.pool.version:
                answer = outcome.value
                self.hot_standby = answer.hot_standby
                self.feed(ev.NeedsAnswered(answer.refused, answer.waiting, answer.largest), now)

    def tick(self, now: float) -> None:
        self.feed(ev.Tick(), now)
        for gone in self._beats.take_silent(now):
            self.feed(gone, now)
        for beat in self._beats.take_due(self.state, now):
            allocations = beat.before.pool.on(beat.resource_id)
            request = m.HeartbeatFromJobMaster(job_id=self.job_id, leader_id=self.leader_id, allocations=allocations)
            self._ask(task_manager(beat.resource_id), request, about=beat, fence=self.leader_id)
        for errand in self._errands.take_due(now):
            self._commands.append(self._errands.ask(errand, now))
        if self._declare_at is not None and now >= self._declare_at:
            self._declare(now)

    def next_wakeup(self) -> float | None:
        times = (
            scheduler.next_wakeup(self.state, self._now),
            self._beats.next_due(),
            self._errands.next_due(),
            self._declare_at,
        )
        return min((t for t in times if t is not None), default=None)

    def take_commands(self) -> tuple[object, ...]:
        """Return and clear the commands for the driver.

        They are Ask and, from `jobmaster.events`, FindRestorePoint, StartCheckpoints, StopCheckpoints,
        TakeFinalCheckpoint, TakeRescaleCheckpoint, SettleSinks, End.
        """
        commands, self._commands = tuple(self._commands), []
        return commands

    # --- the machine and the world -------------------------------------------------------------------------------

    def feed(self, event: ev.Event, now: float) -> None:
        """Apply an event: something happened, or one of the driver's commands ended.

        Raises IllegalTransition and InvariantViolated. After either, the state must not be used.
        """
        self._now = now
        for command in self._machine.feed(event, now):
            self._carry_out(command)
        state = self.state
        watched = {h.resource_id for h in state.pool.held.values()} | {e.resource_id for e in state.live}
        self._beats.watch(sorted(r for r in watched.union(state.leaving.values()) if r is not None), now)
        for errand in self._errands.drop(self._pointless):
            self._errand_ended(errand, None, now)
        if isinstance(event, ev.Started):
            self._herald(now)
        if state.status.terminal:
            self._declare_at = None
        elif isinstance(event, ev.Started) or (self._declare_at is not None and state.pool.version != self._declared):
            self._declare(now)

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.Deploy():
                self._run(Address(command.address), self._deployment(command), self._options.heartbeat_timeout, command)
            case ev.Resize(attempt, parallelism, address):
                resize = m.ResizeTask(job_id=self.job_id, attempt_id=attempt, parallelism=parallelism)
                self._run(Address(address), resize, self._options.heartbeat_timeout, command)
            case ev.Cancel(attempt, address):
                cancel = m.CancelTask(job_id=self.job_id, attempt_id=attempt)
                self._run(Address(address), cancel, self._cancel_patience, command)
            case ev.FreeAllocations(address, allocations, job_ended, surplus):
                free = m.FreeSlots(
                    job_id=self.job_id, allocations=allocations, job_ended=job_ended, surplus=dict(surplus)
                )
                self._freeing += 1
                self._run(Address(address), free, self._options.heartbeat_timeout, command)
            case ev.End():
                self._end = command
                self._try_to_end()
            case _:
                self._commands.append(command)

    def _herald(self, now: float) -> None:
        """R13: Ask TaskManagers directly for their slots, since the ResourceManager may be away."""
        self._heralded_until = now + self._options.heartbeat_interval
        for resource in sorted(self._heralded):
            hello = m.HeartbeatFromJobMaster(job_id=self.job_id, leader_id=self.leader_id, allocations=())
            self._ask(task_manager(resource), hello, about=None, fence=self.leader_id)

    def _declare(self, now: float) -> None:
        """m1: Declare all needs, at once when they change and with every heartbeat (R8)."""
        pool = self.state.pool
        self._declare_at, self._declared = now + self._options.heartbeat_interval, pool.version
        request = m.DeclareNeeds(
            job_id=self.job_id,
            leader_id=self.leader_id,
            address=self.address,
            version=pool.version,
            needs=() if self._heralded and now < self._heralded_until else pool.declaration(),
            held=tuple(sorted(pool.held)),
            exclusive=self._options.exclusive,
            libraries=libraries_wanted(self.state),
            hot_standby=self._options.hot_standby and self.state.status is JobStatus.RUNNING,
            standby_profile=reduce(or_, pool.profiles.values(), NO_PROFILE),
        )
        self._ask(RESOURCE_MANAGER, request, about=_Declaration(pool.version))

    def _ask(self, target: Address, request: m.Request[Any], *, about: object, fence: LeaderId | None = None) -> None:
        self._commands.append(Ask(target, request, self._options.heartbeat_timeout, fence, about))

    # --- errands -------------------------------------------------------------------------------------------------

    def _run(self, target: Address, request: m.Request[m.Done], patience: float, about: object) -> None:
        errand = Errand(target, request, self._now + patience, about)
        self._commands.append(self._errands.ask(errand, self._now))

    @property
    def _cancel_patience(self) -> float:
        return CANCEL_PATIENCE * self._options.cancellation_timeout

    def _deployment(self, command: ev.Deploy) -> m.DeployTask:
        return m.DeployTask(
            job=self._context,
            task=copy(self.state.tasks[command.task_id], parallelism=command.parallelism),
            allocation_id=command.allocation_id,
            attempt_id=command.attempt_id,
            attempt_number=command.number,
            job_leader_id=self.leader_id,
            restore=command.restore,
            inputs=command.inputs,
            base=self.state.executions[command.task_id].base,
            partitions=command.partitions,
            oldest=command.oldest,
        )

    def _pointless(self, errand: Errand) -> bool:
        """Whether the errand need not be repeated.

        A deployment must not arrive after the cancellation of its attempt. A cancellation is not waited for if its
        TaskManager is lost.
        """
        match errand.about:
            case ev.Deploy(attempt_id=attempt):
                execution = self.state.by_attempt(attempt)
                return execution is None or execution.state in (ExecutionState.CANCELING, *_OVER)
            case ev.Resize(attempt_id=attempt):
                execution = self.state.by_attempt(attempt)
                return execution is None or execution.state is not ExecutionState.RUNNING
            case ev.Cancel(attempt, _):
                execution = self.state.by_attempt(attempt)
                ends = execution is not None and execution.on_task_manager
                return not ends and attempt not in self.state.leaving
            case _:
                return False

    def _errand_ended(self, errand: Errand, outcome: Outcome | None, now: float) -> None:
        match errand.about:
            case ev.Deploy(attempt_id=attempt) if isinstance(outcome, Refused | Unknown):
                error = outcome.error.info()
                if error.consequence is not Consequence.FENCED:
                    error = copy(error, consequence=Consequence.RETRYABLE)  # another TaskManager may accept it
                kind = ev.DeployFailed if isinstance(outcome, Refused) else ev.DeployUnanswered
                self.feed(kind(attempt, error), now)
            case ev.Deploy(attempt_id=attempt) if isinstance(outcome, Answered):
                self.feed(ev.DeployAccepted(attempt), now)
            case ev.Resize(attempt, parallelism):
                done = isinstance(outcome, Answered)
                self.feed(ev.TaskResized(attempt, parallelism) if done else ev.TaskNotResized(attempt), now)
            case ev.Cancel(attempt, _) if isinstance(outcome, Unknown) and self._still_runs(attempt):
                # Its TaskManager lives, and may have heard of the cancellation only now.
                self._insisted.add(attempt)
                self._carry_out(errand.about)
            case ev.Cancel(attempt, _):
                self._insisted.discard(attempt)
                self.feed(ev.AttemptGone(attempt), now)
            case ev.FreeAllocations():
                self._freeing -= 1
                self._try_to_end()
            case _Stray(attempt):
                self._strays.discard(attempt)

    def _see(self, resource: ResourceId, answer: m.JobHeartbeatAnswer) -> None:
        over = (m.TaskState.CANCELED, m.TaskState.FAILED)
        running = frozenset(status.attempt_id for status in answer.tasks if status.state not in over)
        self._seen_to_run = {r: seen for r, seen in self._seen_to_run.items() if r in self._beats.watched}
        self._seen_to_run[resource] = running

    def _still_runs(self, attempt: AttemptId) -> bool:
        return attempt not in self._insisted and any(attempt in seen for seen in self._seen_to_run.values())

    def _try_to_end(self) -> None:
        """Report the end once the slots are free, or their TaskManager did not answer in time."""
        if self._end is not None and not self._freeing:
            self._commands.append(self._end)
            self._end = None

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def _beat_answered(self, beat: Beat, outcome: Outcome, now: float) -> None:
        resource = beat.resource_id
        match outcome:
            case Answered(answer):
                self._beats.heard(resource, now)
                if not self._beats.is_latest(beat):
                    return
                if answer.draining is not (resource in self.state.pool.draining):
                    self.feed(ev.Draining(resource, answer.draining), now)
                for event in contradictions(beat, answer):
                    self.feed(event, now)
                self._see(resource, answer)
                self._cancel_strays(resource, strays(beat, answer, self.state))
            case Refused(error):
                if self._beats.is_latest(beat):
                    reason = f"TaskManager {resource} refuses the job: {error}"
                    self.feed(ev.SlotsGone(beat.before.pool.on(resource), reason), now)
            case Unknown(Unreachable() as error):
                if (gone := self._beats.unreachable(resource, str(error))) is not None:
                    self.feed(gone, now)

    def _cancel_strays(self, resource: ResourceId, attempts: tuple[AttemptId, ...]) -> None:
        for attempt in attempts:
            if attempt not in self._strays:
                self._strays.add(attempt)
                cancel = m.CancelTask(job_id=self.job_id, attempt_id=attempt)
                self._run(task_manager(resource), cancel, self._cancel_patience, _Stray(attempt))


_OVER = (ExecutionState.CANCELED, ExecutionState.FAILED, ExecutionState.FINISHED)
