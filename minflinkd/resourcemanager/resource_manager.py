"""The ResourceManager: carries out what the slot manager decides, and tells it what the other parties say.

Everything that happens to TaskManagers and slots is an event of `resourcemanager.slot_manager`; this file only speaks.
What repeats without change (heartbeats, declarations) is noted here and does not reach the decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import structlog

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager import slot_manager
from minflinkd.resourcemanager.driver import ResourceManagerDriver
from minflinkd.resourcemanager.heartbeats import Heartbeats
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.provisioning import needs_answer, no_start
from minflinkd.resourcemanager.state import JobNeeds, Resources, TaskManager, TaskManagerState, check_invariants
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Fenced, Mailbox, Network, task_manager
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Conflict, Consequence, MinflinkError
from minflinkd.runtime.ids import IdSource, JobId, LeaderId, ResourceId
from minflinkd.runtime.machine import Machine

log = structlog.get_logger(__name__)

RETRY_PAUSE = 0.2  # seconds before AllocateSlots is sent again
LONGEST_TICK = 1.0


class UnknownTaskManager(MinflinkError):
    code = "unknown-task-manager"
    consequence = Consequence.REFUSED


@dataclass
class _Seen:
    """What is shown of a TaskManager, and decides nothing."""

    registered_ms: int
    last_heartbeat_ms: int
    report: m.TaskManagerReport
    start_phases: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ResourceManagerSnapshot:
    """For inspection: immutable, and true for the instant in which it was taken."""

    leader_id: LeaderId
    resources: Resources
    fenced: int  # messages refused for their token


class ResourceManager(Component):
    """There is one in a cluster. A new one knows nothing; the other parties' reports and declarations teach it (R12).

    `driver` stays the caller's, who closes it after this. Its `on_exit` is to be `task_manager_exited`.
    """

    def __init__(
        self,
        *,
        network: Network,
        driver: ResourceManagerDriver,
        clock: Clock,
        ids: IdSource,
        options: ResourceManagerOptions,
    ) -> None:
        super().__init__("resourcemanager")
        self.leader_id = ids.leader()
        self._network = network
        self._driver = driver
        self._clock = clock
        self._ids = ids
        self._options = options
        self._machine: Machine[Resources, ev.Event, ev.Command] = self._machine_of(Resources(), options)
        self._seen: dict[ResourceId, _Seen] = {}
        self._task_managers = Heartbeats[ResourceId](options.heartbeat_timeout)
        self._job_masters = Heartbeats[JobId](2 * options.heartbeat_timeout)
        self._mailbox = Mailbox(RESOURCE_MANAGER, fence=self.leader_id)
        self._mailbox.on(m.RegisterTaskManager, self._register, fenced=False)
        self._mailbox.on(m.DeclareNeeds, self._declare_needs, fenced=False)
        self._mailbox.on(m.JobMasterEnded, self._job_master_ended, fenced=False)
        self._mailbox.on(m.FindSession, self._find_session, fenced=False)
        self._mailbox.on(m.ListTaskManagers, self._list_task_managers, fenced=False)
        self._mailbox.on(m.GetResourceOverview, self._overview, fenced=False)
        self._mailbox.on(m.HeartbeatFromTaskManager, self._heartbeat)
        self._mailbox.on_notice(m.SlotsFree, self._slots_free)

    def reconfigure(self, options: ResourceManagerOptions) -> None:
        """Take over other options; the next tick acts on them."""
        self._options = options
        self._machine = self._machine_of(self._machine.state, options)

    def _machine_of(
        self, state: Resources, options: ResourceManagerOptions
    ) -> Machine[Resources, ev.Event, ev.Command]:
        step = partial(slot_manager.step, slot_manager.Setting(options, self._ids.resource))
        return Machine(state, step, check_invariants, name=self.name)

    # --- inspection ----------------------------------------------------------------------------------------------

    def snapshot(self) -> ResourceManagerSnapshot:
        return ResourceManagerSnapshot(self.leader_id, self._machine.state, self._mailbox.fenced)

    def task_manager_exited(self, resource_id: ResourceId, reason: str) -> None:
        """The driver saw its process end; nothing where that was known."""
        if self.running:
            self._task_managers.forget(resource_id)
            self._feed(ev.TaskManagerFailed(resource_id, reason))

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        living = await self._driver.adopt()  # before a need can ask for a start
        self._feed(ev.TaskManagersFound(tuple(launched.resource_id for launched in living)))
        self._network.attach(self._mailbox)
        self.tasks.loop("timer", self._timer)

    async def _stop(self) -> None:
        self._network.detach(self._mailbox)

    async def _timer(self) -> None:
        while True:
            now = self._clock.monotonic()
            for resource_id, silent in self._task_managers.take_silent(now):
                self._feed(ev.TaskManagerFailed(resource_id, f"no heartbeat for {silent:.1f} s"))
            for job_id, silent in self._job_masters.take_silent(now):
                job = self._machine.state.jobs.get(job_id)
                if job is not None:
                    log.warning("a JobMaster is silent; its needs are dropped", job=job_id, seconds=round(silent, 1))
                    self._feed(ev.JobMasterGone(job_id, job.leader_id, for_good=False))
            self._feed(ev.Tick())
            await self._clock.sleep(min(self._options.heartbeat_interval, LONGEST_TICK))

    # --- the machine and the world -------------------------------------------------------------------------------

    def _feed(self, event: ev.Event) -> None:
        for command in self._machine.feed(event, self._clock.monotonic()):
            self._carry_out(command)

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.SendAllocate():
                self.tasks.job(f"allocate {command.allocation_id} on {command.resource_id}", self._allocate(command))
            case ev.StartTaskManager(resource_id):
                log.info("starting a TaskManager", resource=resource_id)
                self.tasks.job(f"start {resource_id}", self._start_task_manager(resource_id))
            case ev.StopTaskManager(resource_id, reason, kill):
                log.info("stopping a TaskManager", resource=resource_id, reason=reason, kill=kill)
                self._task_managers.forget(resource_id)
                self._seen.pop(resource_id, None)
                self.tasks.job(f"stop {resource_id}", self._stop_task_manager(resource_id, reason, kill))
            case ev.NotifyLost(resource_id, reason, job_masters):
                log.warning("a TaskManager with slots of jobs is lost", resource=resource_id, reason=reason)
                for address, leader_id in job_masters:
                    notice = m.TaskManagerLost(resource_id=resource_id, reason=reason)
                    self._network.tell(Address(address), notice, fence=leader_id)

    async def _allocate(self, command: ev.SendAllocate) -> None:
        if command.again:
            await self._clock.sleep(RETRY_PAUSE)
        request = m.AllocateSlots(
            job_id=command.job_id,
            allocation_id=command.allocation_id,
            slots=command.slots,
            job_master=command.job_master,
            job_leader_id=command.job_leader_id,
        )
        target = task_manager(command.resource_id)
        try:
            answer = await self._network.ask(
                target, request, timeout=self._options.heartbeat_timeout, fence=self.leader_id
            )
        except MinflinkError as error:
            # Also a refusal: a TaskManager that was just registered may not follow this leader yet.
            log.info("an allocation has no outcome yet", allocation=command.allocation_id, error=str(error))
            self._feed(ev.AllocationUnknown(command.resource_id, command.allocation_id))
            return
        self._feed(ev.AllocationAnswered(command.allocation_id, answer.allocated, answer.report))

    async def _start_task_manager(self, resource_id: ResourceId) -> None:
        try:
            await self._driver.start(resource_id)
        except Exception as error:
            log.exception("a TaskManager could not be started", resource=resource_id)
            self._feed(ev.TaskManagerFailed(resource_id, f"its process could not be started: {error}"))

    async def _stop_task_manager(self, resource_id: ResourceId, reason: str, kill: bool) -> None:
        if not kill:
            try:
                farewell = m.ExitTaskManager(reason=reason)
                timeout = self._options.heartbeat_timeout
                await self._network.ask(task_manager(resource_id), farewell, timeout=timeout, fence=self.leader_id)
            except MinflinkError as error:
                log.info("a TaskManager did not take the request to exit", resource=resource_id, error=str(error))
        await self._driver.stop(resource_id, kill=kill)

    # --- from TaskManagers ---------------------------------------------------------------------------------------

    async def _register(self, hello: m.RegisterTaskManager) -> m.Registered:
        """m4, m5. Raises Conflict where it is to exit."""
        resource_id = hello.report.resource_id
        self._feed(ev.TaskManagerRegistered(self._ids.instance(), hello))
        tm = self._machine.state.task_managers.get(resource_id)
        if tm is None or tm.instance_id is None or not tm.registered:
            raise Conflict(f"TaskManager {resource_id} was told to exit", hint="start one with another resource id")
        wall = self._clock.epoch_ms()
        self._seen[resource_id] = _Seen(self._wall(tm.since), wall, hello.report)
        self._task_managers.heard(resource_id, self._clock.monotonic())
        return m.Registered(
            instance_id=tm.instance_id,
            leader_id=self.leader_id,
            heartbeat_interval=self._options.heartbeat_interval,
            heartbeat_timeout=self._options.heartbeat_timeout,
        )

    async def _heartbeat(self, beat: m.HeartbeatFromTaskManager) -> m.Done:
        """Raises UnknownTaskManager."""
        resource_id = beat.report.resource_id
        tm = self._machine.state.task_managers.get(resource_id)
        seen = self._seen.get(resource_id)
        if tm is None or seen is None or not tm.registered or tm.instance_id != beat.instance_id:
            raise UnknownTaskManager(
                f"TaskManager {resource_id} is not registered as {beat.instance_id}", hint="it must register again"
            )
        self._task_managers.heard(resource_id, self._clock.monotonic())
        seen.last_heartbeat_ms = self._clock.epoch_ms()
        seen.start_phases = beat.start_phases
        self._take(tm, seen, beat.report)
        return m.Done()

    async def _slots_free(self, notice: m.SlotsFree) -> None:
        tm = self._machine.state.task_managers.get(notice.report.resource_id)
        seen = self._seen.get(notice.report.resource_id)
        if tm is not None and seen is not None:
            self._take(tm, seen, notice.report)

    def _take(self, tm: TaskManager, seen: _Seen, report: m.TaskManagerReport) -> None:
        if report.version >= seen.report.version:
            seen.report = report
        known = tm.report
        if known is None or (known.slots, known.session, known.version) != (
            report.slots,
            report.session,
            report.version,
        ):
            self._feed(ev.Reported(report))

    # --- from JobMasters -----------------------------------------------------------------------------------------

    async def _declare_needs(self, declaration: m.DeclareNeeds) -> m.NeedsAnswer:
        """m1, m2. Raises Fenced for a JobMaster that was replaced, or has ended."""
        if declaration.leader_id in self._machine.state.retired:
            self._mailbox.fenced += 1
            raise Fenced(f"job {declaration.job_id} has another JobMaster than {declaration.leader_id}, or has ended")
        self._job_masters.heard(declaration.job_id, self._clock.monotonic())
        known = self._machine.state.jobs.get(declaration.job_id)
        if known != JobNeeds.of(declaration):
            self._feed(ev.NeedsDeclared(declaration))
        if not declaration.needs:
            return m.NeedsAnswer()
        return needs_answer(self._machine.state, self._options, declaration.job_id, self._clock.monotonic())

    async def _job_master_ended(self, request: m.JobMasterEnded) -> m.Done:
        self._feed(ev.JobMasterGone(request.job_id, request.leader_id, for_good=True))
        if request.job_id not in self._machine.state.jobs:
            self._job_masters.forget(request.job_id)
        return m.Done()

    # --- from the Dispatcher and the REST server -----------------------------------------------------------------

    async def _find_session(self, request: m.FindSession) -> m.SessionFound:
        state = self._machine.state
        ready = [tm for tm in state.living() if tm.ready and tm.hello is not None]
        if ready:
            chosen = max(ready, key=lambda tm: (len(tm.free), -tm.since))
            self._feed(ev.SessionLent(chosen.resource_id))
            return m.SessionFound(address=chosen.hello.address if chosen.hello is not None else None)
        self._feed(ev.SessionWanted())
        return m.SessionFound(refused=no_start(self._machine.state) or "")

    async def _list_task_managers(self, _: m.ListTaskManagers) -> tuple[m.TaskManagerInfo, ...]:
        return tuple(
            m.TaskManagerInfo(
                resource_id=resource_id,
                instance_id=tm.instance_id,
                address=tm.hello.address,
                pid=tm.hello.pid,
                hardware=tm.hello.hardware,
                registered_ms=seen.registered_ms,
                last_heartbeat_ms=seen.last_heartbeat_ms,
                log_directory=tm.hello.log_directory,
                report=seen.report,
                start_phases=seen.start_phases,
            )
            for resource_id, tm in self._machine.state.task_managers.items()
            if tm.registered and tm.hello is not None and tm.instance_id is not None
            if (seen := self._seen.get(resource_id)) is not None
        )

    async def _overview(self, _: m.GetResourceOverview) -> m.ResourceOverview:
        state = self._machine.state
        registered = [tm for tm in state.living() if tm.registered]
        starting = [tm for tm in state.living() if tm.state is TaskManagerState.STARTING]
        return m.ResourceOverview(
            task_managers=len(registered),
            slots_total=sum(len(tm.slots) for tm in registered),
            slots_free=sum(len(tm.free) for tm in registered),
            starting=tuple(
                m.StartingTaskManager(resource_id=tm.resource_id, since_ms=self._wall(tm.since)) for tm in starting
            ),
            lost=state.lost,
            pending_needs=sum(1 for _ in state.unserved()),
        )

    def _wall(self, at: float) -> int:
        return round(self._clock.epoch_ms() - (self._clock.monotonic() - at) * 1000)
