"""Stand-ins for the Dispatcher, the ResourceManager and a TaskManager, with realistic data, on a LocalNetwork."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from minflinkd.checkpoint.messages import GetCheckpointOptions, GetCheckpoints, GetOffsets
from minflinkd.checkpoint.offsets import Offsets, TaskOffsets
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import CheckpointStatistics
from minflinkd.dispatcher.submission import NoSession
from minflinkd.jobgraph.difference import Change, SettingChange, VertexChange
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import (
    Input,
    JobGraph,
    OnBadRecord,
    RestartKind,
    RestartStrategy,
    Sink,
    Source,
    Task,
    Vertex,
)
from minflinkd.rpc.jobs import (
    CancelJob,
    CheckpointJob,
    CheckpointsInBrief,
    ExecutionState,
    ExplainedTask,
    FailureRecord,
    GetJob,
    GetQuotas,
    GetSavepoint,
    HotRestart,
    HotRestartJob,
    JobDetails,
    JobOverview,
    JobStatus,
    ListJobs,
    OperationStatus,
    QuotaBalance,
    RecoveryRecord,
    RepeatedFailures,
    RescaleJob,
    RestartAnswer,
    RestartState,
    StateChange,
    StateFate,
    SubmissionAnswer,
    SubmitJob,
    TaskDetails,
    UserQuota,
    VersionChanges,
)
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import (
    Collected,
    CollectedRow,
    Done,
    DrainTaskManager,
    DumpThreads,
    GetResourceOverview,
    Hardware,
    ListLogs,
    ListTaskManagers,
    LogFile,
    LogMark,
    LogRange,
    Partition,
    ReadCollected,
    ReadLog,
    ReadPartitions,
    ResourceOverview,
    SampledStack,
    SampleStacks,
    SessionPhase,
    SlotStatus,
    Spent,
    StacksSampled,
    StartingTaskManager,
    TaskManagerInfo,
    TaskManagerReport,
    TaskMetrics,
    TaskPartitions,
    ThreadsDumped,
    ThreadText,
)
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, Mailbox, task_manager
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import Conflict, ErrorInfo, NotFound
from minflinkd.runtime.ids import AllocationId, AttemptId, InstanceId, JobId, LeaderId, ResourceId, TaskId, VertexId
from minflinkd.runtime.resource_profile import NO_PROFILE
from tests.unit.rest.checkpoint_statistics import ORDINARY, ORDINARY_OPTIONS

RUNNING = JobId("a" * 32)
FAILED = JobId("b" * 32)
TM = ResourceId("tm-0123456789ab")
STARTED = 1_700_000_000_000

TRACEBACK = """Traceback (most recent call last):
  File "flights.py", line 7, in delays
    return inputs["flights"].selectt("carrier")
AttributeError: 'DataFrame' object has no attribute 'selectt'
"""

LOG = b"".join(b"2026-01-01T00:00:%02dZ line %05d of the log\n" % (i % 60, i) for i in range(20_000))  # about 800 KB


JVM = {
    "supervisor.rss_bytes": 9e7,
    "jvm.rss_bytes": 2e9,
    "python_workers.rss_bytes": 3e8,
    "jvm.heap.used_bytes": 4e8,
    "jvm.heap.committed_bytes": 8e8,
    "jvm.heap.max_bytes": 1e9,
    "jvm.non_heap.used_bytes": 2e8,
    "jvm.non_heap.committed_bytes": 2.1e8,
    "jvm.non_heap.max_bytes": -1.0,
    "jvm.direct.count": 3.0,
    "jvm.direct.used_bytes": 3e6,
    "jvm.direct.capacity_bytes": 4e6,
    "jvm.gc.G1_Young_Generation.count": 31.0,
    "jvm.gc.G1_Young_Generation.time_ms": 420.0,
    "jvm.gc.G1_Old_Generation.count": 0.0,
    "jvm.gc.G1_Old_Generation.time_ms": 0.0,
    "jvm.gc_share": 0.012,
}


def graph(name: str = "carrier-delays") -> JobGraph:
    return JobGraph(
        name=name,
        parallelism=2,
        params={"minutes": 60, "db_password": "hunter2"},
        restart_strategy=RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=3),
        vertices=(
            Vertex(id=VertexId("flights"), source=Source(format="json", path="/data/flights")),
            Vertex(
                id=VertexId("delays"),
                inputs=(Input(id=VertexId("flights")),),
                sql="SELECT * FROM flights",
                on_bad_record=OnBadRecord.DROP,
            ),
            Vertex(
                id=VertexId("out"),
                inputs=(Input(id=VertexId("delays"), exchange=True),),
                sink=Sink(format="parquet", path="/data/out"),
            ),
        ),
    )


def details(
    job_id: JobId = RUNNING, status: JobStatus = JobStatus.RUNNING, failures: tuple[FailureRecord, ...] = ()
) -> JobDetails:
    job = graph()
    state = ExecutionState.RUNNING if status is JobStatus.RUNNING else ExecutionState.FAILED
    first = TaskDetails(
        task=Task(id=TaskId("flights"), vertices=job.vertices[:2], parallelism=2),
        state=state,
        attempt_id=AttemptId("c" * 32),
        attempt_number=1,
        resource_id=TM,
        start_ms=STARTED + 500,
        end_ms=-1,
        metrics=TaskMetrics(batch_id=41, batches=42, rows_in=1000, rows_out=10, batch_ms=120.0, watermark_ms=STARTED),
        rows=RowCounts(read={"flights": 5000}, written={"delays": 50}, rejected={"delays": 1200}),
        phases={"build": 0.2},
        allocation_id=AllocationId("f" * 32),
        entered={ExecutionState.SCHEDULED: STARTED + 500, ExecutionState.RUNNING: STARTED + 700},
    )
    second = TaskDetails(
        task=Task(id=TaskId("out"), vertices=job.vertices[2:], parallelism=2),
        state=state,
        attempt_id=AttemptId("d" * 32),
        attempt_number=0,
        resource_id=TM,
        start_ms=STARTED + 600,
        end_ms=-1,
        rows=RowCounts(read={"delays": 50}, written={"out": 20}),
    )
    return JobDetails(
        job_id=job_id,
        graph=job,
        status=status,
        start_ms=STARTED,
        end_ms=STARTED + 9000 if status.terminal else -1,
        timestamps={JobStatus.CREATED: STARTED, JobStatus.RUNNING: STARTED + 700},
        tasks=(first, second),
        restarts=1,
        failures=failures,
        recoveries=(RecoveryRecord(failed_ms=STARTED + 2000, cause="TaskManager lost", checkpoint_id=3),),
        submission={"stored": 0.01, "running": 0.7},
        waiting=("2 slots of one TaskManager are needed; 1 TaskManager is registered",),
    )


def failing() -> JobDetails:
    """Return the running job after seven failures in a row. The next restart is due."""
    last = FailureRecord(
        timestamp_ms=STARTED + 8000,
        error=ErrorInfo(code="user-code", message="ValueError: seven is poison"),
        task_id=TaskId("out"),
        task_name="out",
        resource_id=TM,
    )
    repeated = RepeatedFailures(failures=7, since_ms=STARTED + 1000, last=last)
    return msgspec.structs.replace(details(), restarts=7, repeated=repeated, next_restart_ms=STARTED + 9000)


def collecting() -> JobDetails:
    """Return the running job with a collect sink `seen` in addition to its files."""
    job = details()
    seen = Vertex(id=VertexId("seen"), inputs=(Input(id=VertexId("delays")),), sink=Sink(format="collect"))
    first, second = job.tasks
    second = replace(second, task=replace(second.task, vertices=(*second.task.vertices, seen)))
    return replace(job, graph=replace(job.graph, vertices=(*job.graph.vertices, seen)), tasks=(first, second))


FAILURE = FailureRecord(
    timestamp_ms=STARTED + 9000,
    error=ErrorInfo(code="user-code", message="delays failed", hint="see the traceback", traceback=TRACEBACK),
    task_id=TaskId("flights"),
    task_name="flights -> delays",
    attempt_id=AttemptId("c" * 32),
    resource_id=TM,
)


class Dispatcher:
    """Knows the jobs in `jobs`. Refuses submissions with `faults`."""

    def __init__(self, network: LocalNetwork) -> None:
        self.jobs: dict[JobId, JobDetails] = {
            RUNNING: details(),
            FAILED: details(FAILED, JobStatus.FAILED, (FAILURE,)),
        }
        self.checkpoints = ORDINARY
        self.checkpoint_options = ORDINARY_OPTIONS
        self.in_brief = CheckpointsInBrief(completed_ms=STARTED + 5300, duration_ms=300, interval_ms=5000)
        self.faults: tuple[GraphFault, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self.explained: tuple[ExplainedTask, ...] = ()
        self.submissions: list[SubmitJob] = []
        self.taken: list[CheckpointJob] = []
        self.checkpoint_error: ErrorInfo | None = None
        self.restarts: list[HotRestartJob | RescaleJob] = []
        self.restart_ends = RestartState.COMPLETED
        self.changed_artifacts: tuple[SettingChange, ...] = ()
        self.no_session = False
        self.patience = 10.0  # seconds that the server waits for a submission
        self.questions = 0
        self.silent = False
        self.broken = False
        self.mailbox = Mailbox(DISPATCHER)
        self.mailbox.on(ListJobs, self.list_jobs)
        self.mailbox.on(GetJob, self.get_job)
        self.mailbox.on(GetCheckpoints, self.get_checkpoints)
        self.mailbox.on(GetCheckpointOptions, self.get_checkpoint_options)
        self.mailbox.on(CheckpointJob, self.checkpoint_job)
        self.mailbox.on(GetSavepoint, self.get_savepoint)
        self.mailbox.on(GetOffsets, self.get_offsets)
        self.mailbox.on(CancelJob, self.cancel_job)
        self.mailbox.on(SubmitJob, self.submit_job)
        self.mailbox.on(HotRestartJob, self.restart_job)
        self.mailbox.on(RescaleJob, self.restart_job)
        self.mailbox.on(GetQuotas, self.get_quotas)
        network.attach(self.mailbox)

    async def list_jobs(self, _: ListJobs) -> tuple[JobOverview, ...]:
        self.questions += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.broken:
            raise ZeroDivisionError("a bug")
        return tuple(
            JobOverview(
                job_id=job.job_id,
                name=job.graph.name,
                status=job.status,
                start_ms=job.start_ms,
                end_ms=job.end_ms,
                last_modification_ms=job.start_ms + 700,
                tasks={ExecutionState.RUNNING: 2},
                assigned={} if job.status.terminal else {AllocationId("f" * 32): 1},
                on_trial=job.on_trial,
                restarts=job.restarts,
                repeated=job.repeated,
                next_restart_ms=job.next_restart_ms,
                waiting=" ".join(job.waiting),
                last_failure=job.failures[0] if job.failures else None,
                checkpoints=None if job.status.terminal else self.in_brief,
            )
            for job in self.jobs.values()
        )

    async def get_quotas(self, question: GetQuotas) -> tuple[UserQuota, ...]:
        """Every user has one job; alice is at her limit of jobs."""
        users = {question.user} | ({"alice", "bob"} if question.everybody else set())
        return tuple(
            UserQuota(
                user=user,
                jobs=QuotaBalance(used=1, limit=1 if user == "alice" else None),
                slots=QuotaBalance(used=2, limit=8),
                artifacts=QuotaBalance(used=1536, limit=2 << 30),
            )
            for user in sorted(users)
        )

    async def get_job(self, question: GetJob) -> JobDetails:
        if question.job_id not in self.jobs:
            raise NotFound(f"there is no job {question.job_id}", hint="`minflinkd list` lists them")
        return self.jobs[question.job_id]

    async def restart_job(self, request: HotRestartJob | RescaleJob) -> RestartAnswer:
        """Accept a hot restart, which is then already completed or on trial."""
        job = await self.get_job(GetJob(job_id=request.job_id))
        self.restarts.append(request)
        changes = VersionChanges(
            vertices=(VertexChange(vertex="delays", change=Change.CHANGED, fields=("sql",)),),
            settings=(*self.changed_artifacts, SettingChange(path="params.minutes", before="60", after="30")),
            state=(StateChange(vertex="delays", kind="stateStoreSave", fate=StateFate.KEPT),),
        )
        if self.faults or request.dry_run:
            return RestartAnswer(job_id=job.job_id, faults=self.faults, changes=changes)
        well = (RestartState.COMPLETED, RestartState.ON_TRIAL)
        error = None if self.restart_ends in well else FAILURE.error
        ended = HotRestart(
            number=len(job.hot_restarts) + 1,
            state=self.restart_ends,
            requested_ms=STARTED,
            checkpoint_id=7,
            phases={"stopped": 0.1, "running": 0.3},
            error=error,
        )
        self.jobs[job.job_id] = msgspec.structs.replace(job, hot_restarts=(ended, *job.hot_restarts))
        return RestartAnswer(job_id=job.job_id, number=ended.number, changes=changes)

    def end_trial(self, outcome: RestartState) -> None:
        """End the trial of the running job's last hot restart."""
        job = self.jobs[RUNNING]
        last = msgspec.structs.replace(job.hot_restarts[0], state=outcome)
        self.jobs[RUNNING] = msgspec.structs.replace(job, hot_restarts=(last, *job.hot_restarts[1:]))

    async def get_checkpoints(self, question: GetCheckpoints) -> CheckpointStatistics:
        await self.get_job(GetJob(job_id=question.job_id))
        return self.checkpoints

    async def get_checkpoint_options(self, question: GetCheckpointOptions) -> CheckpointOptions:
        await self.get_job(GetJob(job_id=question.job_id))
        return self.checkpoint_options

    async def get_offsets(self, question: GetOffsets) -> Offsets:
        await self.get_job(GetJob(job_id=question.job_id))
        return Offsets(job_id=question.job_id, tasks={TaskId("flights"): TaskOffsets(processed={"flights": {"0": 17}})})

    async def checkpoint_job(self, question: CheckpointJob) -> Done:
        self.taken.append(question)
        return Done()

    async def get_savepoint(self, question: GetSavepoint) -> OperationStatus:
        assert question.trigger_id == self.taken[-1].trigger_id
        return OperationStatus(done=True, location="63", error=self.checkpoint_error)

    async def cancel_job(self, question: CancelJob) -> Done:
        job = await self.get_job(GetJob(job_id=question.job_id))
        if job.status.terminal:
            raise Conflict(f"job {job.job_id} is {job.status}", hint="a job that has ended cannot be cancelled")
        self.become(job.job_id, JobStatus.CANCELED)
        return Done()

    async def submit_job(self, question: SubmitJob) -> SubmissionAnswer:
        self.submissions.append(question)
        if self.silent:
            await asyncio.Event().wait()
        if self.no_session:
            raise NoSession("no TaskManager was there to analyse the job")
        if not self.faults and not question.dry_run:
            self.jobs[question.job_id] = details(question.job_id)
        return SubmissionAnswer(
            job_id=question.job_id, faults=self.faults, warnings=self.warnings, tasks=self.explained
        )

    def become(self, job_id: JobId, status: JobStatus) -> None:
        end = STARTED + 9000 if status.terminal else -1
        self.jobs[job_id] = msgspec.structs.replace(self.jobs[job_id], status=status, end_ms=end)


class ResourceManager:
    """Knows one TaskManager with two slots, one of them taken. It is fenced, as the real one is."""

    def __init__(self, network: LocalNetwork) -> None:
        self.mailbox = Mailbox(RESOURCE_MANAGER, fence=LeaderId("e" * 32))
        self.mailbox.on(GetResourceOverview, self.overview, fenced=False)
        self.mailbox.on(ListTaskManagers, self.list, fenced=False)
        self.mailbox.on(DrainTaskManager, self.drain, fenced=False)
        self.drained = False
        self.held: list[str] = []  # why its job is still there, for each look at it while it is drained; then it ends
        self.version = "0.0.9"
        self.standalone = False
        self.slot_profile = NO_PROFILE
        self.late = 0  # looks at the cluster until it has registered
        self.ended = False  # by itself, since it was listed
        self.registered = True
        self.lost = 1
        self.metrics = {"process.rss": 1e8} | JVM
        self.drains = 0  # requests to drain it that were answered
        self.looks = 0  # at the list
        self.before_look: Callable[[int], None] = lambda looks: None
        self.before_drain: Callable[[], None] = lambda: None
        network.attach(self.mailbox)

    async def overview(self, _: GetResourceOverview) -> ResourceOverview:
        starting = StartingTaskManager(resource_id=ResourceId("tm-ba9876543210"), since_ms=STARTED)
        self.late = max(0, self.late - 1)
        return ResourceOverview(task_managers=1, slots_total=2, slots_free=1, starting=(starting,), lost=self.lost)

    async def drain(self, request: DrainTaskManager) -> Done:
        self.before_drain()
        if self.ended:
            self.registered = False
        if request.resource_id != TM or not self.registered:
            raise NotFound(f"no TaskManager {request.resource_id} is registered")
        self.drained = not request.undo
        self.drains += self.drained
        return Done()

    async def list(self, _: ListTaskManagers) -> tuple[TaskManagerInfo, ...]:
        self.looks += 1
        self.before_look(self.looks)
        if self.late or not self.registered or (self.drained and not self.held):
            return ()
        held_by = {RUNNING: self.held.pop(0)} if self.drained else {}
        slots = (SlotStatus(index=0, job_id=RUNNING, allocation_id=AllocationId("f" * 32)), SlotStatus(index=1))
        return (
            TaskManagerInfo(
                resource_id=TM,
                instance_id=InstanceId("1" * 32),
                address=f"taskmanager/{TM}",
                pid=4711,
                hardware=Hardware(cpu_cores=2, memory_bytes=24 * 1024**3),
                registered_ms=STARTED,
                last_heartbeat_ms=STARTED + 8000,
                log_directory="/logs",
                report=TaskManagerReport(resource_id=TM, slots=slots, session=SessionPhase.READY, metrics=self.metrics),
                start_phases={"session": 3.5},
                build=self.version,
                standalone=self.standalone,
                slot_profile=self.slot_profile,
                drained=self.drained,
                held_by=held_by,
            ),
        )


def partition(index: int, ms: int, rows: int, **fields: Any) -> Partition:
    """Return a partition that has done ten times as much since the query was started as in the last micro-batch."""
    last = Spent(ms=ms, rows_in=rows, rows_out=rows // 2, bytes_in=rows * 8, bytes_out=rows * 4)
    total = Spent(ms=ms * 10, rows_in=rows * 10, rows_out=rows * 5, bytes_in=rows * 80, bytes_out=rows * 40)
    where: dict[str, Any] = {"host": "127.0.0.1", "executor": "driver", "attempt": 0}
    done: dict[str, Any] = {"status": "SUCCESS", "started_ms": STARTED + 8000, "last": last, "total": total}
    return Partition(index=index, **(where | done | fields))


SKEWED = TaskPartitions(batch_id=41, partitions=2, told=(partition(0, 100, 90), partition(1, 20, 10)))


class TaskManager:
    """Has two logs, two collected rows, and two partitions of each task. It may have fallen `silent`."""

    def __init__(self, network: LocalNetwork) -> None:
        self.logs = {"session.log": b"spark\n", "taskmanager.log": LOG}
        self.reads: list[ReadLog] = []
        self.samples = 0  # how often they were taken
        self.partitions = SKEWED
        self.looks = 0  # at partitions
        self.silent = False
        self.mailbox = Mailbox(task_manager(TM))
        self.mailbox.on(ListLogs, self.list_logs)
        self.mailbox.on(ReadLog, self.read_log)
        self.mailbox.on(ReadCollected, self.read_collected)
        self.mailbox.on(DumpThreads, self.dump)
        self.mailbox.on(SampleStacks, self.sample)
        self.mailbox.on(ReadPartitions, self.read_partitions)
        network.attach(self.mailbox)

    async def list_logs(self, _: ListLogs) -> tuple[LogFile, ...]:
        return tuple(LogFile(name=name, size=len(data)) for name, data in self.logs.items())

    async def read_log(self, question: ReadLog) -> LogRange:
        self.reads.append(question)
        if question.name not in self.logs:
            raise NotFound(f"there is no log {question.name}")
        data = self.logs[question.name]
        mark = LogMark(file="1-1", size=len(data), end="")
        return LogRange(mark=mark, data=data[question.offset : question.offset + question.length])

    async def read_collected(self, question: ReadCollected) -> Collected:
        assert (question.attempt_id, question.vertex_id) == ("d" * 32, "seen")
        rows = (CollectedRow(batch_id=40, row='{"carrier":"UA"}'), CollectedRow(batch_id=41, row='{"carrier":"AA"}'))
        return Collected(rows=rows, dropped=7)

    async def dump(self, _: DumpThreads) -> ThreadsDumped:
        return ThreadsDumped(
            threads=(ThreadText(name="main", text='"main" session child\n\n'),), missing=("py-spy is not installed",)
        )

    async def read_partitions(self, _: ReadPartitions) -> TaskPartitions:
        self.looks += 1
        if self.silent:
            await asyncio.Event().wait()
        return self.partitions

    async def sample(self, _: SampleStacks) -> StacksSampled:
        self.samples += 1
        waiting = SampledStack(frames=("JVM", "run", "sleep"), count=3, running=False)
        adding = SampledStack(frames=("JVM", "run", "add"), count=2, running=True, partition=1)
        return StacksSampled(stacks=(waiting, adding))
