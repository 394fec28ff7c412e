"""The code of jobs on executors that are processes of their own (B30)."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, python, rate, task

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MAIN = """
from pyspark.sql import functions as F
def build(inputs, params):
    def late(x):
        import other
        return other.VALUE
    return inputs["numbers"].select(F.udf(late, "long")("value").alias("seen"))
def write(batch, epoch):
    with open(OUT, "a") as out:
        out.writelines(f"{row.seen}\\n" for row in batch.collect())
"""


async def test_executors_see_each_versions_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors read the modules from a directory that they share with the TaskManager (B30)."""
    monkeypatch.setenv("SPARK_HOME", os.path.dirname(pyspark.__file__))
    child = Child(tmp_path)
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    try:
        await child.start({"spark.master": "local-cluster[1,2,512]", "spark.executor.memory": "512m", **loopback})
        for version in (1, 2):
            directory = tmp_path / str(version)
            directory.mkdir()
            (directory / "main.py").write_text(f"OUT = {str(directory / 'seen')!r}\n{MAIN}")
            (directory / "other.py").write_text(f"VALUE = {version}\n")
            artifacts = {name: str(directory / name) for name in ("main.py", "other.py")}
            query = task(rate(4), python("x", "main:build", "numbers"), call("main:write", "x"))
            attempt = await child.run(job(), query, artifacts=artifacts)
            await child.batches(attempt, 0)
            assert (await child.ask(p.StopTask(attempt_id=attempt))).ended  # the executors unload it by themselves
            assert set((directory / "seen").read_text().split()) == {str(version)}
    finally:
        await child.aclose()
