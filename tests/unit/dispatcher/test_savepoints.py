"""Savepoints that are requested from the Dispatcher (C24)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import RemoteError
from minflinkd.storage.fsspec_storage import FsspecOptions, FsspecStorage
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
        status = await cluster.network.ask(DISPATCHER, j.GetSavepoint(job_id=JOB, trigger_id="1" * 32), timeout=5)
        assert status.done, status
        assert status.error is None
        assert status.location.startswith(f"file://{cluster.directory}/savepoints/savepoint-{JOB[:6]}-")


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
