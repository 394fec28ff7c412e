"""A new version of a running job on the same warm session, with its state; or the version before it, and the reason."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from minflinkd.cli.submission import RefusedJob, restart
from minflinkd.rest.schemas import JobInfo
from minflinkd.runtime.crash_points import OF_HOT_RESTARTS, VARIABLE, CrashPoint
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import PAUSE, Cluster, free_port, running_cluster, until
from tests.faults.hot_restarts import ONE, drained, ended, processes_of, restarted
from tests.windows_job import SQL, WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

AHEAD = 6  # event files that are there and not yet read
TAGGED = SQL.replace("SELECT ", "SELECT '${version}' AS version, ", 1)
OTHER_CODE = """
def kept(frame):
    return frame.where('v > -1')

def clean(inputs, params):
    return kept(inputs['events'])
"""
IN_EVERY_ROW = """
import time

from pyspark.sql import functions as f
from pyspark.sql.types import LongType

@f.udf(LongType())
def checked(v):
    {does}

def clean(inputs, params):
    return inputs['events'].withColumn('v', checked('v'))
"""
AT_IMPORT = """
{does}

def clean(inputs, params):
    return inputs['events']
"""
AT_PLANNING = """
import time

def clean(inputs, params):
    {does}
    return inputs['events']
"""
# Where it is checked all is well: what it does it does from the second time on.
LATER = "(lambda seen: {does} if seen.exists() else seen.touch())(__import__('pathlib').Path('{marker}'))"
RAISES = "(_ for _ in ()).throw(ValueError('the new version cannot count'))"
HANGS = "__import__('threading').Event().wait()"


@dataclass
class Versions:
    """Of one job that reads files which keep coming; each version writes its tag beside every row."""

    cluster: Cluster
    windows: WindowsJob
    job_id: str = ""

    @property
    def output(self) -> Path:
        return self.windows.base / "out"

    def write(self, tag: str, *, artifact: str = "", sql: str = TAGGED, **changes: Any) -> Path:
        """The job file of a version. `changes`: of its vertices, by id, and of other top-level keys."""
        windows = replace(self.windows, artifact=artifact) if artifact else self.windows
        document = json.loads(windows.write("out", mode="streaming").read_text())
        document["params"]["version"] = tag
        document["vertices"]["minutes"]["sql"] = sql
        document |= changes
        file = self.windows.base / "out-job/job.yaml"
        file.write_text(json.dumps(document))
        return file

    @property
    def files(self) -> int:
        return len(list(self.windows.events.glob("[0-9]*")))

    @contextlib.asynccontextmanager
    async def fed(self) -> AsyncIterator[None]:
        """While the block runs there is always something to read, and never much."""

        async def feed() -> None:
            while True:
                with contextlib.suppress(MinflinkError):  # the daemon may be down
                    read = (await self.cluster.client.job(self.job_id)).vertices[0].minflinkd.batch_id
                    await asyncio.to_thread(self.windows.write_events, self.files, max(0, read + AHEAD - self.files))
                await asyncio.sleep(PAUSE)

        feeder = asyncio.create_task(feed(), name="feeder")
        try:
            yield
        finally:
            feeder.cancel()
            await asyncio.wait([feeder])

    async def goes_on(self) -> None:
        """The version that counts has a checkpoint of its own, and closes windows."""
        await self.cluster.await_job(self.job_id, closes_windows, "has closed windows")

    def written(self) -> list[str]:
        """Tags, in the order of time."""
        rows = pyarrow.dataset.dataset(self.output, format="parquet").to_table(columns=["minute", "version"])
        return [tag for _, tag in sorted({(row["minute"], row["version"]) for row in rows.to_pylist()})]


@contextlib.asynccontextmanager
async def running_versions(cluster: Cluster, base: Path) -> AsyncIterator[Versions]:
    """A job whose version "1" runs. When the block has ended, every row of its output is there, once."""
    versions = Versions(cluster, WindowsJob(base))
    versions.windows.write_events(count=AHEAD)
    versions.job_id = await cluster.submit(versions.write("1"))
    try:
        async with versions.fed():
            await versions.goes_on()
            await cluster.await_checkpoints(versions.job_id, 2)
            yield versions
            await versions.goes_on()
        await drained(cluster, versions.job_id, base / "savepoints", source="events", files=versions.files)
    finally:
        await cluster.cancel_all()
    assert result(versions.output) == versions.windows.expected()
    assert leftovers(versions.output) == []
    assert versions.written() == sorted(versions.written()), "no version wrote behind the next"


def closes_windows(job: JobInfo) -> bool:
    return job.state == "RUNNING" and job.vertices[0].minflinkd.batches > 4


async def test_versions_follow_each_other_on_the_same_session_and_the_output_is_exact(
    one: Cluster, tmp_path: Path
) -> None:
    """H3 - H6, H8: params, code and parallelism change; every row is there once, of the version that owed it."""
    changes: list[dict[str, Any]] = [{}, {"parallelism": 4}, {"parallelism": 1}]
    async with running_versions(one, tmp_path) as versions:
        before = await processes_of(one)
        for tag, change in zip("234", changes, strict=True):
            await versions.goes_on()
            file = versions.write(tag, artifact=OTHER_CODE + f"# {tag}\n", **change)
            assert (await restarted(one, versions.job_id, file)).state == "completed"
        assert await processes_of(one) == before
        assert (await one.client.job(versions.job_id)).minflinkd.restarts == 0
    assert set(versions.written()) == set("1234")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "SQL that is none": ({"sql": TAGGED.replace("GROUP", "GRUPPE")}, "GRUPPE"),
    "a column that is not there": ({"sql": TAGGED.replace("sum(v)", "sum(nothing)")}, "nothing"),
    "state of another type": ({"sql": TAGGED.replace("sum(v)", "avg(v)")}, "state"),
    "code that raises at import": ({"artifact": AT_IMPORT.format(does=RAISES)}, "the new version cannot count"),
    "code that raises at planning": ({"artifact": AT_PLANNING.format(does=RAISES)}, "the new version cannot count"),
}


async def test_a_version_that_cannot_run_is_refused_before_anything_of_the_old_one_is_touched(
    one: Cluster, tmp_path: Path
) -> None:
    """H2: the reason is told; the old version runs on in the same attempt."""
    async with running_versions(one, tmp_path) as versions:
        before = (await one.client.job(versions.job_id)).vertices[0].minflinkd.attempt_id
        for what, (change, reason) in REFUSED.items():
            with pytest.raises(RefusedJob) as refusal:
                await restarted(one, versions.job_id, versions.write("2", **change))
            assert any(reason in fault.problem for fault in refusal.value.faults), (what, refusal.value.faults)
        job = await one.client.job(versions.job_id)
        assert job.vertices[0].minflinkd.attempt_id == before
        assert job.minflinkd.hot_restarts == ()
    assert set(versions.written()) == {"1"}


FAILS = {
    "at import": AT_IMPORT.format(does=LATER.format(does=RAISES, marker="{marker}")),
    "at planning": AT_PLANNING.format(does=LATER.format(does=RAISES, marker="{marker}")),
    "in its first micro-batch": IN_EVERY_ROW.format(does=f"return {RAISES}"),
}


async def test_a_version_that_fails_gives_way_to_the_one_before_it(one: Cluster, tmp_path: Path) -> None:
    """H7: at import and at planning, though it was found sound before, and in its first micro-batch."""
    async with running_versions(one, tmp_path) as versions:
        before = await processes_of(one)
        for tag, (where, code) in enumerate(FAILS.items(), start=2):
            bad = code.replace("{marker}", str(tmp_path / f"seen-{tag}"))
            last = await restarted(one, versions.job_id, versions.write(str(tag), artifact=bad))
            assert last.state in ("rolled-back", "failed"), where
            assert last.error is not None
            assert "the new version cannot count" in last.error.message, where
            await versions.goes_on()
        assert await processes_of(one) == before
        assert (await one.client.job(versions.job_id)).minflinkd.restarts == 0
    assert set(versions.written()) == {"1"}


async def test_a_version_that_wants_more_slots_than_there_are_is_given_up_while_the_old_one_runs(
    one: Cluster, tmp_path: Path
) -> None:
    """H4, H7: after `hot-restart.timeout`; the attempt of the old version is the same."""
    async with running_versions(one, tmp_path) as versions, one.configured(**{"hot-restart.timeout": "2 s"}):
        before = (await one.client.job(versions.job_id)).vertices[0].minflinkd.attempt_id
        last = await restarted(one, versions.job_id, versions.write("2", parallelism=5))
        assert last.state == "failed"
        assert last.error is not None
        assert "slots" in last.error.message
        assert (await one.client.job(versions.job_id)).vertices[0].minflinkd.attempt_id == before
    assert set(versions.written()) == {"1"}


HANGING = {
    "at planning": AT_PLANNING.format(does=LATER.format(does=HANGS, marker="{marker}")),
    "in its first micro-batch": IN_EVERY_ROW.format(does=HANGS),
}


@pytest.mark.parametrize("where", [pytest.param("at planning", marks=pytest.mark.slow), "in its first micro-batch"])
async def test_a_version_that_hangs_gives_way_to_the_one_before_it(one: Cluster, tmp_path: Path, where: str) -> None:
    """H7: within `hot-restart.timeout`."""
    async with running_versions(one, tmp_path) as versions:
        async with one.configured(**{"hot-restart.timeout": "5 s"}):
            hanging = HANGING[where].replace("{marker}", str(tmp_path / "seen"))
            last = await restarted(one, versions.job_id, versions.write("2", artifact=hanging))
        assert last.state in ("rolled-back", "failed")
        assert last.error is not None
        assert last.error.code == "hot-restart-timeout"
    assert set(versions.written()) == {"1"}


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_daemon_killed_at_each_step_comes_back_with_one_version_and_exact_output(tmp_path: Path) -> None:
    """H8: before the switch the old version goes on, behind it the new one."""
    armed = tmp_path / "crash-at"
    armed.mkdir()
    environ = {**os.environ, VARIABLE: str(armed)}
    async with running_cluster(tmp_path / "cluster", environ=environ, **{**ONE, "rest.port": free_port()}) as cluster:
        await cluster.await_ready(1)
        async with running_versions(cluster, tmp_path) as versions:
            before = await processes_of(cluster)
            for number, point in enumerate(OF_HOT_RESTARTS, start=1):
                (armed / point).touch()
                with contextlib.suppress(MinflinkError):  # the daemon dies, perhaps before it answers
                    file = versions.write(str(number + 1))
                    await restart(cluster.client, versions.job_id, file, params={}, options={}, tell=lambda _: None)
                assert await asyncio.wait_for(cluster.process.wait(), timeout=60) == -signal.SIGKILL
                await cluster.start_again()
                await versions.goes_on()
                over = partial(ended, cluster, versions.job_id, number)
                last = await until(f"the end of hot restart {number}", over, timeout=90)
                counts = point not in (CrashPoint.RESTART_ACCEPTED, CrashPoint.RESTART_STOPPED)
                assert last.state == ("completed" if counts else "failed"), point
            assert await processes_of(cluster) == before
            assert (await cluster.client.job(versions.job_id)).minflinkd.restarts == 0
    assert not {"2", "3"} & set(versions.written()), "versions that never counted wrote nothing"
