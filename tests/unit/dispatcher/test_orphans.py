"""The sweep through the Dispatcher: which jobs run, which cannot be read, and whether this daemon leads (F7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.orphans import RECENT
from minflinkd.dispatcher.orphans import NO_RECORD
from minflinkd.rpc import jobs as j
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId
from tests.unit.checkpoint.builders import A1, name
from tests.unit.dispatcher.conftest import Cluster
from tests.waiting import until

RUNNING, ENDED, UNREADABLE = (JobId("0" * 31 + digit) for digit in "123")


def plant(cluster: Cluster, job: JobId, *, checkpoint: int = 1, old: bool = True) -> Path:
    path = cluster.directory / "checkpoints" / job / name(checkpoint, A1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    if old:
        os.utime(path, (1000, 1000))
    return path


async def ask(cluster: Cluster, *, dry_run: bool = False, job: JobId | None = None) -> dict[JobId, j.JobOrphans]:
    report = await cluster.network.ask(DISPATCHER, j.SweepOrphans(job_id=job, dry_run=dry_run), timeout=10)
    assert report.dry_run is dry_run
    return {found.job_id: found for found in report.jobs}


async def test_orphans_of_running_and_of_ended_jobs_are_found_and_deleted(cluster: Cluster) -> None:
    """A running job's coordinator knows its files, so young files there protect no others (F7)."""
    async with cluster.serving():
        await cluster.submit(RUNNING)
        await until(lambda: cluster.declared)
        of_ended = plant(cluster, ENDED)
        plant(cluster, RUNNING, checkpoint=9, old=False)  # belongs to a future checkpoint
        assert [file.name for file in (await ask(cluster, dry_run=True))[ENDED].files] == [of_ended.name]
        assert of_ended.exists()
        found = await ask(cluster)
        assert not of_ended.exists()
        assert found[RUNNING] == j.JobOrphans(job_id=RUNNING, kept=1)


async def test_what_is_young_in_the_directory_of_an_ended_job_stays(cluster: Cluster) -> None:
    """`orphan-grace` protects them (F7)."""
    async with cluster.serving():
        young = plant(cluster, ENDED, old=False)
        assert (await ask(cluster))[ENDED].skipped == RECENT
        assert young.exists()


async def test_files_of_a_job_whose_record_cannot_be_read_stay(cluster: Cluster) -> None:
    """Nobody knows what the job needs (F7, R27)."""
    async with cluster.serving():
        await cluster.submit(UNREADABLE)
    [record] = [path for path in (cluster.directory / "jobstore").rglob("*") if UNREADABLE in path.name]
    record.write_bytes(b"torn")
    with capture_logs():
        async with cluster.serving():
            file = plant(cluster, UNREADABLE)
            assert (await ask(cluster))[UNREADABLE].skipped == NO_RECORD
            assert file.exists()


async def test_a_daemon_that_may_not_lead_deletes_nothing(cluster: Cluster) -> None:
    """F7, A11"""
    async with cluster.serving() as dispatcher:
        dispatcher._orphans._leads = lambda: False
        file = plant(cluster, ENDED)
        with pytest.raises(RemoteError) as refused:
            await ask(cluster)
        assert refused.value.info().code == "not-leading"
        assert file.exists()
