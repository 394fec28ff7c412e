"""`/diagnosis` and `/jobs/:jobid/diagnosis`: gathers the facts, and shows what the rules find in them (E19a)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from minflinkd.checkpoint.messages import GetCheckpoints
from minflinkd.diagnosis import cluster, job
from minflinkd.diagnosis.facts import ClusterFacts, Disk, JobFacts
from minflinkd.diagnosis.findings import Finding, Severity, ordered
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, Lasting, json_answer
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.past import Past
from minflinkd.rest.schemas import diagnosis as schema
from minflinkd.rpc.jobs import GetJob, JobDetails, JobOverview
from minflinkd.rpc.messages import Request, ResourceOverview, TaskManagerInfo
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId

R = TypeVar("R")

MAX_JOBS = 200  # running jobs that one answer looks at, oldest first
MAX_ENDED = 20  # jobs that ended badly, newest first
RECENT = 24 * 3600 * 1000  # ms; a job that ended badly before this needs nobody any more
AT_ONCE = 20  # questions to the Dispatcher
TIMEOUT = 2.0  # seconds for one job's part
AGE = 2.0  # seconds for which everybody gets the same diagnosis of the cluster


@dataclass(frozen=True)
class _Named:
    name: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Whole:
    """The diagnosis of the cluster and of its jobs, before it is known who asks."""

    now: int
    cluster: tuple[Finding, ...]
    jobs: Mapping[JobId, _Named]
    left_out: int
    running: str


class DiagnosisRoutes:
    def __init__(self, backend: Backend, past: Past, about: About) -> None:
        self._backend = backend
        self._directories = about.directories
        self._silent_after = round(1000 * about.silent_after)
        self._past = past
        self._whole = Lasting(self._diagnose, backend.clock, AGE)

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/diagnosis",
                self.of_cluster,
                Role.VIEW,
                "What limits or ails the cluster and its jobs, what hurts most first",
                {200: schema.Diagnosis},
                more="Not in Flink. `findings` with their figures and what to do; see [diagnosis.md](diagnosis.md)",
            ),
            route.get(
                "/jobs/{jobid}/diagnosis",
                self.of_job,
                Role.VIEW,
                "What limits or ails the job, what hurts most first",
                {200: schema.Diagnosis},
                more="Not in Flink. `findings` with their figures and what to do; see [diagnosis.md](diagnosis.md)",
            ),
        ]

    async def of_job(self, request: web.Request) -> web.Response:
        details = await self._backend.job(request)
        facts = await self._facts(details, await self._resources(), await self._task_managers())
        found = job.diagnose(facts)
        names = {details.job_id: details.graph.name}
        return json_answer(
            schema.Diagnosis(
                now=facts.now,
                summary=job.summary(facts, found),
                findings=tuple(shown(each, names) for each in found),
            )
        )

    async def of_cluster(self, request: web.Request) -> web.Response:
        """Answer for the cluster and all jobs that who asks may see."""
        whole, identity = await self._whole.get(), identity_of(request)
        names = {job_id: named.name for job_id, named in whole.jobs.items() if identity.reaches(named.name)}
        of_jobs = [each for job_id in names for each in whole.jobs[job_id].findings]
        # What the daemon says of one job in passing is not for those who may not see the job.
        of_cluster = [each for each in whole.cluster if not each.job or each.job in names or not identity.jobs]
        found = ordered([*of_cluster, *of_jobs])
        return json_answer(
            schema.Diagnosis(
                now=whole.now,
                summary=_summary(found, whole.running),
                findings=tuple(shown(each, names) for each in found),
                jobs_left_out=whole.left_out,
            )
        )

    async def _diagnose(self) -> _Whole:
        jobs = await self._backend.jobs.get()
        resources, task_managers = await self._resources(), await self._task_managers()
        now = self._backend.clock.epoch_ms()
        disks = await asyncio.to_thread(_disks, self._directories)
        facts = ClusterFacts(
            now=now,
            jobs=jobs,
            resources=resources,
            task_managers=task_managers,
            silent_after=self._silent_after,
            disks=disks,
            history=self._past.of_cluster(),
        )
        wanted, left_out = _looked_at(jobs, now)
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(overview: JobOverview) -> tuple[JobId, _Named] | None:
            async with turn:
                details = await self._ask(GetJob(job_id=overview.job_id))
                if details is None:
                    return None
                found = job.diagnose(await self._facts(details, resources, task_managers))
                return overview.job_id, _Named(overview.name, found)

        answers = await asyncio.gather(*map(one, wanted))
        named = dict(answer for answer in answers if answer is not None)
        return _Whole(now, cluster.diagnose(facts), named, left_out, cluster.about_jobs(facts))

    async def _facts(
        self,
        details: JobDetails,
        resources: ResourceOverview | None,
        task_managers: tuple[TaskManagerInfo, ...],
    ) -> JobFacts:
        checkpoints = await self._ask(GetCheckpoints(job_id=details.job_id))
        return JobFacts(
            now=self._backend.clock.epoch_ms(),
            details=details,
            checkpoints=checkpoints,
            resources=resources,
            task_managers=task_managers,
            silent_after=self._silent_after,
            tasks=self._past.of_tasks(details.job_id),
        )

    async def _resources(self) -> ResourceOverview | None:
        try:
            return await self._backend.resources.get()
        except MinflinkError:
            return None

    async def _task_managers(self) -> tuple[TaskManagerInfo, ...]:
        try:
            return await self._backend.task_managers.get()
        except MinflinkError:
            return ()

    async def _ask(self, question: Request[R]) -> R | None:
        try:
            return await self._backend.dispatcher(question, TIMEOUT)
        except MinflinkError:
            return None


def _looked_at(jobs: Sequence[JobOverview], now: int) -> tuple[list[JobOverview], int]:
    """Return the jobs to look at, and how many running ones are left out."""
    running = sorted((each for each in jobs if not each.status.terminal), key=lambda each: (each.start_ms, each.job_id))
    failed = [each for each in jobs if each.status.terminal and each.status.value == "FAILED"]
    recent = sorted((each for each in failed if now - each.end_ms <= RECENT), key=lambda each: -each.end_ms)
    return [*running[:MAX_JOBS], *recent[:MAX_ENDED]], max(0, len(running) - MAX_JOBS)


def _disks(directories: Sequence[Path]) -> tuple[Disk, ...]:
    found = []
    for directory in directories:
        try:
            usage = shutil.disk_usage(directory)
        except OSError:
            continue
        found.append(Disk(str(directory), usage.free, usage.total))
    return tuple(found)


def _summary(findings: Sequence[Finding], running: str) -> str:
    worst = [each for each in findings if each.severity is not Severity.INFO]
    if not worst:
        return f"No problem of the cluster is known. {running}"
    more = f", and {len(worst) - 1} more" if len(worst) > 1 else ""
    return f"{worst[0].title}{more}."


def shown(finding: Finding, names: Mapping[JobId, str]) -> schema.Finding:
    return schema.Finding(
        code=finding.code,
        severity=finding.severity,
        title=finding.title,
        sentence=finding.sentence,
        figure=finding.figure,
        since=-1 if finding.since_ms is None else finding.since_ms,
        do=finding.do,
        job=finding.job or None,
        job_name=names.get(JobId(finding.job)),
        task=finding.task or None,
        taskmanager=finding.task_manager or None,
        where=finding.where,
    )
