"""One run: a cluster of real cores, its jobs and its faults, and what must hold at the end.

The faults come first. Then, in the calm, every job has to run. Then the jobs end, and nothing may be left of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import Address
from minflinkd.runtime.ids import AttemptId, IdSource, JobId, LeaderId, ResourceId, TaskId
from tests.sim.protocol.chaos import Chaos
from tests.sim.protocol.dispatcher import DispatcherParty
from tests.sim.protocol.host import Host
from tests.sim.protocol.job_master import JobMasterParty
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.party import Party
from tests.sim.protocol.plan import JobPlan, Plan
from tests.sim.protocol.resource_manager import ResourceManagerParty
from tests.sim.protocol.rest import leaks, not_ended, unserved
from tests.sim.protocol.task_manager import LIVE, TaskManagerParty
from tests.sim.protocol.universe import Universe
from tests.sim.protocol.watch import Watch

LOOK = 0.5  # seconds between two checks whether all is well
SERVED_WITHIN = 90.0  # seconds from the last fault until every job runs
GONE_WITHIN = 60.0  # seconds from the end of the jobs until nothing is left of them
ZOMBIE_LIFE = 5.0  # seconds that a replaced leader goes on before it notices


@dataclass(eq=False)
class Job:
    job_id: JobId
    plan: JobPlan
    master: JobMasterParty | None = None
    checkpoint: dict[TaskId, int] = field(default_factory=dict)  # the parallelism of its tasks; empty: there is none
    checkpointed: dict[TaskId, AttemptId] = field(default_factory=dict)  # the attempts whose state it holds
    checkpoints: int = 0
    preceded: bool = False  # it has had a JobMaster that did not stop its tasks
    ran_as: str = ""  # the version that was RUNNING at the end of the last JobMaster
    cancelled: bool = False
    ended: JobStatus | None = None


class World:
    task_manager_class: ClassVar[type[TaskManagerParty]] = TaskManagerParty

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.universe = Universe(plan.seed, encoded=plan.encoded)
        self.ids = IdSource(self.universe.rng, epoch=1)
        self.jobs: dict[JobId, Job] = {}
        self.input_ended: set[JobId] = set()
        self.started: set[AttemptId] = set()
        # The first attempt of a task that has come up and reads from an attempt: what that wrote, and the reading task.
        self.first_readers: dict[tuple[AttemptId, TaskId], AttemptId] = {}
        self.resource_manager: ResourceManagerParty | None = None
        self.dispatcher = DispatcherParty(self.universe, self.to_run)
        self.host = Host(self)
        self.calm = False  # no more faults
        self.ending = False  # the jobs are ending
        self.served_in = self.gone_in = 0.0  # seconds that the last two phases of the run took
        self._epoch = 1
        self._task_managers: dict[ResourceId, TaskManagerParty] = {}

    # --- the run -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        plan, engine = self.plan, self.universe.engine
        self.start_resource_manager()
        for _ in range(plan.standalone):
            engine.after(self.start_delay(), self.host.start_standalone)
        for job_plan in plan.jobs:
            engine.at(job_plan.at, self._submit, job_plan)
        Chaos(self).schedule(plan.faults)
        Watch(self).begin()

    def run(self) -> None:
        """Run everything. Raises Violation."""
        self.begin()
        self.universe.engine.run_until(self.plan.calm_at)
        self.universe.note("CALM: no more faults")
        self.calm = True
        if self.plan.tight:
            # There is no room for all: each gets its turn.
            for job in list(self.jobs.values())[:-1]:
                self._cancel(job)
                self.until(partial(not_ended, job), GONE_WITHIN)
        self.served_in = self.until(partial(unserved, self), SERVED_WITHIN)
        for job in self.jobs.values():
            self.end(job)
        self.universe.note("the jobs END")
        self.ending = True
        self.gone_in = self.until(partial(leaks, self), GONE_WITHIN)

    def close(self) -> None:
        """Free what a run holds."""

    def until(self, wrong: Callable[[], str], within: float) -> float:
        """Let time pass until nothing is wrong. Return how many seconds it took. Raises Violation."""
        began = self.universe.now
        while told := wrong():
            if self.universe.now >= began + within:
                raise Violation(f"after {within:g} s still: {told}")
            self.universe.engine.run_until(self.universe.now + LOOK)
        return self.universe.now - began

    def start_delay(self) -> float:
        return self.universe.rng.uniform(*self.plan.start_time)

    # --- who is there ------------------------------------------------------------------------------------------------

    def task_managers(self) -> list[TaskManagerParty]:
        return list(self._task_managers.values())

    def task_manager(self, resource_id: ResourceId) -> TaskManagerParty | None:
        return self._task_managers.get(resource_id)

    def job_masters(self) -> list[JobMasterParty]:
        return [job.master for job in self.jobs.values() if job.master is not None]

    def leads(self, job_id: JobId, leader_id: LeaderId) -> bool:
        master = self.jobs[job_id].master
        return master is not None and master.core.leader_id == leader_id

    def add(self, tm: TaskManagerParty) -> None:
        self._task_managers[tm.resource_id] = tm

    def remove(self, tm: TaskManagerParty) -> None:
        self._task_managers.pop(tm.resource_id, None)

    def to_run(self) -> tuple[JobId, ...]:
        """Return the jobs that a Dispatcher would find in its store: those without a result."""
        return tuple(job_id for job_id, job in self.jobs.items() if job.ended is None)

    def is_exclusive(self, job_id: JobId) -> bool:
        return job_id in self.jobs and self.jobs[job_id].plan.exclusive

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _submit(self, plan: JobPlan) -> None:
        job = Job(self.ids.job(), plan)
        self.jobs[job.job_id] = job
        self.universe.note("SUBMITTED {}: {}", job.job_id, plan)
        self._start_job_master(job)
        if plan.ends is not None:
            self.universe.engine.at(plan.ends, self.end, job)

    def _submit_again(self, plan: JobPlan) -> None:
        if not self.calm:
            self._submit(replace(plan, again=False, ends=None))

    def _start_job_master(self, job: Job, heralded: tuple[ResourceId, ...] = ()) -> None:
        if job.ended is None and job.master is None:
            JobMasterParty(self, job, heralded)

    def end(self, job: Job) -> None:
        """End a job by the end of its input, or by a cancellation."""
        if job.ended is not None:
            return
        if job.plan.bounded:
            self.universe.note("the INPUT of {} ends", job.job_id)
            self.input_ended.add(job.job_id)
            for tm in self.task_managers():
                for attempt in list(tm.attempts.values()):
                    tm.gate(tm.at_end_of_input, attempt)
        else:
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        if job.ended is not None:
            return
        self.universe.note("{} is CANCELLED", job.job_id)
        job.cancelled = True
        if job.master is not None:
            job.master.gate(job.master.feed, ev.CancelRequested())

    def job_ended(self, master: JobMasterParty, status: JobStatus) -> None:
        job = master.job
        self.universe.note("{} has ENDED: {}", job.job_id, status.value)
        job.ended = status
        job.master = None
        master.die()
        self.dispatcher.gate(self.dispatcher.ended, job.job_id, master.core.leader_id)
        if job.plan.again and not self.calm:
            self.universe.engine.after(0.1 * self.universe.rng.random(), self._submit_again, job.plan)
        if status is JobStatus.FAILED:
            why = master.core.state.failures[-1].record.error.message
            if "no TaskManager could be started" not in why and not job.plan.fragile:
                raise Violation(f"{job.job_id} failed for good: {why}")

    # --- crashes -----------------------------------------------------------------------------------------------------

    def start_resource_manager(self) -> None:
        if self.resource_manager is None:
            self.resource_manager = ResourceManagerParty(self)

    def crash_resource_manager(self, lasts: float) -> None:
        if self.resource_manager is not None:
            self.universe.note("{} CRASHES", self.resource_manager.address)
            self.resource_manager.die()
            self.resource_manager = None
            self.universe.engine.after(lasts, self.start_resource_manager)

    def crash_job_master(self, master: JobMasterParty, lasts: float) -> None:
        self.universe.note("{} CRASHES", master.address)
        master.die()
        master.job.master = None
        self.universe.engine.after(lasts, self._start_job_master, master.job)

    def crash_daemon(self, lasts: float) -> None:
        """Crash ResourceManager, JobMasters and Dispatcher at once. A new process with a later epoch follows."""
        self.crash_resource_manager(lasts)
        for master in self.job_masters():
            self.crash_job_master(master, lasts)
        told = self.dispatcher.core.told
        self.dispatcher.die()
        self._epoch += 1
        self.ids = IdSource(self.universe.rng, epoch=self._epoch)
        self.universe.engine.after(lasts, self._start_dispatcher, told)

    def _start_dispatcher(self, told: set[JobId]) -> None:
        if self.dispatcher.alive:
            return
        self.dispatcher = DispatcherParty(self.universe, self.to_run)
        self.dispatcher.core.told |= told
        for job in self.jobs.values():
            if job.ended is not None and job.job_id not in told:
                self.dispatcher.ended(job.job_id, self.ids.leader())

    def replace_resource_manager(self, lasts: float) -> None:
        """Let it hang and replace it. Afterwards it continues as a zombie for a while."""
        rm = self.resource_manager
        if rm is not None:
            self.universe.note("{} HANGS and is replaced", rm.address)
            rm.stop()
            rm.zombie = True
            self.resource_manager = None
            self.start_resource_manager()
            self.universe.engine.after(lasts, self._goes_on_as_zombie, rm)

    def replace_job_master(self, master: JobMasterParty, lasts: float) -> None:
        self.universe.note("{} HANGS and is replaced", master.address)
        master.stop()
        master.zombie = True
        master.job.master = None
        self._start_job_master(master.job)
        self.universe.engine.after(lasts, self._goes_on_as_zombie, master)

    def stand_down(self, master: JobMasterParty) -> None:
        """Let it make way for another JobMaster, as in a hot restart."""
        if master.job.plan.runs_on:
            master.gate(self._leave_tasks, master)
            return
        self.universe.note("{} is to STAND DOWN", master.address)
        master.gate(master.feed, ev.StandDown())

    def _leave_tasks(self, master: JobMasterParty) -> None:
        """Replace it by one of a version that only wants another number of slots."""
        if master.job.master is not master:
            return
        self.universe.note("{} LEAVES its tasks to the next version", master.address)
        job, most = master.job, self.plan.slots_per_tm
        more = -1 if job.plan.narrows else 1
        job.plan = replace(job.plan, groups=tuple(min(most, max(1, slots + more)) for slots in job.plan.groups))
        self._succeed(master, preceded=True)

    def stood_down(self, master: JobMasterParty) -> None:
        """Replace it by one that knows where the job's slots are, perhaps of a version that wants fewer."""
        self.universe.note("{} has STOOD DOWN", master.address)
        if master.job.plan.narrows:
            groups = tuple(max(1, slots - 1) for slots in master.job.plan.groups)
            master.job.plan = replace(master.job.plan, groups=groups)
        if master.job.plan.enlarges:
            master.job.plan = replace(master.job.plan, profiles=("all",) * len(master.job.plan.groups))
        self._succeed(master, preceded=False)

    def _succeed(self, master: JobMasterParty, *, preceded: bool) -> None:
        heralded = tuple(sorted({held.resource_id for held in master.core.state.pool.held.values()}))
        master.die()
        master.job.master, master.job.preceded = None, preceded
        self.universe.engine.after(0.01, self._start_job_master, master.job, heralded)

    def stop_daemon(self, lasts: float) -> None:
        """Stop ResourceManager, JobMasters and Dispatcher, as by SIGSTOP. Nobody replaces them."""
        self.universe.note("the daemon is STOPPED")
        there = (self.resource_manager, self.dispatcher, *self.job_masters())
        stopped = [party for party in there if party is not None and not party.stopped]
        for party in stopped:
            party.stop()
        self.universe.engine.after(lasts, self._daemon_goes_on, stopped)

    def _daemon_goes_on(self, stopped: list[Party[Any]]) -> None:
        self.universe.note("the daemon is CONTINUED")
        for party in stopped:
            if party.alive:
                party.go_on()

    def _goes_on_as_zombie(self, leader: ResourceManagerParty | JobMasterParty) -> None:
        self.universe.note("the ZOMBIE {} goes on as {}", leader.address, leader.core.leader_id)
        leader.go_on()
        self.universe.engine.after(ZOMBIE_LIFE, leader.die)

    def kill(self, tm: TaskManagerParty) -> None:
        self.universe.note("{} is KILLED", tm.address)
        self.host.ended(tm, "kill -9")

    def go_on(self, tm: TaskManagerParty) -> None:
        if tm.alive:
            self.universe.note("{} is CONTINUED", tm.address)
            tm.go_on()

    def exited(self, tm: TaskManagerParty, reason: str) -> None:
        self.host.ended(tm, reason)

    def connections_failed(self, addresses: list[Address]) -> None:
        """Tell the ResourceManager, as a server that sees its clients' sockets fail, which TaskManagers to suspect."""
        rm = self.resource_manager
        for address in addresses:
            kind, _, name = address.partition("/")
            if rm is not None and kind == "taskmanager" and self.universe.rng.random() < 0.8:
                rm.after(0.005, rm.step, rm.core.disconnected, ResourceId(name), self.universe.now)

    # --- what must hold always ---------------------------------------------------------------------------------------

    def deployed(self, tm: TaskManagerParty, deployment: m.DeployTask) -> None:
        """Check that no second attempt of a task starts while its JobMaster still has the slots of the first one.

        An attempt that the JobMaster has given up may start late anywhere: nothing of it is ever accepted.
        """
        job = self.jobs[deployment.job.job_id]
        if job.master is None or job.master.core.state.by_attempt(deployment.attempt_id) is None:
            return
        held = job.master.core.state.pool.held
        for other in self._task_managers.values():
            for attempt_id, attempt in other.attempts.items():
                first = attempt.deployment
                same = first.job.job_id == job.job_id and first.task.id == deployment.task.id
                if not same or attempt_id == deployment.attempt_id or attempt.state not in LIVE:
                    continue
                where = held.get(first.allocation_id)
                if where is not None and where.resource_id == other.resource_id:
                    raise Violation(
                        f"{tm.address} starts {deployment.attempt_id} of {first.task.id} while {attempt_id} is "
                        f"{attempt.state} at {other.address}, on slots that the job has"
                    )
