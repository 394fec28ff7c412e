"""What a TaskManager decides about its registration and its slots, without carrying it out (rpc.party).

It decides who may say what (fencing). It turns messages into events of the two machines (`slot_machine`,
`registration_machine`), and their commands into messages. It builds the report. It does not know what an attempt is,
how to start or stop one, or how the session child works: its driver carries out the commands, and reports the results.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace as copy

from minflinkd.rpc import messages as m
from minflinkd.rpc.libraries import LibraryConflict, clash
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Unreachable
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Tell, Unknown, fenced
from minflinkd.runtime.errors import Conflict, Consequence, Kind, MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, epoch_of
from minflinkd.runtime.machine import Machine
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.slots import events as ev
from minflinkd.taskmanager.slots import machine as slot_machine
from minflinkd.taskmanager.slots import registration as rg
from minflinkd.taskmanager.slots.events import Adopted, EndTasks, ForgetJob, StartTask
from minflinkd.taskmanager.slots.state import SlotOptions, Slots, check_invariants
from minflinkd.taskmanager.slots.table import SlotTable

OFFER_TIMEOUT = 2.0  # seconds

FromResourceManager = m.AllocateSlots | m.JobMasterChanged | m.RenewSession | m.SetDraining | m.ExitTaskManager
AboutAttempts = (
    m.CancelTask
    | m.DrainTask
    | m.ResizeTask
    | m.TriggerCheckpoint
    | m.NotifyCheckpointComplete
    | m.NotifyCheckpointAborted
)
FromJobMaster = m.DeployTask | m.HeartbeatFromJobMaster | m.FreeSlots | AboutAttempts


class SlotNotBound(MinflinkError):
    """m12: A deployment onto slots that are not bound to that job here."""

    code = "slot-not-bound"
    kind = Kind.CLUSTER
    consequence = Consequence.REFUSED


class SessionShared(MinflinkError):
    """R24: other jobs use this session, or one that wants to be alone does; another session may have room."""

    code = "session-shared"
    kind = Kind.SESSION_TAKEN
    consequence = Consequence.RETRYABLE


@dataclass(frozen=True)
class TaskManagerOptions:
    """Times are in seconds."""

    slots: SlotOptions = field(default_factory=SlotOptions)
    registration_timeout: float = 0.0  # it exits after so long without a ResourceManager; 0: never (R15)


@dataclass(frozen=True)
class Session:
    """The session child, as the driver reports it."""

    phase: m.SessionPhase = m.SessionPhase.STARTING
    generation: int = 0
    aged: bool = False
    error: str = ""


@dataclass(frozen=True)
class RenewSession:
    """Replace the session child. The driver reports the new one with `session_changed`."""

    reason: str


@dataclass(frozen=True)
class Exit:
    reason: str
    failed: bool = False  # whether it exits because it cannot go on, not because it was told to


Command = Ask | Tell | StartTask | Adopted | EndTasks | ForgetJob | RenewSession | Exit


@dataclass(frozen=True)
class _Try:
    number: int


@dataclass(frozen=True)
class _Beat:
    number: int


@dataclass(frozen=True)
class _Offer:
    job_id: JobId
    version: int


class TaskManagerCore:
    """A rpc.party.Core. `hello` describes this TaskManager. Every registration fills in its report.

    Messages about attempts (CancelTask, TriggerCheckpoint, ...) are fenced here and answered with Done. The driver does
    what they ask for.
    """

    def __init__(self, hello: m.RegisterTaskManager, *, slots: int, options: TaskManagerOptions, now: float) -> None:
        self.resource_id = hello.report.resource_id
        self.session = Session()
        self.draining = False
        self._drain_asked: tuple[LeaderId, int] | None = None  # the latest request that was followed
        self._hello = hello
        self._slots = Machine(
            Slots(options.slots, SlotTable(slots)),
            slot_machine.step,
            check_invariants,
            name=f"slots of {hello.address}",
        )
        self._registration = Machine(
            rg.Registration(since=now, due=now, give_up_after=options.registration_timeout),
            rg.step,
            rg.check_invariants,
            name=f"registration of {hello.address}",
        )
        self._commands: list[Command] = []
        self._analysing: Counter[JobId] = Counter()
        self._standing_by: set[JobId] = set()
        self._session_version = 0
        self._renewing: int | None = None  # the session generation being replaced
        self._told = 0  # version of the last report that was sent
        self._epoch = 0  # the highest of all leaders that have sent something

    # --- inspection ----------------------------------------------------------------------------------------------

    @property
    def slots(self) -> Slots:
        return self._slots.state

    @property
    def registration(self) -> rg.Registration:
        return self._registration.state

    def keeps(self, job_id: JobId) -> bool:
        """Whether what was fetched for the job is needed although it holds no slots here."""
        return job_id in self._analysing or job_id in self._standing_by

    def report(self) -> m.TaskManagerReport:
        """Return the whole report, without metrics. The driver adds them."""
        table, session = self.slots.table, self.session
        renewing = session.phase is m.SessionPhase.READY and self._renewing == session.generation
        return m.TaskManagerReport(
            resource_id=self.resource_id,
            slots=table.report(),
            session=m.SessionPhase.STARTING if renewing else session.phase,
            session_generation=session.generation,
            session_error=session.error,
            # A session with libraries of jobs that are not here is replaced when idle, so that any job can use it
            # (B31).
            session_aged=session.aged or bool(table.loaded and not table.bindings and not self._analysing),
            analysing=bool(self._analysing),
            draining=self.draining,
            dedicated_to=table.dedicated_to,
            libraries=table.libraries,
            version=table.version + self._session_version,
        )

    # --- Core ----------------------------------------------------------------------------------------------------

    def receive(self, message: m.Message, fence: LeaderId | None, now: float) -> Any:
        """Handle a message.

        Raises Fenced, SlotNotBound, SessionLost, Conflict, and Unreachable if it does not belong here.
        """
        if isinstance(message, FromResourceManager):
            answer = self._from_resource_manager(message, fence, now)
        elif isinstance(message, FromJobMaster):
            answer = self._from_job_master(message, fence, now)
        else:
            raise Unreachable(f"{self._hello.address} does not take {type(message).__name__}")
        self._tell_changes()
        return answer

    def answered(self, about: object, outcome: Outcome, now: float) -> None:
        match about:
            case _Offer(job_id, version):
                if isinstance(outcome, Answered):
                    self._feed(ev.OfferAnswered(job_id, version, outcome.value.accepted), now)
                else:
                    self._feed(ev.OfferFailed(job_id, version), now)
            case _Try(number):
                self._registration_answered(number, outcome, now)
            case _Beat(number):
                self._beat_answered(number, outcome, now)
        self._tell_changes()

    def tick(self, now: float) -> None:
        self._register(rg.Tick(busy=bool(self.slots.attempts or self.slots.unheard)), now)
        self._feed(ev.Tick(), now)
        self._tell_changes()

    def next_wakeup(self) -> float | None:
        due = (rg.next_wakeup(self.registration), slot_machine.next_wakeup(self.slots))
        return min((d for d in due if d is not None), default=None)

    def take_commands(self) -> tuple[Command, ...]:
        commands, self._commands = tuple(self._commands), []
        return commands

    # --- what the driver tells -----------------------------------------------------------------------------------

    def attempt_ended(self, attempt_id: AttemptId, now: float, *, failed: bool = False) -> None:
        """Note that nothing of the attempt runs any more. Unknown attempts have ended before.

        `failed`: it ended by itself, with an error. Its slot is held for this failure until `failure_taken`.
        """
        self._feed(ev.AttemptEnded(attempt_id, failed), now)
        self._tell_changes()

    def failure_taken(self, attempt_id: AttemptId, now: float) -> None:
        """Note that a JobMaster knows of the attempt's failure."""
        self._feed(ev.FailureTaken(attempt_id), now)
        self._tell_changes()

    def session_changed(self, phase: m.SessionPhase, generation: int, aged: bool, now: float, error: str = "") -> None:
        """Note the state of the session. A lost session costs no slot.

        Its tasks have failed, and their JobMasters give back the slots that they no longer want.
        """
        session = Session(phase, generation, aged, error)
        if generation != self.session.generation:
            self._feed(ev.SessionBegan(), now)
        if session != self.session:
            self.session = session
            self._session_version += 1
        self._tell_changes()

    def analysing(
        self, job_id: JobId, now: float, libraries: tuple[m.Library, ...] = (), *, exclusive: bool = False
    ) -> None:
        """Keep the session, and everything fetched for the job, until `analysed`.

        `exclusive`: the TaskManager is the job's own from now on, whether or not the job gets slots: its code runs in
        this session and may leave anything there. Raises LibraryConflict, SessionShared.
        """
        table = self.slots.table
        others = {binding.job_id for binding in table.bindings.values()} | self._analysing.keys()
        if table.dedicated_to not in (None, job_id) or (exclusive and others - {job_id}):
            raise SessionShared(
                f"the session of {self.resource_id} is not free for a job of its own",
                hint="another TaskManager can analyse the job",
            )
        if units := clash(self.slots.table.libraries, libraries):
            raise LibraryConflict(
                f"the session of {self.resource_id} holds another version of {', '.join(units[:5])}",
                hint="another TaskManager can analyse the job",
            )
        self._analysing[job_id] += 1
        self._session_version += 1
        self._feed(ev.Analysed(job_id, libraries, exclusive), now)
        self._tell_changes()

    def analysed(self, job_id: JobId, now: float) -> None:
        """End an analysis. Blobs fetched for the job are deleted after a while unless the job is deployed here."""
        self._analysing -= Counter([job_id])
        self._session_version += 1
        self._feed(ev.Analysed(job_id), now)
        self._tell_changes()

    def stand_by(self, job_id: JobId) -> None:
        """Keep what is fetched for the job, until `stood_by` (R32). Nothing else is reserved for it.

        Raises SessionShared if the TaskManager is another job's own.
        """
        if self.slots.table.dedicated_to not in (None, job_id):
            raise SessionShared(
                f"the session of {self.resource_id} is another job's own", hint="another TaskManager can stand by"
            )
        self._standing_by.add(job_id)

    def stood_by(self, job_id: JobId, now: float) -> None:
        """End that. What was fetched is deleted after a while, unless the job is deployed here."""
        self._standing_by.discard(job_id)
        self._feed(ev.Analysed(job_id), now)

    # --- from the ResourceManager --------------------------------------------------------------------------------

    def _from_resource_manager(self, message: FromResourceManager, fence: LeaderId | None, now: float) -> Any:
        """R1: Follow only the leader that this TaskManager is registered with.

        A later leader must register this TaskManager first.
        """
        if fence is None or fence != self.registration.leader:
            raise fenced(Address(self._hello.address), message, fence)
        self._refuse_earlier_epochs(message, fence)
        match message:
            case m.AllocateSlots():
                return self._allocate(message, now)
            case m.JobMasterChanged():
                self._feed(ev.Announced(message.job_id, message.leader_id), now)
                return None
            case m.RenewSession():
                self._renew(message)
            case m.SetDraining():
                return self._set_draining(message, fence)
            case m.ExitTaskManager():
                self._commands.append(Exit(message.reason))
        return m.Done()

    def _allocate(self, request: m.AllocateSlots, now: float) -> m.SlotAnswer:
        """m7, m8: Allocate slots.

        New slots need a session that is ready, and a TaskManager that is not draining. Slots given earlier stay
        allocated without either.
        """
        report = self.report()
        usable = report.session is m.SessionPhase.READY and not self.draining
        if usable or self.slots.is_allocated(request):
            self._feed(ev.Allocate(request), now)
            report = self.report()
        self._told = max(self._told, report.version)
        return m.SlotAnswer(allocated=self.slots.is_allocated(request), report=report)

    def _set_draining(self, request: m.SetDraining, leader: LeaderId) -> m.TaskManagerReport:
        """A15b: While it is draining, it gives out no slots. JobMasters learn this with the next heartbeat."""
        if self._drain_asked is None or (leader, request.number) > self._drain_asked:
            self._drain_asked = leader, request.number
            if request.draining is not self.draining:
                self.draining = request.draining
                self._session_version += 1
        return self.report()

    def _renew(self, request: m.RenewSession) -> None:
        if self.slots.table.bindings:
            holders = ", ".join(sorted({b.job_id for b in self.slots.table.bindings.values()}))
            raise Conflict(
                f"the session of {self.resource_id} is not replaced while slots are taken, by {holders}",
                hint="ask again when all slots are free",
            )
        if self._analysing:
            jobs = ", ".join(sorted(self._analysing))
            raise Conflict(
                f"the session of {self.resource_id} is not replaced while it analyses {jobs}",
                hint="ask again when that has ended",
            )
        if self.session.phase is m.SessionPhase.READY and self._renewing != self.session.generation:
            self._renewing = self.session.generation
            self._session_version += 1
            self._commands.append(RenewSession(request.reason))

    def _announced(self, answer: m.Registered | m.HeartbeatAnswer, now: float) -> None:
        """R13: Note the leaders of the jobs that are named, and the jobs that have ended."""
        if epoch_of(self.registration.leader) < self._epoch:
            return  # A11b
        for job_id, leader in sorted(answer.job_masters.items()):
            self._feed(ev.Announced(job_id, leader), now)
        for job_id in answer.ended_jobs:
            self._feed(ev.JobEnded(job_id), now)

    def _registration_answered(self, number: int, outcome: Outcome, now: float) -> None:
        if not isinstance(outcome, Answered):
            self._register(rg.NotAccepted(number, str(outcome.error)), now)
            return
        registered: m.Registered = outcome.value
        self._register(rg.Accepted(number, registered), now)
        if self.registration.registered == registered:
            self._announced(registered, now)

    def _beat_answered(self, number: int, outcome: Outcome, now: float) -> None:
        match outcome:
            case Answered(value):
                self._register(rg.BeatAnswered(number), now)
                self._announced(value, now)
            case Refused(error):
                self._register(rg.BeatRefused(number, str(error)), now)
            case Unknown(error):
                unreachable = isinstance(error, Unreachable)
                self._register(rg.BeatLost(number, str(error), unreachable), now)

    # --- from whoever leads --------------------------------------------------------------------------------------

    def _refuse_earlier_epochs(self, message: m.Message, leader: LeaderId) -> None:
        """A11b: Refuse messages of an earlier daemon, even for a job whose new JobMaster has sent nothing yet."""
        if epoch_of(leader) < self._epoch:
            raise fenced(Address(self._hello.address), message, leader)
        self._note_epoch(leader)

    def _note_epoch(self, leader: LeaderId | None) -> None:
        self._epoch = max(self._epoch, epoch_of(leader))

    # --- from JobMasters -----------------------------------------------------------------------------------------

    def _from_job_master(self, message: FromJobMaster, fence: LeaderId | None, now: float) -> Any:
        """R1: Refuse leaders of the job that are earlier than the latest known. A later one takes over at once (R13).

        After a registration with a new daemon, JobMasters of the previous daemon are also refused, even before the new
        daemon's JobMaster is known (A11b).
        """
        job_id = message.job.job_id if isinstance(message, m.DeployTask) else message.job_id
        leader = fence or slot_machine.NOBODY
        known = self.slots.jobs.get(job_id)
        if known is not None and leader < known.leader:
            raise fenced(Address(self._hello.address), message, fence)
        self._refuse_earlier_epochs(message, leader)
        match message:
            case m.DeployTask():
                self._deploy(message, leader, now)
            case m.HeartbeatFromJobMaster():
                self._feed(ev.Beat(job_id, leader, message.allocations), now)
                return m.JobHeartbeatAnswer(allocations=self.slots.kept_for(job_id), tasks=(), draining=self.draining)
            case m.FreeSlots():
                self._feed(ev.Free(job_id, leader, message.allocations, message.job_ended, message.surplus), now)
            case m.CancelTask():
                self._feed(ev.Cancel(job_id, leader, message.attempt_id), now)
            case _:
                self._feed(ev.Heard(job_id, leader), now)
        return m.Done()

    def _deploy(self, request: m.DeployTask, leader: LeaderId, now: float) -> None:
        self._feed(ev.Heard(request.job.job_id, leader), now)
        if self.slots.is_deployed(request):
            return
        if (refusal := self._refusal(request)) is not None:
            # Another copy of the request may arrive later. A refused attempt must never run without its JobMaster
            # knowing.
            self._feed(ev.Cancel(request.job.job_id, leader, request.attempt_id), now)
            raise refusal
        self._feed(ev.Deploy(request), now)

    def _refusal(self, request: m.DeployTask) -> MinflinkError | None:
        if self.session.phase is not m.SessionPhase.READY:
            return SessionLost("the session is not ready", hint="the TaskManager is starting a new one")
        if fault := self.slots.fault_of(request):
            return SlotNotBound(f"{self.resource_id}: {fault}", hint="the job asks for slots again")
        return None

    # --- machines ------------------------------------------------------------------------------------------------

    def _feed(self, event: ev.Event, now: float) -> None:
        for command in self._slots.feed(event, now):
            self._commands.append(self._offer(command) if isinstance(command, ev.MakeOffer) else command)

    def _offer(self, command: ev.MakeOffer) -> Ask:
        request = m.OfferSlots(
            resource_id=self.resource_id,
            address=self._hello.address,
            offers=command.offers,
            version=command.version,
            job_id=command.job_id,
            draining=self.draining,
            libraries=self.slots.table.libraries,
            slot_profile=self._hello.slot_profile,
        )
        about = _Offer(command.job_id, command.version)
        return Ask(Address(command.address), request, OFFER_TIMEOUT, fence=command.leader, about=about)

    def _register(self, event: rg.Event, now: float) -> None:
        commands = self._registration.feed(event, now)
        self._note_epoch(self.registration.leader)
        for command in commands:
            match command:
                case rg.Register(number):
                    hello = copy(self._hello, report=self.report())
                    self._told = hello.report.version
                    self._commands.append(Ask(RESOURCE_MANAGER, hello, rg.TRY_TIMEOUT, about=_Try(number)))
                case rg.Beat(number, instance_id, leader, timeout):
                    beat = m.HeartbeatFromTaskManager(instance_id=instance_id, report=self.report())
                    self._told = beat.report.version
                    self._commands.append(Ask(RESOURCE_MANAGER, beat, timeout, fence=leader, about=_Beat(number)))
                case rg.GiveUp(reason):
                    self._commands.append(Exit(reason, failed=True))

    def _tell_changes(self) -> None:
        """m11: Report everything at once if there is news. The next heartbeat reports it again."""
        report, registered = self.report(), self.registration.registered
        if registered is not None and report.version > self._told:
            self._told = report.version
            notice = m.SlotsFree(report=report, instance_id=registered.instance_id)
            self._commands.append(Tell(RESOURCE_MANAGER, notice, fence=registered.leader_id))
