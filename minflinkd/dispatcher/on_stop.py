"""What the daemon does for each job before it stops (A15).

After a stop, the next daemon starts the jobs from their last checkpoints. So each job first takes a last checkpoint:
then no work is repeated, and all of the job's output is published. The job processes nothing after this checkpoint, so
at-least-once sinks repeat nothing either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from minflinkd.config.cluster_options import OnStop
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.savepoints import JobNotRunning
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner

LOOK = 0.1  # seconds between two checks of a job

log = structlog.get_logger(__name__)


async def before_stop(
    runs: Iterable[JobRun],
    how: OnStop,
    *,
    timeout: float,
    take_savepoint: Callable[[JobId], Awaitable[str]],
    tasks: TaskOwner,
    clock: Clock,
) -> None:
    """Do for all jobs in parallel what `how` says, for at most `timeout` seconds. Raises nothing: the stop continues.

    If this fails for a job, or takes too long, the job is logged. It then resumes from an earlier checkpoint.
    """
    if how is OnStop.SUSPEND:
        return

    async def cancel(run: JobRun) -> None:
        await run.cancel()
        while run.result is None:
            await clock.sleep(LOOK)

    async def savepoint(run: JobRun) -> None:
        uri = await take_savepoint(run.job_id)
        log.info("a savepoint before the stop", job=run.job_id, savepoint=uri)

    steps: list[tuple[str, Callable[[JobRun], Awaitable[None]]]] = [("last checkpoint", _last_checkpoint)]
    if how is OnStop.SAVEPOINT:
        steps.insert(0, ("savepoint", savepoint))
    elif how is OnStop.CANCEL:
        steps = [("cancellation", cancel)]

    async def settle(run: JobRun) -> None:
        while how is not OnStop.CANCEL and _looks_for_tasks(run):  # these still run from an earlier daemon (A14c)
            await clock.sleep(LOOK)
        for what, step in steps:  # if its savepoint fails, a job still needs its last checkpoint
            try:
                await step(run)
            except Exception as error:  # also after a bug, for example in a plugin
                log.warning(f"no {what} before the stop", job=run.job_id, error=str(error))

    live = [run for run in runs if run.result is None]
    work = {tasks.job(f"{how.value} of {run.job_id} before the stop", settle(run)): run for run in live}
    if work:
        _, late = await asyncio.wait(work, timeout=timeout)
        for task in late:
            log.warning(f"no {how.value} before the stop", job=work[task].job_id, error=f"not done in {timeout:g} s")


def _looks_for_tasks(run: JobRun) -> bool:
    master = run.master
    return master is not None and master.status is JobStatus.RECONCILING


async def _last_checkpoint(run: JobRun) -> None:
    """Raises JobNotRunning, CheckpointRefused, CheckpointFailed."""
    master = run.master
    if master is None or master.status is not JobStatus.RUNNING:
        status = JobStatus.INITIALIZING if master is None else master.status
        raise JobNotRunning(f"job {run.job_id} is {status.value}", hint="it goes on from its last checkpoint")
    log.info("a last checkpoint before the stop", job=run.job_id, checkpoint=await master.last_checkpoint())
