"""One run: three daemons, one coordination service, and the cluster that whoever leads manages.

The faults come first. Then, in the calm, one daemon has to lead, and every job has to run. Then the jobs end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import Message
from minflinkd.rpc.network import Address, Unreachable
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId, ResourceId
from minflinkd.storage.location import Location
from tests.sim.election import rest
from tests.sim.election.daemon import Daemon, Leadership, as_leader
from tests.sim.election.leaders import LedDispatcher, LedJobMaster, LedResourceManager, Tasks
from tests.sim.election.plan import ElectionPlan
from tests.sim.election.process import Process
from tests.sim.election.published import Published
from tests.sim.election.records import Checkpoints, Records, groups_of, with_groups
from tests.sim.election.rules import ROOT, Rules
from tests.sim.election.storage import SharedStorage
from tests.sim.election.task_manager import ElectionTaskManager
from tests.sim.election.troubles import Troubles
from tests.sim.election.zookeeper import Ensemble
from tests.sim.protocol.chaos import Chaos
from tests.sim.protocol.job_master import JobMasterParty
from tests.sim.protocol.party import Party
from tests.sim.protocol.plan import JobPlan
from tests.sim.protocol.task_manager import TaskManagerParty
from tests.sim.protocol.world import GONE_WITHIN, SERVED_WITHIN, Job, World

DAEMONS = 3
CLIENT_PATIENCE = 3.0  # seconds until a client asks again
CHECKPOINT_TIMEOUT = 15.0  # in seconds
TOLERABLE = 3  # failed checkpoints in a row; minflinkd's default


class ElectionWorld(World):
    task_manager_class: ClassVar[type[TaskManagerParty]] = ElectionTaskManager
    plan: ElectionPlan

    def __init__(self, plan: ElectionPlan) -> None:
        super().__init__(plan)
        self.dispatcher.die()
        self.universe.wire.locate = self._locate
        self.universe.wire.may_send = self._may_send
        self.leadership: Leadership | None = None  # the latest
        self.making: Leadership | None = None  # whose parties are being made
        self.rules = Rules(self)
        self.ensemble = Ensemble(self.universe, plan.session_timeout)
        self.ensemble.applied.append(self.rules.applied)
        self.storage = SharedStorage(self.universe, plan.storage_delay, self.rules.deleted)
        self.store = Records(self)
        self.published = Published()
        self.adopted = 0
        self.daemons: list[Daemon] = []
        self.processes: list[Process] = []  # also those that have died
        self._told: set[JobId] = set()  # ends of jobs of which a ResourceManager knows
        self.accepted: set[JobId] = set()
        self._starting: set[tuple[int, JobId]] = set()

    # --- the run -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        plan, engine = self.plan, self.universe.engine
        self.daemons += [Daemon(self, number + 1) for number in range(DAEMONS)]
        for _ in range(plan.standalone):
            engine.after(self.start_delay(), self.host.start_standalone)
        for job_plan in plan.jobs:
            engine.at(job_plan.at, self._submit, job_plan)
        Chaos(self).schedule(plan.faults)
        Troubles(self).schedule(plan.troubles)

    def run(self) -> None:
        """Run everything. Raises Violation."""
        self.begin()
        self.universe.engine.run_until(self.plan.calm_at)
        self.universe.note("CALM: no more faults")
        self.calm = True
        self.until(partial(rest.leaderless, self), rest.led_within(self.plan))
        self.served_in = self.until(partial(rest.unserved, self), SERVED_WITHIN)
        complete = rest.complete(self)
        self.until(partial(rest.unpublished, self, complete), rest.PUBLISHED_WITHIN)
        for job in self.jobs.values():
            self.end(job)
        self.universe.note("the jobs END")
        self.ending = True
        self.gone_in = self.until(partial(rest.leaks, self), GONE_WITHIN)

    def close(self) -> None:
        for process in self.processes:
            process.close()

    # --- who reaches whom --------------------------------------------------------------------------------------------

    def _locate(self, source: Party[Any], target: Address) -> Party[Any] | None:
        """Return who hears a message: a TaskManager, or a party of the daemon in which or to which the source is."""
        if target.startswith("taskmanager/"):
            return self.universe.wire.parties.get(target)
        leadership = source.uplink if isinstance(source, ElectionTaskManager) else _leadership(source)
        if leadership is None or not leadership.daemon.keeps(leadership):
            return None
        party = leadership.parties.get(target)
        return party if party is not None and party.alive else None

    def _may_send(self, source: Party[Any], target: Address, message: Message) -> bool:
        leadership = _leadership(source)
        if leadership is None or not target.startswith("taskmanager/"):
            return True
        try:
            leadership.network.route_to(target)
        except Unreachable:
            return False
        self.rules.certain(leadership.daemon, f"{type(message).__name__} to {target}")
        return True

    def led_masters(self) -> list[LedJobMaster]:
        return [master for master in self.job_masters() if isinstance(master, LedJobMaster)]

    def election_task_managers(self) -> list[ElectionTaskManager]:
        return [tm for tm in self.task_managers() if isinstance(tm, ElectionTaskManager)]

    # --- leaderships -------------------------------------------------------------------------------------------------

    def led(self) -> Leadership:
        """Return the leadership under which parties are made now."""
        assert self.making is not None
        return self.making

    def begin_leadership(self, leadership: Leadership, stored: dict[JobId, Any]) -> None:
        """Start what a leader runs, with what it has found in the job store."""
        if (before := self.leadership) is not None and not before.ended:
            for party in before.everyone:
                party.zombie = True  # type: ignore[attr-defined]
            self._told |= self.dispatcher.core.told
        self.leadership = leadership
        self.universe.note("{} BEGINS epoch {} with jobs {}", leadership.daemon.name, leadership.epoch, tuple(stored))
        self.resource_manager = None
        self.start_resource_manager()
        for job_id, (record, status) in stored.items():
            job = self.jobs[job_id]
            job.master = None
            if record is not None:
                self.accepted.add(job_id)
                job.cancelled = job.cancelled or record.cancelled
                with_groups(job, groups_of(record))
            elif job.ended is None:
                job.ended = status
        with as_leader(self, leadership):
            self.dispatcher = LedDispatcher(self)
        self.dispatcher.core.told |= self._told
        for job in self.jobs.values():
            if job.ended is not None and job.job_id not in self._told:
                self.dispatcher.ended(job.job_id, leadership.ids.leader())
            elif job.job_id in self.accepted:
                self._start_job_master(job)

    def end_leadership(self, leadership: Leadership) -> None:
        """Close what a leader ran. TaskManagers and tasks go on."""
        self.universe.note("{} ENDS epoch {}", leadership.daemon.name, leadership.epoch)
        for party in leadership.everyone:
            party.die()
        if leadership is self.leadership:
            self._told |= self.dispatcher.core.told
            self.resource_manager = None
            for job in self.jobs.values():
                job.master = None

    def start_resource_manager(self) -> None:
        leadership = self.leadership
        if leadership is not None and not leadership.ended and self.resource_manager is None:
            with as_leader(self, leadership):
                self.resource_manager = LedResourceManager(self)

    def _start_job_master(self, job: Job, heralded: tuple[ResourceId, ...] = ()) -> None:
        leadership = self.leadership
        if leadership is None or leadership.ended or job.ended is not None or job.master is not None:
            return
        key = leadership.epoch, job.job_id
        if key not in self._starting:
            self._starting.add(key)
            with leadership.daemon.process.running():
                leadership.daemon.process.spawn(self._bring_up(leadership, job, heralded))

    async def _bring_up(self, leadership: Leadership, job: Job, heralded: tuple[ResourceId, ...]) -> None:
        """Start a JobMaster when its coordinator has read the store."""
        try:
            while not leadership.ended:
                tasks = Tasks()
                coordinator = self._coordinator(leadership, job, tasks)
                try:
                    await coordinator.start()
                    break
                except MinflinkError as error:
                    self.universe.note("the checkpoints of {} cannot be read: {}", job.job_id, str(error))
        finally:
            self._starting.discard((leadership.epoch, job.job_id))
        if leadership.ended:
            return
        if leadership is not self.leadership or job.ended is not None or job.master is not None:
            await coordinator.aclose()
            return
        with as_leader(self, leadership):
            LedJobMaster(self, job, heralded, coordinator, tasks)

    def _coordinator(self, leadership: Leadership, job: Job, tasks: Tasks) -> CheckpointCoordinator:
        daemon = leadership.daemon
        return CheckpointCoordinator(
            options=CheckpointOptions(
                interval=self.plan.checkpoint_interval,
                timeout=CHECKPOINT_TIMEOUT,
                num_retained=2,
                tolerable_failed=TOLERABLE,
                epoch=leadership.epoch,
                orphan_grace=20.0,
            ),
            store=Checkpoints(self, leadership, job.job_id),
            clock=daemon.clock,
            tasks=tasks,
            on_failure=tasks.failed,
            on_complete=tasks.completed,
        )

    # --- storage -----------------------------------------------------------------------------------------------------

    def storage_of(self, path: str) -> Location:
        return Location(self.storage, "memory", path)

    def checkpoints_of(self, job_id: JobId) -> Location:
        return self.storage_of(f"/c/{job_id}")

    def is_complete(self, metadata: str) -> bool:
        """Whether this is the metadata of a checkpoint that counts: the service has a pointer to it."""
        job, _, name = metadata.removeprefix("/c/").partition("/")
        number = layout.parse_metadata_file(name)
        return number is not None and f"{ROOT}/records/jobs/checkpoints/{job}/{number:010d}" in self.ensemble.nodes

    # --- clients -----------------------------------------------------------------------------------------------------

    def _submit(self, plan: JobPlan) -> None:
        job = Job(self.ids.job(), plan)
        self.jobs[job.job_id] = job
        self.universe.note("SUBMITTED {}: {}", job.job_id, plan)
        self._ask_to_run(job)
        if plan.ends is not None:
            self.universe.engine.at(plan.ends, self.end, job)

    def _ask_to_run(self, job: Job) -> None:
        """Submit the job to whoever leads, again and again, until it is accepted."""
        if job.job_id in self.accepted or job.ended is not None:
            return
        if (leadership := self._serving()) is not None:
            leadership.daemon.process.gate(self._spawn, leadership, self._store_job, job)
        self.universe.engine.after(CLIENT_PATIENCE, self._ask_to_run, job)

    async def _store_job(self, leadership: Leadership, job: Job) -> None:
        try:
            await self.store.put_job(leadership, job)
        except MinflinkError:
            return
        if job.job_id not in self.accepted:
            self.accepted.add(job.job_id)
            self._start_job_master(job)

    def _cancel(self, job: Job) -> None:
        """Cancel the job at whoever leads, again and again, until that is stored."""
        if job.ended is not None or job.cancelled:
            return
        leadership = self._serving()
        if leadership is not None and job.job_id in self.accepted:
            leadership.daemon.process.gate(self._spawn, leadership, self._store_cancellation, job)
        self.universe.engine.after(CLIENT_PATIENCE, self._cancel, job)

    async def _store_cancellation(self, leadership: Leadership, job: Job) -> None:
        try:
            await self.store.cancel(leadership, job)
        except MinflinkError:
            return
        if not job.cancelled:
            self.universe.note("{} is CANCELLED", job.job_id)
            job.cancelled = True
            if job.master is not None:
                job.master.gate(job.master.feed, ev.CancelRequested())

    def _serving(self) -> Leadership | None:
        return next((daemon.leadership for daemon in self.daemons if daemon.serves), None)

    def _spawn(self, leadership: Leadership, work: Callable[..., Any], job: Job) -> None:
        leadership.daemon.process.spawn(work(leadership, job))

    # --- what happens ------------------------------------------------------------------------------------------------

    def job_ended(self, master: JobMasterParty, status: JobStatus) -> None:
        if master.job.master is master:
            super().job_ended(master, status)

    def stood_down(self, master: JobMasterParty) -> None:
        if master.job.master is master:
            super().stood_down(master)

    def crash_daemon(self, lasts: float) -> None:
        if (leadership := self._serving()) is not None:
            leadership.daemon.kill(lasts)

    def stop_daemon(self, lasts: float) -> None:
        if (leadership := self._serving()) is not None:
            leadership.daemon.pause(lasts)


def _leadership(party: Party[Any]) -> Leadership | None:
    return getattr(party, "leadership", None)
