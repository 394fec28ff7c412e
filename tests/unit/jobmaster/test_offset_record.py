"""The record of a job's offsets, as its JobMaster keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields
from structlog.testing import capture_logs

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.offsets import read_offsets
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.validation import parse_job
from minflinkd.jobmaster.offset_record import OffsetRecord
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler.state import JobState, new_job
from minflinkd.rpc.messages import TaskMetrics
from minflinkd.rpc.snapshot import PlanNode, StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.storage.registry import Storages
from tests.files import files_below

JOB, TASK = JobId("0" * 32), TaskId("numbers")


def state(sink: dict[str, Any], **offsets: str) -> JobState:
    """Return a job with a source and, after an exchange, its sink. The source's task reported `offsets`."""
    graph = parse_job(
        {
            "name": "job",
            "vertices": {
                "numbers": {"source": {"format": "rate"}},
                "kept": {"inputs": [{"id": "numbers", "exchange": True}], "sql": "SELECT * FROM numbers"},
                "out": {"inputs": ["kept"], "sink": sink},
            },
        }
    )
    job = new_job(chain(graph), JobMasterOptions())
    execution = job.executions[TASK]
    return job.with_execution(replace(execution, metrics=TaskMetrics(source_offsets=offsets)))


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def record(storages: Storages, directory: Path, clock: Clock | None = None) -> OffsetRecord:
    turn = StorageTurn("job")
    return OffsetRecord(storages.at(str(directory)), job_id=JOB, clock=clock or SystemClock(), turn=turn)


def published(checkpoint_id: int, offset: int) -> CompletedCheckpoint:
    task = TaskSnapshot(
        task_id=TASK,
        attempt_id=AttemptId("0" * 32),
        resource_id=ResourceId("tm-000000000000"),
        checkpoint_id=checkpoint_id,
        batch_id=0,
        source_offsets={"numbers": str(offset)},
    )
    return CompletedCheckpoint(
        job_id=JOB,
        checkpoint_id=checkpoint_id,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=(task,),
    )


async def writes(kept: OffsetRecord, storages: Storages, clock: HandClock, seconds: int, **sink: Any) -> int:
    """Return how many writes happen if the record is checked every 5 s and a micro-batch ends every second.

    A checkpoint completes every `checkpoint_every` seconds.
    """
    every, format = sink.pop("checkpoint_every", 0), sink.pop("format", "console")
    for second in range(seconds):
        clock.now += 1
        point = published(1 + second // every, second - second % every) if every else None
        kept.update(state({"format": format, **sink}, numbers=str(second)), point)
        if second % 5 == 4:
            await kept.write()
    made = storages.statistics()["file"].get("create")
    return made.requests if made else 0


async def test_a_sink_behind_an_exchange_decides_from_where_its_source_begins_again(tmp_path: Path) -> None:
    """If a sink publishes with checkpoints, rows on their way to it are lost with the state (C26)."""
    storages = Storages({})
    staged = record(storages, tmp_path)
    staged.update(state({"format": "parquet", "path": "/out"}, numbers="7"), None)
    assert (staged.offsets.tasks[TASK].processed, staged.offsets.latest()) == ({"numbers": 7}, {})
    plain = record(storages, tmp_path)
    plain.update(state({"format": "console"}, numbers="7"), None)
    assert plain.offsets.latest() == {"numbers": 7}
    await storages.aclose()


async def test_what_was_recorded_is_known_to_the_next_jobmaster(tmp_path: Path) -> None:
    """The next JobMaster knows the recorded offsets even before the first report of a task (C26)."""
    storages = Storages({})
    first = record(storages, tmp_path)
    await first.write()
    assert list(tmp_path.iterdir()) == [], "nothing is known yet"
    first.update(state({"format": "console"}, numbers="7"), None)
    await first.write()
    later = record(storages, tmp_path)
    await later.load()
    later.update(state({"format": "console"}), None)
    assert later.offsets.latest() == {"numbers": 7}
    await storages.aclose()


async def test_while_checkpoints_complete_the_record_is_written_once_a_minute(tmp_path: Path) -> None:
    """The metadata of checkpoints has the offsets as well, and every write creates a file (C26, F10)."""
    storages, clock = Storages({}), HandClock()
    kept = record(storages, tmp_path, clock)
    assert await writes(kept, storages, clock, 600, checkpoint_every=10) == 10
    await storages.aclose()


async def test_while_no_checkpoint_completes_it_is_written_every_few_seconds(tmp_path: Path) -> None:
    """Nothing else says what was processed (C26)."""
    storages, clock = Storages({}), HandClock()
    kept = record(storages, tmp_path, clock)
    assert await writes(kept, storages, clock, 600) == 120
    await storages.aclose()


async def test_what_a_restart_does_not_go_by_is_written_once_a_minute(tmp_path: Path) -> None:
    """The sink publishes with checkpoints, and none has completed for a long time (C26)."""
    storages, clock = Storages({}), HandClock()
    kept = record(storages, tmp_path, clock)
    assert await writes(kept, storages, clock, 600, format="parquet", path="/out") == 10
    await storages.aclose()


async def test_the_last_record_of_a_job_says_what_was_published_last(tmp_path: Path) -> None:
    """The last record is written even if the one before it is very recent (C26)."""
    storages, clock = Storages({}), HandClock()
    kept = record(storages, tmp_path, clock)
    sink = {"format": "parquet", "path": "/out"}
    for number in (1, 2):
        kept.update(state(sink, numbers=str(number)), published(number, number))
        await kept.write()
    assert (await read_offsets(storages.at(str(tmp_path)))).latest() == {"numbers": 1}
    await kept.write(last=True)
    assert (await read_offsets(storages.at(str(tmp_path)))).latest() == {"numbers": 2}
    await storages.aclose()


async def test_a_job_ends_although_the_logs_of_its_sources_cannot_be_kept(tmp_path: Path) -> None:
    """A missing file of the checkpoint is a warning, and nothing is left of the try (C26, R26)."""
    storages, handle = Storages({}), StateHandle("1-000000001-tm-0-" + "0" * 32 + "-000.seg", 0, 1, "")
    source = PlanNode(number=0, stateful=False, vertex="numbers", kind="FileSource")
    point = published(1, 0)
    task = replace_fields(
        point.tasks[0],
        operators=(source,),
        files=(StateFile("sources/0/0", handle),),
        source_offsets={"numbers": '{"logOffset":0}'},
    )
    with capture_logs() as logs:
        await record(storages, tmp_path).keep_logs(replace_fields(point, tasks=(task,)))
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "the logs of file sources are not kept"
    ]
    assert files_below(tmp_path) == []
    await storages.aclose()


async def test_a_job_ends_whatever_goes_wrong_with_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own would otherwise crash the JobMaster at the end of the job, again and again."""

    async def faulty(*_: object) -> None:
        raise KeyError("sources/0/2")

    monkeypatch.setattr("minflinkd.jobmaster.offset_record.keep_logs", faulty)
    storages = Storages({})
    with capture_logs() as logs:
        await record(storages, tmp_path).keep_logs(published(1, 0))
    assert logs[-1]["event"] == "the logs of file sources are not kept"
    await storages.aclose()
