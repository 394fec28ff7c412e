"""Sinks that are not files, with a daemon, while their TaskManager is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, running_cluster
from tests.databases import Tables
from tests.servers.kafka import Tansu
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.windows_job import SQL, WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SCHEMA = "k STRING, time TIMESTAMP, v BIGINT"
CLUSTER = {"resourcemanager.max-taskmanagers": 1, "taskmanager.numberOfTaskSlots": 4, "heartbeat.timeout": "10 s"}

# Appends to a file in `commit`, and knows by the file what it has committed, as any store with atomic writes can.
UPLOADS = """
import json, os
def clean(inputs, params):
    return inputs['events'].where('v >= 0')
class Uploads:
    def __init__(self, context):
        self.root, self.attempt = context.params["uploads"], context.attempt_id
        os.makedirs(self.root, exist_ok=True)
    def stage(self, batch, epoch):
        rows = [[int(r.minute.timestamp()), r.k, r.n, r.total] for r in batch.collect()]
        name = f"{self.attempt}-{epoch}"
        with open(os.path.join(self.root, f".{name}"), "w") as out:
            json.dump(rows, out)
        return name if rows else None
    def commit(self, checkpoint_id, tokens):
        for name in tokens:
            if os.path.exists(os.path.join(self.root, f".{name}")):
                os.replace(os.path.join(self.root, f".{name}"), os.path.join(self.root, name))
    def abort(self, tokens):
        for name in [n[1:] for n in os.listdir(self.root) if n.startswith(".")] if tokens is None else tokens:
            os.unlink(os.path.join(self.root, f".{name}"))
"""


def events(windows: WindowsJob) -> dict[str, Any]:
    source = {"format": "json", "path": str(windows.events), "schema": SCHEMA, "options": {"maxFilesPerTrigger": 1}}
    return {"source": source, "watermark": {"column": "time", "delay": "1 minute"}}


async def kill_and_finish(cluster: Cluster, job_id: str, checkpoints: int = 3) -> None:
    await cluster.await_checkpoints(job_id, checkpoints)
    killed = await cluster.task_manager_of(job_id)
    os.kill(killed.minflinkd.pid, signal.SIGKILL)
    job = await cluster.await_state(job_id, "FINISHED", timeout=180)
    assert job.minflinkd.restarts >= 1


async def test_rows_are_in_databases_and_with_a_class_once_each(
    postgres: Postgres, mariadb: MariaDB, windows: WindowsJob, truth: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """Sinks that commit by themselves, fed by one query, end with the rows of the batch (C40, J13, K4).

    Collected rows are those of the last attempt, and can be read when the job is over.
    """
    work = WindowsJob(tmp_path, pace="400 ms", artifact=UPLOADS)
    uploads, table = tmp_path / "uploads", "windows_of_a_killed_job"
    url, driver = f"{mariadb.url}&permitMysqlScheme", "org.mariadb.jdbc.Driver"
    in_mysql = {"url": url, "driver": driver, "dbtable": table}
    vertices = {
        "events": events(windows),
        "clean": {"inputs": ["events"], "python": "windows:clean"},
        "minutes": {"inputs": ["clean"], "sql": SQL},
        "out": {"inputs": ["minutes"], "sink": {"format": "jdbc", "options": {"url": postgres.url, "dbtable": table}}},
        "mysql": {"inputs": ["minutes"], "sink": {"format": "jdbc", "options": in_mysql}},
        "keyed": {
            "inputs": ["minutes"],
            "sink": {"format": "jdbc", "options": in_mysql | {"dbtable": f"{table}_keyed", "key": "minute, k"}},
        },
        "own": {"inputs": ["minutes"], "sink": {"python": "windows:Uploads", "delivery": "exactly-once"}},
        "seen": {"inputs": ["minutes"], "sink": {"format": "collect", "options": {"rows": 10000}}},
    }
    settings = CLUSTER | {"taskmanager.spark.conf": {"spark.jars": f"{postgres.jar},{mariadb.jars}"}}
    databases = [await tables.as_found() for tables in (Tables.of_postgresql(postgres), Tables.of_mysql(mariadb))]
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        job_id = await cluster.submit(work.write("jdbc", vertices=vertices, params={"uploads": str(uploads)}))
        await kill_and_finish(cluster, job_id)
        sinks = {sink.vertex: sink.delivery for sink in (await cluster.client.job(job_id)).minflinkd.sinks}
        assert sinks == dict.fromkeys(("out", "mysql", "keyed", "own"), "exactly-once") | {"seen": "at-least-once"}
        lines = await postgres.ask(f"SELECT extract(epoch FROM minute)::bigint, k, n, total FROM {table}")
        assert _told(lines) == truth
        for name in (table, f"{table}_keyed"):
            sql = f"SELECT timestampdiff(second, '1970-01-01', minute), k, n, total FROM {name}"
            assert _told(await mariadb.ask(sql)) == truth, name
        assert sorted(row for path in uploads.iterdir() for row in _rows(path)) == truth
        seen = await cluster.client.get(f"/jobs/{job_id}/vertices/seen/collected", dict)
        assert 0 < len(seen["rows"]) <= len(truth)
        assert {(row["row"]["k"], row["row"]["n"], row["row"]["total"]) for row in seen["rows"]} <= {
            r[1:] for r in truth
        }
    for found in databases:
        assert await found.leftovers() == set()


def _told(lines: list[str]) -> list[tuple[Any, ...]]:
    """Return the rows that a database has printed."""
    parts = (line.split("|") for line in lines)
    return sorted((int(minute), k, int(n), int(total)) for minute, k, n, total in parts)


def _rows(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in json.loads(path.read_text())]


async def test_files_from_kafka_are_exactly_once(
    kafka: Tansu, windows: WindowsJob, truth: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """Events go through a broker into a windowed aggregate and files, while the TaskManager is killed (C40, J13)."""
    await kafka.create_topic("windows", partitions=1)
    work, servers = WindowsJob(tmp_path, pace="400 ms"), {"kafka.bootstrap.servers": kafka.address}
    written = servers | kafka.one_by_one | {"topic": "windows"}
    into = {
        "events": events(windows) | {"watermark": None},
        "rows": {"inputs": ["events"], "sql": "SELECT to_json(struct(*)) AS value FROM events"},
        "out": {"inputs": ["rows"], "sink": {"format": "kafka", "options": written}},
    }
    read = servers | {"subscribe": "windows", "startingOffsets": "earliest", "maxOffsetsPerTrigger": windows.rows}
    parsed = f"SELECT r.* FROM (SELECT from_json(CAST(value AS STRING), '{SCHEMA}') AS r FROM messages)"
    out_of = {
        "messages": {"source": {"format": "kafka", "options": read}},
        "events": {"inputs": ["messages"], "sql": parsed, "watermark": {"column": "time", "delay": "1 minute"}},
        "clean": {"inputs": ["events"], "python": "windows:clean"},
        "minutes": {"inputs": ["clean"], "sql": SQL},
        "out": {"inputs": ["minutes"], "sink": {"format": "parquet", "path": str(tmp_path / "from-kafka")}},
    }
    async with running_cluster(
        tmp_path / "cluster", **CLUSTER, **{"taskmanager.spark.conf": {"spark.jars": kafka.jars}}
    ) as cluster:
        first = await cluster.submit(work.write("to-kafka", vertices=into, params={}, **{"trigger-interval": 0}))
        await cluster.await_state(first, "FINISHED", timeout=180)
        await kill_and_finish(cluster, await cluster.submit(work.write("from-kafka", vertices=out_of, params={})))
    assert await asyncio.to_thread(result, tmp_path / "from-kafka") == truth
    assert leftovers(tmp_path / "from-kafka") == []
