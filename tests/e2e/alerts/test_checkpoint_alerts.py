"""What ails checkpoints: a storage that is slow or deletes nothing, damage, a micro-batch without an end (E19b).

Those that fail are in `test_one_run.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.cluster import Cluster, running_cluster, write_job
from tests.e2e.alerts.firing import fires, hurried
from tests.faults.test_diagnosis import job, through
from tests.faults.test_storage_faults import Disk, counting_job, goes_on, statistics
from tests.faulty_disk import DELETES_FAIL, SLOW, SOUND
from tests.servers.prometheus import Prometheus, needs_prometheus, prometheus
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), needs_prometheus]

SETTINGS = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "taskmanager.numberOfTaskSlots": 4,
    "execution.checkpointing.scrub.interval": "1 s",
    "storage.faulty.retries": 0,
    "execution.checkpointing.file-merging.max-space-amplification": 1000,  # nothing is rewritten
    # RocksDB makes snapshots soon, and leaves nothing in them that is of no use.
    "taskmanager.spark.conf": {
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        "spark.sql.streaming.stateStore.rocksdb.compactOnCommit": "true",
    },
}


@dataclass(frozen=True)
class Ward:
    """A cluster whose checkpoints ail, and who watches it."""

    cluster: Cluster
    server: Prometheus
    disk: Disk


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ward]:
    base = tmp_path_factory.mktemp("checkpoints")
    disk = Disk(base / "storage")
    settings = {**SETTINGS, "execution.checkpointing.dir": f"faulty://{disk.objects}"}
    async with running_cluster(base / "cluster", environ=disk.environ, **settings) as cluster:
        await cluster.await_ready(1)
        target, rules = cluster.url.removeprefix("http://"), hurried(base / "rules.yml")
        async with prometheus(base / "server", target, rules=rules, headers=cluster.headers) as server:
            yield Ward(cluster, server, disk)


@pytest_asyncio.fixture(loop_scope="session")
async def ward(warm: Ward) -> AsyncIterator[Ward]:
    """The cluster, without jobs that another test has left, and with a sound storage."""
    yield warm
    warm.disk.becomes(SOUND)
    await warm.cluster.cancel_all()


async def test_a_storage_that_is_slow_or_deletes_nothing_is_told(ward: Ward, tmp_path: Path) -> None:
    """Checkpoints take longer than their interval. Then so many wait to be deleted that no more are taken."""
    job_id = await ward.cluster.submit(counting_job(tmp_path, "numbers", interval="1 s"))
    await ward.cluster.await_checkpoints(job_id, 1)
    ward.disk.becomes(SLOW)
    await fires(ward.server, "MinflinkdCheckpointsSlow", job=job_id, severity="warning")
    ward.disk.becomes(DELETES_FAIL)
    await fires(ward.server, "MinflinkdCheckpointDeletionsBehind", job=job_id, severity="warning")


async def test_a_damaged_checkpoint_is_told(ward: Ward, tmp_path: Path) -> None:
    """A byte flips in a file of the only checkpoint. Nobody asks: the daemon looks by itself."""
    job_id = await ward.cluster.submit(counting_job(tmp_path, "damaged", interval="1 h"))
    await goes_on(ward.cluster, job_id)
    await ward.cluster.client.checkpoint(job_id)
    [file] = (ward.disk.objects / job_id).rglob("*.seg*")
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    await fires(ward.server, "MinflinkdCheckpointsDamaged", job=job_id, severity="critical")


async def test_a_reader_that_is_stuck_is_told_though_no_checkpoint_was_ever_complete(
    ward: Ward, tmp_path: Path
) -> None:
    """It gets to the barrier only after the rows before it."""
    vertices = through("blocks", exchange=True)
    more = {"params": {"from": "true"}, "checkpointing": {"interval": "3 s"}}
    job_id = await ward.cluster.submit(job(tmp_path, "stuck", vertices, **more))
    await fires(ward.server, "MinflinkdCheckpointsOverdue", job=job_id, severity="critical")
    assert (await ward.cluster.client.checkpoints(job_id)).counts.completed == 0


async def test_files_that_hold_little_of_use_are_told(ward: Ward, tmp_path: Path) -> None:
    """The state was large once. What else is in the file with it is still needed, and nothing is rewritten."""
    lines = tmp_path / "lines"
    lines.mkdir()
    job_id = await ward.cluster.submit(once_large(tmp_path, lines))
    for hour, rows in enumerate((50_000, 1, 1)):
        draft = lines / f"_{hour}"
        draft.write_text(f'{{"time": "2026-01-01T{hour:02}:00:00Z", "rows": {rows}}}\n')
        draft.rename(lines / f"{hour}.json")
        await read(ward.cluster, job_id, hour + 1)
        await statistics(ward.cluster, job_id, "with this file", completed=2)
    await fires(ward.server, "MinflinkdCheckpointSpace", job=job_id, severity="warning", timeout=120)


def once_large(base: Path, lines: Path) -> Path:
    """Write a job whose state has the rows of the last hour: as many as the lines say."""
    vertices = {
        "lines": {
            "source": {"format": "json", "path": str(lines), "schema": "time TIMESTAMP, rows INT"},
            "watermark": {"column": "time", "delay": "1 minute"},
        },
        "counts": {
            "inputs": ["lines"],
            "sql": "SELECT k, count(*) AS n FROM (SELECT time, explode(sequence(1, rows)) AS k FROM lines) "
            "GROUP BY window(time, '1 minute'), k",
        },
        "seen": {"inputs": ["counts"], "sink": {"format": "collect"}},
    }
    document: dict[str, Any] = {"name": "once large", "parallelism": 1, "vertices": vertices}
    return write_job(base / "job.yaml", {**document, "checkpointing": {"interval": "1 s"}})


async def read(cluster: Cluster, job_id: str, count: int) -> None:
    async def as_many() -> bool:
        return (await cluster.client.job(job_id)).vertices[0].metrics.read_records >= count

    await until(as_many, f"{count} lines are read")
