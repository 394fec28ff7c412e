"""Snapshots of running tasks: the sync part in the session child, the async part here (C11 - C13).

One instance serves all attempts of a TaskManager. Each snapshot is an asyncio task of its own. An abort cancels it in
any phase, and leaves neither links nor an open physical file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog

from minflinkd.filemerging.compaction import time_to_rewrite
from minflinkd.filemerging.policy import FileMerging
from minflinkd.filemerging.segments import physical_file_name
from minflinkd.filemerging.sharing import Part, PartnerLeft, SharedFiles
from minflinkd.rpc.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    Done,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    Request,
    TriggerCheckpoint,
)
from minflinkd.rpc.snapshot import MergingFigures, TaskSnapshot
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Kind, MinflinkError, error_info
from minflinkd.runtime.ids import JobId, ResourceId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.publication import make_durable, publish
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.attempts.staging import stage
from minflinkd.taskmanager.attempts.uploading import rewrite, upload
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.process import SessionProcess

log = structlog.get_logger(__name__)

CONFIRM_TIMEOUT = 10.0
REMEMBERED = 1000  # checkpoints back, far more than a message can be late
COMMIT_AT_END = 5.0  # seconds for an attempt that is cancelled
COMMIT_TIMEOUT = 50.0  # seconds for sinks that commit themselves; the JobMaster waits a little longer, and asks again

# Sends a request to the attempt's JobMaster until it is answered. Raises MinflinkError if the request is refused, or if
# that JobMaster is silent or replaced.
Deliver = Callable[[Attempt, Request[Done]], Awaitable[None]]


class Snapshots:
    def __init__(
        self,
        *,
        resource_id: ResourceId,
        storages: Storages,
        local: LocalSnapshots,
        session: Callable[[], SessionProcess],
        deliver: Deliver,
        merging: FileMerging,
        num_retained: int = 1,
        tasks: TaskOwner,
    ) -> None:
        """`num_retained` is the number of completed checkpoints kept for jobs that do not set it."""
        self._resource_id = resource_id
        self._storages = storages
        self._local = local
        self._session = session
        self._deliver = deliver
        self._merging = merging
        self._num_retained = num_retained
        self._tasks = tasks
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        # Files being written, by job, epoch and checkpoint.
        self._shared: dict[tuple[JobId, int, int], SharedFiles] = {}
        self.bytes_new = 0  # state uploaded since the start that no earlier checkpoint had
        self.bytes_rewritten = 0  # state uploaded again because it was in worn files

    def trigger(self, attempt: Attempt, request: TriggerCheckpoint) -> None:
        """Begin a snapshot. A repeated trigger changes nothing, nor does one after the checkpoint's end."""
        number = request.checkpoint_id
        key = (request.attempt_id, number)
        if key in self._running or number in attempt.handles or number in attempt.aborted | attempt.published:
            return
        if request.stop:
            attempt.stops_at = number
        name = f"snapshot {request.checkpoint_id} of {request.attempt_id}"
        task = self._running[key] = self._tasks.job(name, self._take(attempt, request))
        task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: tuple[str, int]) -> None:
        self._running.pop(key, None)
        self._shared = {each: shared for each, shared in self._shared.items() if shared.joinable}

    def taking(self, attempt: Attempt) -> set[int]:
        """Return the checkpoints of which a snapshot of the attempt is being taken or told."""
        return {number for attempt_id, number in self._running if attempt_id == attempt.deployment.attempt_id}

    async def complete(self, attempt: Attempt, request: NotifyCheckpointComplete) -> None:
        """Publish the checkpoint's transactions, and return when readers can see them. Idempotent."""
        number = request.checkpoint_id
        if number <= attempt.confirmed:
            return
        reach(CrashPoint.COMMIT)
        for transaction in attempt.transactions.get(number, ()):
            await publish(self._storages, transaction)
        reach(CrashPoint.COMMITTED)
        await self._session().ask(
            sp.ConfirmCheckpoint(attempt_id=request.attempt_id, checkpoint_id=number), COMMIT_TIMEOUT
        )
        attempt.confirms(number)
        attempt.published = {other for other in attempt.published | {number} if other > number - REMEMBERED}
        job, task = attempt.deployment.job, attempt.deployment.task
        retained = job.checkpointing.num_retained or self._num_retained
        await asyncio.to_thread(partial(self._local.confirmed, job.job_id, task.id, number, retained=retained))

    async def commit_at_end(self, attempt: Attempt, checkpoint_id: int) -> None:
        """Commit what a cancelled attempt's own sinks owe for a complete checkpoint.

        The attempt was not told that the checkpoint is complete, or failed to commit it. Never raises: what cannot be
        committed now stays staged.
        """
        owed = attempt.transactions.get(checkpoint_id, ())
        if not attempt.runs or not any(transaction.tokens for transaction in owed):
            return
        job_id, attempt_id = attempt.deployment.job.job_id, attempt.deployment.attempt_id
        complete = NotifyCheckpointComplete(job_id=job_id, attempt_id=attempt_id, checkpoint_id=checkpoint_id)
        try:
            async with asyncio.timeout(COMMIT_AT_END):
                await self.complete(attempt, complete)
        except (MinflinkError, TimeoutError) as error:
            why = str(error) or f"not done within {COMMIT_AT_END:g} s"
            log.warning("sinks leave rows staged", attempt=attempt_id, checkpoint=checkpoint_id, error=why)

    async def abort(self, attempt: Attempt, request: NotifyCheckpointAborted) -> None:
        """C13: Abort a snapshot. Idempotent.

        The child is always told: it may be stopped by the checkpoint, or hold up a reader for it, long after the
        snapshot was taken, or although it never was.
        """
        number = request.checkpoint_id
        if number <= attempt.confirmed or number in attempt.published:
            return
        attempt.aborted.add(number)
        task = self._running.get((request.attempt_id, number))
        taken = number in attempt.handles
        if task is not None:
            _end(task)
            await asyncio.wait({task}, timeout=CONFIRM_TIMEOUT)
        attempt.discards(number)
        if task is None or taken:  # otherwise the task has told it
            await self._release(attempt, number)
        await self._forget(attempt, number)

    def cancel_all(self, attempt: Attempt) -> set[asyncio.Task[None]]:
        """Cancel the snapshots of an ending attempt. Return their asyncio tasks, which may hang in a storage."""
        mine = {task for key, task in self._running.items() if key[0] == attempt.deployment.attempt_id}
        for task in mine:
            _end(task)
        return mine

    async def _take(self, attempt: Attempt, request: TriggerCheckpoint) -> None:
        deployment = attempt.deployment
        number = request.checkpoint_id
        directory = self._local.directory(deployment.job.job_id, deployment.task.id, number)
        take = sp.TakeSnapshot(
            attempt_id=request.attempt_id,
            checkpoint_id=number,
            target_directory=str(directory),
            timeout=request.timeout,
            oldest=request.oldest,
            stop=request.stop,
        )
        try:
            async with self._join(attempt, request) as part:
                taken = await self._session().ask(take, request.timeout + CONFIRM_TIMEOUT)
                snapshot = await self._upload(attempt, request, taken, directory, part)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(attempt, request))
            raise
        except PartnerLeft:  # the partner reports to the coordinator why there is no checkpoint
            log.info("a snapshot is given up with another task's", checkpoint=number, attempt=request.attempt_id)
            await self._give_up(attempt, request)
            return
        except Exception as error:
            log.warning("a snapshot failed", checkpoint=number, attempt=request.attempt_id, error=str(error))
            await self._give_up(attempt, request)
            decline = DeclineCheckpoint(
                job_id=request.job_id,
                attempt_id=request.attempt_id,
                checkpoint_id=number,
                error=error_info(error),
            )
            await self._tell(attempt, decline)
            return
        reach(CrashPoint.UPLOAD)
        attempt.acknowledges(snapshot)
        self._count(snapshot)
        acknowledge = AcknowledgeCheckpoint(job_id=request.job_id, attempt_id=request.attempt_id, snapshot=snapshot)
        try:
            await asyncio.to_thread(self._local.completed, deployment.job.job_id, deployment.task.id, number)
            refusal = await self._tell(attempt, acknowledge)
            reach(CrashPoint.ACKNOWLEDGE)
        except asyncio.CancelledError:
            if number in attempt.aborted:  # otherwise the coordinator may refer to the files
                await asyncio.shield(self._discard(attempt, snapshot))
            raise
        if refusal is not None and refusal.info().kind is Kind.NOT_FOUND:
            # The checkpoint has ended without this task, and nothing refers to the files. Do not wait for the message
            # that says so: its sender may be dead.
            await self._release(attempt, number)
            await self._discard(attempt, snapshot)

    async def _discard(self, attempt: Attempt, snapshot: TaskSnapshot) -> None:
        """Delete what was uploaded, when nobody can refer to it. What cannot be deleted now is left to the sweep."""
        attempt.discards(snapshot.checkpoint_id)
        root = self._storages.at(attempt.deployment.job.checkpoint_root)
        try:
            await root.delete_children(snapshot.physical_files)
        except MinflinkError as error:
            files = snapshot.physical_files
            log.warning("files of an aborted checkpoint are left", root=root.uri, files=files, error=str(error))
        await self._forget(attempt, snapshot.checkpoint_id)

    async def _tell(self, attempt: Attempt, request: Request[Done]) -> MinflinkError | None:
        """Deliver the request. Return the error if the JobMaster refused it, is silent, or was replaced."""
        try:
            await self._deliver(attempt, request)
        except MinflinkError as error:
            name, attempt_id = type(request).__name__, attempt.deployment.attempt_id
            log.info("the JobMaster did not take it", message=name, attempt=attempt_id, error=str(error))
            return error
        return None

    def _join(self, attempt: Attempt, request: TriggerCheckpoint) -> Part:
        """Join the files that other tasks of the job here are writing for this checkpoint, or begin new ones.

        File names contain the attempt that began them. It takes a checkpoint only once, so no name is used twice (F5).
        """
        job = attempt.deployment.job
        key = (job.job_id, request.epoch, request.checkpoint_id)
        if key not in self._shared or not self._shared[key].joinable:
            name = partial(
                physical_file_name, request.epoch, request.checkpoint_id, request.attempt_id, self._resource_id
            )
            root = self._storages.at(job.checkpoint_root)
            compact = not request.stop  # nobody should wait for what can be done as well after the stop
            self._shared[key] = self._merging.begin(root, name, compact=compact)
        return self._shared[key].join(attempt.known.values(), attempt.sizes)

    async def _upload(
        self, attempt: Attempt, request: TriggerCheckpoint, taken: sp.SnapshotTaken, directory: Path, part: Part
    ) -> TaskSnapshot:
        """Upload what the last confirmed checkpoint does not hold (C12), or holds in worn files (F6).

        For a full checkpoint upload everything.
        """
        began = time.monotonic()
        deployment = attempt.deployment
        uploaded = await upload(part, directory, taken.files, {} if request.full else attempt.known)
        for transaction in taken.transactions:  # J12: acknowledge only after the staged files would survive a power cut
            await stage(self._storages, transaction, str(attempt.directory), attempt.staged)
            await make_durable(self._storages, transaction)
        worn = await part.worn(file.handle for file in uploaded.files)
        now = time.monotonic()
        until = now + time_to_rewrite(now - began - part.waited, request.timeout)
        rewritten = await rewrite(part, directory, uploaded.files, worn, until=until)
        reach(CrashPoint.APPEND)
        written = await part.finish(rewritten.worn)
        sizes = {**attempt.sizes, **written.files}
        used = {file.handle.file for file in rewritten.files}
        return TaskSnapshot(
            task_id=deployment.task.id,
            attempt_id=request.attempt_id,
            resource_id=self._resource_id,
            checkpoint_id=request.checkpoint_id,
            batch_id=taken.batch_id,
            files=rewritten.files,
            transactions=taken.transactions,
            physical_files=tuple(written.files),
            # Of a full checkpoint, the coordinator must not drop the copies of what it knows already.
            rewritten=tuple(sorted(written.files if request.full else rewritten.into)),
            source_offsets=taken.source_offsets,
            operators=taken.operators,
            parallelism=attempt.parallelism,
            state_partitions=attempt.partitions,
            bytes_full=sum(file.size for file in taken.files),
            bytes_uploaded=uploaded.size + rewritten.size,
            sync_ms=taken.sync_ms,
            async_ms=round((time.monotonic() - began - part.waited) * 1000, 3),
            input_ended=taken.input_ended,
            rows=taken.rows,
            inputs=taken.inputs,
            output=taken.output,
            unaligned=taken.unaligned,
            alignment_ms=round(taken.alignment_ms, 3),
            alignment_bytes=taken.alignment_bytes,
            wait_ms=taken.wait_ms,
            files_uploaded=uploaded.count,
            file_sizes={name: size for name, size in sizes.items() if name in used},
            merging=MergingFigures(
                creates=written.calls.creates,
                create_ms=round(written.calls.create_ms, 3),
                closes=written.calls.closes,
                close_ms=round(written.calls.close_ms, 3),
                compactions=written.compactions,
                bytes_rewritten=rewritten.size,
            ),
        )

    def _count(self, snapshot: TaskSnapshot) -> None:
        rewritten = snapshot.merging.bytes_rewritten if snapshot.merging is not None else 0
        self.bytes_rewritten += rewritten
        self.bytes_new += snapshot.bytes_uploaded - rewritten

    async def _give_up(self, attempt: Attempt, request: TriggerCheckpoint) -> None:
        attempt.aborted.add(request.checkpoint_id)  # a repeated trigger would use file names twice
        await self._release(attempt, request.checkpoint_id)
        await self._forget(attempt, request.checkpoint_id)

    async def _release(self, attempt: Attempt, number: int) -> None:
        """Let the task go on, if anything in it waits for the checkpoint."""
        if attempt.stops_at == number:
            attempt.stops_at = 0
        abort = sp.AbortSnapshot(attempt_id=attempt.deployment.attempt_id, checkpoint_id=number)
        try:
            await self._session().ask(abort, CONFIRM_TIMEOUT)
        except MinflinkError as error:
            log.debug("the child could not abort a snapshot", error=str(error))

    async def _forget(self, attempt: Attempt, number: int) -> None:
        deployment = attempt.deployment
        await asyncio.to_thread(self._local.forget, deployment.job.job_id, deployment.task.id, number)


def _end(task: asyncio.Task[None]) -> None:
    if not task.cancelling():  # a second cancel would interrupt its cleanup
        task.cancel()
