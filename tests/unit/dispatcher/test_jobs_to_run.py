"""What the Dispatcher tells the ResourceManager of its jobs: which have not ended, and which have (R12, R26, A14).

TaskManagers end the tasks of a job that is not on the list, so each job that may still run must be on it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER, Unreachable
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId, LeaderId
from minflinkd.storage.interface import StorageCorrupt, StorageUnavailable
from tests.unit.dispatcher.conftest import Cluster
from tests.waiting import until

JOB, OTHER = JobId("1" * 32), JobId("2" * 32)


async def listed(cluster: Cluster) -> tuple[JobId, ...]:
    return (await cluster.network.ask(DISPATCHER, m.ListJobsToRun(), timeout=5)).jobs


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No JobMaster can start: the checkpoints cannot be read."""

    async def failing(_: CheckpointStore) -> Any:
        raise StorageCorrupt("file: broken")

    monkeypatch.setattr(CheckpointStore, "recover", failing)


async def test_jobs_that_run_are_listed_and_those_that_have_ended_are_not(cluster: Cluster) -> None:
    """The next daemon lists the same ones (R25, R26)."""
    async with cluster.serving():
        assert await listed(cluster) == ()
        await cluster.submit(JOB)
        await cluster.submit(OTHER)
        assert await listed(cluster) == (JOB, OTHER)
        await cluster.cancel(JOB)
        await until(lambda: cluster.lists({JOB: JobStatus.CANCELED, OTHER: JobStatus.CREATED}))
        await until(lambda: JOB in cluster.ended)
        assert await listed(cluster) == (OTHER,)
    async with cluster.serving():
        assert await listed(cluster) == (OTHER,)


async def test_a_job_whose_jobmaster_does_not_come_up_is_listed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks may run on under an earlier daemon's TaskManagers, and wait for it (R27, A14)."""
    async with cluster.serving():
        await cluster.submit(JOB)

    async def failing(_: CheckpointStore) -> Any:
        raise StorageUnavailable("the disk is away")

    monkeypatch.setattr(CheckpointStore, "recover", failing)
    with capture_logs():
        async with cluster.serving():
            assert await listed(cluster) == (JOB,)


async def test_a_cancelled_job_is_listed_until_it_has_ended(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next JobMaster settles its sinks, and tells its tasks to end (R26)."""
    async with cluster.serving():
        await cluster.submit(JOB)
    await cluster.store.mark_cancelled(JOB)

    async def slow(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(cluster.store, "put_result", slow)
    async with cluster.serving():
        assert await listed(cluster) == (JOB,)


@pytest.mark.parametrize("kind", ["jobs", "results"])
async def test_a_job_with_a_record_that_cannot_be_read_is_listed(cluster: Cluster, kind: str) -> None:
    """It is not known whether it has ended (R27)."""
    async with cluster.serving():
        await cluster.submit(JOB)
        if kind == "results":
            await cluster.cancel(JOB)
            await until(lambda: JOB in cluster.ended)
    (cluster.directory / "jobstore" / kind / f"{JOB}.json").write_bytes(b"{")
    with capture_logs():
        async with cluster.serving():
            assert await listed(cluster) == (JOB,)


async def test_a_job_that_is_being_submitted_is_listed(cluster: Cluster) -> None:
    """It may be submitted again, after its first submission was withdrawn (R25)."""
    analysing, go_on = asyncio.Event(), asyncio.Event()

    async def analysed() -> None:
        analysing.set()
        await go_on.wait()

    cluster.before_analysis = analysed
    async with cluster.serving():
        submission = asyncio.ensure_future(cluster.submit(JOB))
        await analysing.wait()
        assert await listed(cluster) == (JOB,)
        go_on.set()
        await submission
        assert await listed(cluster) == (JOB,)


async def test_a_dispatcher_that_closes_lists_nothing_instead_of_no_jobs(cluster: Cluster) -> None:
    """Otherwise the end of a daemon would end the tasks that the next one is to take over (A14)."""
    async with cluster.serving() as dispatcher:
        await cluster.submit(JOB)
        mailbox = cluster.network.mailbox(DISPATCHER)
        assert mailbox is not None
        await dispatcher.aclose()
        with pytest.raises(Unreachable):
            await listed(cluster)
        with pytest.raises(Unreachable, match="the Dispatcher is closing"):
            await mailbox.deliver(m.ListJobsToRun(), None)


# --- the end of a job ---


class Ends:
    """The ResourceManager's place, which notes in whose name it is told of ends."""

    def __init__(self, cluster: Cluster) -> None:
        self.names: list[LeaderId] = []
        cluster.resource_manager.on(m.JobMasterEnded, self._ended)

    async def _ended(self, request: m.JobMasterEnded) -> m.Done:
        assert request.job_id == JOB
        self.names.append(request.leader_id)
        return m.Done()


async def test_the_end_is_told_in_the_name_of_a_later_leader_than_any_that_has_declared_needs(cluster: Cluster) -> None:
    """Otherwise the ResourceManager would take it for the end of an earlier JobMaster (R1, R26)."""
    ends = Ends(cluster)
    async with cluster.serving():
        await cluster.submit(JOB)
        await until(lambda: cluster.declared)
        await cluster.cancel(JOB)
        await until(lambda: ends.names)
        assert ends.names[0] > max(declared.leader_id for declared in cluster.declared)


@pytest.mark.usefixtures("broken")
async def test_the_resourcemanager_is_told_of_the_end_of_a_job_whose_submission_is_withdrawn(cluster: Cluster) -> None:
    """Its JobMaster may have got slots already. When the job is submitted again, its JobMaster is a later one (R25)."""
    ends = Ends(cluster)
    async with cluster.serving():
        for number in (1, 2):
            with pytest.raises(RemoteError, match="broken"):
                await cluster.submit(JOB)
            assert len(ends.names) == number
        assert ends.names == sorted(ends.names)
        assert await listed(cluster) == ()
