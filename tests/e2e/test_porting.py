"""The scripts of docs/porting.md and the jobs that they became: each pair, as it is shown, writes the same rows."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import pytest_asyncio

from tests import plain_spark
from tests.cluster import Cluster, running_cluster
from tests.servers.install import KAFKA_CONNECTOR, POSTGRES_DRIVER
from tests.servers.kafka import Tansu
from tests.servers.postgres import USER, Postgres
from tests.servers.process import HOST
from tests.waiting import until
from tests.windows_job import leftovers

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

EXAMPLES = Path(__file__).parents[2] / "examples/porting"
JARS = ",".join(str(jar) for home in (KAFKA_CONNECTOR, POSTGRES_DRIVER) for jar in sorted(home.glob("*.jar")))
START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
ENDING = 30.0  # seconds that a script has for its end

Row = tuple[Any, ...]  # the last column is a count, by which a wait sees how much has been written


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def connected(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A daemon that has the jars where docs/connectors.md puts them; of a server that is not installed it has none."""
    settings = {
        "resourcemanager.standby-taskmanagers": 1,
        "resourcemanager.max-taskmanagers": 1,
        "taskmanager.spark.conf": {"spark.jars": JARS},
    }
    async with running_cluster(tmp_path_factory.mktemp("connected"), **settings) as cluster:
        yield cluster


@dataclass(frozen=True)
class Pair:
    """A script that runs in plain Spark, and its job."""

    script: asyncio.subprocess.Process
    log: Path
    cluster: Cluster
    job_id: str

    async def wrote(self, count: int, *outputs: Callable[[], list[Row]]) -> None:
        """Waits until each output counts so many. Fails with the reason if the script has ended or the job failed."""

        async def enough() -> bool:
            assert self.script.returncode is None, f"the script ended:\n{self.log.read_text(errors='replace')[-12000:]}"
            failure = (await self.cluster.client.exceptions(self.job_id)).root_exception
            assert failure is None, f"the job failed: {failure}"
            found = [await asyncio.to_thread(output) for output in outputs]
            return all(sum(row[-1] for row in rows) >= count for rows in found)

        await until(enough, f"script and job have counted {count}", timeout=90, pause=0.2)


@contextlib.asynccontextmanager
async def running(
    cluster: Cluster, directory: Path, name: str, arguments: Iterable[str], params: dict[str, str]
) -> AsyncIterator[Pair]:
    """`examples/porting/<name>.py` under spark-submit, `<name>.yaml` in the cluster; both are over after the block."""
    log = directory / "script.log"
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "WARN"}
    given = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    with log.open("wb") as output:
        script = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", "--jars", JARS, *given),
            *(str(EXAMPLES / f"{name}.py"), *arguments),
            cwd=directory,
            env=plain_spark.environ()
            | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(directory / "local")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        await cluster.await_ready(1)
        job_id = await cluster.submit(EXAMPLES / f"{name}.yaml", **params)
        yield Pair(script, log, cluster, job_id)
        await cluster.cancel(job_id)
    finally:
        await ended(script)


async def ended(script: asyncio.subprocess.Process) -> None:
    """The JVM, which `spark-submit` became, and Python below it. In order, so that Spark removes its directories."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(script.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ENDING):
            await script.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(script.pid, signal.SIGKILL)
    await script.wait()


def views() -> list[tuple[datetime, str]]:
    """Four minutes of them, in order of time; a last one, much later, closes the windows of the others."""
    pages = ("home", "cart", "home", "help", "home")
    found = [(START + timedelta(seconds=7 * n), pages[n % 5]) for n in range(34)]
    return [*found, (START + timedelta(hours=1), "home")]


def counts(files: Iterable[Path]) -> list[Row]:
    """Minute, page, views: the rows of Parquet files, each as often as it is there."""
    found: list[Row] = []
    for file in files:
        table = pyarrow.parquet.read_table(file)
        minutes = table["minute"].cast(pyarrow.timestamp("us", "UTC")).to_pylist()
        found += zip(minutes, table["page"].to_pylist(), table["views"].to_pylist(), strict=True)
    return sorted(found)


def committed(directory: Path) -> list[Path]:
    """What Spark's log in the directory names: without it a reader sees unfinished files as well."""
    entries = [line for log in directory.glob("_spark_metadata/[0-9]*") for line in log.read_text().splitlines()[1:]]
    return [Path(json.loads(entry)["path"].removeprefix("file://")) for entry in entries]


@pytest.mark.slow  # tests/spark/test_session_kafka has both directions of Kafka
async def test_the_script_with_kafka_and_its_job_count_the_same(
    connected: Cluster, kafka: Tansu, tmp_path: Path
) -> None:
    """What docs/porting.md shows runs as it is shown. A window that is still open is written by neither."""
    await kafka.create_topic("views")
    *closed, last = views()
    for time, page in (*closed, last):
        await asyncio.to_thread(kafka.produce, "views", json.dumps({"value": {"page": page, "time": time.isoformat()}}))
    counted = Counter((time.replace(second=0), page) for time, page in closed)
    wanted = sorted((*key, count) for key, count in counted.items())
    by_script, by_job = tmp_path / "script", tmp_path / "job"
    arguments = (kafka.address, str(by_script), str(tmp_path / "checkpoints"))
    params = {"broker": kafka.address, "output": str(by_job)}

    async with running(connected, tmp_path, "kafka", arguments, params) as pair:
        await pair.wrote(len(closed), lambda: counts(committed(by_script)), lambda: counts(by_job.glob("*.parquet")))

    assert counts(committed(by_script)) == wanted
    assert counts(by_job.glob("*.parquet")) == wanted
    assert leftovers(by_job) == []


ORDERS = (  # each is one file; the second changes one of the first one's totals, and adds another
    [("ann", 10), ("bob", 5), ("ann", 7), ("cleo", 1)],
    [("bob", 20), ("dan", 3), ("bob", 2)],
)


def write_orders(directory: Path, number: int) -> None:
    """Whole or not at all."""
    staged = directory / f"_{number}.json"
    staged.write_text("".join(json.dumps({"customer": who, "amount": what}) + "\n" for who, what in ORDERS[number]))
    staged.rename(directory / f"{number}.json")


def totals(database: str) -> list[Row]:
    """Customer, amount, orders."""
    import psycopg

    with psycopg.connect(database) as connection:
        if connection.execute("SELECT to_regclass('totals')").fetchone() == (None,):
            return []
        return connection.execute("SELECT customer, amount, orders FROM totals ORDER BY customer").fetchall()


@contextlib.asynccontextmanager
async def databases(postgres: Postgres, *names: str) -> AsyncIterator[list[str]]:
    """Their addresses, as libpq reads them. They are gone after the block."""
    try:
        for name in names:
            await postgres.ask(f"CREATE DATABASE {name}")
        yield [f"postgresql://{HOST}:{postgres.port}/{name}?user={USER}" for name in names]
    finally:
        for name in names:
            await postgres.ask(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.mark.skipif(importlib.util.find_spec("psycopg") is None, reason="psycopg is not installed: make setup")
@pytest.mark.slow  # tests/spark/test_session_jdbc has the sink, test_nexmark a script beside its job
async def test_the_script_with_foreachbatch_and_its_job_keep_the_same_table(
    connected: Cluster, postgres: Postgres, tmp_path: Path
) -> None:
    """What docs/porting.md shows runs as it is shown. Totals that were written change with later orders."""
    source = tmp_path / "orders"
    source.mkdir()
    async with databases(postgres, "porting_script", "porting_job") as (by_script, by_job):
        arguments = (str(source), by_script, str(tmp_path / "checkpoints"))
        params = {"input": str(source), "url": f"jdbc:{by_job}"}
        write_orders(source, 0)
        async with running(connected, tmp_path, "upsert", arguments, params) as pair:
            outputs = (lambda: totals(by_script), lambda: totals(by_job))
            await pair.wrote(4, *outputs)
            assert [output() for output in outputs] == [[("ann", 17, 2), ("bob", 5, 1), ("cleo", 1, 1)]] * 2
            write_orders(source, 1)
            await pair.wrote(7, *outputs)
        wanted = [("ann", 17, 2), ("bob", 27, 3), ("cleo", 1, 1), ("dan", 3, 1)]
        assert [output() for output in outputs] == [wanted] * 2
