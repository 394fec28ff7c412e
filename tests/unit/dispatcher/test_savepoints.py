"""Savepoints that are requested from the Dispatcher (C24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from minflinkd.dispatcher.job_store import StoredResult
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.jobmaster.savepoints import Savepoints
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import RemoteError
from minflinkd.storage.fsspec_storage import FsspecOptions, FsspecStorage
from minflinkd.storage.interface import StorageFull
from minflinkd.storage.location import Location
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.versions_world import JOB, Runner, a_runner, job_running, seen
from tests.waiting import until


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        yield one


@pytest.mark.parametrize("drain", [False, True])
async def test_a_savepoint_whose_request_names_no_directory_lies_in_the_default_one(
    cluster: Cluster, runner: Runner, drain: bool
) -> None:
    """Whoever stops or drains a job need not have configured anything (C24)."""
    async with job_running(cluster, runner):
        request = j.TriggerSavepoint(job_id=JOB, trigger_id="1" * 32, stop=True, drain=drain)
        await cluster.network.ask(DISPATCHER, request, timeout=5)
        await seen(cluster, lambda job: job.status is JobStatus.FINISHED)
        assert bool(runner.drained) == drain
        status = await until(partial(answered, cluster), "the stop is answered")
        assert status.error is None
        assert status.location.startswith(f"file://{cluster.directory}/savepoints/savepoint-{JOB[:6]}-")


async def test_a_job_is_cancelled_with_a_savepoint(cluster: Cluster, runner: Runner) -> None:
    """The tasks process nothing after the savepoint, which outlives the job's checkpoints (C24, E1)."""
    async with job_running(cluster, runner):
        request = j.TriggerSavepoint(job_id=JOB, trigger_id="1" * 32, cancel=True)
        await cluster.network.ask(DISPATCHER, request, timeout=5)
        status = await until(partial(answered, cluster), "the request is answered")
        assert status.error is None
        assert await seen(cluster, lambda job: job.status.terminal and job.status) is JobStatus.CANCELED
        assert (cluster.directory / "savepoints" / status.location.rpartition("/")[2] / "_metadata").is_file()


async def test_a_job_that_cannot_be_cancelled_after_its_savepoint_goes_on(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer names the savepoint, as it can be used (C24)."""

    async def no_room(_: object) -> None:
        raise StorageFull("no space left")

    async with job_running(cluster, runner):
        with monkeypatch.context() as patch:
            patch.setattr(cluster.store, "mark_cancelled", no_room)
            request = j.TriggerSavepoint(job_id=JOB, trigger_id="1" * 32, cancel=True)
            await cluster.network.ask(DISPATCHER, request, timeout=5)
            status = await until(partial(answered, cluster), "the request is answered")
        assert status.error is not None
        assert (status.error.code, "/savepoint-" in status.error.message) == ("stop-failed", True)
        await seen(cluster, lambda job: job.status is JobStatus.RUNNING)


async def answered(cluster: Cluster) -> j.OperationStatus | None:
    status = await cluster.network.ask(DISPATCHER, j.GetSavepoint(job_id=JOB, trigger_id="1" * 32), timeout=5)
    return status if status.done else None


async def test_a_stop_is_answered_when_no_crash_can_bring_the_job_back(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hears of the savepoint may start another job from it at once, and both would write (C24, R26)."""
    stored, put_result = asyncio.Event(), cluster.store.put_result

    async def slow(result: StoredResult) -> None:
        await stored.wait()
        await put_result(result)

    monkeypatch.setattr(cluster.store, "put_result", slow)
    async with job_running(cluster, runner):
        request = j.TriggerSavepoint(job_id=JOB, trigger_id="1" * 32, stop=True)
        await cluster.network.ask(DISPATCHER, request, timeout=5)
        await seen(cluster, lambda job: job.status is JobStatus.FINISHED)
        assert await answered(cluster) is None
        stored.set()
        status = await until(partial(answered, cluster), "the stop is answered")
        assert status.error is None


async def test_a_stop_fails_if_the_job_master_crashes_before_the_end_of_the_job(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on under the next JobMaster. The savepoint is named, as it can be used (C24)."""

    async def made(self: Savepoints, directory: Location, name: str) -> str:
        return "file:///savepoint"

    monkeypatch.setattr(Savepoints, "stop", made)
    async with job_running(cluster, runner) as dispatcher:
        request = j.TriggerSavepoint(job_id=JOB, trigger_id="1" * 32, stop=True)
        await cluster.network.ask(DISPATCHER, request, timeout=5)
        assert await answered(cluster) is None
        master = dispatcher.job_master(JOB)
        assert master is not None
        master.crash(ValueError("injected"))
        status = await until(partial(answered, cluster), "the stop is answered")
        assert status.error is not None
        assert (status.error.code, "file:///savepoint" in status.error.message) == ("stop-failed", True)


@pytest.mark.parametrize("request_of", [j.TriggerSavepoint, j.CheckpointJob])
async def test_a_job_that_ends_refuses_a_savepoint_for_good(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, request_of: type[j.TriggerSavepoint]
) -> None:
    """To try again is for a job that will run again (C20, E3)."""
    async with job_running(cluster, runner):
        for status, code in (("RESTARTING", "job-not-running"), ("CANCELLING", "conflict"), ("FAILING", "conflict")):
            with monkeypatch.context() as patch:
                patch.setattr(JobMaster, "status", property(lambda _, status=status: JobStatus(status)))
                with pytest.raises(RemoteError, match=f"is {status}") as refused:
                    await cluster.network.ask(DISPATCHER, request_of(job_id=JOB, trigger_id="1" * 32), timeout=5)
            assert refused.value.error.code == code


async def test_a_savepoint_goes_nowhere_where_a_check_fails_and_the_job_goes_on(
    cluster: Cluster, runner: Runner
) -> None:
    """A directory that is only read is refused at once. The checks of another one take a while, so they come after."""
    only_read = j.TriggerSavepoint(job_id=JOB, trigger_id="2" * 32, directory="https://x/savepoints")
    async with job_running(cluster, runner):
        with pytest.raises(RemoteError, match="only read"):
            await cluster.network.ask(DISPATCHER, only_read, timeout=5)
        cluster.storages.add(FsspecStorage(FsspecOptions(writable=True), scheme="memory"))
        request = j.TriggerSavepoint(job_id=JOB, trigger_id="1" * 32, directory="memory://x/savepoints", stop=True)
        await cluster.network.ask(DISPATCHER, request, timeout=5)

        async def failed() -> str:
            asked = j.GetSavepoint(job_id=JOB, trigger_id="1" * 32)
            status = await cluster.network.ask(DISPATCHER, asked, timeout=5)
            return f"{status.error.code}: {status.error.message}" if status.error else ""

        said = await until(failed, "the savepoint has failed")
        assert said.startswith("storage-unfit: memory://x/savepoints cannot be written: the check exclusive-create")
        await seen(cluster, lambda job: job.status is JobStatus.RUNNING)
