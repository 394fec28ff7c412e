"""A job as shown over HTTP and stored as its result. Built from the scheduler's state."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace as copy

from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobmaster.job_history import WallClock, record_of
from minflinkd.jobmaster.scheduler.execution import ENDED, Execution
from minflinkd.jobmaster.scheduler.rollout import Rollout
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.rpc.jobs import ExecutionState, JobDetails, JobStatus, RecoveryRecord, RepeatedFailures, TaskDetails
from minflinkd.runtime.ids import AttemptId, JobId, TaskId


def details(
    job_id: JobId,
    graph: JobGraph,
    state: JobState,
    *,
    submitted_ms: int,
    wall: WallClock,
    submission: dict[str, float],
    task_phases: Mapping[AttemptId, dict[str, float]],
    published: Mapping[TaskId, tuple[int, int]],
) -> JobDetails:
    """Build the details of a job.

    `submission` maps each phase before the JobMaster to seconds since the submission. `task_phases` is keyed by attempt
    id. `published` has for each task the latest checkpoint that its sinks have published, and how many wait.
    """
    entered = {status.value: wall(at) for status, at in state.entered.items()}
    timestamps = {status.value: entered.get(status.value, 0) for status in JobStatus}
    timestamps[JobStatus.INITIALIZING.value] = submitted_ms
    ended = entered.get(state.status.value, -1) if state.status.terminal else -1
    first, *recoveries = state.rollouts or (Rollout(0.0),)
    return JobDetails(
        job_id=job_id,
        graph=graph,
        status=state.status,
        start_ms=submitted_ms,
        end_ms=ended,
        timestamps=timestamps,
        tasks=tuple(_task(state, e, wall, task_phases, published) for e in state.executions.values()),
        restarts=state.restarts,
        next_restart_ms=-1 if state.restart_at is None else wall(state.restart_at),
        repeated=_repeated(state, wall),
        failures=tuple(record_of(failure, wall) for failure in reversed(state.failures)),
        recoveries=tuple(_recovery(r, state, wall) for r in recoveries),
        submission=submission | first.seconds(),
        waiting=tuple(sorted({why for need, why in state.waiting.items() if need in state.pool.needs})),
        sinks_settled=state.sinks_error is None,
    )


def _repeated(state: JobState, wall: WallClock) -> RepeatedFailures | None:
    streak = state.streak
    if not state.restarts_repeatedly or streak.last is None:
        return None
    last = record_of(streak.last, wall)
    without = copy(last, error=copy(last.error, traceback=""))  # `failures` has the traceback
    return RepeatedFailures(failures=streak.failures, since_ms=wall(streak.since), last=without)


def _task(
    state: JobState,
    execution: Execution,
    wall: WallClock,
    task_phases: Mapping[AttemptId, dict[str, float]],
    published: Mapping[TaskId, tuple[int, int]],
) -> TaskDetails:
    task = state.tasks[execution.task_id]
    times = dict(execution.entered)
    began = times.get(ExecutionState.SCHEDULED)
    ended = next((at for s, at in execution.entered if s in ENDED), None)
    latest, waiting = published.get(execution.task_id, (0, 0))
    return TaskDetails(
        task=copy(task, parallelism=execution.parallelism or task.parallelism),
        state=execution.state,
        attempt_id=execution.attempt_id,
        attempt_number=execution.number,
        resource_id=execution.resource_id,
        start_ms=wall(began) if began is not None else -1,
        end_ms=wall(ended) if ended is not None else -1,
        metrics=execution.metrics,
        rows=execution.rows,
        phases=task_phases.get(execution.attempt_id, {}) if execution.attempt_id is not None else {},
        allocation_id=execution.allocation_id if execution.on_task_manager else None,
        partitions=execution.partitions,
        entered={state.value: wall(at) for state, at in execution.entered},
        published=latest,
        unpublished=waiting,
    )


def _recovery(rollout: Rollout, state: JobState, wall: WallClock) -> RecoveryRecord:
    in_part = rollout.tasks != state.tasks.keys()
    return RecoveryRecord(
        failed_ms=wall(rollout.began),
        cause=rollout.cause,
        checkpoint_id=rollout.checkpoint_id,
        phases=rollout.seconds(),
        tasks=tuple(state.tasks[task].name for task in sorted(rollout.tasks)) if in_part else (),
    )
