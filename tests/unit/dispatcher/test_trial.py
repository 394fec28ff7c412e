"""A version of an idle job is on trial, through the Dispatcher: who is told, and what may follow (H7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import jobs as j
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobDetails, JobStatus, RestartState
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import RemoteError
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.versions_world import (
    BOOM,
    FINDS_NONE,
    HAS_ROWS,
    JOB,
    Runner,
    a_runner,
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
        one.finds = FINDS_NONE
        yield one


def on_trial(number: int) -> Callable[[JobDetails], j.HotRestart | None]:
    def condition(job: JobDetails) -> j.HotRestart | None:
        return next((r for r in job.hot_restarts if r.number == number and r.state is RestartState.ON_TRIAL), None)

    return condition


async def overview(cluster: Cluster) -> j.JobOverview:
    (job,) = await cluster.network.ask(DISPATCHER, j.ListJobs(), timeout=5)
    return job


async def test_a_version_of_an_idle_job_stays_on_trial_and_is_turned_back_by_its_first_rows(
    cluster: Cluster, runner: Runner
) -> None:
    """The old version stays stored, and the list and the job say so.

    It continues from the checkpoint that it left (H7).
    """
    async with job_running(cluster, runner):
        assert not (await overview(cluster)).on_trial
        await restart(cluster, "2")
        waits = await seen(cluster, on_trial(1))
        assert "running" in waits.phases
        assert (await overview(cluster)).on_trial
        assert not waits.state.over
        await runner.fail()
        ended = await seen(cluster, over(1))
        assert (ended.state, ended.error) == (RestartState.ROLLED_BACK, BOOM)
        await seen(cluster, runs(runner, "1"))
        assert not (await overview(cluster)).on_trial
        restored = runner.deployed[-1].restore
        assert restored is not None
        assert restored.checkpoint_id == ended.checkpoint_id


async def test_a_version_of_an_idle_job_is_accepted_with_its_first_rows(cluster: Cluster, runner: Runner) -> None:
    """The old version and its artifacts are forgotten (H7)."""
    async with job_running(cluster, runner):
        await restart(cluster, "2")
        await seen(cluster, on_trial(1))
        runner.progress(HAS_ROWS)
        ended = await seen(cluster, over(1))
        assert ended.state is RestartState.COMPLETED
        assert "first_checkpoint" in ended.phases
        await until(lambda: len([f for f in cluster.files() if f.startswith("jobstore/versions")]) == 1)


async def test_a_trial_that_may_not_last_for_ever_ends_without_input(cluster: Cluster, runner: Runner) -> None:
    """`hot-restart.trial` counts from the request on (H7)."""
    async with job_running(cluster, runner) as dispatcher:
        dispatcher.options = replace(dispatcher.options, hot_restart_trial=0.2)
        await restart(cluster, "2")
        ended = await seen(cluster, over(1))
        assert ended.state is RestartState.COMPLETED
        assert ended.phases["first_checkpoint"] >= 0.2


async def test_versions_of_an_idle_job_follow_each_other_without_being_told_to_replace(
    cluster: Cluster, runner: Runner
) -> None:
    """Deploying twice a day works without input too. A failure brings back the last proven version (H9)."""
    async with job_running(cluster, runner):
        for number, version in enumerate("23", start=1):
            answer = await restart(cluster, version)
            assert answer.number == number
            await seen(cluster, on_trial(number))
        rescale = j.RescaleJob(job_id=JOB, parallelism=2)
        assert (await cluster.network.ask(DISPATCHER, rescale, timeout=5)).faults == ()
        await seen(cluster, on_trial(3))
        assert (runner.versions, runner.deployed[-1].task.parallelism) == (["3"], 2)
        job = await cluster.job(JOB)
        assert [r.state for r in job.hot_restarts[1:]] == [RestartState.REPLACED] * 2
        await runner.fail()
        assert (await seen(cluster, over(3))).state is RestartState.ROLLED_BACK
        await seen(cluster, runs(runner, "1"))


async def test_a_request_while_a_version_is_still_brought_up_conflicts(cluster: Cluster, runner: Runner) -> None:
    """A request conflicts as long as the hot restart before it is under way (H9)."""
    runner.finds = m.TaskMetrics()
    async with job_running(cluster, runner):
        await restart(cluster, "2")
        with pytest.raises(RemoteError, match="under way"):
            await restart(cluster, "3")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_trial_goes_on_under_another_daemon(cluster: Cluster, runner: Runner, fails: bool) -> None:
    """The daemon has the artifacts of both versions, and the trial may end either way (H8)."""
    with capture_logs():
        async with job_running(cluster, runner):
            await restart(cluster, "2")
            await seen(cluster, on_trial(1))
        async with cluster.serving():
            await seen(cluster, runs(runner, "2"))
            assert await seen(cluster, on_trial(1))
            if fails:
                await runner.fail()
            else:
                runner.progress(HAS_ROWS)
            ended = await seen(cluster, over(1))
            assert ended.state is (RestartState.ROLLED_BACK if fails else RestartState.COMPLETED)
            await seen(cluster, runs(runner, "1" if fails else "2"))


async def test_a_trial_goes_on_under_another_job_master(cluster: Cluster, runner: Runner) -> None:
    """The new JobMaster continues the trial (H8, R13)."""
    with capture_logs():
        async with job_running(cluster, runner) as dispatcher:
            await restart(cluster, "2")
            await seen(cluster, on_trial(1))
            crashed = dispatcher.job_master(JOB)
            assert crashed is not None
            crashed.crash(ValueError("a bug"))
            await until(lambda: dispatcher.job_master(JOB) not in (None, crashed))
            await seen(cluster, runs(runner, "2"))
            assert await seen(cluster, on_trial(1))
            await runner.fail()
            assert (await seen(cluster, over(1))).state is RestartState.ROLLED_BACK


async def test_a_cancel_ends_a_job_on_trial(cluster: Cluster, runner: Runner) -> None:
    """Cancelling a job on trial ends it (H3a)."""
    async with job_running(cluster, runner):
        await restart(cluster, "2")
        await seen(cluster, on_trial(1))
        await cluster.cancel(JOB)
        job = await seen(cluster, lambda job: job if job.status.terminal else None)
        assert job.status is JobStatus.CANCELED
        assert job.hot_restarts[0].state is RestartState.ABANDONED
