"""The record of a job's offsets, as its JobMaster keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.validation import parse_job
from minflinkd.jobmaster.job_state import JobState, new_job
from minflinkd.jobmaster.offset_record import OffsetRecord
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.rpc.messages import TaskMetrics
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.storage.registry import Storages

JOB, TASK = JobId("0" * 32), TaskId("numbers")


def state(sink: dict[str, Any], **offsets: str) -> JobState:
    """A source, and behind an exchange its sink; `offsets` were reported by the source's task."""
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


def record(storages: Storages, directory: Path) -> OffsetRecord:
    turn = StorageTurn("job")
    return OffsetRecord(storages.at(str(directory)), job_id=JOB, clock=SystemClock(), turn=turn)


async def test_a_sink_behind_an_exchange_decides_from_where_its_source_begins_again(tmp_path: Path) -> None:
    """C26: what is under way to a sink that publishes with checkpoints is lost with the state."""
    storages = Storages({})
    staged = record(storages, tmp_path)
    staged.update(state({"format": "parquet", "path": "/out"}, numbers="7"), None)
    assert (staged.offsets.tasks[TASK].processed, staged.offsets.latest()) == ({"numbers": 7}, {})
    plain = record(storages, tmp_path)
    plain.update(state({"format": "console"}, numbers="7"), None)
    assert plain.offsets.latest() == {"numbers": 7}
    await storages.aclose()


async def test_what_was_recorded_is_known_to_the_next_jobmaster(tmp_path: Path) -> None:
    """C26: also before the first report of a task."""
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
