"""Sinks that append to tables: files are staged in the table's directory, and commits name them (K2, K3)."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException

from minflinkd.jobgraph.model import Sink, Task, Vertex
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.lakes import Delta, Iceberg, Lake
from tests.proxy import Proxy
from tests.servers.s3 import SeaweedFS
from tests.spark.session_child import Child, inputs, job, rate, sql, task
from tests.spark.test_session_sinks import restored, restored_three_times
from tests.spark.test_session_snapshots import snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ROWS = "SELECT value, value % 3 AS part, CONCAT('n', value) AS name, timestamp AS at FROM numbers"
KINDS = pytest.mark.parametrize("kind", [Delta, Iceberg])


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def out(sink: Sink) -> Vertex:
    return Vertex(id=VertexId("out"), inputs=inputs("rows"), sink=sink)


async def values(lake: Lake, table: str) -> list[int]:
    return await asyncio.to_thread(lake.values, table)


@KINDS
@pytest.mark.parametrize("partition_by", [(), ("part",)], ids=["plain", "partitioned"])
async def test_rows_appear_with_their_checkpoint_and_once(
    child: Child, kind: type[Lake], partition_by: tuple[str, ...], tmp_path: Path
) -> None:
    """Files are in the table's directory before, but nobody sees them. A repeated commit changes nothing (K2, K3)."""
    lake = kind(tmp_path / "lake")
    query = task(rate(10), sql("rows", ROWS, "numbers"), out(lake.sink("once", partition_by=partition_by)))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 2)
    first, _ = await snapshot(child, attempt, 1)
    assert lake.data_files("once")
    assert await values(lake, "once") == []
    for _ in range(2):
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
        assert await values(lake, "once") == list(range(10 * (first.batch_id + 1)))
    await child.batches(attempt, first.batch_id + 2)
    second, _ = await snapshot(child, attempt, 2)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=2))
    await child.batches(attempt, second.batch_id + 2)
    await child.stop(attempt)
    assert await values(lake, "once") == list(range(10 * (second.batch_id + 1)))
    rows = await asyncio.to_thread(lake.rows, "once")
    assert all((row["part"], row["name"]) == (row["value"] % 3, f"n{row['value']}") for row in rows)
    seen = len(lake.data_files("once"))
    assert seen == len({row["value"] // 10 for row in rows}) * (3 if partition_by else 1) or seen < len(rows)


@KINDS
async def test_a_restore_publishes_what_it_owes_beside_an_attempt_that_runs_on(
    child: Child, kind: type[Lake], tmp_path: Path
) -> None:
    """Neither an attempt that only seems dead nor a late commit writes a row twice (K2, K3, J13)."""
    lake = kind(tmp_path / "lake")
    query = task(rate(10), sql("rows", ROWS, "numbers"), out(lake.sink("restored")))
    await restored_three_times(child, query, lambda: values(lake, "restored"))


@KINDS
async def test_a_table_on_an_object_store(child: Child, kind: type[Lake], seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    """The sink uploads its files itself. What no checkpoint covers is deleted when the attempt ends (K2, K3)."""
    lake = kind(tmp_path / "lake", seaweedfs.endpoint)
    query = task(rate(10), sql("rows", ROWS, "numbers"), out(lake.sink("remote", partition_by=["part"])))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 2)
    taken, _ = await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    named = lake.data_files("remote")
    await child.batches(attempt, taken.batch_id + 3)
    assert lake.data_files("remote") > named
    await child.stop(attempt)
    assert await values(lake, "remote") == list(range(10 * (taken.batch_id + 1)))
    assert lake.data_files("remote") <= named


@KINDS
async def test_a_file_that_is_gone_before_its_commit_is_told(child: Child, kind: type[Lake], tmp_path: Path) -> None:
    """A table that names it could not be read any more: the commit is refused (K8)."""
    lake = kind(tmp_path / "lake")
    query = task(rate(10), sql("rows", ROWS, "numbers"), out(lake.sink("cleaned")))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 2)
    taken, files = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    for path in lake.data_files("cleaned"):
        Path(path).unlink()
    with pytest.raises(MinflinkError, match="a checkpoint covers the rows in") as refused:
        await child.run(job(), query, **await restored(child, taken, files, 1))
    assert refused.value.info().code == "sink-table-changed"
    assert await values(lake, "cleaned") == []


@KINDS
async def test_a_table_that_was_replaced_is_not_mixed_with_the_one_before(
    child: Child, kind: type[Lake], tmp_path: Path
) -> None:
    """Rows that wait are not committed into another table, and the error says what has changed (K8)."""
    lake = kind(tmp_path / "lake")
    query = task(rate(10), sql("rows", ROWS, "numbers"), out(lake.sink("replaced")))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 2)
    await snapshot(child, attempt, 1)
    if isinstance(lake, Iceberg):
        lake.catalog().drop_table("db.replaced")
    else:
        Path(lake.root("replaced")).rename(tmp_path / "gone")  # the attempt may be writing into it
    with pytest.raises(MinflinkError, match="is gone, and rows of sink out wait for it") as gone:
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    assert gone.value.info().code == "sink-table"
    another = await child.run(job(), query)
    await child.batches(another, 1)
    with pytest.raises(MinflinkError, match="these have changed since: the table itself") as refused:
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    assert refused.value.info().code == "sink-table-changed"
    await child.stop(another)
    await child.stop(attempt)
    assert await values(lake, "replaced") == []


async def faults(child: Child, query: Task) -> list[tuple[str, str]]:
    found = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    return [(fault.path, fault.problem) for fault in found]


TYPES = """
SELECT value, CAST(value AS INT) AS whole, CAST(value AS DECIMAL(10, 2)) AS price, value % 2 = 0 AS even,
       CAST(value AS DOUBLE) / 4 AS share, CAST(CONCAT('x', value) AS BINARY) AS raw,
       DATE_ADD(DATE'2026-01-01', CAST(value % 400 AS INT)) AS day,
       TIMESTAMP_MICROS(1767225600123456 + value * 3600000000) AS at,
       TIMESTAMP_NTZ'2026-01-01 12:00:00' AS local, array(value, NULL) AS many, map('k', value) AS named,
       named_struct('x', value, 'y', CAST(NULL AS STRING)) AS inside,
       IF(value % 5 = 0, NULL, CONCAT('é/=%', value)) AS text
FROM numbers
"""


@KINDS
async def test_every_type_is_read_back_as_it_was_written(child: Child, kind: type[Lake], tmp_path: Path) -> None:
    """Times have microseconds, and NULL stays NULL, also in structs and lists (K2, K3)."""
    lake = kind(tmp_path / "lake")
    attempt = await child.run(job(), task(rate(10), sql("rows", TYPES, "numbers"), out(lake.sink("types"))))
    await child.batches(attempt, 2)
    await snapshot(child, attempt, 1)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.stop(attempt)
    for row in await asyncio.to_thread(lake.rows, "types"):
        n = row["value"]
        at = datetime(2026, 1, 1, 0, 0, 0, 123456, UTC) + timedelta(hours=n)
        assert row == {
            "value": n,
            "whole": n,
            "price": Decimal(n),
            "even": n % 2 == 0,
            "share": n / 4,
            "raw": f"x{n}".encode(),
            "day": date(2026, 1, 1) + timedelta(days=n % 400),
            "at": at,
            "local": datetime(2026, 1, 1, 12),  # noqa: DTZ001 - a column without a zone
            "many": [n, None],
            "named": [("k", n)],
            "inside": {"x": n, "y": None},
            "text": None if n % 5 == 0 else f"é/=%{n}",
        }


@KINDS
async def test_columns_are_added_only_if_the_job_says_so(child: Child, kind: type[Lake], tmp_path: Path) -> None:
    """Otherwise rows with a column that the table does not have are refused at submission (K2, J4)."""
    lake = kind(tmp_path / "lake")
    for sink, select in (
        (lake.sink("growing"), "CAST(value AS INT) AS value"),
        (lake.sink("growing", schema="add-columns"), "'x' AS extra, CAST(value AS SMALLINT) AS value"),
        (lake.sink("growing"), "CAST(value AS INT) AS value"),
    ):
        attempt = await child.run(
            job(), task(rate(10), sql("rows", f"SELECT {select} FROM numbers", "numbers"), out(sink))
        )
        await child.batches(attempt, 1)
        await snapshot(child, attempt, 1)
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
        await child.stop(attempt)
    found = await asyncio.to_thread(lake.rows, "growing")
    assert {row.get("extra") for row in found} == {None, "x"}
    for select, problem in (
        ("value, 'y' AS other", "has no column other; it has value, extra"),
        ("'text' AS value", "the rows do not fit"),
    ):
        query = task(rate(10), sql("rows", f"SELECT {select} FROM numbers", "numbers"), out(lake.sink("growing")))
        ((path, said),) = await faults(child, query)
        assert path == "vertices.out.sink"
        assert problem in said


@KINDS
async def test_other_writers_of_the_table_go_on(child: Child, kind: type[Lake], tmp_path: Path) -> None:
    """Neither their commits nor the job's are lost (K2, K3)."""
    lake = kind(tmp_path / "lake")
    query = task(rate(10), sql("rows", "SELECT value FROM numbers", "numbers"), out(lake.sink("shared")))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 2)
    others = 0
    for checkpoint_id in range(1, 4):
        taken, _ = await snapshot(child, attempt, checkpoint_id)
        added = asyncio.create_task(asyncio.to_thread(append, lake, "shared", 5), name="another writer")
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id))
        others += await added
        await child.batches(attempt, taken.batch_id + 2)
    await child.stop(attempt)
    found = await values(lake, "shared")
    assert [value for value in found if value >= 0] == list(range(10 * (taken.batch_id + 1)))
    assert found.count(-1) == others


def append(lake: Lake, table: str, times: int) -> int:
    """Append a row with the value -1 some times, with the table's own library. Returns how many rows there are now."""
    row = pa.table({"value": pa.array([-1], pa.int64())})
    done = 0
    for _ in range(times):
        with contextlib.suppress(CommitFailedError, CommitFailedException):
            if isinstance(lake, Iceberg):
                lake.table(table).append(row)
            else:
                write_deltalake(lake.root(table), row, mode="append")
            done += 1
    return done


IMPATIENT: dict[type[Lake], dict[str, str]] = {
    Delta: {"timeout": "2s", "max_retries": "1", "retry_timeout": "2s"},
    Iceberg: {"catalog.s3.connect-timeout": "1", "catalog.s3.request-timeout": "1"},
}


@pytest.mark.slow  # tests/faults/test_table_sinks.py has an object store that is away
@KINDS
async def test_a_storage_that_is_away_is_told_and_tried_again(
    child: Child, kind: type[Lake], seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    """At submission as a fault; at run time the rows stay staged until it is back (K8)."""
    host, _, port = seaweedfs.endpoint.removeprefix("http://").partition(":")
    async with Proxy(host, int(port)) as proxy:
        lake = kind(tmp_path / "lake", f"http://127.0.0.1:{proxy.port}")
        query = task(rate(10), sql("rows", ROWS, "numbers"), out(lake.sink("away", **IMPATIENT[kind])))
        attempt = await child.run(job(), query)
        await child.batches(attempt, 1)
        taken, _ = await snapshot(child, attempt, 1)
        proxy.swallow()
        with pytest.raises(MinflinkError) as refused:
            await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
        assert (refused.value.info().code, refused.value.info().consequence) == ("sink-table", "retryable")
        ((path, problem),) = await faults(child, query)
        assert path == "vertices.out.sink"
        assert "cannot be re" in problem  # read, or reached in time
        proxy.pass_on()
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
        await child.stop(attempt)
        assert await values(lake, "away") == list(range(10 * (taken.batch_id + 1)))
