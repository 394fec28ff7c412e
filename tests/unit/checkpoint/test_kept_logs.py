"""What is kept of a job's last checkpoint when its checkpoints are deleted: the logs of its file sources."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.kept_logs import LogsTooLarge, keep_logs, kept_logs
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.retained import retain_offsets
from minflinkd.filemerging import PhysicalFileWriter, physical_file_name, read_segments
from minflinkd.rpc.snapshot import StateFile
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId
from minflinkd.storage.interface import StorageCorrupt
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from tests.files import files_below
from tests.unit.checkpoint.test_source_logs import LOG, snapshot, source

TM = ResourceId("tm-000000000000")
ENTRIES = {
    "sources/0/0": b"v1\n" + b'{"path":"/in/a"}\n' * 100,
    "sources/0/1": b"v1\n/in/b",
    "sources/0/2": b"",
    "state/0/0/1.delta": b"state",
}


@pytest_asyncio.fixture
async def root(tmp_path: Path) -> AsyncIterator[Location]:
    storages = Storages({})
    yield storages.at(str(tmp_path / "job"))
    await storages.aclose()


async def checkpoint(root: Location, number: int = 3, kind: str = "FileSource") -> CompletedCheckpoint:
    """Write a checkpoint of a task with one source, and its files."""

    def name(sequence: int) -> str:
        return physical_file_name(1, number, AttemptId("0" * 32), TM, sequence)

    async with PhysicalFileWriter(root, name) as writer:
        files = tuple([StateFile(path, await writer.append(data)) for path, data in ENTRIES.items()])
        await writer.commit()
    offset = LOG % 1 if kind == "FileSource" else '{"k":{"0":9}}'
    task = replace(snapshot("days", source(0, "days", kind), days=offset), files=files)
    return CompletedCheckpoint(
        job_id=JobId("0" * 32),
        checkpoint_id=number,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=(task,),
    )


async def test_the_logs_outlive_the_checkpoint(root: Location, tmp_path: Path) -> None:
    """Nothing else does, but for the record of offsets. They are compressed (C26)."""
    made = await checkpoint(root)
    await root.child(layout.OFFSETS).write_bytes(b"{}")
    await keep_logs(root, made)
    await retain_offsets(root)
    left = [str(path.relative_to(tmp_path / "job")) for path in files_below(tmp_path / "job")]
    assert len(left) == 3
    assert all(map(layout.outlives_checkpoints, left))
    kept = await kept_logs(root)
    assert kept is not None
    (task,) = kept.checkpoint.tasks
    assert (task.source_offsets, task.batch_id, kept.checkpoint.checkpoint_id) == ({"days": LOG % 1}, -1, 3)
    await read_segments(kept.root, {file.path: file.handle for file in task.files}, tmp_path / "laid-out")
    for entry in ("sources/0/0", "sources/0/1"):
        assert gzip.decompress((tmp_path / "laid-out" / f"{entry}.gz").read_bytes()) == ENTRIES[entry]
    assert sum(file.handle.length for file in task.files) < 200


async def test_a_job_that_left_no_record_leaves_nothing(root: Location, tmp_path: Path) -> None:
    """A job without file sources has no logs to keep (C26, R26)."""
    await keep_logs(root, await checkpoint(root, kind="kafka"))
    assert await kept_logs(root) is None
    await retain_offsets(root)
    assert not (tmp_path / "job").exists()


async def test_they_are_written_once(root: Location, tmp_path: Path) -> None:
    """A JobMaster that ends the job once more finds them. A later checkpoint replaces them (C26)."""
    made = await checkpoint(root)
    await keep_logs(root, made)
    first = files_below(tmp_path / "job" / layout.SOURCE_LOGS)
    await keep_logs(root, made)
    assert files_below(tmp_path / "job" / layout.SOURCE_LOGS) == first
    await keep_logs(root, await checkpoint(root, 4))
    kept = await kept_logs(root)
    assert kept is not None
    assert kept.checkpoint.checkpoint_id == 4


async def test_what_cannot_be_kept_leaves_no_file(root: Location, tmp_path: Path) -> None:
    """Logs that are too large or damaged are refused, and nothing reads half of them (C26)."""
    made = await checkpoint(root)
    with pytest.raises(LogsTooLarge, match="at most 100"):
        await keep_logs(root, made, most=100)
    (segments,) = (tmp_path / "job").glob("*.seg")
    segments.write_bytes(segments.read_bytes()[:-40])
    with pytest.raises(StorageCorrupt):
        await keep_logs(root, made)
    assert files_below(tmp_path / "job" / layout.SOURCE_LOGS) == []


async def test_what_is_not_readable_is_as_if_it_were_not_there(root: Location) -> None:
    """The job then starts as if nothing had been kept (C26)."""
    await keep_logs(root, await checkpoint(root))
    await root.child(layout.KEPT_LOGS).write_bytes(b"minflinkd")
    assert await kept_logs(root) is None
