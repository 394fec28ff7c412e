"""A TaskManager that looks for the daemon that leads, and whose tasks take checkpoints and publish rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as copy

from minflinkd.filemerging.segments import physical_file_name
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import job_master
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Unknown
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.errors import Kind
from minflinkd.runtime.ids import AttemptId, LeaderId, ResourceId, epoch_of
from minflinkd.taskmanager.slots.events import StartTask
from tests.sim.election.daemon import Leadership
from tests.sim.election.published import transaction, unit
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.task_manager import LIVE, Attempt, TaskManagerParty
from tests.sim.protocol.wire import Later

if TYPE_CHECKING:
    from tests.sim.election.world import ElectionWorld

SEEKING = 0.2  # seconds between two looks for the daemon that leads
ROWS = 20.0  # a second, of each task
ACKNOWLEDGE_TIMEOUT = 2.0
PAUSE = 0.5  # seconds between two tries to acknowledge
PUBLISHING = 0.05  # most seconds


@dataclass
class Progress:
    """What one attempt has processed and staged."""

    attempt: Attempt
    base: int = 0  # rows of the checkpoint that it started from
    restored: int = 0  # that checkpoint; 0: none
    since: float | None = None  # when it began to process rows beyond `base`
    cut: int = 0  # rows up to the last cut
    staged: list[str] = field(default_factory=list)  # not published
    cuts: dict[int, tuple[str, ...]] = field(default_factory=dict)  # what each checkpoint in flight publishes
    confirmed: int = 0
    aborted: set[int] = field(default_factory=set)
    stops_at: int = 0
    known: str = ""  # the physical file that the last confirmed checkpoint refers to
    files: dict[int, str] = field(default_factory=dict)  # of each checkpoint in flight

    def rows(self, now: float) -> int:
        return self.base if self.since is None else self.base + int((now - self.since) * ROWS)


@dataclass(frozen=True)
class _Acknowledged:
    attempt_id: AttemptId
    checkpoint_id: int
    tries: int


class ElectionTaskManager(TaskManagerParty):
    world: ElectionWorld
    uplink: Leadership | None = None  # whose connection it has

    def __init__(self, world: ElectionWorld, resource_id: ResourceId, **options: Any) -> None:
        self.progress: dict[AttemptId, Progress] = {}
        self.newest = 0  # the epoch of the latest leader that it has heard
        self._snapshots: dict[_Acknowledged, TaskSnapshot] = {}  # on their way to the JobMaster
        super().__init__(world, resource_id, **options)
        self._seek()

    # --- the leader --------------------------------------------------------------------------------------------------

    def _seek(self) -> None:
        """Keep one connection: to a daemon that leads, for as long as it says something."""
        if self.uplink is None or not self.uplink.daemon.keeps(self.uplink):
            self.uplink = None
            leading = [daemon for daemon in self.world.daemons if daemon.serves]
            if leading:
                self.uplink = self.universe.rng.choice(leading).leadership
                self.universe.note("{} is CONNECTED to {}", self.address, self.uplink.daemon if self.uplink else "")
        self.after(SEEKING * self.universe.rng.uniform(0.5, 1.0), self._seek)

    def receive(self, message: m.Message, fence: LeaderId | None) -> Any:
        answer = super().receive(message, fence)
        self._follows(fence, type(message).__name__)
        match message:
            case m.TriggerCheckpoint():
                self._trigger(message)
            case m.NotifyCheckpointComplete():
                return self._complete(message)
            case m.NotifyCheckpointAborted():
                self._abort(message)
        return answer

    def answered(self, ask: Ask, outcome: Outcome) -> None:
        if isinstance(ask.about, _Acknowledged):
            self._acknowledged(ask.about, outcome)
            return
        super().answered(ask, outcome)
        if (registered := self.core.registration.registered) is not None:
            self.newest = max(self.newest, epoch_of(registered.leader_id))

    def _follows(self, leader: LeaderId | None, what: str) -> None:
        """Check that a command that was taken is not of an earlier epoch than the newest that it has seen (A11b)."""
        epoch = epoch_of(leader)
        if epoch < self.newest:
            raise Violation(f"{self.address} takes {what} of epoch {epoch}, and knows epoch {self.newest}")
        self.newest = epoch

    # --- attempts ----------------------------------------------------------------------------------------------------

    def carry_out(self, command: Any) -> None:
        if isinstance(command, StartTask):
            self.world.rules.starts(self, command.deployment)
        super().carry_out(command)
        if isinstance(command, StartTask):
            deployment = command.deployment
            progress = Progress(self.attempts[deployment.attempt_id])
            if (restore := deployment.restore) is not None:
                progress.base = progress.cut = restore.snapshot.batch_id
                progress.restored = restore.checkpoint_id
            self.progress[deployment.attempt_id] = progress

    def _to(self, attempt: Attempt, state: m.TaskState) -> None:
        progress = self.progress.get(attempt.deployment.attempt_id)
        if progress is not None and state is m.TaskState.RUNNING:
            progress.since = self.universe.now
        elif progress is not None and state is m.TaskState.INPUT_ENDED:
            progress.base, progress.since = progress.rows(self.universe.now), None
        super()._to(attempt, state)

    def complete(self, ask: Ask) -> Ask:
        ask = super().complete(ask)
        if not isinstance(ask.request, m.OfferSlots):
            return ask
        tasks = tuple(self._offered(task) for task in ask.request.tasks)
        return replace(ask, request=copy(ask.request, tasks=tasks))

    def _offered(self, task: m.OfferedTask) -> m.OfferedTask:
        progress = self.progress[task.status.attempt_id]
        pending = tuple(sorted(progress.cuts))
        return copy(task, restored=progress.restored, pending=pending, stops_at=progress.stops_at)

    def _live(self, attempt_id: AttemptId) -> Progress | None:
        progress = self.progress.get(attempt_id)
        return progress if progress is not None and progress.attempt.state in LIVE else None

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _trigger(self, request: m.TriggerCheckpoint) -> None:
        progress, number = self._live(request.attempt_id), request.checkpoint_id
        if progress is None or number in progress.cuts or number in progress.aborted or number <= progress.confirmed:
            return
        if progress.stops_at and progress.stops_at not in progress.aborted:
            return  # it processes nothing any more
        rows = progress.rows(self.universe.now)
        if rows > progress.cut:
            progress.staged.append(unit(request.attempt_id, progress.cut, rows))
            progress.cut = rows
        progress.cuts[number] = tuple(progress.staged)
        if request.stop:
            progress.stops_at, progress.base, progress.since = number, rows, None
        self.after(self._task_time() / 2, self._taken, progress, request, rows)

    def _taken(self, progress: Progress, request: m.TriggerCheckpoint, rows: int) -> None:
        number, deployment = request.checkpoint_id, progress.attempt.deployment
        if number not in progress.cuts or self._live(request.attempt_id) is None:
            return
        file = physical_file_name(request.epoch, number, request.attempt_id, self.resource_id, 0)
        job_id = deployment.job.job_id
        self.world.storage.objects[self.world.checkpoints_of(job_id).child(file).path] = b"state"
        progress.files[number] = file
        handles = [StateFile(f"state/{i}", StateHandle(f, 0, 5, "")) for i, f in enumerate((progress.known, file)) if f]
        snapshot = TaskSnapshot(
            task_id=deployment.task.id,
            attempt_id=request.attempt_id,
            resource_id=self.resource_id,
            checkpoint_id=number,
            batch_id=rows,
            files=tuple(handles),
            transactions=(transaction(job_id, deployment.task.id, number, progress.cuts[number]),),
            physical_files=(file,),
            parallelism=deployment.task.parallelism,
            input_ended=progress.attempt.state is m.TaskState.INPUT_ENDED,
        )
        self._acknowledge(progress, snapshot, _Acknowledged(request.attempt_id, number, 1))

    def _acknowledge(self, progress: Progress, snapshot: TaskSnapshot, about: _Acknowledged, after: float = 0) -> None:
        job_id = progress.attempt.deployment.job.job_id
        request = m.AcknowledgeCheckpoint(job_id=job_id, attempt_id=snapshot.attempt_id, snapshot=snapshot)
        fence = progress.attempt.leader
        ask = Ask(job_master(job_id), request, ACKNOWLEDGE_TIMEOUT, fence=fence, about=about, after=after)
        self._snapshots[about] = snapshot
        self.universe.wire.ask(self, ask)

    def _acknowledged(self, about: _Acknowledged, outcome: Outcome) -> None:
        snapshot = self._snapshots.pop(about)
        progress = self._live(about.attempt_id)
        if progress is None or about.checkpoint_id not in progress.cuts or isinstance(outcome, Answered):
            return
        if isinstance(outcome, Unknown):
            again = replace(about, tries=about.tries + 1)
            self._acknowledge(progress, snapshot, again, PAUSE)
        elif isinstance(outcome, Refused) and outcome.error.info().kind is Kind.NOT_FOUND:
            del progress.cuts[about.checkpoint_id]  # nobody waits for it: what it covers goes into the next one

    def _complete(self, request: m.NotifyCheckpointComplete) -> Any:
        progress = self._live(request.attempt_id)
        if progress is None or request.checkpoint_id <= progress.confirmed:
            return m.Done()
        later = Later()
        delay = PUBLISHING * self.universe.rng.random()
        self.after(delay, self._publish, progress, request.checkpoint_id, later)
        return later

    def _publish(self, progress: Progress, number: int, later: Later) -> None:
        if number in progress.cuts and number > progress.confirmed:
            deployment = progress.attempt.deployment
            owed = transaction(deployment.job.job_id, deployment.task.id, number, progress.cuts[number])
            self.world.published.publish(owed)
            gone = set(progress.cuts[number])
            progress.staged = [name for name in progress.staged if name not in gone]
            progress.cuts = {
                n: tuple(name for name in names if name not in gone) for n, names in progress.cuts.items() if n > number
            }
            progress.confirmed, progress.known = number, progress.files[number]
        later.answer(Answered(m.Done()))

    def _abort(self, request: m.NotifyCheckpointAborted) -> None:
        progress, number = self._live(request.attempt_id), request.checkpoint_id
        if progress is None or number <= progress.confirmed:
            return
        progress.aborted.add(number)
        progress.cuts.pop(number, None)
        if progress.stops_at == number:
            progress.stops_at = 0
            if progress.attempt.state is m.TaskState.RUNNING:
                progress.since = self.universe.now
