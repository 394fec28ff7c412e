"""Lets people look at the state in a job's checkpoints (E19c): finds the checkpoint, keeps it, and asks a TaskManager.

A checkpoint of a job that runs stays in the store while it is read, as it does while a savepoint is made of it. Other
checkpoints, and savepoints, are deleted only on request or with the job's result: a reading then ends with an error.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from msgspec.structs import replace as copy

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.external import External, NoCheckpointThere, newest_below, read_external
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.sessions import find_session
from minflinkd.jobgraph.model import Isolation, JobGraph
from minflinkd.rpc import job_state as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobDetails
from minflinkd.rpc.network import Address, Mailbox, Network
from minflinkd.rpc.snapshot import StateFile, TaskSnapshot
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError, NotFound
from minflinkd.runtime.ids import JobId
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages

AT_A_TIME = 4  # readings of state, in the whole cluster
SESSION_PATIENCE = 30.0  # seconds to wait for a TaskManager
AROUND_READING = 30.0  # seconds for what surrounds the time that Spark may take
_NUMBER = re.compile(r"[0-9]{1,18}")  # of a checkpoint; everything else is a path
_NEEDED = ("state/", "offsets/", "commits/")  # what says what the state is


class ForeignSavepoint(MinflinkError):
    """The savepoint at a path belongs to another job, and whoever asks may not see all jobs."""

    code = "foreign-savepoint"
    consequence = Consequence.REFUSED


class StateReadsBusy(MinflinkError):
    """As many readings of state are under way as there may be."""

    code = "state-read-busy"
    consequence = Consequence.RETRYABLE
    kind = Kind.CLUSTER


@dataclass(frozen=True)
class _Held:
    """A checkpoint that is being read. `root`: where its physical files are. `own`: it is one of the job's own."""

    checkpoint: CompletedCheckpoint
    path: str
    root: str
    own: bool

    def shown(self) -> j.CheckpointRead:
        return j.CheckpointRead(
            job_id=self.checkpoint.job_id,
            checkpoint_id=self.checkpoint.checkpoint_id,
            path=self.path,
            triggered_ms=self.checkpoint.triggered_ms,
            savepoint=self.checkpoint.self_contained,
        )

    def files(self, vertex: str) -> m.StateFiles:
        """Raises NotFound."""
        task = task_of(self.checkpoint.tasks, vertex)
        snapshot = copy(task, files=state_files(task.files), transactions=(), physical_files=(), source_offsets={})
        return m.StateFiles(snapshot=snapshot, root=self.root, own=self.own)


class StateReads:
    """`run_of` returns the run of a job that has not ended. `details` raises NotFound."""

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        storages: Storages,
        details: Callable[[JobId], JobDetails],
        run_of: Callable[[JobId], JobRun | None],
        checkpoints_of: Callable[[JobId], Location],
    ) -> None:
        self._network = network
        self._clock = clock
        self._storages = storages
        self._details = details
        self._run_of = run_of
        self._checkpoints_of = checkpoints_of
        self._room = asyncio.Semaphore(AT_A_TIME)

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.on(j.ListState, self._list)
        mailbox.on(j.ReadJobState, self._read)
        mailbox.on(j.CompareJobState, self._compare)

    async def _list(self, request: j.ListState) -> j.StateOfJob:
        """Raises NotFound, NoCheckpointThere, ForeignSavepoint, StorageError."""
        async with self._held(request.job_id, request.checkpoint, any_job=request.any_job) as held:
            tasks = tuple(_listed(task) for task in held.checkpoint.tasks if _has_state(task))
            return j.StateOfJob(checkpoint=held.shown(), tasks=tasks)

    async def _read(self, request: j.ReadJobState) -> j.StateOfTask:
        """Raises what `_list` raises, NoSession, StateReadsBusy, and what the TaskManager refuses."""
        graph = self._details(request.job_id).graph
        async with (
            self._in_turn(request.timeout),
            self._held(request.job_id, request.checkpoint, any_job=request.any_job) as held,
        ):
            files = held.files(request.vertex)
            question = m.ReadState(
                read_id=request.read_id,
                job_id=request.job_id,
                task_id=files.snapshot.task_id,
                files=files,
                question=request.question,
                timeout=request.timeout,
                exclusive=graph.isolation is Isolation.JOB,
            )
            address = await self._session(request.job_id, graph)
            found = await self._network.ask(address, question, timeout=request.timeout + AROUND_READING)
            return j.StateOfTask(
                checkpoint=held.shown(),
                task_id=files.snapshot.task_id,
                batch_id=files.snapshot.batch_id,
                found=found,
            )

    async def _compare(self, request: j.CompareJobState) -> j.GrowthOfTask:
        """Raises what `_read` raises."""
        graph = self._details(request.job_id).graph
        async with self._in_turn(request.timeout), AsyncExitStack() as stack:
            before, after = [
                await stack.enter_async_context(self._held(request.job_id, each, any_job=request.any_job))
                for each in (request.before, request.after)
            ]
            old, new = before.files(request.vertex), after.files(request.vertex)
            question = m.CompareState(
                read_id=request.read_id,
                job_id=request.job_id,
                task_id=new.snapshot.task_id,
                before=old,
                after=new,
                store=request.store,
                largest=request.largest,
                timeout=request.timeout,
                exclusive=graph.isolation is Isolation.JOB,
            )
            address = await self._session(request.job_id, graph)
            growth = await self._network.ask(address, question, timeout=request.timeout + AROUND_READING)
            return j.GrowthOfTask(
                before=before.shown(), after=after.shown(), task_id=new.snapshot.task_id, growth=growth
            )

    # --- the checkpoint ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self, job_id: JobId, checkpoint: str, *, any_job: bool) -> AsyncIterator[_Held]:
        """Find a checkpoint, and keep it while it is read, if this job still takes checkpoints."""
        graph = self._details(job_id).graph
        if checkpoint and not _NUMBER.fullmatch(checkpoint):
            yield await self._external(job_id, graph, checkpoint, any_job=any_job)
            return
        number = int(checkpoint) if checkpoint else None
        run = self._run_of(job_id)
        coordinator = run.master.coordinator if run is not None and run.master is not None else None
        if coordinator is None:
            yield await self._stored(job_id, number)
            return
        if (found := coordinator.hold(number)) is None:  # or the coordinator does not know them yet
            yield await self._stored(job_id, number)
            return
        root = self._checkpoints_of(job_id)
        try:
            path = root.child(layout.checkpoint_directory(found.checkpoint_id)).uri
            yield _Held(found, path, root.uri, own=True)
        finally:
            coordinator.let_go(found.checkpoint_id)

    async def _stored(self, job_id: JobId, number: int | None) -> _Held:
        """Read a checkpoint that a job without a JobMaster has left."""
        root = self._checkpoints_of(job_id)
        if number is None:
            found = await newest_below(root)
            if found is None:
                raise _missing(job_id, None)
        else:
            try:
                found = await read_external(self._storages, root.child(layout.checkpoint_directory(number)).uri)
            except NoCheckpointThere:
                raise _missing(job_id, number) from None
        return _of(found, own=True)

    async def _external(self, job_id: JobId, graph: JobGraph, path: str, *, any_job: bool) -> _Held:
        found = await read_external(self._storages, path)
        origin = graph.restore.path if graph.restore is not None else None
        if found.checkpoint.job_id != job_id and not any_job and path != origin:
            raise ForeignSavepoint(
                f"the checkpoint at the path is of job {found.checkpoint.job_id}",
                hint="ask for a savepoint of this job, or use a token that is not limited to some jobs",
            )
        return _of(found, own=False)

    # --- the TaskManager -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _in_turn(self, timeout: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout):
                await self._room.acquire()
        except TimeoutError as error:
            raise StateReadsBusy(
                f"{AT_A_TIME} readings of state are under way", hint="try again when one has ended"
            ) from error
        try:
            yield
        finally:
            self._room.release()

    async def _session(self, job_id: JobId, graph: JobGraph) -> Address:
        """Return a TaskManager that reads. Raises NoSession.

        No code of the job is needed, so any will do: preferably one with free slots, where the job's own tasks do not
        run. A job with `isolation: job` keeps its data to its own TaskManagers.
        """
        exclusive = graph.isolation is Isolation.JOB
        request = m.FindSession(job_id=job_id if exclusive else None, exclusive=exclusive)
        deadline = self._clock.monotonic() + SESSION_PATIENCE
        what = "read the state"
        return await find_session(
            self._network, self._clock, request, timeout=SESSION_PATIENCE, deadline=deadline, what=what
        )


def task_of(tasks: Sequence[TaskSnapshot], vertex: str) -> TaskSnapshot:
    """Return the task with this id, or with an operator of this vertex. Pure. Raises NotFound."""
    for task in tasks:
        if task.task_id == vertex:
            return task
    for task in tasks:
        if any(node.vertex == vertex for node in task.operators):
            return task
    known = ", ".join(sorted(task.task_id for task in tasks if _has_state(task))) or "none"
    raise NotFound(f"the checkpoint has no task {vertex[:100]!r}", hint=f"tasks with state in it: {known}")


def state_files(files: Sequence[StateFile]) -> tuple[StateFile, ...]:
    """Return the files that say what the state is: no logs of sources, and no rows of exchanges. Pure."""
    return tuple(file for file in files if file.path == "metadata" or file.path.startswith(_NEEDED))


def _has_state(task: TaskSnapshot) -> bool:
    return any(node.stateful for node in task.operators) or any(f.path.startswith("state/") for f in task.files)


def _listed(task: TaskSnapshot) -> j.TaskWithState:
    handles = {file.handle for file in task.files if file.path.startswith("state/")}
    return j.TaskWithState(
        task_id=task.task_id,
        batch_id=task.batch_id,
        size=sum(handle.length for handle in handles),
        operators=tuple(
            j.StatefulOperator(number=node.number, kind=node.kind, vertex=node.vertex)
            for node in task.operators
            if node.stateful
        ),
    )


def _of(found: External, *, own: bool) -> _Held:
    return _Held(found.checkpoint, found.directory.uri, found.root.uri, own=own)


def _missing(job_id: JobId, number: int | None) -> NoCheckpointThere:
    what = "no complete checkpoint" if number is None else f"no checkpoint {number} any more"
    return NoCheckpointThere(
        f"job {job_id} has {what}",
        hint="`minflinkd checkpoints JOB` lists those there are",
    )
