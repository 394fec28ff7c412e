"""Nobody publishes what tasks stage, because there is no daemon, and the disk is small: sources are held back."""

from __future__ import annotations

import asyncio
import glob
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from tests.cluster import free_port, running_cluster, write_job
from tests.faults.hot_restarts import ONE, drained
from tests.files import files_below
from tests.small_disk import resize, small_disk
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

MIB = 2**20
DISK, LARGER = 64, 512  # MiB
FILES = 100  # their output, 1.2 MiB of each, does not fit on the small disk
TIMES = 100  # rows that each event becomes, 128 characters each
BACKLOG = 50_000  # bytes
ROWS = (
    "SELECT k, time, n, sha2(concat(k, n, '-', v), 512) AS text FROM (SELECT *, explode(sequence(1, %d)) AS n FROM few)"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK) as directory:
        yield directory


@pytest.mark.slow  # tests/unit/taskmanager/test_disk_space.py has the rule
async def test_without_a_daemon_a_job_waits_before_its_disk_is_full_and_goes_on_when_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    """Staged output fills the disk to its limit, the exchange to its own, and nothing fails (A14, J10)."""
    windows = WindowsJob(tmp_path / "windows", files=FILES)
    windows.write_events()
    settings = {
        **ONE,
        "rest.port": free_port(),
        "taskmanager.state.local.root-dir": str(disk / "state"),
        "taskmanager.exchange.max-backlog": BACKLOG,
    }
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        job_id = await cluster.submit(_job(windows, disk / "out"))
        await cluster.await_checkpoints(job_id, 1, timeout=150)
        before = await cluster.client.job(job_id)
        await cluster.kill()

        seen: list[tuple[int, ...]] = []

        def stands_still() -> bool:
            seen.append((_size(disk / "out"), *sorted(_micro_batches(disk).values())))
            return shutil.disk_usage(disk).free < 0.1 * DISK * MIB and len(seen) > 30 and len({*seen[-30:]}) == 1

        await until(stands_still, "nothing grows any more", timeout=120, pause=0.2)
        staged, behind, ahead = seen[-1]
        assert shutil.disk_usage(disk).free > 0
        assert behind < ahead < FILES - 1, "the second task waits for the disk, and the first one for the second"
        exchanged = sum(_size(log) for log in disk.glob("state/**/exchanges"))
        assert 0 < exchanged < 2 * BACKLOG, "at most the backlog, and a micro-batch"

        await asyncio.to_thread(resize, disk, LARGER)
        await until(lambda: _size(disk / "out") > staged, "the tasks go on")
        await cluster.start_again()
        await drained(cluster, job_id, tmp_path / "savepoints", source="events", files=FILES)
        after = await cluster.client.job(job_id)
        assert [task.minflinkd.attempt_id for task in after.vertices] == [
            task.minflinkd.attempt_id for task in before.vertices
        ]
        assert after.minflinkd.restarts == 0
        found = await asyncio.to_thread(_result, disk / "out")
        assert found == await asyncio.to_thread(_expected, windows)
        assert leftovers(disk / "out") == []


def _job(windows: WindowsJob, out: Path) -> Path:
    """Write an endless job of two tasks. The second one makes many rows of each."""
    source = {
        "format": "json",
        "path": str(windows.events),
        "schema": "k STRING, time STRING, v BIGINT",
        "options": {"maxFilesPerTrigger": 1},
    }
    document: dict[str, Any] = {
        "name": "growing",
        "mode": "streaming",
        "parallelism": 1,
        "checkpointing": {"interval": "1 s"},
        "vertices": {
            "events": {"source": source},
            "few": {"inputs": ["events"], "sql": "SELECT * FROM events WHERE v >= 0"},
            "rows": {"inputs": [{"id": "few", "exchange": True}], "sql": ROWS % TIMES},
            "out": {"inputs": ["rows"], "sink": {"format": "parquet", "path": str(out)}},
        },
    }
    return write_job(windows.base / "job.yaml", document)


def _result(out: Path) -> Counter[tuple[Any, ...]]:
    rows = pyarrow.dataset.dataset(out, format="parquet").to_table().to_pylist()
    return Counter((row["k"], row["time"], row["n"], row["text"]) for row in rows)


def _expected(windows: WindowsJob) -> Counter[tuple[Any, ...]]:
    events = [json.loads(line) for file in windows.events.glob("[0-9]*") for line in file.read_text().splitlines()]
    return Counter(
        (event["k"], event["time"], n, hashlib.sha512(f"{event['k']}{n}-{event['v']}".encode()).hexdigest())
        for event in events
        if event["v"] >= 0
        for n in range(1, TIMES + 1)
    )


def _micro_batches(disk: Path) -> dict[str, int]:
    """Return the last micro-batch that Spark has committed, by attempt."""
    found: dict[str, int] = {}
    # Not Path.glob, which fails when a directory goes while it looks.
    for path in map(Path, glob.iglob(f"{disk}/state/**/attempts/*/**/commits/*", recursive=True)):
        if path.name.isdigit():
            attempt = path.parts[path.parts.index("attempts") + 1]
            found[attempt] = max(found.get(attempt, -1), int(path.name))
    return found


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in files_below(directory)) if directory.exists() else 0
