"""What the Dispatcher tells the BlobServer about its jobs (B2, B17, B19)."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.ids import JobId
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster
from tests.waiting import until

JOB, OTHER = JobId("1" * 32), JobId("2" * 32)
CODE = BlobKey.new(BlobKind.PERMANENT, "c" * 64)


def with_code(key: BlobKey = CODE) -> dict[str, Any]:
    return DOCUMENT | {"artifacts": [{"name": "rules.py", "key": str(key), "size": 9}]}


@pytest.fixture
def uploaded(cluster: Cluster) -> Cluster:
    cluster.blobs.uploaded.add(CODE)
    return cluster


async def test_a_job_holds_its_artifacts_from_before_it_is_analysed(uploaded: Cluster) -> None:
    """The analysis may take longer than the BlobServer would keep them otherwise (B17)."""
    held_before = []

    async def look() -> None:
        held_before.append(("hold", JOB) in uploaded.blobs.events)

    uploaded.before_analysis = look
    async with uploaded.serving():
        assert (await uploaded.submit(JOB, with_code())).faults == ()
    assert held_before == [True]
    assert uploaded.blobs.events == [("hold", JOB), ("recover", JOB)]
    assert uploaded.blobs.deleted == []


async def test_an_artifact_that_is_not_there_is_a_fault_of_the_job(cluster: Cluster) -> None:
    async with cluster.serving():
        answer = await cluster.submit(JOB, with_code())
        assert [(fault.path, fault.problem) for fault in answer.faults] == [
            ("artifacts[0]", "the artifact rules.py was not uploaded, or too long ago")
        ]
        await until(lambda: cluster.blobs.deleted == [JOB])


async def test_an_artifact_is_permanent(cluster: Cluster) -> None:
    """A transient blob would not survive the daemon (B2)."""
    log = BlobKey.new(BlobKind.TRANSIENT, "d" * 64)
    cluster.blobs.uploaded.add(log)
    async with cluster.serving():
        assert [fault.path for fault in (await cluster.submit(JOB, with_code(log))).faults] == ["artifacts[0]"]


@pytest.mark.parametrize("there", [True, False])
async def test_a_dry_run_lets_go_of_what_it_looked_at(cluster: Cluster, there: bool) -> None:
    """Artifacts of a dry run are deleted unless somebody submits the job for real."""
    cluster.blobs.uploaded |= {CODE} if there else set()
    async with cluster.serving():
        assert (await cluster.submit(JOB, with_code(), dry_run=True)).faults == () or not there
        assert cluster.blobs.events == [("hold", JOB), ("let go", JOB)]
        assert cluster.blobs.deleted == []


async def test_every_job_of_the_store_is_known_before_one_is_recovered(uploaded: Cluster) -> None:
    """The cleanup may begin with the first recovery (B19)."""
    async with uploaded.serving():
        await uploaded.submit(JOB, with_code())
        await uploaded.submit(OTHER, with_code())
    record = uploaded.directory / "jobstore" / "jobs" / f"{OTHER}.json"
    record.write_bytes(b"?")
    uploaded.blobs.events.clear()
    with capture_logs():
        async with uploaded.serving():
            assert uploaded.blobs.stock == [{}, {JOB: frozenset({CODE}), OTHER: None}]
            assert uploaded.blobs.events == [("recover", JOB)]
    assert uploaded.blobs.deleted == []


async def test_a_job_whose_artifact_is_lost_waits_for_it(uploaded: Cluster) -> None:
    """The job is listed with the reason, nothing is deleted, and it starts when the file is back (B19, R27)."""
    async with uploaded.serving():
        await uploaded.submit(JOB, with_code())
    uploaded.blobs.uploaded.clear()
    with capture_logs():
        async with uploaded.serving() as dispatcher:
            assert await uploaded.list() == {JOB: JobStatus.INITIALIZING}
            assert "there is no good copy" in (await uploaded.job(JOB)).failures[0].error.message
            uploaded.blobs.uploaded.add(CODE)
            await until(lambda: [d.status for d in dispatcher.details()] == [JobStatus.CREATED])
    assert uploaded.blobs.deleted == []


async def test_a_crash_of_a_job_master_is_a_failure_and_a_recovery(uploaded: Cluster) -> None:
    """The references of the crashed JobMaster are released, and the artifacts are secured again (B17)."""
    async with uploaded.serving() as dispatcher:
        await uploaded.submit(JOB, with_code())
        uploaded.blobs.events.clear()
        first = dispatcher.job_master(JOB)
        assert first is not None
        with capture_logs():
            first.crash(RuntimeError("a bug"))
            await until(lambda: dispatcher.job_master(JOB) not in (None, first))
        assert uploaded.blobs.events == [("failed", JOB), ("recover", JOB)]
    assert uploaded.blobs.deleted == []
