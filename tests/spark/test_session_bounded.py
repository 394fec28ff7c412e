"""Bounded input: a batch job writes what a batch query would write."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

from minflinkd.jobgraph.model import RuntimeMode, Watermark
from minflinkd.taskmanager.child import protocol as p
from tests.shortened import first
from tests.spark.session_child import Child, call, events, job, parquet, python, source, sql, task

EPOCH = 1_700_000_000  # seconds since 1970

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

WINDOWED = """
SELECT window(time, '1 minute').start AS start, key, count(*) AS n FROM events GROUP BY window(time, '1 minute'), key
"""


def write_events(directory: Path, files: int, first: int = 0) -> Counter[tuple[str, str]]:
    """Write one file for each minute of event time, to be read in this order. Return the rows by window and key."""
    directory.mkdir(exist_ok=True)
    truth: Counter[tuple[str, str]] = Counter()
    for number in range(first, first + files):
        rows = []
        for second in range(60):
            key = f"k{second * (number + 1) % 7}"
            rows.append({"key": key, "time": f"2024-01-01T00:{number:02d}:{second:02d}Z", "value": second})
            truth[f"2024-01-01 00:{number:02d}:00", key] += 1
        file = directory / f"{number:03d}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (EPOCH + number, EPOCH + number))  # Spark reads files of the same millisecond in any order
    return truth


def published(root: Path, taken: p.SnapshotTaken) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for transaction in taken.transactions:
        for file in transaction.files:
            for row in pyarrow.parquet.read_table(root / file.staged).to_pylist():
                found[row["start"].strftime("%Y-%m-%d %H:%M:%S"), row["key"]] += row["n"]
    return found


def rows_of(root: Path, taken: p.SnapshotTaken) -> Counter[tuple[Any, ...]]:
    """Return what the sink of a task has written, whatever its columns."""
    files = [root / file.staged for transaction in taken.transactions for file in transaction.files]
    return Counter(tuple(row.values()) for file in files for row in pyarrow.parquet.read_table(file).to_pylist())


async def run_to_end(child: Child, attempt: Any) -> p.InputEnded:
    ended = await child.notice((p.InputEnded, p.TaskFailed), lambda n: n.attempt_id == attempt)  # type: ignore[arg-type]
    assert isinstance(ended, p.InputEnded), ended
    return ended


async def test_the_last_windows_are_written(child: Child, tmp_path: Path) -> None:
    """At the end of bounded input the watermark goes to the end of time, so that open windows fire (J8a)."""
    truth = write_events(tmp_path / "in", 12)
    query = task(
        events(tmp_path / "in", maxFilesPerTrigger="3"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w")
    )
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query)
    ended = await run_to_end(child, attempt)
    write_events(tmp_path / "in", 2, first=20)  # later than the start, so not part of this job
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    assert published(tmp_path / "out", taken) == truth
    assert taken.input_ended
    assert ended.metrics.rows_in == 12 * 60
    assert ended.metrics.rows_out == len(truth)


BY_WINDOW = """
SELECT window(time, '1 minute') AS w, key, count(*) AS n FROM events GROUP BY window(time, '1 minute'), key
"""
LARGEST = "SELECT w, max(n) AS most FROM c GROUP BY w"
DISTINCT = """
def distinct(inputs, params):
    return inputs["events"].dropDuplicates(["key", "time"])
"""
ASKS_FOR_REUSE = """
def asks(inputs, params):
    inputs["numbers"].sparkSession.conf.set("spark.sql.exchange.reuse", "true")
    return inputs["numbers"]
"""
TWICE: dict[str, dict[str, tuple[str, ...]]] = {  # shape -> vertex -> its SQL, its inputs
    "an aggregate joined with an aggregate of itself": {
        "c": (BY_WINDOW, "events"),
        "m": (LARGEST, "c"),
        "last": ("SELECT date_format(c.w.start, 'mm') AS minute, key, n, most FROM c JOIN m ON c.w = m.w", "c", "m"),
    },
    "a union of an aggregate with itself": {
        "c": (BY_WINDOW, "events"),
        "last": (
            "SELECT date_format(w.start, 'mm') AS minute, key, n, 0 AS copy FROM c UNION ALL "
            "SELECT date_format(w.start, 'mm'), key, n, 1 FROM c",
            "c",
        ),
    },
    "a join of distinct rows with themselves": {
        "last": (
            "SELECT date_format(a.time, 'mm:ss') AS at, a.key FROM c a JOIN c b ON a.key = b.key AND a.time = b.time",
            "c",
        ),
    },
    "a left join of an aggregate with itself": {
        "c": (BY_WINDOW, "events"),
        "last": (
            "SELECT date_format(a.w.start, 'mm') AS minute, a.key, a.n, b.n AS other FROM c a LEFT JOIN c b "
            "ON a.w = b.w AND a.key = b.key AND a.n = b.n + 1",
            "c",
        ),
    },
    "an aggregate semi-joined with its own source": {
        "c": (BY_WINDOW.replace(" key,", " key AS key,"), "events"),
        "last": (
            "SELECT date_format(c.w.start, 'mm') AS minute, key, n FROM (SELECT *, window_time(w) AS ts FROM c) c "
            "LEFT SEMI JOIN events e ON c.key = e.key AND e.time >= c.ts - INTERVAL 1 MINUTE AND e.time <= c.ts",
            "c",
            "events",
        ),
    },
}


def owed(shape: str, truth: Counter[tuple[str, str]]) -> Counter[tuple[Any, ...]]:
    """Return the rows of the batch, computed by hand. `truth`: rows by window and key."""
    windows = [(start[14:16], key, n) for (start, key), n in truth.items()]
    most = {minute: max(n for m, _, n in windows if m == minute) for minute, _, _ in windows}
    if shape.startswith("a union"):
        return Counter((*window, copy) for window in windows for copy in (0, 1))
    if shape.startswith("a left join"):
        return Counter((*window, None) for window in windows)
    if shape.endswith("with its own source"):
        return Counter(windows)
    return Counter((minute, key, n, most[minute]) for minute, key, n in windows)


@pytest.mark.slow  # tests/shapes draws such graphs
@pytest.mark.parametrize("shape", TWICE)
async def test_what_reads_one_operator_twice_ends_with_all_its_rows(child: Child, tmp_path: Path, shape: str) -> None:
    """Both copies of an operator know the watermark, in every micro-batch (J8a)."""
    truth = write_events(tmp_path / "in", 3)
    (tmp_path / "rows.py").write_text(DISTINCT)
    vertices = [sql(name, *text_and_inputs) for name, text_and_inputs in TWICE[shape].items()]
    if "c" not in TWICE[shape]:
        vertices.insert(0, python("c", "rows:distinct", "events"))
    query = task(events(tmp_path / "in", maxFilesPerTrigger="1"), *vertices, parquet(tmp_path / "out", "last"))
    code = {"rows.py": str(tmp_path / "rows.py")}
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query, artifacts=code)
    await run_to_end(child, attempt)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    found = rows_of(tmp_path / "out", taken)
    if shape.startswith("a join of distinct"):
        assert sum(found.values()) == sum(truth.values()) == len(found)
    else:
        assert found == owed(shape, truth)


async def test_a_running_query_that_reads_one_operator_twice_fires_both(child: Child, tmp_path: Path) -> None:
    """Both fire even if Spark could reuse the rows of a micro-batch, as of Kafka, and user code asks for that (J8a)."""
    (tmp_path / "asks.py").write_text(ASKS_FOR_REUSE)
    minutes = source("numbers", "rate-micro-batch", rowsPerBatch="10", numPartitions="1", advanceMillisPerBatch="60000")
    marked = msgspec.structs.replace(minutes, watermark=Watermark(column="timestamp", delay="0 seconds"))
    windows = (
        "SELECT window(timestamp, '1 minute') AS w, count(*) AS n FROM asking GROUP BY window(timestamp, '1 minute')"
    )
    joined = "SELECT a.w.start, a.n, b.n AS m FROM c a JOIN c b ON a.w = b.w"
    asking = python("asking", "asks:asks", "numbers")
    query = task(
        marked, asking, sql("c", windows, "asking"), sql("last", joined, "c"), parquet(tmp_path / "out", "last")
    )
    attempt = await child.run(job(), query, artifacts={"asks.py": str(tmp_path / "asks.py")})
    await child.batches(attempt, 4)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    found = rows_of(tmp_path / "out", taken)
    assert len(found) >= 3
    assert all(row[1:] == (10, 10) for row in found)


async def test_a_task_restored_behind_its_last_data_still_fires(child: Child, tmp_path: Path) -> None:
    """All data was read before the snapshot, so no batch with data follows the restore (J8a)."""
    truth = write_events(tmp_path / "in", 4)
    query = task(events(tmp_path / "in"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w"))
    attempt = await child.run(job(), query)  # streaming: reads all, and leaves the last windows open
    await child.batches(attempt, 1)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    before = published(tmp_path / "out", taken)
    assert sum(before.values()) < sum(truth.values())
    directory = child.fresh_directory()
    shutil.copytree(tmp_path / "s", directory / "checkpoint")
    restored = p.Restored(checkpoint_id=1, batch_id=taken.batch_id)
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query, restored=restored, directory=directory)
    await run_to_end(child, attempt)
    after = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=2, target_directory=str(tmp_path / "t")))
    await child.stop(attempt)
    assert before + published(tmp_path / "out", after) == truth


async def test_no_input_at_all_ends_at_once(child: Child, tmp_path: Path) -> None:
    """An empty directory is bounded input as well (J8a)."""
    (tmp_path / "in").mkdir()
    query = task(events(tmp_path / "in"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w"))
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query)
    await run_to_end(child, attempt)
    await child.stop(attempt)


async def test_a_source_that_never_ends_is_read_up_to_the_start(child: Child, tmp_path: Path) -> None:
    """A source without `availableNow` is bounded by the offset that it had at the start (J8a)."""
    endless = source("endless", "rate", rowsPerSecond="1000")
    attempt = await child.run(job(mode=RuntimeMode.BATCH), task(endless, parquet(tmp_path / "out", "endless")))
    await run_to_end(child, attempt)
    await child.stop(attempt)


async def test_a_running_query_that_is_drained_fires_its_windows(child: Child, tmp_path: Path) -> None:
    """The query's sources stop at what they see, then time ends. A second request changes nothing (C24)."""
    truth = write_events(tmp_path / "in", 6)
    query = task(
        events(tmp_path / "in", maxFilesPerTrigger="1"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w")
    )
    attempt = await child.run(job(), query)
    await child.batches(attempt, 2)
    await child.ask(p.DrainAttempt(attempt_id=attempt))
    await child.ask(p.DrainAttempt(attempt_id=attempt))
    await run_to_end(child, attempt)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    assert published(tmp_path / "out", taken) == truth
    assert taken.input_ended


async def test_a_restored_query_without_input_is_drained_too(child: Child, tmp_path: Path) -> None:
    """The first micro-batch has no rows, and fires the open windows (C24)."""
    truth = write_events(tmp_path / "in", 2)
    query = task(events(tmp_path / "in"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w"))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 0)
    files = tmp_path / "s"
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(files)))
    await child.stop(attempt)
    before = published(tmp_path / "out", taken)
    assert sum(before.values()) < sum(truth.values())
    directory = child.fresh_directory()
    shutil.copytree(files, directory / "checkpoint")
    restored = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators)
    attempt = await child.run(job(), query, restored=restored, directory=directory)
    await child.ask(p.DrainAttempt(attempt_id=attempt))
    await run_to_end(child, attempt)
    after = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=2, target_directory=str(tmp_path / "t")))
    await child.stop(attempt)
    assert before + published(tmp_path / "out", after) == truth
    assert after.input_ended


SCANNED = {  # SQL over `events`, which has 60 rows
    "in a union with itself": "SELECT key FROM events UNION ALL SELECT key FROM events",
    "in a join with itself": "SELECT a.key FROM events a JOIN events b ON a.key = b.key AND a.time = b.time",
    "three times": "SELECT key FROM events UNION ALL SELECT upper(key) FROM events UNION ALL "
    "SELECT a.key FROM events a JOIN events b ON a.key = b.key AND a.time = b.time",
    "as two aggregates": "SELECT key FROM (SELECT key, window(time, '1 hour') FROM events GROUP BY 1, 2) UNION ALL "
    "SELECT key FROM (SELECT key, window(time, '1 hour') FROM events GROUP BY 1, 2)",
}


@pytest.mark.parametrize("how", first(SCANNED))
async def test_rows_of_a_source_count_once_however_often_it_is_scanned(child: Child, tmp_path: Path, how: str) -> None:
    """The reported rows are those of the input (J2)."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [{"key": f"k{i}", "time": f"2024-01-01T00:{number:02d}:{i:02d}Z", "value": i} for i in range(20)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "scanned.py").write_text("def sink(batch, epoch):\n    batch.collect()\n")
    query = task(
        events(tmp_path / "in", maxFilesPerTrigger="1"), sql("all", SCANNED[how], "events"), call("scanned:sink", "all")
    )
    artifacts = {"scanned.py": str(tmp_path / "scanned.py")}
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query, artifacts=artifacts)
    ended = await child.notice(p.InputEnded, lambda notice: notice.attempt_id == attempt)
    await child.stop(attempt)
    assert ended.metrics.rows_in == 60
