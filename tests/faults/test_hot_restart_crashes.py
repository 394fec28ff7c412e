"""Components of the daemon crash while one version makes way for another. Other jobs do not notice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset
import pytest
import pytest_asyncio

from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.rest.schemas import JobInfo
from minflinkd.runtime.crash_points import OF_HOT_RESTARTS, CrashPoint, intercepted
from tests.cluster import Cluster, write_job
from tests.faults.hot_restarts import ONE, processes_of, restarted, running_versions
from tests.faults.in_process import Bug, InProcess, in_process_cluster
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]

FAILS_WHILE_THERE_IS = """
import os

from pyspark.sql import functions as f
from pyspark.sql.types import LongType

@f.udf(LongType())
def checked(v):
    if os.path.exists({path!r}):
        raise ValueError('this version cannot count')
    return v

def clean(inputs, params):
    return inputs['events'].withColumn('v', checked('v')).where('v >= 0')
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    async with in_process_cluster(tmp_path_factory.mktemp("cluster"), **ONE) as cluster:
        await cluster.await_ready(1)
        yield cluster


@dataclass
class CrashOfJobMaster:
    """Crashes the JobMaster at a point of its job's hot restart, once."""

    cluster: InProcess
    job_id: str
    point: CrashPoint
    struck: list[JobMaster] = field(default_factory=list)

    def __call__(self, here: CrashPoint) -> None:
        master = self.cluster.job_master(self.job_id)
        if here is self.point and master is not None and not self.struck:
            self.struck.append(master)
            master.crash(Bug(f"injected into {master.name}"))


@dataclass
class Neighbour:
    """A job of another user. It writes numbers without a gap."""

    cluster: Cluster
    output: Path
    began: JobInfo

    async def was_not_disturbed(self) -> None:
        now = await self.cluster.client.job(self.began.jid)
        (task,), (task_began,) = now.vertices, self.began.vertices
        assert task.minflinkd.attempt_id == task_began.minflinkd.attempt_id
        assert task.minflinkd.batches > task_began.minflinkd.batches
        assert now.minflinkd.restarts == 0
        await self.cluster.cancel(self.began.jid)
        written = pyarrow.dataset.dataset(self.output, format="parquet").to_table()["value"].to_pylist()
        assert sorted(written) == list(range(len(written)))


async def neighbour(cluster: Cluster, base: Path) -> Neighbour:
    document = {
        "name": "neighbour",
        "parallelism": 1,
        "checkpointing": {"interval": "1 s"},
        "vertices": {
            "numbers": {"source": {"format": "rate", "options": {"rowsPerSecond": 5}}},
            "values": {"inputs": ["numbers"], "sql": "SELECT value FROM numbers"},
            "out": {"inputs": ["values"], "sink": {"format": "parquet", "path": str(base / "numbers")}},
        },
    }
    job_id = await cluster.submit(write_job(base / "neighbour.yaml", document))
    await cluster.await_state(job_id, "RUNNING")
    await cluster.await_checkpoints(job_id, 1)
    return Neighbour(cluster, base / "numbers", await cluster.client.job(job_id))


@pytest.mark.slow
async def test_a_job_master_that_crashes_at_each_step_leaves_one_version_and_the_other_job_alone(
    cluster: InProcess, tmp_path: Path
) -> None:
    """The recorded outcome says which version runs. The output is exact, on the same session throughout (H8, R13)."""
    async with running_versions(cluster, tmp_path) as versions:
        beside, before = await neighbour(cluster, tmp_path), await processes_of(cluster)
        for number, point in enumerate(OF_HOT_RESTARTS, start=2):
            await versions.goes_on()
            with intercepted(crash := CrashOfJobMaster(cluster, versions.job_id, point)):
                last = await restarted(cluster, versions.job_id, versions.write(str(number)))
            assert last.state == ("failed" if point is CrashPoint.RESTART_ACCEPTED else "completed"), point

            async def succeeded(crash: CrashOfJobMaster = crash) -> bool:
                return cluster.job_master(versions.job_id) not in (None, *crash.struck) and len(crash.struck) == 1

            await until(succeeded, f"another JobMaster after {point}")
        await versions.goes_on()
        assert await processes_of(cluster) == before
        await beside.was_not_disturbed()
    assert set(versions.written()) == set("13456")


@pytest.mark.slow  # the seeds of tests/sim/protocol have versions while the ResourceManager is away
async def test_a_version_takes_over_while_the_resource_manager_is_away(cluster: InProcess, tmp_path: Path) -> None:
    """Once it is accepted, it needs only the slots and the session that the old version leaves (H4, R12)."""
    supervisor = cluster.daemon.resource_managers

    def away(here: CrashPoint) -> None:
        if here is CrashPoint.RESTART_ACCEPTED and supervisor.current is not None:
            supervisor.current.crash(Bug("injected into the ResourceManager"))

    async with running_versions(cluster, tmp_path) as versions:
        before = await processes_of(cluster)
        async with supervisor._gate:  # its successor waits
            with intercepted(away):
                last = await restarted(cluster, versions.job_id, versions.write("2"))
            assert last.state == "completed"
            assert cluster.resource_manager is None
        await versions.goes_on()
        assert (await restarted(cluster, versions.job_id, versions.write("3", parallelism=4))).state == "completed"
        assert await processes_of(cluster) == before
        assert (await cluster.client.job(versions.job_id)).minflinkd.restarts == 0
    assert set(versions.written()) == set("123")


@pytest.mark.slow  # tests/unit/dispatcher/test_hot_restart.py has it
async def test_a_job_that_waits_for_its_restart_after_a_failure_is_mended_by_a_new_version(
    cluster: InProcess, tmp_path: Path
) -> None:
    """The new version starts from the last completed checkpoint, without the wait (H3)."""
    poison = tmp_path / "poison"
    async with running_versions(cluster, tmp_path) as versions:
        failing = FAILS_WHILE_THERE_IS.format(path=str(poison))
        strategy = {"restart-strategy": {"kind": "fixed-delay", "delay": "10 min", "attempts": 100}}
        assert (
            await restarted(cluster, versions.job_id, versions.write("2", artifact=failing, **strategy))
        ).state == "completed"
        await versions.goes_on()
        completed = (await cluster.client.checkpoints(versions.job_id)).counts.completed
        await cluster.await_checkpoints(versions.job_id, completed + 2)
        poison.touch()
        await cluster.await_state(versions.job_id, "RESTARTING")
        assert (await restarted(cluster, versions.job_id, versions.write("3"))).state == "completed"
    assert set(versions.written()) == set("123")
