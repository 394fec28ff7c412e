"""Tables whose small files are joined while a query writes them (K5)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import Compaction, Sink
from minflinkd.rpc.messages import SinkCompactions
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.units import Duration, MemorySize
from minflinkd.taskmanager.child import protocol as p
from tests.lakes import Iceberg
from tests.servers.s3 import SeaweedFS
from tests.spark.session_child import Child, job, rate, sql, task
from tests.spark.test_session_sinks import restored
from tests.spark.test_session_snapshots import snapshot
from tests.spark.test_session_table_sinks import ROWS, out, values

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

OFTEN = Compaction(target=MemorySize(1 << 20), every=Duration(1.0), expire=Duration(3600.0))


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def compacted(sink: Sink) -> Sink:
    return replace(sink, compaction=OFTEN)


async def committed(child: Child, attempt: AttemptId, checkpoint: int, batch: int = 0) -> p.SnapshotTaken:
    """Commit a checkpoint after micro-batch `batch`."""
    await child.batches(attempt, batch)
    taken, _ = await snapshot(child, attempt, checkpoint)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint))
    return taken


async def joined(child: Child, attempt: AttemptId, first: int) -> tuple[SinkCompactions, int]:
    """Commit checkpoints until files were joined twice. Return what was told, and the last micro-batch committed.

    They come every second first, as those of a job in a hurry, and then less and less often: on a busy machine a
    compaction takes longer than that, and a commit always overtakes it.
    """
    last = 0
    async with asyncio.timeout(300):
        for checkpoint in itertools.count(first):
            last = (await committed(child, attempt, checkpoint, last + 1)).batch_id
            told = latest(child, attempt)
            assert not told.failure, told
            if told.done >= 2 and told.files > told.into > 0:
                break
            await asyncio.sleep(1.0 + 0.2 * (checkpoint - first))  # not a synchronisation: the pace of commits
    return told, last


def latest(child: Child, attempt: AttemptId) -> SinkCompactions:
    notices = (each for each in reversed(child.notices) if isinstance(each, p.BatchFinished))
    metrics = next(each.metrics for each in notices if each.attempt_id == attempt)
    return metrics.compactions.get("out", SinkCompactions())


async def test_small_files_are_joined_while_rows_come(child: Child, tmp_path: Path) -> None:
    """Each row is seen once, also if an attempt that only seems dead commits late (K5)."""
    lake = Iceberg(tmp_path / "lake")
    query = task(rate(10), sql("rows", ROWS, "numbers"), out(compacted(lake.sink("joined"))))
    context = job()
    attempt = await child.run(context, query)
    _, last = await joined(child, attempt, 1)
    assert await values(lake, "joined") == list(range(10 * (last + 1)))
    await child.batches(attempt, last + 1)
    taken, files = await snapshot(child, attempt, 1000)  # which nobody has confirmed yet
    again = await child.run(context, query, **await restored(child, taken, files, 1000))
    assert await values(lake, "joined") == list(range(10 * (taken.batch_id + 1)))
    _, last = await joined(child, again, 1001)
    with contextlib.suppress(RemoteError):  # if it notices that another attempt has published later rows
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1000))
    assert await values(lake, "joined") == list(range(10 * (last + 1)))
    await child.stop(again)
    await child.stop(attempt)


@pytest.mark.slow  # the test above has it on a local disk
async def test_small_files_on_an_object_store_are_joined(child: Child, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    """With the sink's own options, which name the store and its keys (K5)."""
    lake = Iceberg(tmp_path / "lake", seaweedfs.endpoint)
    query = task(rate(10), sql("rows", ROWS, "numbers"), out(compacted(lake.sink("far", partition_by=["part"]))))
    attempt = await child.run(job(), query)
    _, last = await joined(child, attempt, 1)
    await child.stop(attempt)
    assert await values(lake, "far") == list(range(10 * (last + 1)))
