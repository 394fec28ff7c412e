"""Incidents are injected for real, and what the diagnosis says of them is read (E19a)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from minflinkd.rest.schemas.diagnosis import Diagnosis, Finding
from tests.cluster import Cluster, running_cluster, write_job
from tests.faults.test_storage_faults import Disk, counting_job
from tests.faulty_disk import FULL, SLOW, SOUND
from tests.small_disk import small_disk
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SETTINGS = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 2,
    "taskmanager.numberOfTaskSlots": 4,
    "taskmanager.exchange.max-backlog": 20_000,
    "heartbeat.timeout": "10 s",
    "execution.checkpointing.interval": "3 s",
}
NUMBERS: dict[str, Any] = {"source": {"format": "rate", "options": {"rowsPerSecond": 200, "numPartitions": 1}}}
# Each micro-batch has as many rows as the one before, however long that took: a task that is behind stays where it is.
STEADY = {"source": {"format": "rate-micro-batch", "options": {"rowsPerBatch": 2000, "numPartitions": 1}}}
CODE = '''
import time

from pyspark.sql.functions import udf


def poison(inputs, params):
    @udf("bigint")
    def checked(value):
        if value % 100 == 7:
            raise ValueError("seven is poison")
        return value

    return inputs["numbers"].withColumn("value", checked("value"))


def slow(inputs, params):
    @udf("bigint")
    def slept(value):
        time.sleep(0.001)
        return value

    return inputs["numbers"].withColumn("value", slept("value"))


def blocks(inputs, params):
    @udf("bigint")
    def slept(value):
        time.sleep(600)
        return value

    return inputs["numbers"].where(params.get("from", "value >= 200")).withColumn("value", slept("value"))


def litter(batch, epoch):
    """Let the JVM stand still, as one does whose heap is nearly full."""
    for _ in range(20):
        batch.sparkSession._jvm.java.lang.System.gc()


def skewed(inputs, params):
    """Nineteen of twenty rows have the same key, and each row costs something after the shuffle."""
    keyed = inputs["numbers"].selectExpr("IF(value % 20 = 0, value % 7, 42) AS k", "value").repartition(4, "k")
    return keyed.selectExpr("k", "aggregate(sequence(1, 10000), 0L, (a, x) -> a + pmod(xxhash64(value, x), 1000)) AS h")
'''


LITTERING = {"numbers": NUMBERS, "out": {"inputs": ["numbers"], "sink": {"python": "ailing:litter"}}}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return Disk(tmp_path_factory.mktemp("diagnosis"))


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def ward(tmp_path_factory: pytest.TempPathFactory, storage: Disk) -> AsyncIterator[Cluster]:
    base = tmp_path_factory.mktemp("ill")
    settings = {**SETTINGS, "execution.checkpointing.dir": f"faulty://{storage.objects}"}
    async with running_cluster(base, environ=storage.environ, **settings) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def ill(ward: Cluster) -> AsyncIterator[Cluster]:
    """The cluster, without jobs that another test has left: each may fail."""
    await ward.await_ready(1)
    yield ward
    await ward.cancel_all()


async def told(cluster: Cluster, code: str, job_id: str = "", *, timeout: float = 60.0) -> Finding:
    """Return the finding with this code, once the diagnosis has it."""
    path = f"/jobs/{job_id}/diagnosis" if job_id else "/diagnosis"
    last: list[Diagnosis] = []

    async def found() -> Finding | None:
        last[:] = [await cluster.client.get(path, Diagnosis)]
        return next((each for each in last[0].findings if each.code == code), None)

    try:
        return await until(found, f"the finding {code}", timeout=timeout, pause=0.3, patience=1.0)
    except AssertionError as error:
        raise AssertionError(f"{error}; it has {[each.sentence for each in last[0].findings]}") from error


def job(base: Path, name: str, vertices: dict[str, Any], **more: Any) -> Path:
    directory = base / name
    directory.mkdir()
    (directory / "ailing.py").write_text(CODE)
    document = {"name": name, "parallelism": 1, "vertices": vertices, "artifacts": ["ailing.py"]}
    return write_job(directory / "job.yaml", document | more)


def through(function: str, **edge: Any) -> dict[str, Any]:
    """Return a job from numbers through a function into a collect sink."""
    return {
        "numbers": NUMBERS,
        "work": {"inputs": [{"id": "numbers", **edge}], "python": f"ailing:{function}"},
        "seen": {"inputs": ["work"], "sink": {"format": "collect"}},
    }


async def test_a_bug_in_a_function_is_told_as_the_same_error_again_and_again(ill: Cluster, tmp_path: Path) -> None:
    job_id = await ill.submit(job(tmp_path, "poison", through("poison")))
    found = await told(ill, "restarts-repeatedly", job_id, timeout=120)
    assert "seven is poison" in found.sentence
    assert "each time by the same error" in found.sentence
    assert "hot-restart" in found.do
    everywhere = await told(ill, "restarts-repeatedly")
    assert everywhere.job_name == "poison"


async def test_a_skewed_key_is_told_with_its_rows(ill: Cluster, tmp_path: Path) -> None:
    vertices = {**through("skewed"), "numbers": STEADY}
    job_id = await ill.submit(job(tmp_path, "skewed", vertices, parallelism=4))
    found = await told(ill, "skewed-partitions", job_id, timeout=90)
    assert found.sentence.startswith("One of the 4 partitions of task numbers -> work -> seen takes ")
    assert "a few keys have most of the rows" in found.sentence


async def test_a_jvm_that_stands_still_to_collect_garbage_is_told(ill: Cluster, tmp_path: Path) -> None:
    job_id = await ill.submit(job(tmp_path, "litter", LITTERING))
    found = await told(ill, "bounded-by-garbage-collection", job_id, timeout=120)
    assert found.sentence.startswith(f"The JVM of TaskManager {found.taskmanager} stood still for ")
    assert found.sentence.endswith(" MiB is in use")


async def test_slow_python_functions_are_told_and_those_who_wait_for_them(ill: Cluster, tmp_path: Path) -> None:
    """The task before the slow one is held back, and the finding names the slow one."""
    vertices = {**through("slow", exchange=True), "numbers": STEADY}
    job_id = await ill.submit(job(tmp_path, "slow", vertices))
    python = await told(ill, "bounded-by-python", job_id, timeout=180)
    assert python.task is not None
    assert "Python functions take " in python.sentence
    held = await told(ill, "backpressure", job_id, timeout=180)
    assert "for task work -> seen, whose micro-batches take " in held.sentence


async def test_a_slow_storage_is_told_with_its_rate(ill: Cluster, storage: Disk, tmp_path: Path) -> None:
    job_id = await ill.submit(counting_job(tmp_path, "on-a-slow-storage", interval="2 s"))
    await ill.await_checkpoints(job_id, 1)
    storage.becomes(SLOW)
    try:
        found = await told(ill, "bounded-by-checkpoint-storage", job_id, timeout=120)
        assert "went into the storage, to write " in found.sentence
    finally:
        storage.becomes(SOUND)


async def test_a_full_storage_is_told_by_the_checkpoints_that_fail(ill: Cluster, storage: Disk, tmp_path: Path) -> None:
    job_id = await ill.submit(counting_job(tmp_path, "on-a-full-storage", **{"tolerable-failed-checkpoints": 1000}))
    await ill.await_checkpoints(job_id, 1)
    storage.becomes(FULL)
    try:
        found = await told(ill, "checkpoints-fail", job_id)
        assert "no space left on the faulty disk" in found.sentence
        assert found.since > 0
    finally:
        storage.becomes(SOUND)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system that is full but for a megabyte."""
    with small_disk(tmp_path / "disk", 64) as directory:
        (directory / "other").write_bytes(b"x" * (63 * 2**20))
        yield directory


async def test_a_full_disk_is_told_with_its_place(ill: Cluster, disk: Path, tmp_path: Path) -> None:
    """The job goes on by itself when there is room, and the finding is gone."""
    vertices = {
        "numbers": NUMBERS,
        "out": {"inputs": ["numbers"], "sink": {"format": "parquet", "path": str(disk / "out")}},
    }
    job_id = await ill.submit(job(tmp_path, "full", vertices))
    found = await told(ill, "disk-full", job_id, timeout=90)
    assert (found.severity, str(disk) in found.sentence) == ("critical", True)
    assert shutil.disk_usage(disk).free < 2 * 2**20
    (disk / "other").unlink()

    async def gone() -> bool:
        now = await ill.client.get(f"/jobs/{job_id}/diagnosis", Diagnosis)
        return "disk-full" not in [each.code for each in now.findings]

    await until(gone, "the task goes on")


async def test_state_without_a_watermark_is_told_before_it_fills_anything(ill: Cluster, tmp_path: Path) -> None:
    numbers = {"source": {"format": "rate", "options": {"rowsPerSecond": 5000, "numPartitions": 1}}}
    vertices = {
        "numbers": numbers,
        "each": {"inputs": ["numbers"], "sql": "SELECT value, count(*) AS n FROM numbers GROUP BY value"},
        "seen": {"inputs": ["each"], "sink": {"format": "collect"}, "output-mode": "update"},
    }
    job_id = await ill.submit(job(tmp_path, "forgetful", vertices))
    found = await told(ill, "state-grows", job_id, timeout=120)
    assert "no vertex of the job has a watermark" in found.sentence


async def test_a_lost_taskmanager_is_told_with_what_ended_it(ill: Cluster, tmp_path: Path) -> None:
    job_id = await ill.submit(counting_job(tmp_path, "on-a-lost-taskmanager"))
    await ill.await_checkpoints(job_id, 1)
    killed = await ill.task_manager_of(job_id)
    os.kill(killed.minflinkd.pid, signal.SIGKILL)
    found = await told(ill, "taskmanager-lost", job_id, timeout=90)
    assert found.taskmanager == killed.id
    assert killed.id in found.sentence
    everywhere = await told(ill, "taskmanager-lost")
    assert everywhere.taskmanager == killed.id
    await ill.await_state(job_id, "RUNNING", timeout=150)


async def test_what_stands_still_is_told_within_minutes(ill: Cluster, tmp_path: Path) -> None:
    """A source without data, an idle input that holds the watermark back, and a function that blocks."""
    empty = tmp_path / "empty"
    empty.mkdir()
    schema = {"schema": "k STRING, time TIMESTAMP", "watermark": {"column": "time", "delay": "1 minute"}}

    def files(path: Path) -> dict[str, Any]:
        return {"source": {"format": "json", "path": str(path), "schema": schema["schema"]}}

    silent = {"lines": files(empty), "seen": {"inputs": ["lines"], "sink": {"format": "collect"}}}
    rate = {**NUMBERS, "watermark": {"column": "timestamp", "delay": "1 minute"}}
    two = {
        "clicks": rate,
        "refunds": {**files(empty), "watermark": schema["watermark"]},
        "both": {
            "inputs": ["clicks", "refunds"],
            "sql": "SELECT window(time, '1 minute').start AS minute, count(*) AS n FROM "
            "(SELECT timestamp AS time FROM clicks UNION ALL SELECT time FROM refunds) "
            "GROUP BY window(time, '1 minute')",
        },
        "seen": {"inputs": ["both"], "sink": {"format": "collect"}},
    }
    without_data = await ill.submit(job(tmp_path, "silent", silent))
    held_back = await ill.submit(job(tmp_path, "held", two))
    stuck = await ill.submit(job(tmp_path, "stuck", through("blocks")))

    found = await told(ill, "source-without-data", without_data, timeout=150)
    assert f"Source lines ({empty}) has delivered no row yet for " in found.sentence
    found = await told(ill, "watermark-held-back", held_back, timeout=200)
    assert "because refunds delivers no rows, while clicks does" in found.sentence
    found = await told(ill, "stuck-micro-batch", stuck, timeout=200)
    assert "of task numbers -> work -> seen has run for " in found.sentence
