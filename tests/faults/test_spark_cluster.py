"""TaskManagers whose executors run on a Spark standalone cluster: a real master and worker on loopback."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import lives, running_cluster
from tests.spark_cluster import SparkCluster, spark_cluster
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

# The UDF and the module that it imports run in the Python workers of the executors.
CODE = """
from pyspark.sql import functions as F
import rules

def wanted(v):
    from rules import LEAST
    return rules.at_least(v, LEAST)

def clean(inputs, params):
    return inputs["events"].where(F.udf(wanted, "boolean")("v"))
"""
RULES = "LEAST = 0\ndef at_least(v, least):\n    return v >= least\n"


async def test_a_stateful_job_on_a_spark_cluster_survives_the_kill_of_its_taskmanager(tmp_path: Path) -> None:
    """Executors keep state in a shared directory. After a kill and recovery the output is exact (C11, J12, R7)."""
    windows = WindowsJob(tmp_path / "windows", files=20, artifact=CODE, pace="500 ms")
    windows.write_events()
    truth = windows.batch()
    shared = tmp_path / "shared"
    async with spark_cluster(tmp_path / "spark", cores=2) as spark:
        settings: dict[str, Any] = {
            "taskmanager.spark.master": spark.url,
            "taskmanager.state.local.root-dir": str(shared),
            "taskmanager.numberOfTaskSlots": 2,
            "taskmanager.memory.heap.size": "512 MiB",
            "resourcemanager.standby-taskmanagers": 1,
            "resourcemanager.max-taskmanagers": 1,
            "slot.request.timeout": "5 min",
        }
        async with running_cluster(tmp_path / "daemon", **settings) as cluster:
            (ready,) = await cluster.await_ready(1, timeout=240)
            assert len(spark.executors()) == 1
            assert directories(shared) == {ready.id}
            file = windows.write("out", artifacts=["windows.py", "rules.py"])
            file.with_name("rules.py").write_text(RULES)
            job_id = await cluster.submit(file)
            await cluster.await_checkpoints(job_id, 2, timeout=120)
            killed = await cluster.task_manager_of(job_id)
            (executor,) = spark.executors()
            os.kill(killed.minflinkd.pid, signal.SIGKILL)
            job = await cluster.await_state(job_id, "FINISHED", timeout=240)
            assert job.minflinkd.restarts >= 1
            assert result(windows.base / "out") == truth
            assert leftovers(windows.base / "out") == []
            assert not lives(executor), "an executor ends with its driver"
            assert len(applications(spark)) == 2
            (successor,) = await cluster.task_managers()
            assert directories(shared) == {successor.id}
        await until(lambda: _none_left(spark), "the end of all executors", timeout=30)
    assert directories(shared) == set()


def applications(spark: SparkCluster) -> set[str]:
    """Return the applications that had executors."""
    return {path.name for path in spark.work.iterdir()}


def directories(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()} if path.exists() else set()


async def _none_left(spark: SparkCluster) -> bool:
    return spark.executors() == []
