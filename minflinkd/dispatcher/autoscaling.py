"""Carries out what the autoscaler decides: looks at the jobs that have one, and rescales them (R62).

It looks at each job every few seconds. A rescale goes the way of any other: the version is checked, stored, and shown
among the hot restarts, with the autoscaler's reason. So the parallelism, and the time of the last change, outlive the
daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from minflinkd.autoscaler.decision import decide, ready_from
from minflinkd.autoscaler.readings import JobReading
from minflinkd.autoscaler.state import Decision, Limits, State, Verdict, accepted, refused
from minflinkd.dispatcher.autoscaler_readings import free_slots, reading_of
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.jobgraph.autoscaling import least_of, most_of
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.autoscaler import AutoscalerStatus, GroupNeed
from minflinkd.rpc.jobs import RescaleJob
from minflinkd.rpc.messages import ListTaskManagers
from minflinkd.rpc.network import RESOURCE_MANAGER, Network
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Conflict, MinflinkError
from minflinkd.runtime.ids import JobId, ResourceId
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

EVERY = 5.0  # seconds between two looks
TIMEOUT = 2.0  # seconds for the ResourceManager's answer; without it, it is not known which slots are free
AT_A_TIME = 8  # jobs between which the event loop does something else; each takes about a millisecond
OFF = AutoscalerStatus(enabled=False, verdict=Verdict.STAYS.value, why="the job file has turned it off")


@dataclass
class _Scaled:
    """What is remembered of one job. `asking`: a change is being asked for, and nothing is decided meanwhile."""

    state: State = field(default_factory=State)
    asking: bool = False
    told: tuple[Verdict, str] | None = None  # what the log has said last: the verdict, and why the job is limited
    ups: int = 0
    downs: int = 0


class Autoscaling:
    """`runs` are the Dispatcher's own."""

    def __init__(self, *, runs: Mapping[JobId, JobRun], network: Network, tasks: TaskOwner, clock: Clock) -> None:
        self._runs = runs
        self._network = network
        self._tasks = tasks
        self._clock = clock
        self._jobs: dict[JobId, _Scaled] = {}

    def start(self) -> None:
        self._tasks.loop("autoscaler", self._run)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """Look at all jobs that have an autoscaler. What goes wrong with one concerns no other."""
        scaled = {job_id: run for job_id, run in self._runs.items() if run.stored.graph.autoscaler is not None}
        self._jobs = {job_id: self._jobs.get(job_id, _Scaled()) for job_id in scaled}
        free = await self._free() if scaled else None
        for number, (job_id, run) in enumerate(scaled.items()):
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
            if self._jobs[job_id].asking or run.result is not None:
                continue
            try:
                self._look_at(run, self._jobs[job_id], free)
            except Exception:  # a bug that one job brings to light must not keep the others from their slots
                log.exception("the autoscaler cannot look at a job", job=job_id)
                self._jobs[job_id] = _Scaled()

    async def _free(self) -> dict[ResourceId, int] | None:
        try:
            managers = await self._network.ask(RESOURCE_MANAGER, ListTaskManagers(), timeout=TIMEOUT)
        except MinflinkError:
            return None
        return free_slots(managers)

    def _look_at(self, run: JobRun, job: _Scaled, free: Mapping[ResourceId, int] | None) -> None:
        graph = run.stored.graph
        if (limits := limits_of(graph)) is None:
            job.state, run.autoscaler = State(), OFF
            return
        reading = reading_of(run.details(), self._clock.epoch_ms() / 1000, unsettled=_unsettled(run), free=free)
        job.state, decision = decide(job.state, reading, limits)
        if decision.wanted:
            job.asking = True
            self._tasks.job(f"autoscaler of {run.job_id}", self._rescale(run, job, reading, decision))
        self._tell(run.job_id, job, decision, reading.widths)
        run.autoscaler = _status(job, reading, decision, limits)

    async def _rescale(self, run: JobRun, job: _Scaled, reading: JobReading, decision: Decision) -> None:
        tasks = {task.task: task.group for task in reading.tasks}
        vertices = {str(task): decision.wanted[group] for task, group in tasks.items() if group in decision.wanted}
        try:
            answer = await run.hot_restarts.rescale(
                RescaleJob(job_id=run.job_id, vertices=vertices), reason=decision.why
            )
            if answer.faults:
                self._refused(run.job_id, job, "; ".join(map(str, answer.faults)))
                return
            job.state = accepted(job.state, answer.number)
            job.ups += decision.verdict is Verdict.UP
            job.downs += decision.verdict is Verdict.DOWN
        except Conflict as error:  # somebody else changes the job, or it ends
            log.info("the autoscaler was overtaken", job=run.job_id, error=str(error))
        except MinflinkError as error:
            self._refused(run.job_id, job, error.message)
        finally:
            job.asking = False

    def _refused(self, job_id: JobId, job: _Scaled, why: str) -> None:
        log.warning("the autoscaler was refused", job=job_id, error=why)
        job.state = refused(job.state, why, self._clock.epoch_ms() / 1000)

    def _tell(self, job_id: JobId, job: _Scaled, decision: Decision, slots: Mapping[str, int]) -> None:
        """Log each change, and when the job begins or ceases to be limited; not the figures of every look."""
        if decision.wanted:
            say = partial(log.info, "autoscaler", slots=dict(slots), wanted=dict(decision.wanted))
        elif decision.verdict is Verdict.LIMITED and (job.told is None or job.told[0] is not Verdict.LIMITED):
            say = partial(log.warning, "autoscaler", slots=dict(slots))
        else:
            if decision.verdict is Verdict.STAYS:
                job.told = None
            return
        say(job=job_id, verdict=decision.verdict.value, why=decision.why)
        job.told = (decision.verdict, decision.why)


def limits_of(graph: JobGraph) -> Limits | None:
    """Return what the job file says; None if the autoscaler is turned off there, or the job has none."""
    own = graph.autoscaler
    if own is None or not own.enabled or (most := most_of(graph, own)) is None:
        return None
    return Limits(
        target=own.target_utilization,
        least=least_of(graph, own),
        most=most,
        cool_down=float(own.cool_down),
        down_delay=float(own.scale_down_delay),
        catch_up=float(own.catch_up),
    )


def _unsettled(run: JobRun) -> str:
    if refuses := run.refuses_versions():
        return f"it {refuses}"
    return "it has no JobMaster at present" if run.master is None else run.master.unsettled


def _status(job: _Scaled, reading: JobReading, decision: Decision, limits: Limits) -> AutoscalerStatus:
    groups = tuple(
        GroupNeed(
            group=each.group,
            slots=each.width,
            wanted=each.wanted,
            utilization=each.utilization,
            task=each.heaviest.task,
            rate=each.heaviest.rate,
            capacity=each.heaviest.capacity,
            backlog=each.heaviest.backlog,
            sure=each.sure,
        )
        for each in decision.demands
    )
    return AutoscalerStatus(
        enabled=True,
        verdict=decision.verdict.value,
        why=decision.why,
        decided_ms=round(reading.at * 1000),
        ready_ms=round(ready_from(job.state, reading, limits) * 1000),
        least=limits.least,
        most=limits.most,
        target=limits.target,
        groups=groups,
        ups=job.ups,
        downs=job.downs,
    )
