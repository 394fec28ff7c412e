"""What is done for each job before the daemon stops (A15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from minflinkd.checkpoint.causes import CheckpointFailed, FailureCause
from minflinkd.config.cluster_options import OnStop
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.on_stop import before_stop
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.interface import StorageFull

pytestmark = pytest.mark.looptime

FAILED = CheckpointFailed(3, FailureCause.EXPIRED)


@dataclass
class Master:
    did: list[str]
    status: JobStatus = JobStatus.RUNNING
    takes: float = 1.0
    error: MinflinkError | None = None

    async def last_checkpoint(self) -> int:
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        self.did.append("checkpoint")
        return 4


@dataclass
class Run:
    """A job, with what was done for it."""

    name: str
    did: list[str] = field(default_factory=list)
    master: Master | None = None
    result: object = None

    def __post_init__(self) -> None:
        self.job_id = JobId(self.name * 32)
        self.master = Master(self.did)

    async def cancel(self) -> None:
        self.did.append("cancelled")
        asyncio.get_running_loop().call_later(2.0, self._end)

    def _end(self) -> None:
        self.did.append("ended")
        self.result = object()


@pytest_asyncio.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    owner = TaskOwner("dispatcher")
    yield owner
    await owner.aclose()


async def stop(
    tasks: TaskOwner, how: OnStop, *runs: Run, timeout: float = 30.0, no_savepoint: Exception | None = None
) -> float:
    """Do what `how` says for the jobs, and return how long that took."""
    began = asyncio.get_running_loop().time()

    async def take_savepoint(job_id: JobId) -> str:
        if no_savepoint is not None:
            raise no_savepoint
        next(run for run in runs if run.job_id == job_id).did.append("savepoint")
        return "file:///savepoints/1"

    await before_stop(
        cast(list[JobRun], list(runs)),
        how,
        timeout=timeout,
        take_savepoint=take_savepoint,
        tasks=tasks,
        clock=SystemClock(),
    )
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize(
    ("how", "done"),
    [
        (OnStop.CHECKPOINT, ["checkpoint"]),
        (OnStop.SAVEPOINT, ["savepoint", "checkpoint"]),
        (OnStop.SUSPEND, []),
        (OnStop.CANCEL, ["cancelled", "ended"]),
    ],
)
async def test_each_job_gets_what_the_option_says(tasks: TaskOwner, how: OnStop, done: list[str]) -> None:
    """All jobs at the same time (A15)."""
    runs = [Run(name) for name in "abc"]
    took = await stop(tasks, how, *runs)
    assert [run.did for run in runs] == [done] * 3
    assert took < 2.5


async def test_a_checkpoint_that_fails_stops_neither_the_others_nor_the_daemon(tasks: TaskOwner) -> None:
    good, bad = Run("a"), Run("b")
    assert bad.master is not None
    bad.master.error = FAILED
    with capture_logs() as logs:
        await stop(tasks, OnStop.CHECKPOINT, bad, good)
    assert (good.did, bad.did) == (["checkpoint"], [])
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["event"], warning["job"]) == ("no last checkpoint before the stop", bad.job_id)


@pytest.mark.parametrize("error", [StorageFull("no space left"), OSError("a bug of a plugin")], ids=["fault", "bug"])
async def test_a_job_whose_savepoint_fails_takes_its_last_checkpoint_all_the_same(
    tasks: TaskOwner, error: Exception
) -> None:
    """Otherwise it would do again what it did since its last periodic one."""
    run = Run("a")
    with capture_logs() as logs:
        await stop(tasks, OnStop.SAVEPOINT, run, no_savepoint=error)
    assert run.did == ["checkpoint"]
    assert "no savepoint before the stop" in [entry["event"] for entry in logs]


@pytest.mark.parametrize("how", list(OnStop))
async def test_a_job_that_has_ended_is_left_alone(tasks: TaskOwner, how: OnStop) -> None:
    run = Run("a", result=object())
    await stop(tasks, how, run)
    assert run.did == []


async def test_the_daemon_waits_no_longer_than_the_option_says(tasks: TaskOwner) -> None:
    """The job that was late goes on from an earlier checkpoint, and the log says so."""
    good, slow = Run("a"), Run("b")
    assert slow.master is not None
    slow.master.takes = 1000.0
    with capture_logs() as logs:
        assert await stop(tasks, OnStop.CHECKPOINT, slow, good, timeout=5.0) == pytest.approx(5.0, abs=0.5)
    assert (good.did, slow.did) == (["checkpoint"], [])
    assert [entry["job"] for entry in logs if entry["log_level"] == "warning"] == [slow.job_id]


async def test_a_job_that_looks_for_its_tasks_takes_its_last_checkpoint_when_it_has_found_them(
    tasks: TaskOwner,
) -> None:
    """They have run on since the daemon before. The next start would do all that again (A14c, A15)."""
    run = Run("a")
    assert run.master is not None
    run.master.status = JobStatus.RECONCILING
    asyncio.get_running_loop().call_later(3.0, setattr, run.master, "status", JobStatus.RUNNING)
    assert await stop(tasks, OnStop.SAVEPOINT, run) == pytest.approx(4.0, abs=0.5)
    assert run.did == ["savepoint", "checkpoint"]


@pytest.mark.parametrize("status", [JobStatus.CREATED, JobStatus.RESTARTING, None])
async def test_a_job_that_does_not_run_needs_no_checkpoint(tasks: TaskOwner, status: JobStatus | None) -> None:
    """It has processed nothing since its last one. None: its JobMaster is not up."""
    run = Run("a")
    assert run.master is not None
    if status is None:
        run.master = None
    else:
        run.master.status = status
    assert await stop(tasks, OnStop.CHECKPOINT, run) < 0.5
    assert run.did == []
