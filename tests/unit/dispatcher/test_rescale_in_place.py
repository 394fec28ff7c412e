"""A rescale that leaves the tasks running: the next JobMaster adopts them and gives them other slots (H6, R20)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from minflinkd.dispatcher.job_store import JobStore
from minflinkd.dispatcher.versions import Versions
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus, RestartState
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.crash_points import CrashPoint
from minflinkd.runtime.ids import JobId
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.versions_world import (
    JOB,
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
WIDE = {"parallelism": 2, "max-parallelism": 4}


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        one.keeps = True
        yield one


async def rescale(cluster: Cluster, parallelism: int) -> j.RestartAnswer:
    request = j.RescaleJob(job_id=JOB, parallelism=parallelism)
    return await cluster.network.ask(DISPATCHER, request, timeout=5)


@pytest.mark.parametrize("parallelism", [4, 1])
async def test_a_rescale_within_the_partitions_stops_no_task(
    cluster: Cluster, runner: Runner, parallelism: int
) -> None:
    """The attempt goes on under the next JobMaster, and a later rescale finds it again."""
    async with job_running(cluster, runner, **WIDE):
        (attempt,) = runner.running
        assert (await rescale(cluster, parallelism)).faults == ()
        ended = await seen(cluster, over(1))
        assert (ended.state, ended.error) == (RestartState.COMPLETED, None)
        assert {"handed_over", "running", "first_checkpoint"} <= set(ended.phases)
        assert "stopped" not in ended.phases
        await until(lambda: runner.resized == {attempt: parallelism})
        job = await cluster.job(JOB)
        assert (job.status, job.restarts, job.graph.parallelism) == (JobStatus.RUNNING, 0, parallelism)
        await rescale(cluster, 3)
        await seen(cluster, over(2))
        await until(lambda: runner.resized == {attempt: 3})
        assert (list(runner.running), len(runner.deployed)) == ([attempt], 1)


async def test_a_rescale_to_what_the_job_has_stops_no_task(cluster: Cluster, runner: Runner) -> None:
    """Such as what `GET resource-requirements` has answered."""
    async with job_running(cluster, runner, **WIDE):
        await rescale(cluster, 2)
        ended = await seen(cluster, over(1))
        assert (ended.state, "stopped" in ended.phases) == (RestartState.COMPLETED, False)
        assert (len(runner.deployed), runner.resized) == (1, {})


async def test_more_slots_than_partitions_take_a_hot_restart(cluster: Cluster, runner: Runner) -> None:
    """The state must be rewritten, and for that the tasks stop."""
    async with job_running(cluster, runner, parallelism=2):
        (attempt,) = runner.running
        await rescale(cluster, 3)
        ended = await seen(cluster, over(1))
        assert (ended.state, "stopped" in ended.phases) == (RestartState.COMPLETED, True)
        assert attempt not in runner.running
        assert [d.task.parallelism for d in runner.deployed] == [2, 3]


async def test_another_version_that_also_has_another_parallelism_stops_the_tasks(
    cluster: Cluster, runner: Runner
) -> None:
    """They would go on with the code before."""
    async with job_running(cluster, runner, **WIDE):
        await restart(cluster, "2", document=document("2", **{**WIDE, "parallelism": 4}))
        assert "stopped" in (await seen(cluster, over(1))).phases
        assert [d.job.params["version"] for d in runner.deployed] == ["1", "2"]


async def test_tasks_that_cannot_be_resized_restart_from_a_checkpoint(cluster: Cluster, runner: Runner) -> None:
    """Their plans were made for their slots. The version counts as soon as it has a checkpoint, and restarts then."""
    runner.rigid = True
    async with job_running(cluster, runner, **WIDE):
        await rescale(cluster, 4)
        assert (await seen(cluster, over(1))).state is RestartState.COMPLETED
        await until(lambda: [d.task.parallelism for d in runner.deployed] == [2, 4])
        await seen(cluster, runs(runner, "1"))
        assert (await cluster.job(JOB)).restarts == 0


@pytest.mark.parametrize(
    ("point", "parallelism", "state"),
    [
        (CrashPoint.RESTART_ACCEPTED, 2, RestartState.FAILED),
        (CrashPoint.RESTART_STOPPED, 2, RestartState.FAILED),
        (CrashPoint.RESTART_SWITCHED, 4, RestartState.COMPLETED),
        (CrashPoint.RESTART_RUNNING, 4, RestartState.COMPLETED),
        (CrashPoint.RESTART_PROVEN, 4, RestartState.COMPLETED),
    ],
)
async def test_a_daemon_that_dies_between_two_steps_stops_no_task_either(
    cluster: Cluster, runner: Runner, point: CrashPoint, parallelism: int, state: RestartState
) -> None:
    """The next daemon adopts the tasks, in the version that counts, and gives them its slots (H8, A14a)."""
    with capture_logs():
        async with job_running(cluster, runner, **WIDE):
            (attempt,) = runner.running
            await dies_at(point, rescale(cluster, 4))
        async with cluster.serving():
            assert (await seen(cluster, over(1))).state is state
            await seen(cluster, runs(runner, "1"))
            assert (await cluster.job(JOB)).graph.parallelism == parallelism
            await until(lambda: runner.resized.get(attempt, 2) == parallelism)
            assert (list(runner.running), len(runner.deployed)) == ([attempt], 1)


async def test_the_same_version_again_is_a_hot_restart(cluster: Cluster, runner: Runner) -> None:
    """Whoever asks for one wants the tasks to be started again."""
    async with job_running(cluster, runner):
        await restart(cluster, "1")
        assert "stopped" in (await seen(cluster, over(1))).phases
        assert len(runner.deployed) == 2


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_a_request_that_replaces_one_whose_tasks_have_just_made_way_is_carried_out(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    """It is being stored when the tasks of the version before have stopped. Nobody else would start it."""
    put, storing, go_on = JobStore.put_versions, asyncio.Event(), asyncio.Event()

    async def held_back(self: JobStore, job_id: JobId, number: int, versions: Versions) -> None:
        if versions.restart is not None and versions.restart.number == 2 and not storing.is_set():
            storing.set()
            await go_on.wait()
        await put(self, job_id, number, versions)

    monkeypatch.setattr(JobStore, "put_versions", held_back)
    async with job_running(cluster, runner):
        runner.may_snapshot.clear()
        await restart(cluster, "2")
        wanted = document("3", parallelism=parallelism)
        asking = asyncio.ensure_future(restart(cluster, "3", document=wanted, replace=True))
        await storing.wait()
        runner.may_snapshot.set()
        await until(lambda: not runner.running, "version 1 has made way")
        go_on.set()
        await asking
        assert (await seen(cluster, over(2))).state is RestartState.COMPLETED
        await seen(cluster, runs(runner, "3"))
        assert [d.job.params["version"] for d in runner.deployed] == ["1", "3"]
