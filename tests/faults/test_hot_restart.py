"""A new version of a running job on the same warm session, with its state; or the version before it, and the reason."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
import pytest_asyncio

from minflinkd.cli.submission import RefusedJob, restart
from minflinkd.rest.schemas import HotRestartInfo, JobInfo
from minflinkd.runtime.crash_points import OF_HOT_RESTARTS, VARIABLE, CrashPoint
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, free_port, running_cluster, until
from tests.windows_job import SQL, WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ONE = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "taskmanager.numberOfTaskSlots": 4,
    "heartbeat.timeout": "10 s",
}
TAGGED = SQL.replace("SELECT ", "SELECT '${version}' AS version, ", 1)
OTHER_CODE = """
def kept(frame):
    return frame.where('v > -1')

def clean(inputs, params):
    return kept(inputs['events'])
"""
BROKEN_CODE = """
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

@f.udf(LongType())
def checked(v):
    raise ValueError("the new version cannot count")

def clean(inputs, params):
    return inputs['events'].withColumn('v', checked('v'))
"""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A daemon with one TaskManager, whose processes are to stay the same."""
    async with running_cluster(tmp_path_factory.mktemp("one"), **ONE) as cluster:
        await cluster.await_ready(1)
        yield cluster


def version(windows: WindowsJob, name: str, tag: str, **changes: Any) -> Path:
    """The job file of a version, which writes its tag beside every row."""
    return _tagged(windows.write(name, **changes), tag)


def _tagged(file: Path, tag: str) -> Path:
    document = json.loads(file.read_text())
    document["params"]["version"] = tag
    document["vertices"]["minutes"]["sql"] = TAGGED
    file.write_text(json.dumps(document))
    return file


async def restarted(cluster: Cluster, job_id: str, file: Path, **options: str) -> HotRestartInfo:
    """The hot restart when it is over."""
    accepted = await restart(cluster.client, job_id, file, params={}, options=options, tell=lambda _: None)

    over = partial(ended, cluster, job_id, accepted.number)
    return await until(f"the end of hot restart {accepted.number}", over, timeout=90)


async def ended(cluster: Cluster, job_id: str, number: int) -> HotRestartInfo | None:
    job = await cluster.client.job(job_id)
    return next((r for r in job.minflinkd.hot_restarts if r.number == number and r.over), None)


def closes_windows(job: JobInfo) -> bool:
    return job.state == "RUNNING" and job.vertices[0].minflinkd.batches > 4


async def processes_of(cluster: Cluster) -> tuple[int, Mapping[str, float]]:
    """Of the only TaskManager: its pid, and those of its session."""
    (tm,) = await cluster.task_managers()
    tm = await cluster.measured(tm.id)
    return tm.minflinkd.pid, {key: tm.minflinkd.metrics[key] for key in ("jvm.pid", "session.pid")}


def versions(directory: Path) -> list[tuple[int, str]]:
    """(minute, tag) of all rows, in the order of time."""
    rows = pyarrow.dataset.dataset(directory, format="parquet").to_table(columns=["minute", "version"]).to_pylist()
    return sorted({(int(row["minute"].timestamp()), row["version"]) for row in rows})


async def test_versions_follow_each_other_on_the_same_session_and_the_output_is_exact(
    one: Cluster, tmp_path: Path
) -> None:
    """H3 - H6, H8: params, code and parallelism change; every row is there once, of the version that owed it."""
    windows = WindowsJob(tmp_path, files=40, pace="500 ms")
    windows.write_events()
    truth = windows.batch()
    job_id = await one.submit(version(windows, "out", "1"))
    await one.await_state(job_id, "RUNNING")
    await one.await_checkpoints(job_id, 2)
    before = await processes_of(one)
    seen = []
    changes: list[dict[str, Any]] = [{}, {"parallelism": 4}, {"parallelism": 1}]
    for tag, change in zip("234", changes, strict=True):
        file = version(
            WindowsJob(tmp_path, files=40, pace="500 ms", artifact=OTHER_CODE + f"# {tag}\n"), "out", tag, **change
        )
        await one.await_job(job_id, closes_windows, "has closed windows")
        seen.append(await restarted(one, job_id, file))
    assert [r.state for r in seen] == ["completed"] * 3
    assert await processes_of(one) == before
    job = await one.await_state(job_id, "FINISHED", timeout=120)
    assert job.minflinkd.restarts == 0
    assert result(tmp_path / "out") == truth
    assert leftovers(tmp_path / "out") == []
    tags = [tag for _, tag in versions(tmp_path / "out")]
    assert tags == sorted(tags)
    assert set(tags) == set("1234")


async def test_a_version_that_fails_in_its_first_micro_batch_gives_way_to_the_one_before_it(
    one: Cluster, tmp_path: Path
) -> None:
    """H7: the reason is told; the output has no gap and no duplicate."""
    windows = WindowsJob(tmp_path, files=30, pace="500 ms")
    windows.write_events()
    truth = windows.batch()
    job_id = await one.submit(version(windows, "out", "1"))
    await one.await_state(job_id, "RUNNING")
    await one.await_checkpoints(job_id, 2)
    before = await processes_of(one)
    bad = version(replace(windows, artifact=BROKEN_CODE), "out", "2")
    last = await restarted(one, job_id, bad)
    assert last.state == "rolled-back"
    assert last.error is not None
    assert "the new version cannot count" in last.error.message
    with pytest.raises(RefusedJob, match="1 fault"):
        await restarted(one, job_id, version(windows, "out", "3", vertices=_without_column(bad)))
    await one.await_state(job_id, "FINISHED", timeout=120)
    assert await processes_of(one) == before
    assert result(tmp_path / "out") == truth
    assert leftovers(tmp_path / "out") == []
    assert {tag for _, tag in versions(tmp_path / "out")} == {"1"}


def _without_column(file: Path) -> Any:
    vertices = json.loads(file.read_text())["vertices"]
    return {**vertices, "clean": {"inputs": ["events"], "sql": "SELECT k, time, nothing AS v FROM events"}}


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_daemon_killed_at_each_step_comes_back_with_one_version_and_exact_output(tmp_path: Path) -> None:
    """H8: before the switch the old version goes on, behind it the new one."""
    windows = WindowsJob(tmp_path, files=150, pace="500 ms")
    windows.write_events()
    truth = windows.batch()
    armed = tmp_path / "crash-at"
    armed.mkdir()
    environ = {**os.environ, VARIABLE: str(armed)}
    async with running_cluster(tmp_path / "cluster", environ=environ, **{**ONE, "rest.port": free_port()}) as cluster:
        await cluster.await_ready(1)
        job_id = await cluster.submit(version(windows, "out", "0"))
        await cluster.await_job(job_id, closes_windows, "has closed windows")
        before = await processes_of(cluster)
        for number, point in enumerate(OF_HOT_RESTARTS, start=1):
            (armed / point).touch()
            with contextlib.suppress(MinflinkError):  # the daemon dies, perhaps before it answers
                file = version(windows, "out", str(number))
                await restart(cluster.client, job_id, file, params={}, options={}, tell=lambda _: None)
            assert await asyncio.wait_for(cluster.process.wait(), timeout=60) == -signal.SIGKILL
            await cluster.start_again()
            job = await cluster.await_job(job_id, closes_windows, "is up again", timeout=120)
            last = await until(f"the end of hot restart {number}", partial(ended, cluster, job_id, number), timeout=90)
            counts = point not in (CrashPoint.RESTART_ACCEPTED, CrashPoint.RESTART_STOPPED)
            assert last.state == ("completed" if counts else "failed"), point
            assert job.minflinkd.restarts == 0
        assert await processes_of(cluster) == before
        await cluster.await_state(job_id, "FINISHED", timeout=300)
    assert result(tmp_path / "out") == truth
    assert leftovers(tmp_path / "out") == []
    tags = [tag for _, tag in versions(tmp_path / "out")]
    assert tags == sorted(tags)
    assert not {"1", "2"} & set(tags), "versions that never counted wrote nothing"
