"""Analyses of submitted jobs: the session child plans the tasks, and reports their faults."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace as copy

from minflinkd.rpc import messages as m
from minflinkd.runtime.ids import JobId
from minflinkd.taskmanager.attempts.deployment import Deployer, attempt_directory
from minflinkd.taskmanager.attempts.sink_paths import sink_path_faults
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.keeper import SessionKeeper

ANALYSIS_TIMEOUT = 110.0  # seconds


class Analyses:
    """`begins` and `ends` tell the core about each analysis; `begins` raises the core's refusal.

    `is_deployed`: whether a task of the job is on this TaskManager. `directory`: the TaskManager's directory.
    """

    def __init__(
        self,
        *,
        keeper: SessionKeeper,
        deployer: Deployer,
        directory: Path,
        begins: Callable[[m.AnalyzeJob], None],
        ends: Callable[[JobId], None],
        is_deployed: Callable[[JobId], bool],
    ) -> None:
        self._keeper = keeper
        self._deployer = deployer
        self._directory = directory
        self._begins = begins
        self._ends = ends
        self._is_deployed = is_deployed

    async def analyze(self, request: m.AnalyzeJob) -> m.Analysis:
        """Answer an AnalyzeJob. Raises SessionLost, ArtifactUnavailable, and the errors of `begins`."""
        session = self._keeper.session()
        job = request.job
        self._begins(request)
        try:
            artifacts = await self._deployer.artifacts(job)
            try:
                directory = attempt_directory(self._directory, f"analysis-{secrets.token_hex(8)}")
                async with self._deployer.described(request.held, directory) as held:
                    question = sp.AnalyzeTasks(
                        job=job,
                        tasks=request.tasks,
                        artifacts=artifacts,
                        held=held,
                        explain=request.explain,
                        script=request.script,
                    )
                    analysis = await session.ask(question, ANALYSIS_TIMEOUT)
                faults = await sink_path_faults(self._deployer.storages, job, request.tasks)
                analysis = copy(analysis, faults=(*analysis.faults, *faults))
            finally:
                self._deployer.release_artifacts(job)
        finally:
            # Unless the job is deployed here, its artifacts are removed after a while.
            self._ends(job.job_id)
        if analysis.faults and not self._is_deployed(job.job_id):
            await self._deployer.blobs.forget_job(job.job_id)
        return analysis
