"""A file of a job's latest checkpoint is damaged, and then its TaskManager is killed: the state must be fetched."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from minflinkd.checkpoint.metadata import CompletedCheckpoint, decode
from tests.cluster import Cluster, write_job
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

COUNTS = (
    "SELECT k, count(*) AS n FROM events GROUP BY window(time, '1 minute'), k"  # no window ends before the job does
)
ROWS = "SELECT k, 1 AS n FROM events"  # published with each checkpoint


@dataclass
class FilesJob:
    """A job whose input and checkpoints the test makes one by one."""

    base: Path
    name: str
    sql: str
    checkpointing: dict[str, Any] = field(default_factory=dict)
    job_id: str = ""

    @property
    def input(self) -> Path:
        return self.base / f"{self.name}-in"

    @property
    def output(self) -> Path:
        return self.base / f"{self.name}-out"

    def write(self) -> Path:
        self.input.mkdir()
        source = {"format": "json", "path": str(self.input), "schema": "k STRING, time TIMESTAMP"}
        return write_job(
            self.base / f"{self.name}.yaml",
            {
                "name": self.name,
                "parallelism": 1,
                "checkpointing": {"interval": "1 h", **self.checkpointing},
                "vertices": {
                    "events": {"source": source, "watermark": {"column": "time", "delay": "1 day"}},
                    "rows": {"inputs": ["events"], "sql": self.sql},
                    "out": {"inputs": ["rows"], "sink": {"format": "parquet", "path": str(self.output)}},
                },
            },
        )

    async def read_one_more(self, cluster: Cluster, number: int) -> None:
        """Add a file of 10 rows to the input, and wait until the job has processed it."""
        lines = [f'{{"k": "file {number}", "time": "2026-01-01T00:{n:02}:00Z"}}' for n in range(10)]
        draft = self.input / f"_{number}"
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(self.input / f"{number}.json")

        async def processed() -> bool:
            return (await cluster.client.job(self.job_id)).vertices[0].metrics.read_records >= 10 * (number + 1)

        await until(processed, f"file {number} is processed", timeout=60)

    def checkpoints(self, cluster: Cluster) -> list[CompletedCheckpoint]:
        found = [decode(path.read_bytes()) for path in (cluster.state / "checkpoints" / self.job_id).glob("chk-*/_me*")]
        return sorted(found, key=lambda checkpoint: checkpoint.checkpoint_id)

    def damage_latest(self, cluster: Cluster) -> str:
        """Flip a byte of a segment that only the latest checkpoint has. Return the name of its physical file."""
        *earlier, latest = self.checkpoints(cluster)
        shared = {file.handle for checkpoint in earlier for task in checkpoint.tasks for file in task.files}
        own = [f.handle for task in latest.tasks for f in task.files if f.handle not in shared and f.handle.length]
        file = cluster.state / "checkpoints" / self.job_id / own[0].file
        content = bytearray(file.read_bytes())
        content[own[0].offset] ^= 1
        file.write_bytes(content)
        return own[0].file

    def published(self) -> Counter[str]:
        rows = pyarrow.dataset.dataset(self.output, format="parquet").to_table(columns=["k", "n"]).to_pylist()
        return Counter({key: sum(row["n"] for row in rows if row["k"] == key) for key in {row["k"] for row in rows}})


async def test_a_job_goes_on_from_an_earlier_checkpoint_unless_rows_would_come_twice(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Three jobs (C28), each with a byte flipped in its latest of three checkpoints. One has published nothing: its
    output is exact. One has published rows: it is FAILED, and says what to do. One allows rows to come twice.
    """
    await cluster.await_ready(1)
    silent = FilesJob(tmp_path, "silent", COUNTS)
    refusing = FilesJob(tmp_path, "refusing", ROWS)
    repeating = FilesJob(tmp_path, "repeating", ROWS, {"on-damage": "fall-back-and-repeat"})
    jobs = [silent, refusing, repeating]
    for job in jobs:
        job.job_id = await cluster.submit(job.write())
    for number in range(3):
        for job in jobs:
            await job.read_one_more(cluster, number)
            await cluster.client.checkpoint(job.job_id)
    assert [len(job.checkpoints(cluster)) for job in jobs] == [3, 3, 3]
    damaged = {job.name: job.damage_latest(cluster) for job in jobs}

    for job in jobs:
        latest, *earlier = await cluster.client.verify_checkpoints(job.job_id)
        assert [file.file for file in latest.damaged_files] == [damaged[job.name]]
        assert all(one.whole for one in earlier)

    for pid in {(await cluster.task_manager_of(job.job_id)).minflinkd.pid for job in jobs}:
        os.kill(pid, signal.SIGKILL)

    async def ended() -> bool:
        return (await cluster.client.job(refusing.job_id)).state == "FAILED"

    await until(ended, "the job that would repeat rows is FAILED", timeout=120)
    failure = (await cluster.client.exceptions(refusing.job_id)).history.entries[0].minflinkd
    assert failure.code == "restore-would-repeat"
    assert damaged["refusing"] in failure.message
    assert "on-damage" in failure.hint
    assert refusing.published() == {"file 0": 10, "file 1": 10, "file 2": 10}
    left = await cluster.client.verify_checkpoints(refusing.job_id)
    assert [one.whole for one in left] == [False, True, True], "it has ended, and its checkpoints are still there"

    for job in (silent, repeating):
        await cluster.await_job(
            job.job_id, lambda now: now.state == "RUNNING" and now.minflinkd.restarts > 0, "runs again", timeout=120
        )
        told = [entry.minflinkd for entry in (await cluster.client.exceptions(job.job_id)).history.entries]
        assert any(one.code == "checkpoint-damaged" and "goes on from checkpoint" in one.message for one in told)
        restored = (await cluster.client.checkpoints(job.job_id)).latest.restored
        assert restored is not None
        assert restored.id == job.checkpoints(cluster)[1].checkpoint_id
        await job.read_one_more(cluster, 3)
        await cluster.client.stop(job.job_id, str(tmp_path / "savepoints"), drain=True)
        await cluster.await_state(job.job_id, "FINISHED")
    assert silent.published() == {f"file {number}": 10 for number in range(4)}
    assert repeating.published() == {"file 0": 10, "file 1": 10, "file 2": 20, "file 3": 10}
