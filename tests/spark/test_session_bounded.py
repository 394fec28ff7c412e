"""Bounded input: what a batch job writes is what a batch query would write."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.runtime.errors import RemoteError
from minflinkd.taskmanager import session_protocol as p
from tests.spark.session_child import Child, events, job, parquet, source, sql, task

EPOCH = 1_700_000_000  # seconds since 1970

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

WINDOWED = """
SELECT window(time, '1 minute').start AS start, key, count(*) AS n FROM events GROUP BY window(time, '1 minute'), key
"""


def write_events(directory: Path, files: int, first: int = 0) -> Counter[tuple[str, str]]:
    """One file a minute of event time, to be read in this order; returns the truth: rows by window and key."""
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
        os.utime(file, (EPOCH + number, EPOCH + number))  # of files of one millisecond, Spark takes any first
    return truth


def published(root: Path, taken: p.SnapshotTaken) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for transaction in taken.transactions:
        for file in transaction.files:
            for row in pyarrow.parquet.read_table(root / file.staged).to_pylist():
                found[row["start"].strftime("%Y-%m-%d %H:%M:%S"), row["key"]] += row["n"]
    return found


async def run_to_end(child: Child, attempt: Any) -> p.InputEnded:
    ended = await child.notice((p.InputEnded, p.TaskFailed), lambda n: n.attempt_id == attempt)  # type: ignore[arg-type]
    assert isinstance(ended, p.InputEnded), ended
    return ended


async def test_the_last_windows_are_written(child: Child, tmp_path: Path) -> None:
    """J8a: at the end of bounded input the watermark goes to the end of time, so that open windows fire."""
    truth = write_events(tmp_path / "in", 12)
    query = task(
        events(tmp_path / "in", maxFilesPerTrigger="3"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w")
    )
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query)
    ended = await run_to_end(child, attempt)
    write_events(tmp_path / "in", 2, first=20)  # later than the start: not of this job
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    assert published(tmp_path / "out", taken) == truth
    assert taken.input_ended
    assert ended.metrics.rows_in == 12 * 60
    assert ended.metrics.rows_out == len(truth)


async def test_a_task_restored_behind_its_last_data_still_fires(child: Child, tmp_path: Path) -> None:
    """J8a: also where all data was read before the snapshot, so that no batch with data follows the restore."""
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
    """J8a: an empty directory is bounded input as well."""
    (tmp_path / "in").mkdir()
    query = task(events(tmp_path / "in"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w"))
    attempt = await child.run(job(mode=RuntimeMode.BATCH), query)
    await run_to_end(child, attempt)
    await child.stop(attempt)


async def test_a_source_that_never_ends_is_read_up_to_the_start(child: Child, tmp_path: Path) -> None:
    """J8a: a source that knows no `availableNow` is bound to the offset that it had."""
    endless = source("endless", "rate", rowsPerSecond="1000")
    attempt = await child.run(job(mode=RuntimeMode.BATCH), task(endless, parquet(tmp_path / "out", "endless")))
    await run_to_end(child, attempt)
    await child.stop(attempt)


async def test_a_running_query_that_is_drained_fires_its_windows(child: Child, tmp_path: Path) -> None:
    """C24: its sources stop at what they see, then time ends; a second request changes nothing."""
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


async def test_a_restored_query_without_input_is_not_drained(child: Child, tmp_path: Path) -> None:
    """C24: Spark would fire nothing, and the windows would be lost."""
    write_events(tmp_path / "in", 2)
    query = task(events(tmp_path / "in"), sql("w", WINDOWED, "events"), parquet(tmp_path / "out", "w"))
    attempt = await child.run(job(), query)
    await child.batches(attempt, 0)
    files = tmp_path / "s"
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(files)))
    await child.stop(attempt)
    directory = child.fresh_directory()
    shutil.copytree(files, directory / "checkpoint")
    restored = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators)
    attempt = await child.run(job(), query, restored=restored, directory=directory)
    with pytest.raises(RemoteError) as refused:
        await child.ask(p.DrainAttempt(attempt_id=attempt))
    await child.stop(attempt)
    assert refused.value.info().code == "nothing-to-drain"
