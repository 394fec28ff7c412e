"""The ResourceManager without a network: messages in, answers and commands out (rpc.party.Core).

What happens to TaskManagers, slots and needs is an event of `resourcemanager.slot_manager`. This module translates
messages to events, and decides whose message comes too late (R1) and who has fallen silent (R10). Unchanged repetitions
(heartbeats, declarations) are noted here and do not reach the slot manager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog
from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager import inspection, slot_manager
from minflinkd.resourcemanager.inspection import Seen
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.outlook import needs_answer, session_outlook
from minflinkd.resourcemanager.provisioning import no_start
from minflinkd.resourcemanager.state import Resources, check_invariants
from minflinkd.resourcemanager.step import Setting
from minflinkd.resourcemanager.task_managers import Presence, Shelf, TaskManager
from minflinkd.rpc import messages as m
from minflinkd.rpc.libraries import clash, contains
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, Address, Fenced, Unreachable, task_manager
from minflinkd.rpc.party import Answered, Ask, Outcome, Tell, fenced
from minflinkd.runtime.errors import Conflict, Consequence, MinflinkError, NotFound
from minflinkd.runtime.heartbeats import Heartbeats
from minflinkd.runtime.ids import IdSource, JobId, LeaderId, ResourceId
from minflinkd.runtime.machine import Machine

log = structlog.get_logger(__name__)

RETRY_PAUSE = 0.2  # seconds before AllocateSlots is sent again
LONGEST_TICK = 1.0  # seconds
AT_A_TIME = 16  # silent parties that are given up in one step: a network may fail for all of them at once
CHECK_INTERVAL = 60.0  # seconds between two checks of the invariants, unless every step is checked

Command = Ask | Tell | ev.StartTaskManager | ev.StopTaskManager


class UnknownTaskManager(MinflinkError):
    code = "unknown-task-manager"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class _JobsAsked:
    """What the question for the jobs that have not ended is about."""


@dataclass(frozen=True)
class _MovesAsked:
    """Identifies the answer to a request to move jobs."""


class ResourceManagerCore:
    """A rpc.party.Core. Its own commands are StartTaskManager and StopTaskManager, for a TaskManagerLauncher.

    `wall_ms` converts a time of the injected clock to milliseconds since 1970. With `check`, the invariants are checked
    after every step, otherwise once a minute.
    """

    def __init__(
        self,
        *,
        ids: IdSource,
        options: ResourceManagerOptions,
        wall_ms: Callable[[float], int] = lambda at: round(at * 1000),
        blob_url: str = "",
        blob_store: str = "",
        check: bool = False,
    ) -> None:
        self.leader_id = ids.leader()
        self.blob_url = blob_url
        self.blob_store = blob_store
        self._ids = ids
        self._wall_ms = wall_ms
        self._setting = Setting(options, ids.resource)
        self._check = check
        self._machine = Machine[Resources, ev.Event, ev.Command](
            Resources(),
            lambda state, event, now: slot_manager.step(self._setting, state, event, now),
            check_invariants if check else None,
            name=RESOURCE_MANAGER,
        )
        self._seen: dict[ResourceId, Seen] = {}
        self._task_managers = Heartbeats[ResourceId](options.heartbeat_timeout)
        self._job_masters = Heartbeats[JobId](2 * options.heartbeat_timeout)
        self._asking_moves = False  # the Dispatcher is asked to move jobs
        self._held: dict[JobId, str] = {}  # why jobs are still on draining TaskManagers; only shown
        self._asking = False  # the Dispatcher is asked for the jobs that have not ended
        self._commands: list[Command] = []
        self._overview_of: Resources | None = None  # the state that the answer is about
        self._overview_answer: m.ResourceOverview
        self._next_tick = 0.0
        self._next_check = CHECK_INTERVAL
        self._handlers: dict[type[m.Message], Callable[[Any, float], Any]] = {
            m.RegisterTaskManager: self._register,
            m.HeartbeatFromTaskManager: self._heartbeat,
            m.SlotsFree: self._slots_free,
            m.DeclareNeeds: self._declare_needs,
            m.JobMasterEnded: self._job_master_ended,
            m.DrainTaskManager: self._drain,
            m.FindSession: self._find_session,
            m.ListTaskManagers: self._list_task_managers,
            m.GetResourceOverview: self._overview,
        }

    @property
    def state(self) -> Resources:
        return self._machine.state

    def reconfigure(self, options: ResourceManagerOptions) -> None:
        """Use other options from now on. The next step acts on them."""
        self._setting = Setting(options, self._ids.resource)

    # --- rpc.party.Core ------------------------------------------------------------------------------------------

    def receive(self, message: m.Message, fence: LeaderId | None, now: float) -> Any:
        """Handle a message.

        Raises Fenced, Unreachable for a message that it does not take, and each message's refusals.
        """
        handler = self._handlers.get(type(message))
        if handler is None:
            raise Unreachable(f"{RESOURCE_MANAGER} does not take {type(message).__name__}")
        if fence != self.leader_id and isinstance(message, m.HeartbeatFromTaskManager | m.SlotsFree):
            raise fenced(RESOURCE_MANAGER, message, fence)
        return handler(message, now)

    def answered(self, about: object, outcome: Outcome, now: float) -> None:
        match about:
            case ev.SendAllocate(resource_id, request):
                allocation = request.allocation_id
                if isinstance(outcome, Answered):
                    answer: m.SlotAnswer = outcome.value
                    self._feed(ev.AllocationAnswered(allocation, answer.allocated, answer.report), now)
                else:
                    # Also for a refusal: a TaskManager that has just registered may not follow this leader yet.
                    log.info("an allocation has no outcome yet", allocation=allocation, error=str(outcome.error))
                    self._feed(ev.AllocationUnknown(resource_id, allocation), now)
            case ev.SendExit(resource_id, reason):
                if not isinstance(outcome, Answered):
                    log.info("a TaskManager did not say that it exits", resource=resource_id, error=str(outcome.error))
                self._feed(ev.ExitAnswered(resource_id, reason), now)
            case ev.SendDraining(_, _, number):
                if isinstance(outcome, Answered):
                    self._feed(ev.DrainAnswered(number, outcome.value), now)
            case _MovesAsked():
                self._asking_moves = False
                if isinstance(outcome, Answered):
                    self._held = outcome.value.why
            case _JobsAsked():
                self._asking = False
                if isinstance(outcome, Answered):
                    self._feed(ev.JobsListed(outcome.value.jobs), now)

    def tick(self, now: float) -> None:
        if now < self._next_tick:
            return
        if self._next_tick and (late := now - self._next_tick) > self._setting.options.heartbeat_interval:
            self._task_managers.postpone(late)
            self._job_masters.postpone(late)
        self._next_tick = now + min(self._setting.options.heartbeat_interval, LONGEST_TICK)
        if not self._take_silent(now):
            self._next_tick = now
        self._feed(ev.Tick(), now)
        self._ask_for_jobs()
        self._ask_for_moves()
        for gone in self._seen.keys() - self.state.task_managers.keys():
            del self._seen[gone]
        if not self._check and now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL
            check_invariants(self.state)

    def _take_silent(self, now: float) -> bool:
        """Give up TaskManagers and JobMasters that are silent (R10). False: there may be more, for the next tick."""
        task_managers = list(islice(self._task_managers.take_silent(now), AT_A_TIME))
        for resource_id, silent in task_managers:
            self._feed(ev.TaskManagerFailed(resource_id, f"no heartbeat for {silent:.1f} s"), now)
        job_masters = list(islice(self._job_masters.take_silent(now), AT_A_TIME))
        for job_id, silent in job_masters:
            job = self.state.jobs.get(job_id)
            if job is not None:
                log.warning("a JobMaster is silent; its needs are dropped", job=job_id, seconds=round(silent, 1))
                self._feed(ev.JobMasterGone(job_id, job.leader_id, for_good=False), now)
        return len(task_managers) < AT_A_TIME and len(job_masters) < AT_A_TIME

    def next_wakeup(self) -> float:
        return self._next_tick

    def take_commands(self) -> tuple[Command, ...]:
        commands, self._commands = tuple(self._commands), []
        return commands

    # --- from the driver -----------------------------------------------------------------------------------------

    def found(self, resource_ids: tuple[ResourceId, ...], now: float) -> None:
        """Learn the live TaskManagers that an earlier ResourceManager started (R7).

        Call it before anything else, and again for what the launcher could not find by then.
        """
        if resource_ids:
            self._feed(ev.TaskManagersFound(resource_ids), now)

    def exited(self, resource_id: ResourceId, reason: str, now: float) -> None:
        """The TaskManager's process ended. Does nothing if that was already known."""
        self._feed(ev.TaskManagerFailed(resource_id, reason), now)

    def start_failed(self, resource_id: ResourceId, reason: str, now: float) -> None:
        self._feed(ev.TaskManagerFailed(resource_id, f"its process could not be started: {reason}"), now)

    def start_waits(self, resource_id: ResourceId, why: str, now: float) -> None:
        """The launcher says why a TaskManager that it starts does not run yet; empty: nothing keeps it any more."""
        self._feed(ev.StartWaits(resource_id, why), now)

    def disconnected(self, resource_id: ResourceId, now: float) -> None:
        """The TaskManager's connection ended. Unless it is heard from within two intervals, it is lost (R10)."""
        self._task_managers.suspect(resource_id, now + 2 * self._setting.options.heartbeat_interval)

    # --- the machine's commands as messages ----------------------------------------------------------------------

    def _feed(self, event: ev.Event, now: float) -> None:
        for command in self._machine.feed(event, now):
            self._commands += self._carried(command)

    def _carried(self, command: ev.Command) -> list[Command]:
        match command:
            case ev.SendAllocate(resource_id, request, again):
                return [self._ask(resource_id, request, about=command, after=RETRY_PAUSE if again else 0.0)]
            case ev.SendExit(resource_id, reason):
                log.info("a TaskManager is told to exit", resource=resource_id, reason=reason)
                self._task_managers.forget(resource_id)
                return [self._ask(resource_id, m.ExitTaskManager(reason=reason), about=command)]
            case ev.SendRenew(resource_id, reason):
                log.info("a TaskManager is told to renew its session", resource=resource_id, reason=reason)
                # Nothing is concluded from the answer. The next report shows the facts.
                return [self._ask(resource_id, m.RenewSession(reason=reason), about=None)]
            case ev.SendDraining(resource_id, draining, number):
                log.info("a TaskManager is told whether to drain", resource=resource_id, drained=draining)
                return [self._ask(resource_id, m.SetDraining(draining=draining, number=number), about=command)]
            case ev.AnnounceJobMaster(job_id, leader_id, resource_ids):
                changed = m.JobMasterChanged(job_id=job_id, leader_id=leader_id)
                return [Tell(task_manager(resource_id), changed, self.leader_id) for resource_id in resource_ids]
            case ev.NotifyLost(resource_id, reason, job_masters):
                log.warning("a TaskManager with slots of jobs is lost", resource=resource_id, reason=reason)
                lost = m.TaskManagerLost(resource_id=resource_id, reason=reason)
                return [Tell(Address(address), lost, leader_id) for address, leader_id in job_masters]
            case ev.StartTaskManager(resource_id, size):
                own = {} if size is None else {"size": str(size)}
                log.info("starting a TaskManager", resource=resource_id, **own)
                return [command]
            case ev.StopTaskManager(resource_id, reason, kill):
                log.info("stopping a TaskManager", resource=resource_id, reason=reason, kill=kill)
                self._task_managers.forget(resource_id)
                return [command]

    def _ask(self, resource_id: ResourceId, request: m.Request[Any], *, about: object, after: float = 0.0) -> Ask:
        timeout = self._setting.options.heartbeat_timeout
        return Ask(task_manager(resource_id), request, timeout, self.leader_id, about, after)

    def _ask_for_jobs(self) -> None:
        """R12: Learn which jobs have ended before this ResourceManager began. Without an answer, the next tick asks.

        It is asked only if a TaskManager holds slots for an unknown job.
        """
        if not self._asking and self.state.misses_list():
            self._asking = True
            timeout = self._setting.options.heartbeat_timeout
            self._commands.append(Ask(DISPATCHER, m.ListJobsToRun(), timeout, about=_JobsAsked()))

    def _ask_for_moves(self) -> None:
        """A15b: Name the jobs to move. Leave out TaskManagers that do not report the drain yet: they could get more.

        The next tick repeats the request, so nothing is lost if the Dispatcher or this ResourceManager crashes.
        """
        drained = [tm for tm in self.state.draining() if tm.report is not None and tm.report.draining]
        jobs = tuple(sorted({job_id for tm in drained for job_id in tm.jobs}))
        if jobs and not self._asking_moves:
            self._asking_moves = True
            timeout = self._setting.options.heartbeat_timeout
            self._commands.append(Ask(DISPATCHER, m.MoveJobs(jobs=jobs), timeout, about=_MovesAsked()))

    # --- from TaskManagers ---------------------------------------------------------------------------------------

    def _register(self, hello: m.RegisterTaskManager, now: float) -> m.Registered:
        """m4, m5: Register a TaskManager. Raises Conflict if it must exit."""
        resource_id = hello.report.resource_id
        self._feed(ev.TaskManagerRegistered(self._ids.instance(), hello), now)
        tm = self.state.task_managers.get(resource_id)
        if tm is None or tm.instance_id is None or not tm.registered:
            raise Conflict(f"TaskManager {resource_id} was told to exit", hint="start one with another resource id")
        self._seen[resource_id] = Seen(tm.since, now, tm.report or hello.report)
        self._task_managers.heard(resource_id, now)
        return m.Registered(
            instance_id=tm.instance_id,
            leader_id=self.leader_id,
            heartbeat_interval=self._setting.options.heartbeat_interval,
            heartbeat_timeout=self._setting.options.heartbeat_timeout,
            blob_url=self.blob_url,
            blob_store=self.blob_store,
            job_masters=self._job_masters_on(tm),
            ended_jobs=self._ended_on(tm),
        )

    def _heartbeat(self, beat: m.HeartbeatFromTaskManager, now: float) -> m.HeartbeatAnswer:
        """Note a heartbeat. Raises UnknownTaskManager."""
        resource_id = beat.report.resource_id
        tm = self.state.task_managers.get(resource_id)
        seen = self._seen.get(resource_id)
        if tm is None or seen is None or not tm.registered or tm.instance_id != beat.instance_id:
            raise UnknownTaskManager(
                f"TaskManager {resource_id} is not registered as {beat.instance_id}", hint="it must register again"
            )
        self._task_managers.heard(resource_id, now)
        seen.heard = now
        seen.start_phases = beat.start_phases
        self._take(tm, seen, beat.report, now)
        tm = self.state.task_managers[resource_id]
        return m.HeartbeatAnswer(job_masters=self._job_masters_on(tm), ended_jobs=self._ended_on(tm))

    def _slots_free(self, notice: m.SlotsFree, now: float) -> None:
        tm = self.state.task_managers.get(notice.report.resource_id)
        seen = self._seen.get(notice.report.resource_id)
        if tm is not None and seen is not None and notice.instance_id in (None, tm.instance_id):
            self._take(tm, seen, notice.report, now)

    def _take(self, tm: TaskManager, seen: Seen, report: m.TaskManagerReport, now: float) -> None:
        if report.version >= seen.report.version:
            seen.report = _with_known_metrics(report, seen.report)
        if tm.report is None or _decisive(tm.report) != _decisive(report):
            self._feed(ev.Reported(report), now)

    def _job_masters_on(self, tm: TaskManager) -> dict[JobId, LeaderId]:
        jobs = self.state.jobs
        return {job_id: jobs[job_id].leader_id for job_id in tm.jobs if job_id in jobs}

    def _ended_on(self, tm: TaskManager) -> tuple[JobId, ...]:
        return tuple(job_id for job_id in tm.jobs if self.state.has_ended(job_id))

    # --- from JobMasters -----------------------------------------------------------------------------------------

    def _declare_needs(self, declaration: m.DeclareNeeds, now: float) -> m.NeedsAnswer:
        """m1, m2: Note a job's needs. Raises Fenced for a JobMaster that was replaced or has ended."""
        job_id = declaration.job_id
        if slot_manager.is_stale(self.state, job_id, declaration.leader_id):
            raise Fenced(f"job {job_id} has another JobMaster than {declaration.leader_id}, or has ended")
        self._job_masters.heard(job_id, now)
        known = self.state.jobs.get(job_id)
        if known is None or known.declaration != declaration:
            self._feed(ev.NeedsDeclared(declaration), now)
        return needs_answer(self.state, self._setting.options, job_id, now)

    def _job_master_ended(self, request: m.JobMasterEnded, now: float) -> m.Done:
        self._feed(ev.JobMasterGone(request.job_id, request.leader_id, for_good=True), now)
        return m.Done()

    # --- from the Dispatcher and the REST server -----------------------------------------------------------------

    def _find_session(self, request: m.FindSession, now: float) -> m.SessionFound:
        """Find a session, preferably one that the job has slots of.

        Otherwise take a TaskManager that is not dedicated to a job. For `isolation: job`, take one that no job uses:
        the job's code runs there while it is analysed, and may end the session. Prefer one that already holds the job's
        libraries, because libraries that an analysis brings keep other versions away. Then prefer a session that has
        not aged, and the most free slots.
        """
        own = self._ready_of(request.job_id, request.libraries) if request.job_id is not None else None
        if own is not None:
            return m.SessionFound(address=own.hello.address if own.hello is not None else None)
        ready = {
            shelf: tm
            for shelf in self.state.shelves
            if shelf.presence is Presence.READY
            and not clash(shelf.libraries, request.libraries)
            and (tm := self._lendable(shelf, request)) is not None
        }
        if ready:
            new = {shelf: not contains(shelf.libraries, request.libraries) for shelf in ready}
            tm = ready[min(ready, key=lambda shelf: (new[shelf], shelf.aged, -shelf.free, shelf))]
            self._feed(ev.SessionLent(tm.resource_id), now)
            return m.SessionFound(address=tm.hello.address if tm.hello is not None else None)
        self._feed(ev.SessionWanted(request.libraries, request.exclusive, request.profile), now)
        waiting = session_outlook(self.state, self._setting.options, request.libraries, now)
        if request.exclusive:
            waiting = f"the job has isolation: job, so it waits for a TaskManager that no other job uses; {waiting}"
        return m.SessionFound(refused=no_start(self.state) or "", waiting=waiting)

    def _lendable(self, shelf: Shelf, request: m.FindSession) -> TaskManager | None:
        """Return a TaskManager of this shelf whose session may analyse the job."""
        found = (self.state.task_managers[resource_id] for resource_id in self.state.shelves[shelf])
        if not request.exclusive:
            return None if shelf.dedicated_to else next(found)
        if not shelf.idle or shelf.dedicated_to not in ("", request.job_id):
            return None
        if not shelf.profile.covers(request.profile):  # the TaskManager becomes the job's own
            return None
        return next((tm for tm in found if not tm.analysing), None)

    def _ready_of(self, job_id: JobId, libraries: tuple[m.Library, ...]) -> TaskManager | None:
        held = self.state.holdings.get(job_id, {}).values()
        known = {resource_id for resource_ids in held for resource_id in resource_ids}
        own = [self.state.task_managers[r] for r in sorted(known) if r in self.state.task_managers]
        return next(
            (tm for tm in own if tm.ready and not (tm.aged or tm.draining) and not clash(tm.libraries, libraries)), None
        )

    def _drain(self, request: m.DrainTaskManager, now: float) -> m.Done:
        """Drain a TaskManager, or undo the drain. Raises NotFound."""
        tm = self.state.task_managers.get(request.resource_id)
        if tm is None or not tm.registered:
            raise NotFound(
                f"no TaskManager {request.resource_id} is registered", hint="`minflinkd taskmanagers` lists them"
            )
        self._feed(ev.DrainAsked(request.resource_id, request.undo), now)
        return m.Done()

    def _list_task_managers(self, _: m.ListTaskManagers, now: float) -> tuple[m.TaskManagerInfo, ...]:
        return inspection.task_managers(self.state, self._seen, self._held, self._wall_ms)

    def _overview(self, _: m.GetResourceOverview, now: float) -> m.ResourceOverview:
        if self._overview_of is not self.state:  # it is asked for far more often than anything changes (E4)
            self._overview_of, self._overview_answer = self.state, inspection.overview(self.state, self._wall_ms)
        return self._overview_answer


def _decisive(report: m.TaskManagerReport) -> m.TaskManagerReport:
    """Return the report without the fields that are only shown. A new field counts for decisions unless named here."""
    return copy(report, metrics={}, session_slow="")


def _with_known_metrics(report: m.TaskManagerReport, before: m.TaskManagerReport) -> m.TaskManagerReport:
    """Return the report to show. One between two heartbeats has no metrics: those of the same session still hold."""
    same_session = report.session_generation == before.session_generation and report.session is m.SessionPhase.READY
    return copy(report, metrics=before.metrics) if same_session and not report.metrics else report
