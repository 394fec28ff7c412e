"""What a job starts from that names the directory of another job's checkpoints, and `offsets: latest`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.checkpoint.offsets import FILE, Offsets, TaskOffsets
from minflinkd.checkpoint.offsets import encode as encode_offsets
from minflinkd.jobgraph.validation import parse_job
from minflinkd.jobmaster.origin import Origin, Start
from minflinkd.rpc.messages import TaskRestore
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import JobId
from minflinkd.storage.publication import SinkTransaction, StagedToken
from minflinkd.storage.registry import Storages
from tests.unit.checkpoint.test_source_logs import LOG, snapshot, source

OLD = JobId("0" * 31 + "1")
FILES = ("sources/0/0", "sources/0/1", "state/0/0/1.delta")


def checkpoint(number: int, *tasks: TaskSnapshot) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        job_id=OLD,
        checkpoint_id=number,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=tuple(replace(task, checkpoint_id=number) for task in tasks),
    )


def store(directory: Path, made: CompletedCheckpoint) -> None:
    place = directory / layout.metadata_file(made.checkpoint_id)
    place.parent.mkdir()
    place.write_bytes(encode(made))


def record(directory: Path, *, staged: bool = False, published: int | None = None, **offsets: Any) -> None:
    known = TaskOffsets(processed=offsets, published=offsets, checkpoint_id=published, staged=staged)
    (directory / FILE).write_bytes(encode_offsets(Offsets(job_id=OLD, tasks={snapshot("days").task_id: known})))


async def start(directory: Path, *sources: str, sink: str = "out") -> Start:
    """Return what a job starts from with these file sources, which are united in one task."""
    vertices: dict[str, Any] = {
        name: {"source": {"format": "json", "path": "/in", "schema": "a LONG"}} for name in sources
    }
    united = " UNION ALL ".join(f"SELECT * FROM {name}" for name in sources)
    vertices["all"] = {"inputs": list(sources), "sql": united}
    vertices[sink] = {"inputs": ["all"], "sink": {"format": "console"}}
    restore = {"path": str(directory), "offsets": "latest"}
    storages = Storages({})
    found = await Origin(storages, parse_job({"name": "job", "restore": restore, "vertices": vertices})).find()
    await storages.aclose()
    assert found is not None
    return found


def only(found: Start) -> TaskRestore:
    (restore,) = found.restores.values()
    return restore


async def test_a_file_source_takes_its_log_from_the_newest_checkpoint(tmp_path: Path) -> None:
    """It starts with empty state, at the recorded offset (C26)."""
    for number, end in ((2, 0), (3, 1)):
        store(tmp_path, checkpoint(number, snapshot("days", source(0, "days"), files=FILES, days=LOG % end)))
    record(tmp_path, published=3, days={"logOffset": 1})
    found = await start(tmp_path, "days")
    restore = only(found)
    assert restore.offsets == {"days": '{"logOffset":1}'}
    assert [file.path for file in restore.snapshot.files] == ["sources/0/0", "sources/0/1"]
    assert [node.vertex for node in restore.snapshot.operators] == ["days"]
    assert restore.snapshot.batch_id == -1
    assert restore.root == f"file://{tmp_path}"
    assert found.checkpoint is None, "its sinks owe nothing"


async def test_files_that_were_read_after_the_last_checkpoint_are_read_again(tmp_path: Path) -> None:
    """No sink of the job publishes with checkpoints, so rows may come twice, as after a failure (C26)."""
    store(tmp_path, checkpoint(3, snapshot("days", source(0, "days"), files=FILES, days=LOG % 1)))
    record(tmp_path, published=3, days={"logOffset": 6})
    assert only(await start(tmp_path, "days")).offsets == {"days": '{"logOffset":1}'}


async def test_a_log_that_lacks_published_files_is_left_out(tmp_path: Path) -> None:
    """The session then refuses the start, because these files would be published twice (C26, J12)."""
    store(tmp_path, checkpoint(3, snapshot("days", source(0, "days"), files=FILES, days=LOG % 1)))
    record(tmp_path, staged=True, published=5, days={"logOffset": 6})
    restore = only(await start(tmp_path, "days"))
    assert restore.offsets == {"days": '{"logOffset":6}'}
    assert restore.snapshot.files == ()


async def test_sources_of_two_tasks_may_be_read_by_one(tmp_path: Path) -> None:
    """Each goes on where it was, by its own log, also from the offsets of a checkpoint (C26)."""
    tasks = (
        snapshot("days", source(0, "days"), files=("sources/0/0",), days=LOG % 0),
        snapshot("nights", source(0, "nights"), files=("sources/0/0",), nights=LOG % 0),
    )
    store(tmp_path, checkpoint(3, *tasks))
    for directory in (tmp_path, tmp_path / "chk-3"):
        if directory is tmp_path:
            record(tmp_path, published=3, days={"logOffset": 0}, nights={"logOffset": 0})
        restore = only(await start(directory, "days", "nights"))
        assert restore.offsets == {"days": '{"logOffset":0}', "nights": '{"logOffset":0}'}
        assert [file.handle.file for file in restore.snapshot.files] == ["days/sources/0/0", "nights/sources/0/0"]


async def test_a_sink_commits_what_the_checkpoint_owes_and_a_missing_one_is_noticed(tmp_path: Path) -> None:
    """The session refuses a commit for a sink that the job no longer has, so it must be told (C26, J12)."""
    owed = SinkTransaction(job_id=OLD, sink="out", checkpoint_id=3, tokens=(StagedToken("0", 1, "{}"),))
    read = snapshot("days", source(0, "days"), files=FILES, days=LOG % 1)
    store(tmp_path, checkpoint(3, replace(read, transactions=(owed,))))
    for sink in ("out", "other"):
        assert only(await start(tmp_path / "chk-3", "days", sink=sink)).snapshot.transactions == (owed,)


async def test_rows_that_wait_in_the_checkpoint_come_with_what_a_sink_owes(tmp_path: Path) -> None:
    """A kafka sink has no other place for them. State, and rows that nobody owes, are left (C26, K1)."""
    owed = SinkTransaction(
        job_id=OLD, sink="out", checkpoint_id=3, tokens=(StagedToken("0", 1, "{}", ("sinks/out/1.parquet",)),)
    )
    held = (*FILES, "sinks/out/1.parquet", "sinks/other/2.parquet")
    read = snapshot("days", source(0, "days"), files=held, days=LOG % 1)
    store(tmp_path, checkpoint(3, replace(read, transactions=(owed,))))
    files = only(await start(tmp_path / "chk-3", "days")).snapshot.files
    assert [file.path for file in files] == ["sources/0/0", "sources/0/1", "sinks/out/1.parquet"]


async def test_what_was_kept_of_the_last_checkpoint_takes_its_place(tmp_path: Path) -> None:
    """The job has ended, and its checkpoints are deleted or older (C26)."""
    for number, directory in ((2, layout.checkpoint_directory(2)), (3, layout.SOURCE_LOGS)):
        read = snapshot("days", source(0, "days"), files=(f"sources/0/{number}.gz",), days=LOG % number)
        made = replace(checkpoint(number, read), self_contained=number == 3)
        (tmp_path / directory).mkdir()
        (tmp_path / (layout.KEPT_LOGS if number == 3 else layout.metadata_file(2))).write_bytes(encode(made))
    record(tmp_path, staged=True, published=3, days={"logOffset": 3})
    restore = only(await start(tmp_path, "days"))
    assert [file.path for file in restore.snapshot.files] == ["sources/0/3.gz"]
    assert restore.root == f"file://{tmp_path}/{layout.SOURCE_LOGS}"
    record(tmp_path, staged=True, published=2, days={"logOffset": 2})
    assert only(await start(tmp_path, "days")).offsets == {"days": '{"logOffset":3}'}, "the record was not written"
