"""A real job on a checkpoint storage that fails, is slow, or is full. The query goes on, and checkpoints recover."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
import pytest_asyncio

from minflinkd.checkpoint.metadata import decode
from minflinkd.rest.schemas import Checkpoints
from tests.cluster import Cluster, running_cluster, write_job
from tests.faults.hot_restarts import restarted
from tests.faulty_disk import EVERY_THIRD, FULL, SLOW, SOUND, install
from tests.files import files_below
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


class Disk:
    def __init__(self, base: Path) -> None:
        self.environ = install(base / "plugin")
        self.objects = base / "storage"

    def becomes(self, what: str) -> None:
        control = Path(self.environ["FAULTY_DISK"])
        draft = control.with_suffix(".draft")
        draft.write_text(what)
        draft.rename(control)

    def orphans(self) -> list[str]:
        kept, files = set[str](), files_below(self.objects)
        for metadata in (path for path in files if path.name == "_metadata"):
            kept |= decode(metadata.read_bytes()).physical_files()
        return sorted(path.name for path in files if ".seg" in path.name and path.name not in kept)


def counting_job(base: Path, name: str, version: int = 1, **checkpointing: Any) -> Path:
    """Write a job that writes numbers without a gap. Its checkpoints upload only the logs of its micro-batches."""
    return write_job(
        base / f"{name}.yaml",
        {
            "name": name,
            "parallelism": 1,
            "trigger-interval": "200 ms",
            "checkpointing": {"interval": "500 ms", **checkpointing},
            "vertices": {
                "numbers": {"source": {"format": "rate", "options": {"rowsPerSecond": 50}}},
                "values": {"inputs": ["numbers"], "sql": f"SELECT value, {version} AS version FROM numbers"},
                "out": {"inputs": ["values"], "sink": {"format": "parquet", "path": str(base / name)}},
            },
        },
    )


async def rows(cluster: Cluster, job_id: str) -> int:
    return (await cluster.client.job(job_id)).vertices[-1].metrics.write_records


async def statistics(cluster: Cluster, job_id: str, what: str, *, failed: int = 0, completed: int = 0) -> Checkpoints:
    """Return the statistics once `failed` more checkpoints have failed and `completed` more have completed."""
    before = (await cluster.client.checkpoints(job_id)).counts

    async def reached() -> Checkpoints | None:
        now = await cluster.client.checkpoints(job_id)
        more = now.counts.failed - before.failed >= failed and now.counts.completed - before.completed >= completed
        return now if more else None

    return await until(reached, f"{failed} failed and {completed} completed checkpoints: {what}", timeout=120)


async def goes_on(cluster: Cluster, job_id: str) -> None:
    """Wait for more micro-batches: the query must write them whatever happens to checkpoints."""
    before = await rows(cluster, job_id)

    async def more() -> bool:
        return await rows(cluster, job_id) > before + 50

    await until(more, "the query goes on", timeout=30)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest_asyncio.fixture(loop_scope="session")
async def faulty(disk: Disk, tmp_path: Path) -> AsyncIterator[Cluster]:
    settings = {
        "execution.checkpointing.dir": f"faulty://{disk.objects}",
        "execution.checkpointing.file-merging.orphan-grace": "4 s",
        "storage.faulty.retries": 0,  # each fault fails a checkpoint
        "resourcemanager.max-taskmanagers": 1,
        "taskmanager.numberOfTaskSlots": 2,
    }
    async with running_cluster(tmp_path / "cluster", environ=disk.environ, **settings) as cluster:
        await cluster.await_ready(1)
        yield cluster


async def test_a_job_outlives_its_storages_faults(faulty: Cluster, disk: Disk, tmp_path: Path) -> None:
    """Every third write fails, then each write takes 2 s. All rows are there once, without a gap (C23, C42, F7)."""
    file = counting_job(tmp_path, "numbers", **{"tolerable-failed-checkpoints": 1000})
    job_id = await faulty.submit(file)
    await faulty.await_checkpoints(job_id, 2)

    disk.becomes(EVERY_THIRD)
    found = await statistics(faulty, job_id, EVERY_THIRD, failed=4)
    assert set(found.minflinkd.failed_by_cause) <= {"storage", "finalize-failure", "trigger-failure"}
    assert "storage" in found.minflinkd.failed_by_cause
    await goes_on(faulty, job_id)

    disk.becomes(SLOW)
    found = await statistics(faulty, job_id, SLOW, completed=2)
    assert found.latest.completed is not None
    assert found.latest.completed.end_to_end_duration > 2000
    assert "longer than the interval" in found.latest.completed.minflinkd.warning
    await goes_on(faulty, job_id)

    disk.becomes(SOUND)
    await statistics(faulty, job_id, SOUND, completed=2)
    assert (await faulty.client.job(job_id)).minflinkd.restarts == 0

    async def tidy() -> bool:
        return disk.orphans() == []

    await until(tidy, "no file that nothing refers to", timeout=30)
    await faulty.cancel(job_id)
    values = sorted(pyarrow.dataset.dataset(tmp_path / "numbers", format="parquet").to_table()["value"].to_pylist())
    assert values == list(range(len(values)))
    assert len(values) > 500


async def test_a_full_storage_restarts_the_job_only_beyond_the_tolerated_number(
    faulty: Cluster, disk: Disk, tmp_path: Path
) -> None:
    """The failure names the storage. When there is space again, the job continues from the last checkpoint (C23)."""
    job_id = await faulty.submit(counting_job(tmp_path, "full", **{"tolerable-failed-checkpoints": 2}))
    await faulty.await_checkpoints(job_id, 2)
    disk.becomes(FULL)
    found = await statistics(faulty, job_id, FULL, failed=2)
    assert (await faulty.client.job(job_id)).minflinkd.restarts == 0
    assert found.minflinkd.failed_by_cause == {"storage": found.counts.failed}
    await faulty.await_job(job_id, lambda job: job.minflinkd.restarts >= 1, "restarts", timeout=60)
    exceptions = await faulty.client.exceptions(job_id)
    assert "no space left on the faulty disk" in (exceptions.root_exception or "")
    disk.becomes(SOUND)
    await statistics(faulty, job_id, SOUND, completed=2)
    await faulty.cancel(job_id)
    values = sorted(pyarrow.dataset.dataset(tmp_path / "full", format="parquet").to_table()["value"].to_pylist())
    assert values == list(range(len(values)))


async def test_a_version_takes_over_though_a_slow_checkpoint_is_in_progress(
    faulty: Cluster, disk: Disk, tmp_path: Path
) -> None:
    """The new version's first checkpoint is as slow. All numbers are there once, in the order of versions (H3)."""
    job_id = await faulty.submit(counting_job(tmp_path, "versions"))
    await faulty.await_checkpoints(job_id, 2)
    disk.becomes(SLOW)
    for version in (2, 3):

        async def in_progress() -> bool:
            return (await faulty.client.checkpoints(job_id)).counts.in_progress > 0

        await until(in_progress, "a checkpoint is in progress")
        last = await restarted(faulty, job_id, counting_job(tmp_path, "versions", version))
        assert last.state == "completed", last
        await goes_on(faulty, job_id)
    disk.becomes(SOUND)
    assert (await faulty.client.job(job_id)).minflinkd.restarts == 0
    await faulty.client.stop(job_id, str(tmp_path / "savepoints"), drain=False)
    await faulty.await_state(job_id, "FINISHED")
    table = pyarrow.dataset.dataset(tmp_path / "versions", format="parquet").to_table()
    written = sorted((row["value"], row["version"]) for row in table.to_pylist())
    assert [value for value, _ in written] == list(range(len(written)))
    assert [version for _, version in written] == sorted(version for _, version in written)
    assert {version for _, version in written} == {1, 2, 3}
