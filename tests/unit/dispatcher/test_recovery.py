"""Jobs that a daemon finds in its store and cannot start at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import messages as c
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.dispatcher.job_store import StoredJob
from minflinkd.jobgraph.model import JobGraph
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageUnavailable
from tests.unit.dispatcher.conftest import Cluster
from tests.waiting import until

JOB = JobId("1" * 32)


class Outage:
    """An outage of the storage that holds the checkpoints."""

    over = False


@asynccontextmanager
async def recovering(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Outage]:
    """Start a daemon with a stored job while its checkpoints cannot be read."""
    async with cluster.serving():
        await cluster.submit(JOB)
    outage, recover = Outage(), CheckpointStore.recover

    async def failing(store: CheckpointStore) -> Any:
        if not outage.over:
            raise StorageUnavailable("the disk is away")
        return await recover(store)

    monkeypatch.setattr(CheckpointStore, "recover", failing)
    with capture_logs():
        async with cluster.serving():
            yield outage


async def test_a_job_that_cannot_be_recovered_is_listed_with_its_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R27."""
    async with recovering(cluster, monkeypatch):
        assert await cluster.list() == {JOB: JobStatus.INITIALIZING}
        details = await cluster.job(JOB)
        assert [f.error.message for f in details.failures] == ["the JobMaster failed: the disk is away"]
        statistics = await cluster.network.ask(DISPATCHER, c.GetCheckpoints(job_id=JOB), timeout=5)
        assert statistics.completed == 0
        options = await cluster.network.ask(DISPATCHER, c.GetCheckpointOptions(job_id=JOB), timeout=5)
        assert options.num_retained >= 1


async def test_a_job_is_recovered_once_its_storage_is_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other daemon has to be started (R27)."""
    async with recovering(cluster, monkeypatch) as outage:
        outage.over = True

        async def recovered() -> bool:
            return await cluster.list() == {JOB: JobStatus.CREATED}

        await until(recovered)
        assert [f.error.code for f in (await cluster.job(JOB)).failures] == ["jobmaster-down"]  # kept as history
    assert cluster.blobs.deleted == []


async def test_a_submission_repeated_meanwhile_is_recognised_and_costs_no_blobs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission is accepted only once (R25)."""
    async with recovering(cluster, monkeypatch):
        analyzed = len(cluster.analyzed)
        assert (await cluster.submit(JOB)).faults == ()
        assert len(cluster.analyzed) == analyzed
        assert cluster.blobs.deleted == []


async def test_a_submission_that_arrives_late_at_the_storage_does_not_take_a_cancellation_back(
    cluster: Cluster,
) -> None:
    """The network may hold back a request that was repeated meanwhile (R25)."""
    job = StoredJob(job_id=JOB, submitted_ms=1, graph=JobGraph(name="late", vertices=()))
    await cluster.store.put_job(job)
    await cluster.store.mark_cancelled(JOB)
    await cluster.store.put_job(job)
    (found,) = await cluster.store.jobs()
    assert isinstance(found, StoredJob)
    assert found.cancelled
    await cluster.store.delete_job(JOB)
    assert cluster.files() == []
