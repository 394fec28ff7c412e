"""A past time of a running job is computed again, beside it, into the same tables, while TaskManagers die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster, running_cluster, write_job
from tests.e2e.command import minflinkd
from tests.faults.hot_restarts import ONE
from tests.lakes import Delta, Iceberg

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
MINUTES = 40
SINCE, UNTIL = 10, 30  # minutes that are computed again
WRONG = 3  # the job counts each event so many times


def events(place: Path, minutes: range) -> None:
    """Write a file for each minute of event time: in the n-th there are n + 1 events of each of two keys."""
    place.mkdir(exist_ok=True)
    for minute in minutes:
        time = BEGIN + timedelta(minutes=minute, seconds=30)
        rows = [{"key": key, "time": time.isoformat()} for key in "ab" for _ in range(minute + 1)]
        hidden = place / f".{minute:03d}.json"
        hidden.write_text("\n".join(map(json.dumps, rows)))
        os.utime(hidden, (time.timestamp(), time.timestamp()))
        hidden.rename(place / f"{minute:03d}.json")


def job_file(base: Path, sinks: dict[str, dict[str, Any]]) -> Path:
    files = {"format": "json", "path": str(base / "in"), "schema": "key STRING, time TIMESTAMP"}
    window = "window(time, '1 minute')"
    counts = f"SELECT key, {window}.start AS minute, count(*) * ${{each}} AS n FROM events GROUP BY key, {window}"
    vertices: dict[str, Any] = {
        "events": {
            "source": files | {"options": {"maxFilesPerTrigger": "1"}},
            "watermark": {"column": "time", "delay": "0 seconds"},
        },
        "counts": {"inputs": ["events"], "sql": counts},
    }
    for name, sink in sinks.items():
        vertices[name] = {"inputs": ["counts"], "output-mode": "update", "sink": sink}
    settings = {"name": "counts", "parallelism": 1, "checkpointing": {"interval": "2 s"}, "params": {"each": WRONG}}
    return write_job(base / "counts.yaml", settings | {"vertices": vertices})


def expected(minutes: range, *, mended: range = range(0)) -> dict[tuple[str, int], int]:
    return {(key, minute): (minute + 1) * (1 if minute in mended else WRONG) for key in "ab" for minute in minutes}


def counted(rows: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    found = {(row["key"], round((row["minute"] - BEGIN).total_seconds() / 60)): row["n"] for row in rows}
    assert len(found) == len(rows), f"some keys are there twice: {Counter(map(str, rows)).most_common(3)}"
    return found


def backfill(since: int, until: int, *more: str) -> tuple[str, ...]:
    times = [(BEGIN + timedelta(minutes=minute)).isoformat() for minute in (since, until)]
    return "backfill", "counts", "--from", times[0], "--to", times[1], *more


async def has_read(cluster: Cluster, job_id: str, base: Path, minutes: int) -> None:
    """Wait until the job is done with its files, and its tables have what it made of them."""

    def read(job: JobInfo) -> bool:
        task = job.vertices[0].minflinkd
        return (task.watermark or 0) >= (BEGIN + timedelta(minutes=minutes - 1)).timestamp() * 1000

    await cluster.await_job(job_id, read, "has read all files", timeout=180)
    completed = (await cluster.client.checkpoints(job_id)).counts.completed
    await cluster.await_checkpoints(job_id, completed + 2)


async def test_a_past_time_is_computed_again_while_task_managers_die(tmp_path: Path) -> None:
    """Only rows of that time change, each to what it should be. The job goes on with its state (K4, K8)."""
    delta, iceberg = Delta(tmp_path / "delta"), Iceberg(tmp_path / "iceberg")
    keyed = {lake.directory.name: lake.described("counts") for lake in (delta, iceberg)}
    for sink in keyed.values():
        sink["options"] = sink.get("options", {}) | {"key": "key, minute"}
    events(tmp_path / "in", range(MINUTES))
    async with running_cluster(tmp_path / "cluster", **ONE) as cluster:
        job_id = await cluster.submit(job_file(tmp_path, keyed))
        await has_read(cluster, job_id, tmp_path, MINUTES)

        code, _, error = await minflinkd(cluster, *backfill(SINCE, MINUTES + 5, "-p", "each=1"))
        assert code == 2
        assert "input-range.to: the job itself still works on that time" in error

        code, out, error = await minflinkd(cluster, *backfill(SINCE, UNTIL, "-p", "each=1", "--json"))
        assert code == 0, error
        again = json.loads(out)["jobid"]
        await cluster.await_job(again, lambda job: job.vertices[0].minflinkd.batches >= 8, "is on its way")
        for lake in (delta, iceberg):
            rows = counted(await asyncio.to_thread(lake.rows, "counts"))
            assert rows == expected(range(MINUTES)), "nobody sees a count that is half done"
        os.kill((await cluster.task_manager_of(again)).minflinkd.pid, signal.SIGKILL)
        finished = await cluster.await_state(again, "FINISHED", timeout=240)
        assert finished.name == "counts-backfill"
        assert finished.minflinkd.restarts >= 1

        events(tmp_path / "in", range(MINUTES, MINUTES + 4))
        await has_read(cluster, job_id, tmp_path, MINUTES + 4)
        for lake in (delta, iceberg):
            rows = counted(await asyncio.to_thread(lake.rows, "counts"))
            assert rows == expected(range(MINUTES + 4), mended=range(SINCE, UNTIL))

        code, _, error = await minflinkd(cluster, *backfill(SINCE, UNTIL, "--sink", "delta", "--sink", "lake"))
        assert code == 2
        assert 'the backfill of counts: vertices.lake: there is no sink "lake"' in error
        await cluster.cancel(job_id)
