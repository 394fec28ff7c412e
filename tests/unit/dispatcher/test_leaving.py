"""A job leaves a TaskManager that is drained, under a real Dispatcher and JobMaster (A15b)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import RestartState
from minflinkd.rpc.network import DISPATCHER
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.versions_world import JOB, OTHER, RUNNER, Runner, a_runner, job_running, over, restart, seen
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        yield one


async def asked_to_move(cluster: Cluster) -> str:
    answer = await cluster.network.ask(DISPATCHER, m.MoveJobs(jobs=(JOB,)), timeout=5)
    return answer.why[JOB]


def on(job: j.JobDetails) -> set[object]:
    return {task.resource_id for task in job.tasks}


async def test_a_job_moves_to_slots_that_it_had_before_its_tasks_stopped(cluster: Cluster, runner: Runner) -> None:
    """The version is the same, and nothing is checked, analysed or put on trial again (A15b, H3)."""
    async with job_running(cluster, runner):
        assert on(await cluster.job(JOB)) == {RUNNER}
        runner.draining = True

        async def begins() -> bool:
            await asked_to_move(cluster)
            return bool((await cluster.job(JOB)).hot_restarts)

        await until(begins)
        assert (await seen(cluster, over(1))).state is RestartState.COMPLETED
        job = await cluster.job(JOB)
        assert on(job) == {OTHER}
        assert (runner.versions, job.restarts) == (["1"], 0)


async def moving_without_room(cluster: Cluster, runner: Runner) -> None:
    """Drain the job's TaskManager. Its move waits for slots."""
    runner.draining, runner.room_elsewhere = True, False

    async def begins() -> bool:
        await asked_to_move(cluster)
        return bool((await cluster.job(JOB)).hot_restarts)

    await until(begins)


async def test_a_move_that_waits_for_slots_gives_way_to_a_new_version(cluster: Cluster, runner: Runner) -> None:
    """It may wait for minutes. The new version takes its place, and moves the job as well (A15b, H9)."""
    async with job_running(cluster, runner):
        await moving_without_room(cluster, runner)
        answer = await restart(cluster, "2")
        assert (await seen(cluster, over(1))).state is RestartState.REPLACED
        assert runner.versions == ["1"]
        runner.room_elsewhere = True
        assert (await seen(cluster, over(answer.number))).state is RestartState.COMPLETED
        assert (runner.versions, on(await cluster.job(JOB))) == (["2"], {OTHER})


async def test_a_version_that_has_taken_the_place_of_another_waits_for_its_own_slots_only_for_its_own_time(
    cluster: Cluster, runner: Runner
) -> None:
    """Not for those of the move, for five minutes (H4, H9)."""
    async with job_running(cluster, runner) as dispatcher:
        dispatcher.options = replace(dispatcher.options, hot_restart_timeout=0.3)
        await moving_without_room(cluster, runner)
        answer = await restart(cluster, "2")
        failed = await seen(cluster, over(answer.number))
        assert failed.state is RestartState.FAILED
        assert failed.error is not None
        assert "within 0.3 s" in failed.error.message
        assert runner.versions == ["1"]


async def test_a_move_ends_if_the_drain_is_undone_while_it_waits_for_room(cluster: Cluster, runner: Runner) -> None:
    """The tasks never stop, and no version is proven or rolled back (A15b)."""
    async with job_running(cluster, runner):
        (deployed,) = runner.deployed
        runner.draining, runner.room_elsewhere = True, False

        async def begins() -> bool:
            await asked_to_move(cluster)
            return bool((await cluster.job(JOB)).hot_restarts)

        await until(begins)
        runner.draining = False
        failed = await seen(cluster, over(1))
        assert failed.state is RestartState.FAILED
        assert failed.error is not None
        assert "need not move" in failed.error.message
        assert list(runner.running) == [deployed.attempt_id]
