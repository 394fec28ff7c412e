"""The session child's side of the protocol: carries out the supervisor's requests on threads."""

from __future__ import annotations

import asyncio
import graphlib
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Execution, RecordFormat, Task
from minflinkd.rpc.messages import (
    Analysis,
    Collected,
    Done,
    Notice,
    StateFound,
    StateGrowth,
    TaskPartitions,
    ThreadText,
)
from minflinkd.rpc.network import Mailbox
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime import stacks
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError, RemoteError
from minflinkd.runtime.ids import AttemptId, TaskId, VertexId
from minflinkd.taskmanager.child.protocol import (
    SESSION,
    AbortSnapshot,
    AnalyzeTasks,
    BatchFinished,
    CompareStates,
    ConfirmCheckpoint,
    DrainAttempt,
    InputEnded,
    NotDrainable,
    Ping,
    Pong,
    PrepareTasks,
    ReadStates,
    ResizeAttempt,
    RunTask,
    SnapshotTaken,
    StacksTold,
    StepTask,
    StopTask,
    TakeSnapshot,
    TaskFailed,
    TaskRunning,
    TaskStepped,
    TaskStopped,
    TaskUnloaded,
    TellCollected,
    TellPartitions,
    TellStacks,
    TellThreads,
    ThreadsTold,
    UnknownAttempt,
    UnloadTask,
)
from minflinkd.taskmanager.session import own_stacks
from minflinkd.taskmanager.session.analysis import option_checks, physical_plan, rehearsal, script_queries, sink_targets
from minflinkd.taskmanager.session.code.artifacts import UnusableArtifact
from minflinkd.taskmanager.session.inspection import reading
from minflinkd.taskmanager.session.plan import real_time, streamable
from minflinkd.taskmanager.session.plan.building import build
from minflinkd.taskmanager.session.plan.prepared import PreparedTask
from minflinkd.taskmanager.session.query.building import Engine, interrupt
from minflinkd.taskmanager.session.query.building import build as build_task
from minflinkd.taskmanager.session.query.ending import Ending
from minflinkd.taskmanager.session.query.running import Events, RunningQuery
from minflinkd.taskmanager.session.query.starting import start
from minflinkd.taskmanager.session.query.stepping import step
from minflinkd.taskmanager.session.query.stopped import StoppedQuery
from minflinkd.taskmanager.session.restore import continuation
from minflinkd.taskmanager.session.restore.continuation import Standing
from minflinkd.taskmanager.session.spark import jvm_view
from minflinkd.taskmanager.session.spark.failures import build_failure

log = structlog.get_logger(__name__)

R = TypeVar("R")
_UNLOADED_AFTER = 60.0  # seconds: many times Spark's maintenance interval
_HEIR_PATIENCE = 5.0  # seconds allowed between the end of one version of a job and the deployment of the next
_THREADS = 256  # at most: threads are created as needed and reused


class _Attempt:
    """One attempt, from its request to its stop. `started` is done when it runs, or when that has failed."""

    def __init__(
        self, request: RunTask, ending: Ending, started: asyncio.Future[tuple[RunningQuery, TaskRunning]]
    ) -> None:
        self.request = request
        self.ending = ending
        self.started = started
        self.stopped: asyncio.Future[StoppedQuery | None] | None = None
        self.snapshots: dict[int, asyncio.Future[SnapshotTaken]] = {}  # being taken, by checkpoint
        self.ends = False  # runs to the end of its input

    @property
    def query(self) -> RunningQuery:
        """Raises UnknownAttempt if it does not run."""
        if not self.started.done() or self.started.exception() is not None:
            raise UnknownAttempt(f"attempt {self.request.attempt_id} does not run here")
        return self.started.result()[0]


class _Stopped:
    """A stopped attempt that is not unloaded yet.

    `claimed`: a starting attempt may continue from it, however long its start takes. `heir`: the attempt that does
    continue from it, or None; not done while that is open.
    """

    def __init__(self, query: StoppedQuery) -> None:
        self.query = query
        self.claimed = False
        self.heir: asyncio.Future[AttemptId | None] = asyncio.get_running_loop().create_future()
        if query.standing is None:
            self.heir.set_result(None)

    def inherited(self, heir: AttemptId | None) -> None:
        if not self.heir.done():
            self.heir.set_result(heir)


class SessionChild(Component):
    """Keeps attempts by id. Spark is only called on threads, so the loop answers while user code runs or blocks."""

    def __init__(self, engine: Engine, *, tell: Callable[[Notice], None]) -> None:
        super().__init__("session child")
        self._engine = engine
        self._tell = tell
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._stopped: dict[AttemptId, _Stopped] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="session")
        self.mailbox = Mailbox(SESSION)
        self.mailbox.on(RunTask, self._run_task)
        self.mailbox.on(StopTask, self._stop_task)
        self.mailbox.on(UnloadTask, self._unload_task)
        self.mailbox.on(TakeSnapshot, self._take_snapshot)
        self.mailbox.on(DrainAttempt, self._drain)
        self.mailbox.on(ResizeAttempt, self._resize)
        self.mailbox.on(ConfirmCheckpoint, self._confirm)
        self.mailbox.on(AbortSnapshot, self._abort_snapshot)
        self.mailbox.on(TellCollected, self._tell_collected)
        self.mailbox.on(AnalyzeTasks, self._analyze)
        self.mailbox.on(PrepareTasks, self._prepare)
        self.mailbox.on(ReadStates, self._read_states)
        self.mailbox.on(CompareStates, self._compare_states)
        self.mailbox.on(Ping, self._ping)
        if engine.session.config.stepped:
            self.mailbox.on(StepTask, self._step)
        self.mailbox.on(TellThreads, self._tell_threads)
        self.mailbox.on(TellStacks, self._tell_stacks)
        self.mailbox.on(TellPartitions, self._tell_partitions)

    def _blocking(self, work: Callable[[], R]) -> asyncio.Future[R]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    # --- attempts ------------------------------------------------------------------------------------------------

    async def _run_task(self, request: RunTask) -> TaskRunning:
        attempt = self._attempts.get(request.attempt_id)
        if attempt is None:
            before = self._before(request)
            standing = before.query.standing if before is not None else None
            ending, events = Ending(), self._events(request.attempt_id)
            started = self._blocking(lambda: _start(self._engine, request, standing, events, ending))
            attempt = self._attempts[request.attempt_id] = _Attempt(request, ending, started)
            if before is not None:
                before.claimed = True
                started.add_done_callback(partial(self._settle, before, request.attempt_id))
            started.add_done_callback(partial(self._on_started, attempt))
        _, answer = await asyncio.shield(attempt.started)
        return answer

    def _before(self, request: RunTask) -> _Stopped | None:
        """Return the stopped attempt that this one may continue from, and release others of its task from waiting."""
        found = None
        for stopped in self._stopped.values():
            standing = stopped.query.standing
            if standing is None or stopped.claimed or stopped.heir.done() or standing.job_id != request.job.job_id:
                continue
            if continuation.may_follow(standing, request):
                found = stopped
            elif standing.task_id == request.task.id:
                stopped.inherited(None)
        return found

    @staticmethod
    def _settle(before: _Stopped, heir: AttemptId, started: asyncio.Future[tuple[RunningQuery, TaskRunning]]) -> None:
        failed = started.cancelled() or started.exception() is not None
        before.inherited(heir if not failed and started.result()[0].continues else None)

    def _on_started(self, attempt: _Attempt, started: asyncio.Future[tuple[RunningQuery, TaskRunning]]) -> None:
        request = attempt.request
        if started.cancelled() or started.exception() is not None:
            self._attempts.pop(request.attempt_id, None)
            return
        # Both run on threads of the pool, and end when the query does.
        self._threads.submit(attempt.query.watch)
        # Input already ended before the drain checkpoint; run to the end again.
        ended = request.restored is not None and request.restored.input_ended
        if request.job.mode == "batch" or ended:
            attempt.ends = True
            self._threads.submit(attempt.query.run_to_end)

    def _events(self, attempt_id: AttemptId) -> Events:
        loop = asyncio.get_running_loop()

        def tell(notice: Notice) -> None:
            loop.call_soon_threadsafe(self._tell, notice)

        return Events(
            batch_finished=lambda metrics: tell(BatchFinished(attempt_id=attempt_id, metrics=metrics)),
            input_ended=lambda metrics: tell(InputEnded(attempt_id=attempt_id, metrics=metrics)),
            failed=lambda error: tell(TaskFailed(attempt_id=attempt_id, error=error)),
        )

    async def _stop_task(self, request: StopTask) -> TaskStopped:
        attempt = self._attempts.get(request.attempt_id)
        if attempt is None:
            return TaskStopped(ended=True)
        try:
            async with asyncio.timeout(request.timeout):
                if attempt.stopped is None:
                    attempt.ending.announce_stop()
                    if not attempt.started.done():
                        self._threads.submit(interrupt, self._engine, attempt.request)
                    await asyncio.wait([attempt.started])
                    if attempt.started.exception() is not None:
                        return TaskStopped(ended=True)
                    if attempt.stopped is None:
                        attempt.stopped = self._blocking(attempt.query.stop)
                stopped = await asyncio.shield(attempt.stopped)
        except TimeoutError:
            log.error("user code does not come back", attempt=request.attempt_id, timeout=request.timeout)
            return TaskStopped(ended=False)
        self._attempts.pop(request.attempt_id, None)
        if stopped is not None:
            self._stopped[request.attempt_id] = _Stopped(stopped)
        return TaskStopped(ended=stopped is not None)

    async def _unload_task(self, request: UnloadTask) -> TaskUnloaded:
        stopped = self._stopped.get(request.attempt_id)
        if stopped is None:
            return TaskUnloaded(unloaded=request.attempt_id not in self._attempts)
        await asyncio.wait([stopped.heir], timeout=_HEIR_PATIENCE)
        if stopped.claimed:  # the claim is settled when that attempt has started, or has failed to start
            await asyncio.wait([stopped.heir])
        stopped.inherited(None)  # from now on, no attempt can continue from it
        unloaded = await self._blocking(stopped.query.unload)
        if self._stopped.pop(request.attempt_id, None) is not None and self._engine.session.config.on_cluster:
            self.tasks.job(f"remove {request.attempt_id}", self._remove_later(stopped.query.directory))
        return TaskUnloaded(unloaded=unloaded, heir=await stopped.heir)

    async def _remove_later(self, directory: str) -> None:
        """Remove a stopped attempt's directory once executors have most likely unloaded its state stores.

        They do so at their next maintenance, and do not report it. A write into a directory that is gone does no harm;
        directories that are never removed would fill the disk.
        """
        await asyncio.sleep(_UNLOADED_AFTER)
        await self._blocking(lambda: shutil.rmtree(directory, ignore_errors=True))

    def _attempt(self, attempt_id: AttemptId) -> _Attempt:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            raise UnknownAttempt(f"attempt {attempt_id} does not run here")
        return attempt

    # --- checkpoints ---------------------------------------------------------------------------------------------

    async def _take_snapshot(self, request: TakeSnapshot) -> SnapshotTaken:
        attempt = self._attempt(request.attempt_id)
        query, taking, number = attempt.query, attempt.snapshots, request.checkpoint_id
        if number not in taking:

            def taken(future: asyncio.Future[SnapshotTaken]) -> None:
                del taking[number]
                _ = future.cancelled() or future.exception()  # retrieve it: the caller who would may be gone

            taking[number] = self._blocking(lambda: query.take_snapshot(request))
            taking[number].add_done_callback(taken)
        return await asyncio.shield(taking[number])

    async def _drain(self, request: DrainAttempt) -> Done:
        attempt = self._attempt(request.attempt_id)
        query = attempt.query
        if query.in_real_time:
            raise NotDrainable("in real-time mode a query cannot run to the end of its input")
        if not attempt.ends:
            attempt.ends = True
            self._threads.submit(query.run_to_end)
        return Done()

    async def _resize(self, request: ResizeAttempt) -> Done:
        query = self._attempt(request.attempt_id).query
        await self._blocking(lambda: query.resize(request.slots))
        return Done()

    async def _step(self, request: StepTask) -> TaskStepped:
        query = self._attempt(request.attempt_id).query
        return await self._blocking(lambda: step(self._engine.session, query, request))

    async def _confirm(self, request: ConfirmCheckpoint) -> Done:
        query = self._attempt(request.attempt_id).query
        await self._blocking(lambda: query.confirm(request.checkpoint_id))
        return Done()

    async def _tell_collected(self, request: TellCollected) -> Collected:
        return self._attempt(request.attempt_id).query.collected(request.vertex_id)

    async def _abort_snapshot(self, request: AbortSnapshot) -> Done:
        """Abort a snapshot. Answers once no more links are made: the supervisor then removes those that were."""
        attempt = self._attempts.get(request.attempt_id)
        if attempt is not None and attempt.started.done():
            attempt.query.abort_snapshot(request.checkpoint_id)
            if (taking := attempt.snapshots.get(request.checkpoint_id)) is not None:
                await asyncio.wait({taking})
        return Done()

    # --- questions -----------------------------------------------------------------------------------------------

    async def _analyze(self, request: AnalyzeTasks) -> Analysis:
        return await self._blocking(lambda: _analysis(self._engine, request))

    async def _prepare(self, request: PrepareTasks) -> Done:
        await self._blocking(lambda: _prepare(self._engine, request))
        return Done()

    async def _read_states(self, request: ReadStates) -> StateFound:
        session = self._engine.session
        return await self._blocking(lambda: reading.as_domain_error(lambda: reading.read(session, request)))

    async def _compare_states(self, request: CompareStates) -> StateGrowth:
        session = self._engine.session
        return await self._blocking(lambda: reading.as_domain_error(lambda: reading.compare(session, request)))

    async def _ping(self, _: Ping) -> Pong:
        await self._blocking(self._engine.prepared.drop_old)
        stores = await self._blocking(self._engine.stores.loaded)
        used = await self._blocking(lambda: jvm_view.figures_or_none(self._engine.session.jvm))
        return Pong(attempts=tuple(self._attempts), threads=threading.active_count(), state_stores=stores, jvm=used)

    async def _tell_threads(self, _: TellThreads) -> ThreadsTold:
        tasks = [(one, "task of the session child") for one in stacks.task_stacks()]
        threads = [(one, "session child") for one in stacks.thread_stacks()]
        python = (ThreadText(name=one.name, text=stacks.as_text(one, kind)) for one, kind in (*threads, *tasks))
        jvm = await self._blocking(lambda: jvm_view.threads(self._engine.session.jvm))
        return ThreadsTold(threads=(*python, *jvm))

    async def _tell_stacks(self, request: TellStacks) -> StacksTold:
        run = self._attempt(request.attempt_id).query.run_id
        jvm, python = await asyncio.gather(
            self._blocking(lambda: jvm_view.sample(self._engine.session.jvm, run, request.seconds)),
            self._blocking(lambda: own_stacks.sample(request.seconds)),
        )
        return StacksTold(jvm=tuple(jvm), python=tuple(python))

    async def _tell_partitions(self, request: TellPartitions) -> TaskPartitions:
        return await self._blocking(self._attempt(request.attempt_id).query.partitions)


def _start(
    engine: Engine, request: RunTask, before: Standing | None, events: Events, ending: Ending
) -> tuple[RunningQuery, TaskRunning]:
    """Build and start a task. Errors leave here with a code and, for user code, its traceback, as they are sent."""
    try:
        return start(build_task(engine, request, before, ending.over), events, ending)
    except MinflinkError:
        raise
    except BaseException as error:
        raise RemoteError(build_failure(error)) from error


def _analysis(engine: Engine, request: AnalyzeTasks) -> Analysis:
    job_id = request.job.job_id
    try:
        code = engine.code.load(job_id, request.artifacts)
    except UnusableArtifact as error:
        return Analysis(faults=(GraphFault(path="artifacts", problem=error.message, hint=error.hint),))
    if request.script:
        try:
            return script_queries.found(engine.session, request.job, request.script, code)
        finally:
            code.release()
    faults: list[GraphFault] = []
    schemas: dict[VertexId, str] = {}
    operators: dict[TaskId, tuple[PlanNode, ...]] = {}
    exchanges: dict[VertexId, str] = {}
    judged: dict[TaskId, dict[int, str]] = {}
    plans: dict[TaskId, str] = {}
    notes: list[str] = []
    record_formats: dict[VertexId, dict[str, RecordFormat]] = {}
    prepared: list[PreparedTask] = []
    try:
        for task in _upstream_first(request.tasks):
            inputs = {edge.id: exchanges[edge.id] for edge in task.inputs if edge.id in exchanges}
            built = build(engine.session, request.job, task, code, inputs)
            with code.in_session(built.spark):
                if not built.faults:
                    built.faults.extend(streamable.when_planned(engine.session, built, task))
                option_checks.check(engine.session, built, request.job, task)
                built.faults.extend(sink_targets.faults(engine.session, built))
            prepared.append(PreparedTask(request.job, task, inputs, built, engine.code.load(job_id, request.artifacts)))
            faults.extend(built.faults)
            if task.readers and built.frame is not None:
                exchanges[task.end] = built.schema
            schemas.update({name: frame.schema.simpleString() for name, frame in built.frames.items()})
            operators[task.id] = built.operators
            record_formats.update(built.record_formats)
            notes.extend(map(engine.session.secrets.hidden, built.notes))
            if request.job.execution is Execution.AUTO and not built.faults:
                notes.append(engine.session.secrets.hidden(real_time.note(built, task)))
            if request.explain and not built.faults and built.frame is not None:
                plans[task.id] = physical_plan.told(engine.session, built)
            if (held := request.held.get(task.id)) is not None and not built.faults:
                found = rehearsal.verdicts(engine.session, built, held.operators, Path(held.directory))
                judged[task.id] = dict(found)
        # Plans that are kept belong to `engine.prepared` from here on. Those of a faulty job are released below.
        engine.prepared.keep(job_id, [] if faults else prepared)
        prepared = prepared if faults else []
    finally:
        code.release()
        for task_at_fault in prepared:
            task_at_fault.release()
    hidden = map(engine.session.secrets.hidden_in_fault, faults)
    return Analysis(
        faults=tuple(dict.fromkeys(hidden)),
        schemas=schemas,
        operators=operators,
        verdicts=judged,
        plans=plans,
        notes=tuple(notes),
        record_formats=record_formats,
    )


def _prepare(engine: Engine, request: PrepareTasks) -> None:
    """Build the tasks for a deployment that may follow. Raises UnusableArtifact, LibraryConflict, SessionLost."""
    job_id, exchanges = request.job.job_id, dict[VertexId, str]()
    prepared: list[PreparedTask] = []
    code = engine.code.load(job_id, request.artifacts)
    try:
        for task in _upstream_first(request.tasks):
            inputs = {edge.id: exchanges[edge.id] for edge in task.inputs if edge.id in exchanges}
            plan = build(engine.session, request.job, task, code, inputs)
            prepared.append(PreparedTask(request.job, task, inputs, plan, engine.code.load(job_id, request.artifacts)))
            if plan.faults or plan.frame is None:
                break  # an attempt will report them
            if task.readers:
                exchanges[task.end] = plan.schema
        else:
            engine.prepared.keep(job_id, prepared)
            prepared = []
    finally:
        code.release()
        for task_at_fault in prepared:
            task_at_fault.release()


def _upstream_first(tasks: tuple[Task, ...]) -> list[Task]:
    """Sort tasks so that upstream ones come first: a task is built with the schemas that they yield."""
    upstream = {task.id: {reader.id for reader in tasks if task.id in reader.readers} for task in tasks}
    by_id = {task.id: task for task in tasks}
    return [by_id[name] for name in graphlib.TopologicalSorter(upstream).static_order() if name in by_id]
