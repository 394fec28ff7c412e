"""Snapshots of running queries, and what is restored from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.dataset
import pytest

from minflinkd.jobgraph.model import OutputMode
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from tests.files import files_below
from tests.spark.session_child import Child, call, events, job, parquet, rate, sql, task

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

KEYS, ROWS = 10, 1000
TOTALS = "SELECT value % 10 AS key, count(*) AS n, sum(value) AS total FROM numbers GROUP BY 1"
SINK = """
import json
def write(batch, epoch):
    rows = {r.key: [r.n, r.total] for r in batch.collect()}
    with open(%r, "a") as out:
        out.write(json.dumps([epoch, rows]) + "\\n")
"""


def exact(epoch: int) -> dict[str, list[int]]:
    """Return count and sum by key of 0, 1, ... up to the end of this micro-batch."""
    end = ROWS * (epoch + 1)
    return {str(key): [end // KEYS, sum(range(key, end, KEYS))] for key in range(KEYS)}


def artifact(directory: Path, name: str, text: str) -> dict[str, str]:
    (directory / name).write_text(text)
    return {name: str(directory / name)}


def written(path: Path) -> list[tuple[int, dict[str, list[int]]]]:
    return [(epoch, rows) for epoch, rows in map(json.loads, path.read_text().splitlines())]


async def snapshot(child: Child, attempt: AttemptId, checkpoint_id: int) -> tuple[p.SnapshotTaken, Path]:
    target = child.directory / "snapshots" / f"{attempt}-{checkpoint_id}"
    target.parent.mkdir(exist_ok=True)
    request = p.TakeSnapshot(attempt_id=attempt, checkpoint_id=checkpoint_id, target_directory=str(target))
    return await child.ask(request), target


def lay_out(child: Child, snapshot: Path) -> Path:
    directory = child.fresh_directory()
    shutil.copytree(snapshot, directory / "checkpoint")
    return directory


AGGRESSIVE = {"spark.sql.streaming.minBatchesToRetain": "2"}  # the child's maintenance runs every 200 ms


@pytest.mark.parametrize("restores", [5, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
async def test_restores_in_a_row_keep_exact_totals_and_leave_no_directory(
    child: Child, tmp_path: Path, restores: int
) -> None:
    """A running aggregate is linked at a committed batch and continues elsewhere (C10a, C11, C14).

    Meanwhile maintenance deletes what it can. An attempt's directory is deleted with the attempt, and no thread of
    Spark creates it again.
    """
    out = tmp_path / "totals.jsonl"
    query = task(rate(ROWS), sql("totals", TOTALS, "numbers"), call("totals_sink:write", "totals", OutputMode.UPDATE))
    context, artifacts = job("totals", spark=AGGRESSIVE), artifact(tmp_path, "totals_sink.py", SINK % str(out))
    before = set((child.directory / "attempts").glob("*"))
    directory = child.fresh_directory()
    attempt = await child.run(context, query, artifacts=artifacts, directory=directory)
    await child.batches(attempt, 5)
    zips = 0
    for checkpoint_id in range(1, restores + 1):
        taken, files = await snapshot(child, attempt, checkpoint_id)
        zips += sum(file.path.endswith(".zip") for file in taken.files)
        assert {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()} == {
            file.path for file in taken.files
        }
        restored = p.Restored(checkpoint_id=checkpoint_id, batch_id=taken.batch_id)
        following = lay_out(child, files)
        shutil.rmtree(files)
        old, attempt = (
            attempt,
            await child.run(context, query, artifacts=artifacts, restored=restored, directory=following),
        )
        await child.stop(old)
        shutil.rmtree(directory)
        directory = following
        await child.batches(attempt, taken.batch_id + 3)
    left = set((child.directory / "attempts").glob("*")) - before - {directory}
    assert left == set(), [str(path) for each in left for path in each.rglob("*")]
    await child.stop(attempt)
    results = written(out)
    assert max(epoch for epoch, _ in results) > 3 * restores
    assert [(epoch, rows) for epoch, rows in results if rows != exact(epoch)] == []
    assert zips > 0, "RocksDB's background snapshots never appear"


async def test_a_snapshot_lists_the_exact_files_and_offsets(child: Child, tmp_path: Path) -> None:
    """Nothing newer than the batch is linked, and each source's offset is there in plain form (C11, C26)."""
    query = task(rate(ROWS), sql("totals", TOTALS, "numbers"), call("totals_sink:write", "totals", OutputMode.UPDATE))
    artifacts = artifact(tmp_path, "totals_sink.py", SINK % str(tmp_path / "out"))
    attempt = await child.run(job(), query, artifacts=artifacts)
    await child.batches(attempt, 12)
    taken, _ = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    names = {file.path for file in taken.files}
    assert {path for path in names if path.startswith(("offsets", "commits"))} == {
        f"{log}/{taken.batch_id - back}" for log in ("offsets", "commits") for back in (0, 1)
    }
    versions = [int(Path(path).name.split("_")[0]) for path in names if path.endswith((".changelog", ".zip"))]
    assert max(versions) == taken.batch_id + 1
    assert json.loads(taken.source_offsets["numbers"])["offset"] == ROWS * (taken.batch_id + 1)
    assert [node.vertex for node in taken.operators] == ["totals", "numbers"]


async def test_a_snapshot_before_the_first_batch_is_empty(child: Child, tmp_path: Path) -> None:
    """A task without input has nothing to save, and says so at once (C4)."""
    (tmp_path / "in").mkdir()
    attempt = await child.run(job(), task(events(tmp_path / "in"), parquet(tmp_path / "out", "events")))
    taken, _ = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    assert (taken.batch_id, taken.files, taken.input_ended) == (-1, (), False)


async def test_only_what_no_confirmed_checkpoint_covers_is_carried(child: Child, tmp_path: Path) -> None:
    """Until a checkpoint is confirmed, the next one covers its files as well, under the same names (J12)."""
    attempt = await child.run(job(), task(rate(100), parquet(tmp_path / "out", "numbers")))
    await child.batches(attempt, 2)
    first, _ = await snapshot(child, attempt, 1)
    second, _ = await snapshot(child, attempt, 2)
    assert set(first.transactions[0].files) <= set(second.transactions[0].files)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    await child.batches(attempt, second.batch_id + 2)
    third, _ = await snapshot(child, attempt, 3)
    await child.stop(attempt)
    assert not set(first.transactions[0].files) & set(third.transactions[0].files)
    assert len(third.transactions[0].files) > 0


async def test_staged_files_are_invisible_to_readers(child: Child, tmp_path: Path) -> None:
    """A reader of the directory sees nothing that is only staged, and whole files once they are moved (J12)."""
    out = tmp_path / "out"
    attempt = await child.run(job(), task(rate(100), parquet(out, "numbers")))
    await child.batches(attempt, 2)
    taken, _ = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    assert pyarrow.dataset.dataset(out, format="parquet").files == []
    hidden = [path for path in files_below(out) if path.name.startswith((".", "_"))]
    assert hidden == [], "no checksum or marker files"
    for file in taken.transactions[0].files:
        assert (out / file.staged).stat().st_size == file.size
        (out / file.staged).rename(out / file.final)
    rows = pyarrow.dataset.dataset(out, format="parquet").to_table()["value"].to_pylist()
    assert sorted(rows) == list(range(100 * (taken.batch_id + 1)))
