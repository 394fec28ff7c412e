"""Hot restarts through the Dispatcher, over a real store. The TaskManager is a mailbox that runs what is deployed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.dispatcher import hot_restart
from minflinkd.dispatcher.job_master_factory import JobMasterFactory
from minflinkd.dispatcher.job_store import JobStore, StoredJob
from minflinkd.dispatcher.versions import Versions
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus, RestartState
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime import crash_points
from minflinkd.runtime.crash_points import CrashPoint
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.storage.interface import StorageUnavailable
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster
from tests.unit.dispatcher.versions_world import (
    BOOM,
    COUNT,
    JOB,
    Bug,
    Runner,
    a_runner,
    dies_at,
    document,
    job_running,
    over,
    restart,
    runs,
    seen,
)
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        yield one


async def test_a_new_version_takes_over_the_slots_and_the_state(cluster: Cluster, runner: Runner) -> None:
    """The new version runs on the slots of the old one, from its last checkpoint (H1 - H4, H10)."""
    async with job_running(cluster, runner):
        slots = dict(runner.held)
        answer = await restart(cluster, "2")
        assert (answer.faults, answer.number) == ((), 1)
        assert [(c.path, c.before, c.after) for c in answer.changes.settings] == [("params.version", '"1"', '"2"')]
        ended = await seen(cluster, over(1))
        assert ended.state is RestartState.COMPLETED
        assert {"stopped", "slots", "deployed", "running", "first_checkpoint"} <= set(ended.phases)
        assert runner.versions == ["2"]
        assert runner.held == slots
        assert runner.deployed[-1].restore is not None
        assert runner.deployed[-1].restore.checkpoint_id == ended.checkpoint_id
        job = await cluster.job(JOB)
        assert (job.graph.params, job.restarts) == ({"version": "2"}, 0)
        assert (cluster.ended, cluster.blobs.deleted) == ([], [])


async def test_a_daemon_finds_the_last_version_and_none_of_the_earlier_ones(cluster: Cluster, runner: Runner) -> None:
    """After several versions only the last one counts. Versions that no longer count are deleted (A12)."""
    async with job_running(cluster, runner):
        for number, version in enumerate("234", start=1):
            await restart(cluster, version)
            await seen(cluster, over(number))
        await until(lambda: len([f for f in cluster.files() if f.startswith("jobstore/versions")]) == 1)
    async with cluster.serving():
        job = await seen(cluster, lambda job: job if runs(runner, "4")(job) else None)
        assert [r.number for r in job.hot_restarts] == [3, 2, 1]
        assert job.hot_restart_outcomes == {"completed": 3}
        await cluster.cancel(JOB)
        await seen(cluster, lambda job: job.status is JobStatus.CANCELED)
        await until(lambda: JOB in cluster.blobs.deleted)
    assert [f for f in cluster.files() if f.startswith("jobstore/versions")] == []


async def test_a_version_that_fails_leaves_the_one_before_it_running(cluster: Cluster, runner: Runner) -> None:
    """The old version continues from the checkpoint with which it made way, and the reason is shown (H7)."""
    async with job_running(cluster, runner):
        runner.fails = "2"
        await restart(cluster, "2")
        ended = await seen(cluster, over(1))
        assert (ended.state, ended.error) == (RestartState.ROLLED_BACK, BOOM)
        await seen(cluster, runs(runner, "1"))
        assert [d.job.params["version"] for d in runner.deployed] == ["1", "2", "1"]
        first, second = (d.restore for d in runner.deployed[1:])
        assert first is not None
        assert second is not None
        assert first.checkpoint_id == second.checkpoint_id == ended.checkpoint_id


async def test_a_dry_run_and_a_refused_version_touch_nothing(cluster: Cluster, runner: Runner) -> None:
    """The new version is refused for unknown settings, Spark's errors, or state without a place (H2, J4)."""
    async with job_running(cluster, runner):
        await restart(cluster, "2", dry_run=True)
        wrong = await restart(cluster, "2", document=document("2", vertices=[]))
        assert wrong.faults
        await restart(cluster, "2")
        await seen(cluster, over(1))
        before = len(runner.deployed)
        cluster.operators = {TaskId("numbers"): (msgspec.structs.replace(COUNT, fingerprint="string"),)}
        refused = await restart(cluster, "3")
        assert "other types" in refused.faults[0].problem
        (state,) = refused.changes.state
        assert (state.vertex, state.fate) == ("numbers", j.StateFate.INCOMPATIBLE)
        cluster.operators = {TaskId("numbers"): ()}
        assert (await restart(cluster, "3")).faults
        lossy = await restart(cluster, "3", dry_run=True, allow_non_restored_state=True)
        assert lossy.faults == ()
        assert [s.fate for s in lossy.changes.state] == [j.StateFate.LOST]
        assert len(runner.deployed) == before
        assert [r.number for r in (await cluster.job(JOB)).hot_restarts] == [1]


async def test_a_version_may_not_read_another_range(cluster: Cluster, runner: Runner) -> None:
    """What is in its state would be of rows that the new version does not read."""
    async with job_running(cluster, runner):
        ranged = {"mode": "batch", "input-range": {"from": "2026-03-01", "to": "2026-03-02"}}
        vertices = copy.deepcopy(DOCUMENT["vertices"])
        vertices[0]["source"] = {"format": "text", "path": "/in"}
        refused = await restart(cluster, "2", document=document("2", vertices=vertices, **ranged))
        (fault,) = (fault for fault in refused.faults if fault.path == "input-range")
        assert "of the rows of another range" in fault.problem
        assert [d.job.params["version"] for d in runner.deployed] == ["1"]


async def test_a_second_request_is_refused_or_takes_the_place_of_the_first(cluster: Cluster, runner: Runner) -> None:
    """A second request is refused, unless it asks to replace the first one (H9)."""
    async with job_running(cluster, runner):
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def held_back() -> None:
            begun.set()
            await go_on.wait()

        runner.fails = "2"
        cluster.before_analysis = held_back
        first = asyncio.ensure_future(restart(cluster, "2"))
        await begun.wait()
        with pytest.raises(RemoteError, match="another version"):
            await restart(cluster, "3")
        go_on.set()
        await first
        answer = await restart(cluster, "3", replace=True)
        ended = await seen(cluster, over(answer.number))
        assert ended.state is RestartState.COMPLETED
        assert runner.versions == ["3"]


async def test_a_cancel_in_the_middle_ends_the_job(cluster: Cluster, runner: Runner) -> None:
    """H3a."""
    async with job_running(cluster, runner):
        await restart(cluster, "2")
        await cluster.cancel(JOB)
        job = await seen(cluster, lambda job: job if job.status.terminal else None)
        assert job.status is JobStatus.CANCELED
        assert runner.running == {}


async def test_a_rescale_is_a_hot_restart_of_the_same_version(cluster: Cluster, runner: Runner) -> None:
    """The job asks only for the slots that it lacks. A wrong parallelism is refused (H6)."""
    async with job_running(cluster, runner):
        request = j.RescaleJob(job_id=JOB, parallelism=3)
        answer = await cluster.network.ask(DISPATCHER, request, timeout=5)
        assert answer.faults == ()
        assert (await seen(cluster, over(1))).state is RestartState.COMPLETED
        assert (runner.versions, runner.deployed[-1].task.parallelism) == (["1"], 3)
        request = j.RescaleJob(job_id=JOB, vertices={"nothing": 2})
        assert (await cluster.network.ask(DISPATCHER, request, timeout=5)).faults


@pytest.mark.parametrize(
    ("point", "version", "state"),
    [
        (CrashPoint.RESTART_ACCEPTED, "1", RestartState.FAILED),
        (CrashPoint.RESTART_STOPPED, "1", RestartState.FAILED),
        (CrashPoint.RESTART_SWITCHED, "2", RestartState.COMPLETED),
        (CrashPoint.RESTART_RUNNING, "2", RestartState.COMPLETED),
        (CrashPoint.RESTART_PROVEN, "2", RestartState.COMPLETED),
    ],
)
async def test_a_daemon_that_dies_between_two_steps_leaves_exactly_one_version(
    cluster: Cluster, runner: Runner, point: CrashPoint, version: str, state: RestartState
) -> None:
    """A daemon may die between any two steps: exactly one version runs afterwards (H8)."""
    with capture_logs():
        async with job_running(cluster, runner):
            await dies_at(point, restart(cluster, "2"))
        async with cluster.serving():
            ended = await seen(cluster, over(1))
            assert ended.state is state
            await seen(cluster, runs(runner, version))
            assert runner.versions == [version]
            assert (await cluster.job(JOB)).restarts == 0, "its tasks may have been told to end"


@pytest.mark.parametrize(
    ("point", "version", "state"),
    [
        (CrashPoint.RESTART_ACCEPTED, "1", RestartState.FAILED),
        (CrashPoint.RESTART_STOPPED, "2", RestartState.COMPLETED),
        (CrashPoint.RESTART_SWITCHED, "2", RestartState.COMPLETED),
        (CrashPoint.RESTART_RUNNING, "2", RestartState.COMPLETED),
        (CrashPoint.RESTART_PROVEN, "2", RestartState.COMPLETED),
    ],
)
async def test_a_job_master_that_crashes_between_two_steps_leaves_exactly_one_version(
    cluster: Cluster, runner: Runner, point: CrashPoint, version: str, state: RestartState
) -> None:
    """A JobMaster may crash between any two steps: exactly one version runs afterwards (H8, R13)."""
    with capture_logs():
        async with job_running(cluster, runner) as dispatcher:
            bug = Bug(dispatcher, point)
            with crash_points.intercepted(bug):
                await restart(cluster, "2")
                ended = await seen(cluster, over(1))
            await until(lambda: len(bug.struck) == 1 and dispatcher.job_master(JOB) not in (None, *bug.struck))
            assert ended.state is state
            await seen(cluster, runs(runner, version))


async def test_nobody_brings_a_version_up_again_while_it_is_stored_that_another_one_counts(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a checkpoint that the old version completed meanwhile would count as one of the next version (H8)."""
    put, go_on = JobStore.put_versions, asyncio.Event()

    async def held_back(self: JobStore, job_id: JobId, number: int, versions: Versions) -> None:
        if versions.current.graph.params["version"] == "2":
            await go_on.wait()
        await put(self, job_id, number, versions)

    monkeypatch.setattr(JobStore, "put_versions", held_back)
    with capture_logs():
        async with job_running(cluster, runner) as dispatcher:
            prepared = cluster.blobs.events.count(("recover", JOB))
            with crash_points.intercepted(Bug(dispatcher, CrashPoint.RESTART_STOPPED)):
                await restart(cluster, "2")
                await until(lambda: cluster.blobs.events.count(("recover", JOB)) > prepared)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await until(lambda: len(runner.deployed) > 1)
                go_on.set()
                assert (await seen(cluster, over(1))).state is RestartState.COMPLETED
            assert [d.job.params["version"] for d in runner.deployed] == ["1", "2"]


async def test_a_version_whose_job_masters_crash_again_and_again_is_turned_back(
    cluster: Cluster, runner: Runner
) -> None:
    """The version is rolled back even if its tasks run each time (H7)."""
    with capture_logs():
        async with job_running(cluster, runner) as dispatcher:
            with crash_points.intercepted(Bug(dispatcher, CrashPoint.RESTART_RUNNING, times=1000)):
                await restart(cluster, "2")
                ended = await seen(cluster, over(1))
                assert ended.state is RestartState.ROLLED_BACK
                assert ended.error is not None
                assert "a bug" in ended.error.message
                await seen(cluster, runs(runner, "1"))


async def test_a_daemon_that_dies_while_a_version_is_turned_back_ends_with_the_one_before_it(
    cluster: Cluster, runner: Runner
) -> None:
    """The rollback completes whether or not the daemon knew already that the version had failed (H7, H8)."""
    reached = asyncio.Event()

    def strike(here: CrashPoint) -> None:
        if here is CrashPoint.RESTART_STOPPED and runner.fails:
            reached.set()
            raise OSError("the daemon is dead")
        if here is CrashPoint.RESTART_SWITCHED:
            runner.fails = "2"

    with capture_logs():
        async with job_running(cluster, runner):
            with crash_points.intercepted(strike):
                await restart(cluster, "2")
                async with asyncio.timeout(10):
                    await reached.wait()
        async with cluster.serving():
            ended = await seen(cluster, over(1))
            assert ended.state is RestartState.ROLLED_BACK
            await seen(cluster, runs(runner, "1"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("a hook is not installed any more"), "jobmaster-down"),
        (StorageUnavailable("the storage is away"), "hot-restart-timeout"),
    ],
)
async def test_a_version_whose_job_master_cannot_be_made_is_turned_back(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    """Nobody could be asked to make way. The storage shows that the version has proven nothing (H7)."""
    monkeypatch.setattr(hot_restart, "MASTERLESS", 0.05)
    make = JobMasterFactory.make

    def broken(self: JobMasterFactory, stored: StoredJob, *others: Any) -> JobMaster:
        if stored.graph.params["version"] == "2":
            raise error
        return make(self, stored, *others)

    monkeypatch.setattr(JobMasterFactory, "make", broken)
    with capture_logs():
        async with job_running(cluster, runner) as dispatcher:
            dispatcher.options = replace(dispatcher.options, hot_restart_timeout=0.2)
            await restart(cluster, "2")
            ended = await seen(cluster, over(1))
            assert ended.state is RestartState.ROLLED_BACK
            assert ended.error is not None
            assert ended.error.code == code
            await seen(cluster, runs(runner, "1"))
