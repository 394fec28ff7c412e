"""A PySpark script writes the same by itself and as a job, without a change (docs/scripts.md)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset
import pytest

from tests import plain_spark
from tests.cluster import Cluster
from tests.e2e.command import minflinkd
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SCRIPT = '''\
"""Words of lines: all of them in files, a count that is kept up to date, and counts by minute."""
import argparse
import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from cleaning import cleaned

FACTOR = 2

parser = argparse.ArgumentParser()
parser.add_argument("source")
parser.add_argument("target")
parser.add_argument("--least", type=int, default=1)
args = parser.parse_args()


@F.udf(ArrayType(StringType()))
def words(line):
    return [cleaned(word) for word in line.split()] * FACTOR


class Totals:
    def __init__(self, path):
        self.path = path

    def __call__(self, batch, epoch):
        with open(self.path, "a") as out:
            for row in batch.collect():
                out.write(json.dumps([row.word, row.n]) + "\\n")


def main():
    spark = SparkSession.builder.appName("words").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    least = args.least
    long_enough = F.udf(lambda word: len(word) >= least, "boolean")
    lines = spark.readStream.schema("line STRING, at TIMESTAMP").option("maxFilesPerTrigger", 1).json(args.source)
    found = lines.select(F.explode(words("line")).alias("word"), "at").where(long_enough("word"))
    queries = [
        found.writeStream.format("parquet").queryName("all-words").partitionBy("word")
        .option("checkpointLocation", args.target + "/checkpoints/1").trigger(availableNow=True)
        .start(args.target + "/words"),
        found.groupBy("word").agg(F.count("*").alias("n")).writeStream.outputMode("update")
        .foreachBatch(Totals(args.target + "/totals"))
        .option("checkpointLocation", args.target + "/checkpoints/2").trigger(availableNow=True).start(),
        found.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"), "word").count()
        .selectExpr("window.start AS minute", "word", "count").writeStream.format("json")
        .option("checkpointLocation", args.target + "/checkpoints/3").trigger(availableNow=True)
        .start(args.target + "/minutes"),
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
'''


def inputs(directory: Path) -> Path:
    directory.mkdir()
    for number in range(6):
        rows = [{"line": f"Tick, tock {number} a", "at": f"2026-03-01T08:{number:02d}:{n:02d}Z"} for n in range(10)]
        file = directory / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1_000_000 + number, 1_000_000 + number))  # Spark reads them in this order, so no row is late
    return directory


def rows(directory: Path, kind: str) -> Counter[str]:
    """Return the rows of files that Spark or a job has published."""
    files = [str(path) for path in directory.rglob(f"part-*{'.parquet' if kind == 'parquet' else '.json'}")]
    if kind == "json":
        return Counter(line for file in files for line in Path(file).read_text().splitlines())
    found = pyarrow.dataset.dataset(files, format="parquet", partitioning="hive", partition_base_dir=str(directory))
    return Counter(str(row) for row in found.to_table().to_pylist())


def totals(file: Path) -> dict[str, int]:
    """Return the last count of each word."""
    return dict(json.loads(line) for line in file.read_text().splitlines())


async def test_a_script_writes_the_same_by_itself_and_as_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """Files, batches of its own function, and windows; the job also writes the last ones, which Spark holds back."""
    script, source = tmp_path / "words.py", inputs(tmp_path / "in")
    script.write_text(SCRIPT)
    (tmp_path / "cleaning.py").write_text("def cleaned(word):\n    return word.strip(',.').lower()\n")
    plain, job = tmp_path / "plain", tmp_path / "job"
    for target in (plain, job):
        target.mkdir()
    await cluster.await_ready(1)
    code, out, err = await minflinkd(cluster, "run", str(script), str(source), str(job), "--wait")
    assert code == 0, out + err
    assert "checkpointLocation is left out" in err
    (words,) = [each for each in (await cluster.client.jobs()).jobs if each.name == "words"]
    assert words.state == "FINISHED"
    environ = plain_spark.environ() | {
        "PYTHONPATH": str(tmp_path)
    }  # Spark's workers do not know the script's directory
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), str(source), str(plain), env=environ)
    assert await process.wait() == 0
    assert rows(job / "words", "parquet") == rows(plain / "words", "parquet")
    assert (
        totals(job / "totals")
        == totals(plain / "totals")
        == {"tick": 120, "tock": 120, "a": 120} | {str(n): 20 for n in range(6)}
    )
    early = rows(plain / "minutes", "json")
    assert early
    assert early <= rows(job / "minutes", "json")
    assert sum(json.loads(line)["count"] for line in rows(job / "minutes", "json")) == 6 * 10 * 4 * 2


async def test_what_a_job_cannot_take_over_is_told_with_its_line(cluster: Cluster, tmp_path: Path) -> None:
    """As the faults of a job file are, and nothing is started."""
    script = tmp_path / "wrong.py"
    script.write_text("""\
from pyspark.sql import SparkSession
rows = SparkSession.builder.getOrCreate().readStream.format("rate").load()
rows.writeStream.foreach(print).start()
rows.writeStream.format("memory").start()
""")
    await cluster.await_ready(1)
    code, _, err = await minflinkd(cluster, "run", str(script))
    assert code == 2
    assert f"{script}:3: script: foreach writes row by row, which a job does not do (use foreachBatch)" in err
    assert f"{script}:4: script: a job does not write to memory from a script" in err
    script.write_text("raise ValueError('which broker?')\n")
    code, _, err = await minflinkd(cluster, "run", str(script))
    assert code == 2
    assert "which broker?" in err
    assert 'wrong.py", line 1' in err
    (tmp_path / "job.yaml").write_text("name: x\nvertices: {}\n")
    code, _, err = await minflinkd(cluster, "run", str(tmp_path / "job.yaml"), "argument")
    assert code == 2
    assert "takes no arguments" in err


LIVE = """\
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, target, factor = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
lines = spark.readStream.schema("k STRING, v LONG").option("maxFilesPerTrigger", 1).json(source)
sums = lines.groupBy("k").agg(F.sum("v").alias("total"))


def keep(batch, epoch):
    with open(target, "a") as out:
        for row in batch.collect():
            out.write(f"{row.k} {row.total} {factor}\\n")


query = sums.writeStream.queryName("sums").outputMode("update").foreachBatch(keep).start()
query.awaitTermination()
"""


async def test_another_version_of_a_script_goes_on_from_its_state(cluster: Cluster, tmp_path: Path) -> None:
    """A hot restart with other arguments; the job keeps its name (H1)."""
    script, source, target = tmp_path / "live.py", tmp_path / "in", tmp_path / "out"
    script.write_text(LIVE)
    source.mkdir()
    (source / "0.json").write_text('{"k": "a", "v": 1}')
    await cluster.await_ready(1)
    code, _, err = await minflinkd(cluster, "run", str(script), str(source), str(target), "one", "--name", "sums-of-v")
    assert code == 0, err

    async def written(line: str) -> None:
        await until(lambda: target.exists() and line in target.read_text().splitlines(), line, timeout=90)

    await written("a 1 one")
    given = (str(script), str(source), str(target), "two", "--yes", "--detach")
    code, _, err = await minflinkd(cluster, "hot-restart", "sums-of-v", *given)
    assert code == 0, err
    (source / "1.json").write_text('{"k": "a", "v": 10}')
    await written("a 11 two")
    (job,) = [each for each in (await cluster.client.jobs()).jobs if each.name == "sums-of-v"]
    await cluster.cancel(job.jid)
