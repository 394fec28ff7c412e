"""The Dispatcher carries out what the autoscaler decides (R62)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from minflinkd.dispatcher import autoscaling
from minflinkd.jobgraph import autoscaling as rules
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import RestartState
from minflinkd.rpc.network import DISPATCHER
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.versions_world import JOB, Runner, a_runner, document, job_running, over, restart, seen

pytestmark = pytest.mark.usefixtures("impatient", "quick")
WIDE = {"parallelism": 2, "max-parallelism": 8}
SOON = {"cool-down": "50 ms", "scale-down-delay": "50 ms"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks often, and may be given short times."""
    monkeypatch.setattr(autoscaling, "EVERY", 0.02)
    monkeypatch.setattr(rules, "SHORTEST", 0.0)


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        one.keeps = True
        yield one


def scaled(**settings: Any) -> dict[str, Any]:
    return {**WIDE, "autoscaler": SOON | settings, "checkpointing": {"interval": "500 ms"}}


async def test_a_job_is_given_other_slots_with_the_reason_and_no_task_stops(cluster: Cluster, runner: Runner) -> None:
    """It is a rescale like any other, in the job's versions."""
    async with job_running(cluster, runner, **scaled(min=4, max=8)):
        ended = await seen(cluster, over(1))
        assert (ended.state, "stopped" in ended.phases) == (RestartState.COMPLETED, False)
        assert ended.reason == "2 slots are not within 4 to 8"
        job = await cluster.job(JOB)
        assert (job.graph.parallelism, len(runner.deployed)) == (4, 1)
        assert job.autoscaler is not None
        assert (job.autoscaler.least, job.autoscaler.most, job.autoscaler.enabled) == (4, 8, True)
        assert job.hot_restarts[0].rescaled[0].after == 4


async def test_a_job_without_one_is_left_alone(cluster: Cluster, runner: Runner) -> None:
    """Nothing is said of an autoscaler, and nothing is rescaled."""
    async with job_running(cluster, runner, **WIDE) as dispatcher:
        await dispatcher._autoscaling.look()
        job = await cluster.job(JOB)
        assert (job.autoscaler, job.hot_restarts) == (None, ())


async def test_one_that_is_turned_off_says_so(cluster: Cluster, runner: Runner) -> None:
    """It changes nothing, though the job is outside the bounds."""
    async with job_running(cluster, runner, **scaled(min=4, max=8, enabled=False)):
        job = await seen(cluster, lambda job: job if job.autoscaler and job.autoscaler.why else None)
        assert job.autoscaler is not None
        assert (job.autoscaler.enabled, job.hot_restarts) == (False, ())


async def test_it_is_turned_off_without_a_stop(cluster: Cluster, runner: Runner) -> None:
    """A hot restart with a file that differs in nothing else leaves the tasks running."""
    async with job_running(cluster, runner, **scaled(min=2, max=8)):
        await restart(cluster, "1", document=document("1", **scaled(min=2, max=8, enabled=False)))
        ended = await seen(cluster, over(1))
        assert (ended.state, "stopped" in ended.phases) == (RestartState.COMPLETED, False)
        assert len(runner.deployed) == 1


async def test_a_change_of_somebody_else_begins_the_cool_down(cluster: Cluster, runner: Runner) -> None:
    """The job is outside of its bounds again, and it waits."""
    async with job_running(cluster, runner, **scaled(min=2, max=4, **{"cool-down": "1 h"})):
        request = j.RescaleJob(job_id=JOB, parallelism=6)
        await cluster.network.ask(DISPATCHER, request, timeout=5)
        await seen(cluster, over(1))
        told = await seen(
            cluster, lambda job: job.autoscaler if job.autoscaler and "6 slots are" in job.autoscaler.why else None
        )
        assert (told.verdict, "the cool-down lasts" in told.why) == ("waits", True)
        assert len((await cluster.job(JOB)).hot_restarts) == 1
