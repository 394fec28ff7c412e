"""Savepoints that are requested from the Dispatcher (C24)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.versions_world import JOB, Runner, a_runner, job_running, seen


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
