"""The daemon dies between two named steps of a submission, a savepoint, a stop or a cancellation. Another follows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from minflinkd.checkpoint import layout
from minflinkd.cli.client import Client
from minflinkd.cli.submission import submit
from minflinkd.rest.schemas import JobInfo
from minflinkd.runtime.crash_points import OF_SAVEPOINTS, OF_SUBMISSIONS, VARIABLE, CrashPoint
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, free_port, running_cluster
from tests.faults.hot_restarts import ONE, drained, files_read
from tests.files import files_below
from tests.waiting import PATIENCE, until
from tests.windows_job import WindowsJob, leftovers, result

# In `make test`, tests/unit/dispatcher has daemons die at all of these points.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

FILES, MORE = 8, 4  # event files that are there at first, and those that come before the daemon dies
ENDLESS = {"mode": "streaming", "checkpointing": {"interval": "1 h"}, "trigger-interval": "200 ms"}
OF_A_STOP = (  # first the last checkpoint, after which tasks process nothing; then its copy; then the job's end
    CrashPoint.COMPLETE,
    CrashPoint.NOTIFIED,
    *OF_SAVEPOINTS,
    CrashPoint.END_REACHED,
    CrashPoint.END_WRITTEN,
    CrashPoint.END_STORED,
    CrashPoint.END_CLEANED,
)
OF_A_CANCELLATION = (CrashPoint.END_CANCELLED, *(point for point in OF_A_STOP if point.name.startswith("END_")))


@dataclass
class Deaths:
    """A daemon that can be told where to die. One TaskManager outlives all of its deaths."""

    cluster: Cluster
    armed: Path

    async def at(self, point: CrashPoint, request: Coroutine[Any, Any, Any]) -> bool:
        """Make a request while a point is armed. Return, when the next daemon is there, whether it was answered."""
        (self.armed / point).touch()
        asking = asyncio.ensure_future(request)
        try:
            died = await asyncio.wait_for(self.cluster.process.wait(), 90 * PATIENCE)
            assert (died, list(self.armed.iterdir())) == (-signal.SIGKILL, [])
            await self.cluster.start_again()
            with contextlib.suppress(MinflinkError):
                await asking
                return True
        finally:
            asking.cancel()
        return False

    async def running(self, windows: WindowsJob) -> JobInfo:
        """Submit a job without end, and wait until it has a checkpoint of what it has done. It takes no other itself.

        Some rows are published by then, and there is more to read.
        """
        job_id = await self.cluster.submit(windows.write("out", **ENDLESS))
        await self.cluster.await_job(job_id, lambda job: job.vertices[0].minflinkd.batches > 4, "has closed windows")
        await self.cluster.client.checkpoint(job_id)
        await until(partial(self._has_published, job_id), "the checkpoint is published, and everybody knows")
        await asyncio.to_thread(windows.write_events, FILES, MORE)
        return await self.cluster.client.job(job_id)

    async def _has_published(self, job_id: str) -> bool:
        offsets = await self.cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
        return any("events" in task["published"] for task in offsets["tasks"].values())

    async def await_idle(self) -> None:
        """Wait until no slot is held any more."""

        async def free() -> bool:
            found = await self.cluster.task_managers()
            return bool(found) and all(tm.free_slots == tm.slots_number for tm in found)

        await until(free, "all slots are free")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def deaths(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deaths]:
    base = tmp_path_factory.mktemp("deaths")
    (armed := base / "crash-at").mkdir()
    environ, settings = {**os.environ, VARIABLE: str(armed)}, {**ONE, "rest.port": free_port()}
    async with running_cluster(base / "cluster", environ=environ, **settings) as cluster:
        await cluster.await_ready(1)
        pids = [tm.minflinkd.pid for tm in await cluster.task_managers()]
        yield Deaths(cluster, armed)
        assert [tm.minflinkd.pid for tm in await cluster.task_managers()] == pids, "a TaskManager did not outlive them"


@pytest.fixture
def windows(tmp_path: Path) -> WindowsJob:
    job = WindowsJob(tmp_path, files=FILES)
    job.write_events()
    return job


@pytest.mark.parametrize("point", OF_SUBMISSIONS, ids=str)
async def test_a_job_whose_submission_the_daemon_did_not_outlive_runs_once(
    deaths: Deaths, windows: WindowsJob, point: CrashPoint
) -> None:
    """The client repeats it under the job's id, stored or not, and learns that the job is accepted (A6, R25)."""
    before = {job.jid for job in (await deaths.cluster.client.jobs()).jobs}
    async with Client(deaths.cluster.url, attempts=1000) as client:
        submission = asyncio.ensure_future(submit(client, windows.write("out"), params={}, tell=lambda _: None))
        await deaths.at(point, asyncio.wait_for(submission, 90 * PATIENCE))
    job = await deaths.cluster.await_state(submission.result().jobid, "FINISHED", timeout=180)
    assert {each.jid for each in (await deaths.cluster.client.jobs()).jobs} - before == {job.jid}
    assert job.minflinkd.restarts == 0
    assert result(windows.base / "out") == windows.expected()
    assert leftovers(windows.base / "out") == []


@pytest.mark.parametrize("point", [CrashPoint.COMPLETE, CrashPoint.NOTIFIED, *OF_SAVEPOINTS], ids=str)
async def test_a_job_goes_on_if_the_daemon_dies_over_its_savepoint(
    deaths: Deaths, windows: WindowsJob, point: CrashPoint
) -> None:
    """Its task is adopted. The savepoint is there if it was complete, and another can be taken (A14c, C24)."""
    cluster, savepoints = deaths.cluster, windows.base / "savepoints"
    before = await deaths.running(windows)
    await deaths.at(point, cluster.client.savepoint(before.jid, str(savepoints)))
    written = list(savepoints.glob("*/_metadata"))
    assert len(written) == (point is CrashPoint.SAVEPOINT_WRITTEN)
    await cluster.await_state(before.jid, "RUNNING")
    path = written[0].parent.as_uri() if written else await cluster.client.savepoint(before.jid, str(savepoints))
    await drained(cluster, before.jid, savepoints, source="events", files=FILES + MORE)
    job = await cluster.client.job(before.jid)
    assert job.vertices[0].minflinkd.attempt_id == before.vertices[0].minflinkd.attempt_id
    assert job.minflinkd.restarts == 0
    assert result(windows.base / "out") == windows.expected()
    assert leftovers(windows.base / "out") == []
    await go_on(cluster, windows, path, "again")
    assert set(result(windows.base / "again")) <= set(windows.expected())


@pytest.mark.parametrize("point", OF_A_STOP, ids=str)
async def test_a_job_whose_stop_the_daemon_did_not_outlive_has_ended_or_goes_on(
    deaths: Deaths, windows: WindowsJob, point: CrashPoint
) -> None:
    """If it goes on, it restarts at most once, and can be stopped again. Another continues exactly (A14c, C24)."""
    cluster, savepoints = deaths.cluster, windows.base / "savepoints"
    before = await deaths.running(windows)
    answered = await deaths.at(point, cluster.client.stop(before.jid, str(savepoints), drain=False))
    if point in (CrashPoint.END_WRITTEN, CrashPoint.END_STORED, CrashPoint.END_CLEANED):
        (path,) = (file.parent.as_uri() for file in savepoints.glob("*/_metadata"))
    else:
        assert not answered, "somebody may have started another job from the savepoint"
        await cluster.await_state(before.jid, "RUNNING")
        await until(partial(has_read, cluster, before.jid, FILES + MORE), "it goes on")
        path = await cluster.client.stop(before.jid, str(savepoints), drain=False)
    job = await cluster.await_state(before.jid, "FINISHED")
    assert job.minflinkd.restarts <= 1
    await deaths.await_idle()
    assert leftovers(windows.base / "out") == []
    await go_on(cluster, windows, path, "out")
    assert result(windows.base / "out") == windows.expected()


@pytest.mark.parametrize("point", OF_A_CANCELLATION, ids=str)
async def test_a_cancelled_job_stays_cancelled_if_the_daemon_dies_over_it(
    deaths: Deaths, windows: WindowsJob, point: CrashPoint
) -> None:
    """Nothing of it runs any more, and what it had published stays, once (A12, R26)."""
    before = await deaths.running(windows)
    published = result(windows.base / "out")
    await deaths.at(point, deaths.cluster.client.cancel(before.jid))
    await deaths.cluster.await_state(before.jid, "CANCELED")
    await deaths.await_idle()
    found = result(windows.base / "out")
    assert set(published) <= set(found) <= set(windows.expected())
    assert len(found) == len(set(found))
    assert leftovers(windows.base / "out") == []

    def cleaned() -> bool:
        directory = deaths.cluster.state / "checkpoints" / before.jid
        return all(layout.outlives_checkpoints(str(path.relative_to(directory))) for path in files_below(directory))

    await until(cleaned, "its checkpoints are deleted")


async def has_read(cluster: Cluster, job_id: str, files: int) -> bool:
    return await files_read(cluster, job_id, "events") == files


async def go_on(cluster: Cluster, windows: WindowsJob, savepoint: str, into: str) -> None:
    """Run another job from a savepoint to the end of the input, of which there is more by now."""
    await asyncio.to_thread(windows.write_events, FILES + MORE, MORE)
    job_id = await cluster.submit(windows.write(into, **ENDLESS, restore={"path": savepoint}))
    await cluster.await_state(job_id, "RUNNING")
    await drained(cluster, job_id, windows.base / "ends", source="events", files=FILES + 2 * MORE)
