"""Bringing up one attempt: its artifacts, its restored state, its query in the session child."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from minflinkd.blob.cache import BlobCache
from minflinkd.blob.keys import BlobKey
from minflinkd.checkpoint.damage import CheckpointDamaged
from minflinkd.filemerging.reader import read_segments
from minflinkd.rpc.messages import ArtifactRef, DeployTask, ExchangeSource, HeldState, JobContext, TaskRestore
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, TaskId
from minflinkd.storage.interface import StorageCorrupt, StorageError
from minflinkd.storage.location import relative_path
from minflinkd.storage.parallel import for_each
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.process import SessionProcess
from minflinkd.taskmanager.exchange.mirrors import Mirrors

log = structlog.get_logger(__name__)

FETCHES = 4  # artifacts of a job fetched at a time
RUN_TIMEOUT = 120.0  # seconds for the child to build and start a query
REPARTITION_TIMEOUT = 1800.0  # seconds if the child rewrites the state first, which takes longer for larger state


class ArtifactUnavailable(MinflinkError):
    """A blob cannot be fetched now. The job is not ended for this, since another try may succeed."""

    code = "artifact-unavailable"
    consequence = Consequence.RETRYABLE


@dataclass(frozen=True)
class Deployer:
    storages: Storages
    blobs: BlobCache
    snapshots: LocalSnapshots
    mirrors: Mirrors
    min_free: int = 0  # bytes; see `RunTask`
    replay: int = 0  # bytes; see `OutputChannel`

    async def bring_up(self, attempt: Attempt, session: SessionProcess) -> dict[str, float]:
        """Bring the attempt up until its query is active. Return the seconds per phase. Raises any MinflinkError."""
        deployment = attempt.deployment
        phases: dict[str, float] = {}
        began = time.monotonic()

        def phase(name: str) -> None:
            nonlocal began
            now = time.monotonic()
            phases[name], began = round(now - began, 4), now

        artifacts = await self.artifacts(deployment.job)
        attempt.holds_artifacts = True
        phase("artifacts")
        restored = await self._restore(attempt, deployment.restore) if deployment.restore is not None else None
        phase("restore")
        request = sp.RunTask(
            job=deployment.job,
            task=deployment.task,
            attempt_id=deployment.attempt_id,
            directory=str(attempt.directory),
            restored=restored,
            artifacts=artifacts,
            inputs=tuple(self._input(attempt, source) for source in deployment.inputs),
            output=self._output(attempt),
            partitions=deployment.partitions,
            min_free=self.min_free,
            oldest=deployment.oldest,
        )
        running = await session.ask(request, REPARTITION_TIMEOUT if _is_repartitioned(deployment) else RUN_TIMEOUT)
        attempt.partitions = running.partitions
        if running.moved:
            attempt.forgets_known()
        phase("session")
        return phases | {f"session.{name}": seconds for name, seconds in running.phases.items()}

    async def follow(self, job: JobContext, snapshot: TaskSnapshot, before: TaskSnapshot | None, scratch: Path) -> None:
        """Have a local copy of a snapshot of another TaskManager. Fetches what the copy of `before` does not have.

        `scratch`: a new directory for this call. Raises StorageError, OSError.
        """
        try:
            there: frozenset[str] = frozenset()
            if before is not None:
                there = await asyncio.to_thread(self.snapshots.reuse, job.job_id, before, snapshot, scratch)
            wanted = {file.path: file.handle for file in snapshot.files if file.path not in there}
            await read_segments(self.storages.at(job.checkpoint_root), wanted, scratch)
            await asyncio.to_thread(self.snapshots.adopt, job.job_id, snapshot, scratch)
            await asyncio.to_thread(
                self.snapshots.confirmed, job.job_id, snapshot.task_id, snapshot.checkpoint_id, retained=1
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    async def lay_out(self, job_id: JobId, snapshot: TaskSnapshot, root: str, target: Path, *, own: bool) -> int:
        """Lay out a snapshot's files in `target`. Return how many came from the storage, below `root`.

        `own`: it is a snapshot of this job, so the local copies of its tasks count (C14). Raises StorageError, OSError,
        and InvalidPath for a path that leaves `target`.
        """
        for file in snapshot.files:
            relative_path(file.path)
        there: frozenset[str] = frozenset()
        if own:
            there = await asyncio.to_thread(self.snapshots.lay_out, job_id, snapshot, target)
        wanted = {file.path: file.handle for file in snapshot.files if file.path not in there}
        if wanted:
            await read_segments(self.storages.at(root), wanted, target)
        return len(wanted)

    async def artifacts(self, job: JobContext) -> dict[str, str]:
        """Return name -> verified local path of each artifact.

        The caller holds a reference to each until `release_artifacts`. Raises ArtifactUnavailable.
        """
        held: list[BlobKey] = []

        async def fetch(artifact: ArtifactRef) -> tuple[str, str]:
            key = BlobKey.parse(artifact.key)
            try:
                path = await self.blobs.get(job.job_id, key)
            except MinflinkError as error:
                raise ArtifactUnavailable(
                    f"artifact {artifact.name} cannot be had: {error}",
                    hint="the job is tried again; look at the BlobServer, and at high-availability.storageDir",
                ) from error
            held.append(key)
            return artifact.name, str(path)

        try:
            return dict(await for_each(job.artifacts, fetch, limit=FETCHES))
        except BaseException:
            for key in held:
                self.blobs.release(job.job_id, key)
            raise

    def release_artifacts(self, job: JobContext) -> None:
        """Release the artifacts that `artifacts` has returned."""
        for artifact in job.artifacts:
            self.blobs.release(job.job_id, BlobKey.parse(artifact.key))

    @asynccontextmanager
    async def described(
        self, held: Mapping[TaskId, HeldState], directory: Path
    ) -> AsyncIterator[dict[TaskId, sp.DescribedState]]:
        """Fetch Spark's descriptions of the state held for each task, into directories below `directory`, which is new.

        A description that the storage does not deliver is left out: the analysis then knows less about what fits.
        """
        try:
            found: dict[TaskId, sp.DescribedState] = {}
            for number, (task, state) in enumerate(held.items()):
                target = directory / str(number)
                try:
                    wanted = {file.path: file.handle for file in state.described}
                    await read_segments(self.storages.at(state.root), wanted, target)
                except StorageError as error:
                    log.warning("the types of a task's state are not known", task=task, error=str(error))
                else:
                    found[task] = sp.DescribedState(operators=state.operators, directory=str(target))
            yield found
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _restore(self, attempt: Attempt, restore: TaskRestore) -> sp.Restored:
        """Lay out the snapshot's files, from local copies or from the storage (C14)."""
        snapshot, target = restore.snapshot, attempt.directory / "checkpoint"
        job = attempt.deployment.job
        foreign = bool(restore.root or restore.offsets)  # its checkpoint number means nothing in this job
        root = restore.root or job.checkpoint_root
        try:
            fetched = await self.lay_out(job.job_id, snapshot, root, target, own=not foreign)
        except StorageCorrupt as error:
            if foreign:  # there is no other checkpoint that the job might be restored from
                raise
            raise CheckpointDamaged(
                f"checkpoint {restore.checkpoint_id} cannot be restored: {error.message}"
            ) from error
        if not foreign:
            held = self.snapshots.holds(job.job_id, snapshot.task_id, snapshot.checkpoint_id)
            if fetched or not held:  # no copy, or a damaged one
                await asyncio.to_thread(self.snapshots.adopt, job.job_id, snapshot, target)
            attempt.begins_from(snapshot, restore.checkpoint_id)
        log.info(
            "state laid out",
            attempt=attempt.deployment.attempt_id,
            checkpoint=restore.checkpoint_id,
            files=len(snapshot.files),
            fetched=fetched,
        )
        return sp.Restored(
            checkpoint_id=restore.checkpoint_id,
            batch_id=snapshot.batch_id,
            input_ended=snapshot.input_ended,
            inputs=snapshot.inputs,
            output=snapshot.output,
            transactions=tuple(owed for owed in snapshot.transactions if owed.tokens),
            operators=snapshot.operators,
            allow_non_restored=restore.allow_non_restored,
            same_meaning=restore.same_meaning,
            offsets=restore.offsets,
        )

    def _input(self, attempt: Attempt, source: ExchangeSource) -> sp.InputChannel:
        """Return where the attempt reads this input. If it is written elsewhere, begin to mirror it.

        Raises ExchangeUnreachable.
        """
        deployment, restore = attempt.deployment, attempt.deployment.restore
        edge = next(edge for edge in deployment.task.inputs if edge.id == source.vertex_id)
        directory = exchange_directory(attempt.directory.parent.parent, source.attempt_id)
        if self.mirrors.is_elsewhere(source):
            directory = attempt.directory / "mirrors" / source.vertex_id
            first = restore.snapshot.inputs.get(source.vertex_id, 0) if restore is not None else 0
            self.mirrors.open(deployment.attempt_id, source, directory, reader=deployment.task.id, first=first)
        return sp.InputChannel(
            vertex_id=source.vertex_id,
            directory=str(directory),
            idle_timeout=edge.idle_timeout or 0.0,
        )

    def _output(self, attempt: Attempt) -> sp.OutputChannel | None:
        deployment = attempt.deployment
        if not deployment.task.readers:
            return None
        directory = exchange_directory(attempt.directory.parent.parent, deployment.attempt_id)
        return sp.OutputChannel(
            directory=str(directory),
            readers=deployment.task.readers,
            max_backlog=self.mirrors.max_backlog,
            # Without checkpoints it would never be covered.
            replay=self.replay if deployment.job.checkpointing.interval else 0,
        )


def _is_repartitioned(deployment: DeployTask) -> bool:
    restore, wanted = deployment.restore, deployment.partitions or deployment.task.parallelism
    return restore is not None and restore.snapshot.partitions != wanted


def attempt_directory(root: Path, attempt_id: str) -> Path:
    """Return a path that no other attempt has ever had (C10a)."""
    return root / "attempts" / attempt_id


def exchange_directory(root: Path, attempt_id: str) -> Path:
    """Return the directory of the log that an attempt writes."""
    return exchanges(root) / attempt_id


def exchanges(root: Path) -> Path:
    """Return the directory of all logs that attempts here write."""
    return root / "exchanges"


async def remove_exchanges(root: Path, live: Callable[[], frozenset[AttemptId]]) -> None:
    """Delete the logs that nobody here writes or reads.

    `live` is called only after the logs were listed. An attempt is live before it begins its log, so no new log is
    deleted. Idempotent.
    """
    found = await asyncio.to_thread(lambda: list(exchanges(root).glob("*")))
    kept = live()
    for directory in found:
        if directory.name not in kept:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
