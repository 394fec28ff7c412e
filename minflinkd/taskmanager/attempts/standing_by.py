"""Stands by for jobs of other TaskManagers: follows their checkpoints, and rehearses their tasks (R32).

Of a recovery, only what needs the loss is left then: artifacts and state are on this disk, and the session has run the
tasks before. Nothing is reserved: it is an ordinary TaskManager, which the ResourceManager expects to use next.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from minflinkd.jobgraph.model import Task
from minflinkd.rpc import messages as m
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import ErrorInfo, MinflinkError, RemoteError
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, TaskId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.interface import StorageError
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.attempts.deployment import ArtifactUnavailable, Deployer, attempt_directory
from minflinkd.taskmanager.attempts.rehearsal import cannot_rehearse, rehearsed
from minflinkd.taskmanager.attempts.stopping import Stopping
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.keeper import SessionKeeper
from minflinkd.taskmanager.child.process import SessionProcess

log = structlog.get_logger(__name__)

FIRST_BATCH = 15.0  # seconds that a rehearsal waits for its micro-batches: the sources may have nothing new
BATCHES = 2  # of a rehearsal: what Java has run once is still slow
PLANNED = 40.0  # seconds after which plans are built anew, before the session drops them (`plan.prepared`)
PLAN_TIMEOUT = 60.0  # seconds for the session to build them
REHEARSAL = "rehearsal-"  # how the names of their directories begin
STOP = 30.0  # seconds for a rehearsal to end
TRIES = 2  # of what may fail because of the job: its code may hang, or end the session

_Key = tuple[str, TaskId, int, int]  # version of the job, task, parallelism, partitions


@dataclass
class _Standby:
    """What is prepared for one job. `job`: the one whose artifacts are held."""

    request: m.StandBy
    until: float  # on the monotonic clock
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    job: m.JobContext | None = None
    followed: dict[TaskId, TaskSnapshot] = field(default_factory=dict)
    rehearsed: dict[_Key, int] = field(default_factory=dict)  # in which session
    planned: tuple[int, m.StandBy, float] | None = None  # in which session, for which request, when
    failures: Counter[object] = field(default_factory=Counter)  # in a row, of a task's rehearsal, or of a version
    notes: dict[object, str] = field(default_factory=dict)  # why the last one failed
    why: str = "it has just begun"
    work: asyncio.Task[None] | None = None

    def replace(self, request: m.StandBy) -> None:
        """Take the next request. What failed with other tasks, or another version, says nothing about these."""
        if (request.job, _tasks_of(request)) != (self.request.job, _tasks_of(self.request)):
            self.failures.clear()
            self.notes.clear()
        self.request = request


@dataclass
class _Rehearsal:
    attempt: Attempt
    left: int = BATCHES  # micro-batches to process
    error: MinflinkError | None = None  # why it has ended
    over: asyncio.Event = field(default_factory=asyncio.Event)  # it has processed them, or has ended


@dataclass(frozen=True)
class Admission:
    """What the core allows. It is told of each job (`begins`, `ends`), and `begins` may refuse it.

    `runs`: whether a task of the job is here. `is_free`: whether no slot is taken. A task is rehearsed only then, since
    a session with user code that does not end is replaced.
    """

    begins: Callable[[JobId], None]
    ends: Callable[[JobId], None]
    runs: Callable[[JobId], bool]
    is_free: Callable[[], bool]


class Standbys:
    """The jobs for which this TaskManager stands by."""

    def __init__(
        self,
        *,
        keeper: SessionKeeper,
        deployer: Deployer,
        stopping: Stopping,
        directory: Path,
        admission: Admission,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self._keeper = keeper
        self._deployer = deployer
        self._stopping = stopping
        self._directory = directory
        self._admission = admission
        self._clock = clock
        self._tasks = tasks
        self._jobs: dict[JobId, _Standby] = {}
        self._rehearsals: dict[AttemptId, _Rehearsal] = {}
        self._turn = asyncio.Lock()  # one rehearses at a time: tasks that run need the processors

    async def stand_by(self, request: m.StandBy) -> m.StandingBy:
        """Answer a StandBy. Raises SessionLost and SessionShared: another TaskManager can stand by for this job."""
        job_id = request.job_id
        if self._admission.runs(job_id):
            return m.StandingBy(ready=False, why="the job runs here")
        standby = self._jobs.get(job_id)
        if standby is None:
            self._keeper.session()
            self._admission.begins(job_id)
            standby = self._jobs[job_id] = _Standby(request, self._clock.monotonic() + request.lease)
            standby.work = self._tasks.job(f"stand by for {job_id}", self._stand_by(standby))
            standby.work.add_done_callback(partial(self._over, standby))
        elif request.job_leader_id >= standby.request.job_leader_id:
            standby.until = self._clock.monotonic() + request.lease
            if _follows(request, standby.request):
                standby.replace(request)
            standby.changed.set()
        return m.StandingBy(ready=not standby.why, why=standby.why)

    def give_way(self, job_id: JobId, *, alone: bool) -> None:
        """A task of the job is deployed here. What was prepared stays; what is being prepared is left.

        `alone`: the TaskManager is the job's own from now on, and the code of no other job may run here. Otherwise
        other jobs only lose a rehearsal: it would run beside the task, and might end its session.
        """
        rehearsing = {rehearsal.attempt.deployment.job.job_id for rehearsal in self._rehearsals.values()}
        for other, standby in self._jobs.items():
            if (alone or other == job_id or other in rehearsing) and standby.work is not None:
                standby.work.cancel()

    def lost(self, generation: int) -> list[Attempt]:
        """A session is lost. Return the rehearsals in it, whose directories nobody removes otherwise."""
        found = [one for one in self._rehearsals.values() if one.attempt.generation == generation]
        for rehearsal in found:
            rehearsal.error = sp.SessionLost("the session was lost")
            rehearsal.over.set()
        return [one.attempt for one in found]

    def processed(self, attempt_id: AttemptId) -> None:
        """An attempt has processed a micro-batch."""
        if (rehearsal := self._rehearsals.get(attempt_id)) is not None:
            rehearsal.left -= 1
            if rehearsal.left <= 0:
                rehearsal.over.set()

    def failed(self, attempt_id: AttemptId, error: ErrorInfo) -> None:
        """An attempt has failed."""
        if (rehearsal := self._rehearsals.get(attempt_id)) is not None:
            rehearsal.error = RemoteError(error)
            rehearsal.over.set()

    async def _stand_by(self, standby: _Standby) -> None:
        job_id = standby.request.job_id
        log.info("stands by for a job", job=job_id)
        while self._clock.monotonic() < standby.until:
            standby.changed.clear()
            await self._catch_up(standby)
            with contextlib.suppress(TimeoutError):  # `until` may have moved
                async with asyncio.timeout(max(0.0, standby.until - self._clock.monotonic())):
                    await standby.changed.wait()

    def _over(self, standby: _Standby, _: asyncio.Task[None]) -> None:
        job_id = standby.request.job_id
        log.info("stands by for a job no more", job=job_id)
        del self._jobs[job_id]
        self._release(standby)
        self._admission.ends(job_id)

    async def _catch_up(self, standby: _Standby) -> None:
        """Do what the last request asks for. What fails is tried again with the next one."""
        request = standby.request
        try:
            if standby.job != request.job:
                await self._deployer.artifacts(request.job)
                self._release(standby)
                standby.job = request.job
            for task in request.tasks:
                await self._follow(standby, task.restore.snapshot)
            if not request.job.libraries:  # otherwise its session could hold no other version of them
                async with self._turn:
                    for task in request.tasks:
                        await self._rehearse_once(standby, request, task)
                    await self._plan(standby, request)
        except (MinflinkError, OSError) as error:
            if standby.why != str(error):
                log.warning("cannot stand by for a job", job=request.job_id, error=str(error))
            standby.why = str(error)
        else:
            standby.why = next(iter(standby.notes.values()), "")

    async def _follow(self, standby: _Standby, snapshot: TaskSnapshot) -> None:
        before = standby.followed.get(snapshot.task_id)
        if before is not None and before.checkpoint_id == snapshot.checkpoint_id:
            return
        local, job = self._deployer.snapshots, standby.request.job
        scratch = attempt_directory(self._directory, f"standby-{secrets.token_hex(8)}")
        if sum(file.handle.length for file in snapshot.files) <= local.max_size:
            try:
                await self._deployer.follow(job, snapshot, before, scratch)
            except asyncio.CancelledError:
                self._stopping.leave(scratch)  # a thread that links files may outlive this task
                raise
        standby.followed[snapshot.task_id] = snapshot
        if local.holds(job.job_id, snapshot.task_id, snapshot.checkpoint_id):
            standby.notes.pop(snapshot.task_id, None)
        else:
            standby.notes[snapshot.task_id] = (
                f"no room for the state of {snapshot.task_id} (taskmanager.state.local.max-size)"
            )

    async def _plan(self, standby: _Standby, request: m.StandBy) -> None:
        """Have the session keep the plans of the tasks, as recent as they may be: a plan lists the files of tables."""
        now, generation, version = self._clock.monotonic(), self._keeper.generation, request.job.version
        if standby.planned is not None:
            where, last, at = standby.planned
            same = (last.job, _tasks_of(last)) == (request.job, _tasks_of(request))
            if where == generation and same and now - at < PLANNED:
                return
        if standby.failures[version] >= TRIES:
            return
        session = self._keeper.session()
        artifacts = await self._deployer.artifacts(request.job)
        try:
            tasks = tuple(task.task for task in request.tasks)
            prepare = sp.PrepareTasks(job=request.job, tasks=tasks, artifacts=artifacts)
            async with self._counted(standby, version, "its plans could not be built"):
                await session.ask(prepare, PLAN_TIMEOUT)
        finally:
            self._deployer.release_artifacts(request.job)
        standby.planned = generation, request, now

    async def _rehearse_once(self, standby: _Standby, request: m.StandBy, task: m.StandbyTask) -> None:
        """Rehearse the task, once for each session and version. If that fails, once more, and then no more."""
        if cannot_rehearse(task.task) or not self._admission.is_free():
            return
        key = request.job.version, task.task.id, task.task.parallelism, task.partitions
        generation = self._keeper.generation
        if standby.rehearsed.get(key) == generation or standby.failures[key] >= TRIES:
            return
        session = self._keeper.session()  # that there is none now is no failure of the task
        standby.why = f"it rehearses {task.task.id}"
        began = self._clock.monotonic()
        async with self._counted(standby, key, f"the rehearsal of {task.task.id} failed"):
            await self._rehearse(session, request, task)
            standby.rehearsed[key] = generation
            took = round(self._clock.monotonic() - began, 2)
            log.info("a task was rehearsed", job=request.job_id, task=task.task.id, seconds=took)

    @asynccontextmanager
    async def _counted(self, standby: _Standby, what: object, failed: str) -> AsyncIterator[None]:
        """Do something that runs the job's code. A failure is counted and noted, and raises no error here.

        A storage that does not answer is no failure of the job: its error is raised.
        """
        try:
            yield
        except (ArtifactUnavailable, StorageError):
            raise
        except (MinflinkError, OSError) as error:
            standby.failures[what] += 1
            standby.notes[what] = f"{failed}: {error.message if isinstance(error, MinflinkError) else error}"
            log.warning("cannot stand by for a job", job=standby.request.job_id, error=standby.notes[what])
        else:
            del standby.failures[what]
            standby.notes.pop(what, None)

    async def _rehearse(self, session: SessionProcess, request: m.StandBy, task: m.StandbyTask) -> None:
        """Run the task for a few micro-batches. Raises what its start raises, SessionLost, and what it fails with."""
        attempt = self._attempt(request, task)
        attempt_id = attempt.deployment.attempt_id
        rehearsal = self._rehearsals[attempt_id] = _Rehearsal(attempt)
        try:
            await self._deployer.bring_up(attempt, session)
            async with asyncio.timeout(FIRST_BATCH):
                await rehearsal.over.wait()
        except TimeoutError:
            log.info("a rehearsal found little to process", attempt=attempt_id)
        except (ArtifactUnavailable, StorageError):
            raise
        except (MinflinkError, OSError) as error:
            if rehearsal.error is not None:  # the session was lost, and with it the directory that was being laid out
                raise rehearsal.error from error
            raise
        finally:
            # In a task of its own: this one may be cancelled, because the job needs the session now.
            ending = self._tasks.job(f"end of rehearsal {attempt_id}", self._end(rehearsal))
        await asyncio.wait({ending})
        if rehearsal.error is not None:
            raise rehearsal.error

    def _attempt(self, request: m.StandBy, task: m.StandbyTask) -> Attempt:
        attempt_id = AttemptId(secrets.token_hex(16))
        directory = attempt_directory(self._directory, f"{REHEARSAL}{attempt_id}")
        played = rehearsed(task, directory / "rehearsed")
        deployment = m.DeployTask(
            job=request.job,
            task=played.task,
            allocation_id=AllocationId(""),
            attempt_id=attempt_id,
            attempt_number=0,
            job_leader_id=request.job_leader_id,
            restore=played.restore,
            partitions=task.partitions,
        )
        return Attempt.of(deployment, directory, self._keeper.generation)

    async def _end(self, rehearsal: _Rehearsal) -> None:
        attempt = rehearsal.attempt
        try:
            deadline = self._clock.monotonic() + STOP
            await self._stopping.stop(attempt, None, deadline, may_condemn=self._admission.is_free)
        finally:
            self._stopping.leave(attempt.directory)  # a thread that lays out files may outlive all this
            self._rehearsals.pop(attempt.deployment.attempt_id, None)
            if attempt.holds_artifacts:
                self._deployer.release_artifacts(attempt.deployment.job)

    def _release(self, standby: _Standby) -> None:
        job, standby.job = standby.job, None
        if job is not None:
            self._deployer.release_artifacts(job)


def _tasks_of(request: m.StandBy) -> list[tuple[Task, int]]:
    return [(task.task, task.partitions) for task in request.tasks]


def _follows(request: m.StandBy, last: m.StandBy) -> bool:
    """Whether a request is no older than the last one. It may be of the job's next JobMaster."""
    key = (request.job_leader_id, request.checkpoint_id)
    return key >= (last.job_leader_id, last.checkpoint_id)
