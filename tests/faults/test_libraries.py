"""Two versions of one library, which a session cannot hold, run on different TaskManagers (B31)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset
import pyspark
import pytest
import pytest_asyncio

from minflinkd.rest.schemas import TaskManager
from tests.cluster import Cluster, running_cluster, write_job
from tests.e2e.command import minflinkd
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

RULE = """
package com.acme;
public class Rule implements org.apache.spark.sql.api.java.UDF1<Long, Long> {
    public Long call(Long x) { return Helper.VERSION; }
}
class Helper { static long VERSION = %dL; }
"""
MAIN = """
def build(inputs, params):
    numbers = inputs["numbers"]
    numbers.sparkSession.udf.registerJavaFunction("rule", "com.acme.Rule", "long")
    return numbers.selectExpr("rule(value) AS version", "value")
"""
SLOTS = 4
OTHER_VERSIONS = "other versions of the job's libraries"


@dataclass(frozen=True)
class RuledJobs:
    """Streaming jobs that write, row by row, which version of the rules they see."""

    base: Path

    def write_jars(self, *versions: int) -> None:
        """Compile and pack the rules. This blocks."""
        classes = Path(pyspark.__file__).parent / "jars" / "*"
        for version in versions:
            directory = self.base / f"version{version}"
            source = directory / "com" / "acme" / "Rule.java"
            source.parent.mkdir(parents=True)
            source.write_text(RULE % version)
            subprocess.run(["javac", "-proc:none", "-cp", classes, "-d", directory / "classes", source], check=True)
            with zipfile.ZipFile(directory / "rules.jar", "w") as jar:
                for path in sorted((directory / "classes").rglob("*.class")):
                    jar.write(path, path.relative_to(directory / "classes"))

    def write(self, name: str, version: int, parallelism: int = 1, main: str = MAIN) -> Path:
        """Write the job file, or its next version."""
        directory = self.base / name
        directory.mkdir(exist_ok=True)
        (directory / "ruled.py").write_text(main)
        shutil.copy(self.base / f"version{version}" / "rules.jar", directory)
        document = {
            "name": name,
            "mode": "streaming",
            "parallelism": parallelism,
            "checkpointing": {"interval": "2 s"},
            "trigger-interval": "1 s",
            "artifacts": ["ruled.py", "rules.jar"],
            "vertices": {
                "numbers": {"source": {"format": "rate", "options": {"rowsPerSecond": 5}}},
                "ruled": {"inputs": ["numbers"], "python": "ruled:build"},
                "out": {"inputs": ["ruled"], "sink": {"format": "parquet", "path": str(directory / "out")}},
            },
        }
        return write_job(directory / "job.yaml", document)

    async def versions_seen(self, name: str, more_than: int = 0) -> tuple[set[int], int]:
        """Wait for more than `more_than` published rows. Return the versions in them, and the number of rows."""

        async def published() -> list[int] | None:
            rows = await asyncio.to_thread(_published, self.base / name / "out")
            return rows if len(rows) > more_than else None

        rows = await until(published, f"job {name} has published more than {more_than} rows")
        return set(rows), len(rows)


def values(directory: Path) -> list[int]:
    """Return all published values of the source."""
    table = pyarrow.dataset.dataset(directory, format="parquet").to_table(columns=["value"])
    return sorted(int(row["value"]) for row in table.to_pylist())


def _published(directory: Path) -> list[int]:
    if not any(directory.glob("part-*")):
        return []
    table = pyarrow.dataset.dataset(directory, format="parquet").to_table(columns=["version"])
    return [int(row["version"]) for row in table.to_pylist()]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A cluster of two TaskManagers, both warm."""
    settings = {
        "resourcemanager.standby-taskmanagers": 2,
        "resourcemanager.max-taskmanagers": 2,
        "taskmanager.numberOfTaskSlots": SLOTS,
        "heartbeat.timeout": "10 s",
    }
    async with running_cluster(tmp_path_factory.mktemp("two"), **settings) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(two: Cluster) -> AsyncIterator[Cluster]:
    """A cluster whose sessions hold no libraries. The jobs of a test end with it."""
    await two.await_count(2, timeout=150)
    yield two
    used = [tm for tm in await two.task_managers(ready=False) if tm.free_slots < tm.slots_number]
    await two.cancel_all()
    for task_manager in used:
        await renewed(two, task_manager)


@pytest.fixture
def ruled(tmp_path: Path) -> RuledJobs:
    if shutil.which("javac") is None:
        pytest.skip("there is no javac")
    jobs = RuledJobs(tmp_path)
    jobs.write_jars(1, 2)
    return jobs


async def running_on(cluster: Cluster, job_id: str) -> TaskManager:
    await cluster.await_state(job_id, "RUNNING")
    return await cluster.task_manager_of(job_id)


async def renewed(cluster: Cluster, before: TaskManager) -> None:
    """Wait until the TaskManager has another session."""

    async def changed() -> bool:
        now = next(tm for tm in await cluster.task_managers(ready=False) if tm.id == before.id)
        fresh = now.minflinkd.session_generation > before.minflinkd.session_generation
        return fresh and now.minflinkd.session == "ready"

    await until(changed, f"the session of {before.id} is renewed", timeout=180)


async def test_two_versions_of_a_jar_run_at_once_on_different_task_managers(cluster: Cluster, ruled: RuledJobs) -> None:
    """Each job sees its own version, and jobs with the same version share a TaskManager (B31, R6a).

    A session is renewed when no job uses its libraries any more, so that any version may go there.
    """
    one = await cluster.submit(ruled.write("one", version=1))
    first = await running_on(cluster, one)
    two = await cluster.submit(ruled.write("two", version=2))
    second = await running_on(cluster, two)
    assert second.id != first.id
    also_one = await cluster.submit(ruled.write("also-one", version=1))
    assert (await running_on(cluster, also_one)).id == first.id
    seen = {name: await ruled.versions_seen(name) for name in ("one", "two", "also-one")}
    assert {name: versions for name, (versions, _) in seen.items()} == {"one": {1}, "two": {2}, "also-one": {1}}
    assert (await ruled.versions_seen("one", more_than=seen["one"][1]))[0] == {1}, "it still runs beside the others"

    await cluster.cancel(two)
    await renewed(cluster, second)
    wide = await cluster.submit(ruled.write("wide", version=1, parallelism=SLOTS))
    assert (await running_on(cluster, wide)).id == second.id, "where the other version was"
    assert (await ruled.versions_seen("wide"))[0] == {1}
    assert (await ruled.versions_seen("two"))[0] == {2}
    for job_id in (one, also_one):
        assert (await cluster.client.job(job_id)).minflinkd.restarts == 0


async def test_a_job_waits_for_the_only_task_manager_while_it_holds_another_version_and_says_so(
    cluster: Cluster, ruled: RuledJobs
) -> None:
    """No further TaskManager may start, so free slots beside the other version are of no use (B31, R5, R6a).

    Neither a job that has lost its TaskManager nor a submission gets them. Both do once the session is renewed.
    """
    one = await cluster.submit(ruled.write("one", version=1))
    first = await running_on(cluster, one)
    two = await cluster.submit(ruled.write("two", version=2))
    second = await running_on(cluster, two)
    assert second.id != first.id
    only = {"resourcemanager.max-taskmanagers": 1, "resourcemanager.standby-taskmanagers": 1}
    async with cluster.configured(**only):
        os.kill(second.minflinkd.pid, signal.SIGKILL)

        async def told() -> bool:
            _, out, _ = await minflinkd(cluster, "info", two)
            return f"1 of them with {OTHER_VERSIONS}" in " ".join(out.split())

        await until(told, "`minflinkd info` says why the job waits", timeout=60)
        assert "resourcemanager.max-taskmanagers" in " ".join((await cluster.client.job(two)).minflinkd.waiting)
        late = asyncio.create_task(cluster.submit(ruled.write("late", version=2)))
        rows = (await ruled.versions_seen("one"))[1]
        assert (await ruled.versions_seen("one", more_than=rows))[0] == {1}
        assert not late.done(), "no session can analyse it"

        await cluster.cancel(one)
        await renewed(cluster, first)
        assert (await running_on(cluster, two)).id == first.id
        late_id = await asyncio.wait_for(late, 540)
        assert (await running_on(cluster, late_id)).id == first.id
        for name in ("two", "late"):
            before = (await ruled.versions_seen(name))[1]
            assert (await ruled.versions_seen(name, more_than=before))[0] == {2}
        await cluster.cancel_all()


async def test_a_job_is_restarted_hot_with_another_version_of_its_jar(cluster: Cluster, ruled: RuledJobs) -> None:
    """It moves to a session without the old one, which is warm before the running version stops (B31, H1, H4).

    No row is lost or doubled, and a job that shares the first session does not notice.
    """
    one = await cluster.submit(ruled.write("one", version=1))
    first = await running_on(cluster, one)
    also_one = await cluster.submit(ruled.write("also-one", version=1))
    assert (await running_on(cluster, also_one)).id == first.id
    await ruled.versions_seen("one", more_than=10)

    code, out, err = await minflinkd(cluster, "hot-restart", one, str(ruled.write("one", version=2)), "--yes")
    assert code == 0, out + err
    assert (await running_on(cluster, one)).id != first.id
    rows = (await ruled.versions_seen("one"))[1]
    assert (await ruled.versions_seen("one", more_than=rows + 10))[0] == {1, 2}
    await cluster.cancel(one)
    seen = await asyncio.to_thread(values, ruled.base / "one" / "out")
    assert seen == list(range(len(seen)))
    assert (await cluster.client.job(also_one)).minflinkd.restarts == 0
    await cluster.cancel(also_one)


async def test_a_version_with_another_jar_that_fails_leaves_the_running_one_as_it_was(
    cluster: Cluster, ruled: RuledJobs
) -> None:
    """The version before it comes back, with its own jar, from its last checkpoint (B31, H7)."""
    one = await cluster.submit(ruled.write("one", version=1))
    await running_on(cluster, one)
    await ruled.versions_seen("one", more_than=10)
    broken = MAIN.replace('"value")', "\"value + raise_error('no such rule') AS value\")")
    code, out, err = await minflinkd(
        cluster, "hot-restart", one, str(ruled.write("one", version=2, main=broken)), "--yes"
    )
    assert code != 0
    assert "no such rule" in out + err
    await cluster.await_state(one, "RUNNING")
    rows = (await ruled.versions_seen("one"))[1]
    assert (await ruled.versions_seen("one", more_than=rows + 10))[0] == {1}
    await cluster.cancel(one)
    seen = await asyncio.to_thread(values, ruled.base / "one" / "out")
    assert seen == list(range(len(seen)))
