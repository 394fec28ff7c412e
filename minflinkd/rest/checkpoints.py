"""`/jobs/:jobid/checkpoints` and `/jobs/:jobid/offsets`."""

from __future__ import annotations

from aiohttp import web

from minflinkd.checkpoint import offsets
from minflinkd.checkpoint.messages import GetCheckpointOptions, GetCheckpoints, GetOffsets
from minflinkd.checkpoint.offsets import Offsets
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer, json_bytes
from minflinkd.rest.checkpoints_json import config_json, details_json, statistics_json, subtasks_json
from minflinkd.rest.declared import CHECKPOINT_NUMBER, JOB_ID, VERTEX
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas import Checkpoint, CheckpointConfig, Checkpoints, TaskCheckpointDetails
from minflinkd.runtime.ids import JobId


class CheckpointRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/checkpoints",
                self.statistics,
                Role.VIEW,
                "Counts and summaries of the job's checkpoints, and the last ones",
                {200: Checkpoints},
                more="`minflinkd` has what Flink does not: failures by cause, failures in a row, each phase",
            ),
            route.get(
                "/jobs/{jobid}/checkpoints/config",
                self.config,
                Role.VIEW,
                "How checkpoints of the job are taken",
                {200: CheckpointConfig},
            ),
            route.get(
                "/jobs/{jobid}/checkpoints/details/{checkpointid}",
                self.details,
                Role.VIEW,
                "A checkpoint, and what each task did for it",
                {200: Checkpoint},
            ),
            route.get(
                "/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}",
                self.subtasks,
                Role.VIEW,
                "What one task did for a checkpoint",
                {200: TaskCheckpointDetails},
                more="With sync, async and alignment; the task is also found by its own id",
            ),
            route.get(
                "/jobs/{jobid}/offsets",
                self.offsets,
                Role.VIEW,
                "How far each source has read",
                {200: Offsets},
                more="Not in Flink. By task; see [savepoints.md](savepoints.md#starting-from-offsets)",
            ),
        ]

    async def statistics(self, request: web.Request) -> web.Response:
        return json_answer(statistics_json(await self._statistics(JOB_ID.of(request))))

    async def config(self, request: web.Request) -> web.Response:
        question = GetCheckpointOptions(job_id=JOB_ID.of(request))
        return json_answer(config_json(await self._backend.dispatcher(question)))

    async def details(self, request: web.Request) -> web.Response:
        job_id, number = JOB_ID.of(request), CHECKPOINT_NUMBER.of(request)
        return json_answer(details_json(await self._statistics(job_id), number))

    async def subtasks(self, request: web.Request) -> web.Response:
        job_id, number = JOB_ID.of(request), CHECKPOINT_NUMBER.of(request)
        return json_answer(subtasks_json(await self._statistics(job_id), number, VERTEX.of(request)))

    async def offsets(self, request: web.Request) -> web.Response:
        """Answer the sources' offsets, by task, in the form of `offsets.json`. Flink has no such path."""
        return json_bytes(offsets.encode(await self._backend.dispatcher(GetOffsets(job_id=JOB_ID.of(request)))))

    async def _statistics(self, job_id: JobId) -> CheckpointStatistics:
        return await self._backend.dispatcher(GetCheckpoints(job_id=job_id))
