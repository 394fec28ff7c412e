"""`/storage/orphans`: physical files of checkpoints that nothing refers to (F7)."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import InQuery, like
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas import JobOrphans, Orphan, Orphans
from minflinkd.rpc import jobs as j
from minflinkd.runtime.ids import HEX32, JobId, parse_job_id

TIMEOUT = 600.0  # seconds; all checkpoints are listed
MOST = 1000  # file names shown per job
_JOB = InQuery[JobId | None]("job", "Only files of this job", like(HEX32), None, parse_job_id)


class OrphanRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/storage/orphans",
                self.list,
                Role.OPERATE,
                "Files of checkpoints to which nothing refers",
                {200: Orphans},
                query=(_JOB,),
                errors=(409,),
                more="See [below](#orphans)",
            ),
            route.delete(
                "/storage/orphans",
                self.delete,
                Role.ADMIN,
                "Delete files of checkpoints to which nothing refers",
                {200: Orphans},
                query=(_JOB,),
                errors=(409,),
                more=(
                    "The answer lists them. May be repeated. `conflict` while another request looks for orphans; 503 "
                    "`not-leading` if the daemon is not certain to lead"
                ),
            ),
        ]

    async def list(self, request: web.Request) -> web.Response:
        """Answer what `delete` would delete now. `?job=` takes an id."""
        return json_answer(await self._sweep(request, dry_run=True))

    async def delete(self, request: web.Request) -> web.Response:
        """Delete the orphans. May be repeated."""
        return json_answer(await self._sweep(request, dry_run=False))

    async def _sweep(self, request: web.Request, *, dry_run: bool) -> Orphans:
        question = j.SweepOrphans(job_id=_JOB.of(request), dry_run=dry_run)
        report = await self._backend.dispatcher(question, TIMEOUT)
        jobs = tuple(_job(found) for found in report.jobs)
        return Orphans(
            jobs=jobs,
            dry_run=report.dry_run,
            grace=report.grace,
            files=sum(found.files for found in jobs),
            size=sum(found.size for found in jobs),
        )


def _job(found: j.JobOrphans) -> JobOrphans:
    return JobOrphans(
        job=found.job_id,
        files=len(found.files),
        size=sum(file.size for file in found.files),
        kept=found.kept,
        skipped=found.skipped,
        orphans=tuple(Orphan(name=f.name, size=f.size, modified=f.modified_ms) for f in found.files[:MOST]),
    )
