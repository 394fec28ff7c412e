"""What the Dispatcher says of its jobs, all at once and one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.dispatcher import job_results
from minflinkd.rpc import jobs as j
from minflinkd.rpc.network import DISPATCHER
from tests.beside import beside
from tests.unit.dispatcher.conftest import Cluster, list_is_never_old
from tests.unit.dispatcher.versions_world import BOOM, JOB, RUNNER, Runner, a_runner, document, seen
from tests.waiting import until

AT_ONCE = {"kind": "fixed-delay", "attempts": 1000, "delay": "1 ms"}


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        yield one


async def listed(cluster: Cluster) -> j.JobOverview:
    (job,) = await cluster.network.ask(DISPATCHER, j.ListJobs(), timeout=5)
    return job


async def test_where_jobs_are_listed_one_that_restarts_repeatedly_says_where_it_fails(
    cluster: Cluster, runner: Runner
) -> None:
    """Which job fails on which TaskManager is seen without a look at each. Of a message its beginning is enough: the
    jobs are listed often, and a message may have thousands of characters (E1).
    """
    runner.fails = "1"
    runner.boom = msgspec.structs.replace(BOOM, message=f"boom{'!' * 5000}\nthe end of its log")
    failing = msgspec.json.decode(document("1", **{"restart-strategy": AT_ONCE}))
    async with cluster.serving():
        await cluster.submit(JOB, failing)
        whole = await seen(cluster, lambda job: job.repeated)
        assert whole.last.error.message == runner.boom.message
        brief = (await listed(cluster)).repeated
        assert brief is not None
        assert brief.failures >= whole.failures >= 3
        assert (brief.last.task_name, brief.last.resource_id) == (whole.last.task_name, RUNNER)
        assert brief.last.error.message.startswith("boom!!!")
        assert len(brief.last.error.message) < 250
        assert "\n" not in brief.last.error.message


async def test_a_healthy_job_is_listed_without_a_failure(cluster: Cluster, runner: Runner) -> None:
    """Also one that has failed once (E1)."""
    async with cluster.serving():
        await cluster.submit(JOB, msgspec.json.decode(document("1", **{"restart-strategy": AT_ONCE})))
        await seen(cluster, lambda job: runner.versions)
        await runner.fail()
        await seen(cluster, lambda job: job.restarts)
        job = await listed(cluster)
        assert (job.restarts, job.repeated) == (1, None)


async def test_at_every_moment_of_its_life_a_job_is_listed_as_it_is(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is kept, and whoever changes what it shows must say so. This looks in every turn of the event loop (E4).

    The other tests of the Dispatcher look every few milliseconds.
    """
    monkeypatch.setattr(job_results, "EXPIRY_INTERVAL", 0.01)
    cluster.result_capacity = 0
    document_ = msgspec.json.decode(document("1", **{"restart-strategy": AT_ONCE}))
    with capture_logs():
        async with cluster.serving() as dispatcher, beside("every turn", list_is_never_old(dispatcher, pause=0.0)):
            await cluster.submit(JOB, document_)
            await seen(cluster, lambda _: runner.versions)
            master = dispatcher.job_master(JOB)
            assert master is not None
            master.crash(ZeroDivisionError("a bug"))
            await until(lambda: dispatcher.job_master(JOB) not in (None, master))
            await cluster.cancel(JOB)
            await until(lambda: cluster.lists({}))
            await cluster.submit(JOB, document_)
        async with cluster.serving() as dispatcher, beside("every turn", list_is_never_old(dispatcher, pause=0.0)):
            await cluster.cancel(JOB)
            await until(lambda: cluster.lists({}))
