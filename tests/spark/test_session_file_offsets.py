"""A job over files starts where another one was, by what is left of that one's checkpoints (C26)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from minflinkd.checkpoint import layout
from minflinkd.checkpoint import offsets as record
from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.kept_logs import keep_logs
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.checkpoint.retained import retain_offsets
from minflinkd.filemerging import PhysicalFileWriter, physical_file_name, read_segments
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import RuntimeMode, Source, Task, Vertex
from minflinkd.jobgraph.validation import parse_job
from minflinkd.jobmaster.origin import Origin
from minflinkd.rpc.snapshot import StateFile, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, VertexId
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, sql, task
from tests.spark.test_session_snapshots import artifact, snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


OLD, ATTEMPT, TM = JobId("0" * 32), AttemptId("0" * 32), ResourceId("tm-000000000000")
SINK = """
def write(batch, epoch):
    with open(%r, "a") as out:
        out.writelines(row.value + "\\n" for row in batch.collect())
"""
COMPACT = {"spark.sql.streaming.fileSource.log.compactInterval": "2"}  # so that the log has entries of both kinds


def reading(place: Path) -> Task:
    files = Source(format="text", path=str(place), options={"maxFilesPerTrigger": "1"})
    lines = Vertex(id=VertexId("lines"), source=files)
    return task(lines, sql("kept", "SELECT value FROM lines", "lines"), call("lines_out:write", "kept"))


def feed(place: Path, *names: str, old: bool = False) -> None:
    """Add a file of one line, its name. If it is `old`, it was last modified a day before the others.

    Spark never reads what is more than a week older than the newest file that it has seen (`maxFileAge`).
    """
    for name in names:
        hidden = place / f".{name}"
        hidden.write_text(f"{name}\n")
        if old:
            os.utime(hidden, (time.time() - 86_400,) * 2)
        hidden.rename(place / name)


async def store(taken: p.SnapshotTaken, files: Path, query: Task, directory: Location) -> CompletedCheckpoint:
    """Write the snapshot into a job's directory, as TaskManager and coordinator do it."""

    def name(sequence: int) -> str:
        return physical_file_name(1, 1, ATTEMPT, TM, sequence)

    async with PhysicalFileWriter(directory, name) as writer:
        kept = tuple([StateFile(file.path, await writer.append(files / file.path)) for file in taken.files])
        await writer.commit()
    of_task = TaskSnapshot(
        task_id=query.id,
        attempt_id=ATTEMPT,
        resource_id=TM,
        checkpoint_id=1,
        batch_id=taken.batch_id,
        files=kept,
        operators=taken.operators,
        source_offsets=taken.source_offsets,
    )
    checkpoint = CompletedCheckpoint(
        job_id=OLD,
        checkpoint_id=1,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=(of_task,),
    )
    await directory.child(layout.metadata_file(1)).write_bytes(encode(checkpoint))
    sources = {query.id: frozenset({"lines"})}
    processed = {query.id: taken.source_offsets}
    known = record.advanced(record.Offsets(job_id=OLD), processed, checkpoint, sources, {query.id: False}, 0)
    await directory.child(record.FILE).write_bytes(record.encode(known))
    return checkpoint


@pytest.mark.parametrize("deleted", [False, True], ids=["with its checkpoint", "without"])
async def test_no_file_is_read_twice_and_none_is_skipped(child: Child, tmp_path: Path, deleted: bool) -> None:
    """The next job knows what was read, and so it reads a file that came late but is older than all others (C26).

    It is so as well when the first job has ended, and its checkpoints are `deleted`.
    """
    place, out = tmp_path / "in", tmp_path / "out"
    place.mkdir()
    artifacts = artifact(tmp_path, "lines_out.py", SINK % str(out))
    query, storages = reading(place), Storages({})
    feed(place, "a", "b", "c", "d")
    attempt = await child.run(job(spark=COMPACT), query, artifacts=artifacts)
    await child.batches(attempt, 3)
    taken, files = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    directory = storages.at(str(tmp_path / "checkpoints"))
    last = await store(taken, files, query, directory)
    if deleted:
        await keep_logs(directory, last)
        await retain_offsets(directory)

    graph = parse_job(
        {
            "name": "next",
            "restore": {"path": directory.uri, "offsets": "latest"},
            "vertices": {
                "lines": {"source": {"format": "text", "path": str(place)}},
                "out": {"inputs": ["lines"], "sink": {"format": "console"}},
            },
        }
    )
    start = await Origin(storages, graph).find()
    assert start is not None
    (reads,) = chain(graph)
    restore, attempt_directory = start.restores[reads.id], child.fresh_directory()
    wanted = {file.path: file.handle for file in restore.snapshot.files}
    await read_segments(storages.at(restore.root), wanted, attempt_directory / "checkpoint")
    await storages.aclose()

    feed(place, "late", old=True)
    feed(place, "e")
    restored = p.Restored(checkpoint_id=0, batch_id=-1, operators=restore.snapshot.operators, offsets=restore.offsets)
    context = job(mode=RuntimeMode.BATCH, spark=COMPACT)
    following = await child.run(context, query, artifacts=artifacts, restored=restored, directory=attempt_directory)
    await child.batches(following, 1)
    await child.notice(p.InputEnded, lambda notice: notice.attempt_id == following)
    await child.stop(following)
    assert sorted(out.read_text().split()) == ["a", "b", "c", "d", "e", "late"]
