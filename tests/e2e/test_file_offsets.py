"""A job over files starts at the offsets recorded of another one, which has ended (C26)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from minflinkd.checkpoint import layout
from tests.cluster import Cluster, write_job
from tests.files import files_below
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


def feed(place: Path, *names: str, age: float = 0.0) -> None:
    """Add files of one line, their name, last modified so many seconds ago."""
    place.mkdir(exist_ok=True)
    for name in names:
        hidden = place / f".{name}"
        hidden.write_text(f"{name}\n")
        os.utime(hidden, (time.time() - age,) * 2)
        hidden.rename(place / name)


def job_file(base: Path, name: str, **changes: Any) -> Path:
    vertices = {
        "lines": {"source": {"format": "text", "path": str(base / "in")}},
        "out": {"inputs": ["lines"], "sink": {"format": "parquet", "path": str(base / name)}},
    }
    settings = {"name": name, "parallelism": 1, "checkpointing": {"interval": "1 h"}, "vertices": vertices}
    return write_job(base / f"{name}.yaml", settings | changes)


def rows(place: Path) -> list[str]:
    return sorted(row["value"] for row in pyarrow.dataset.dataset(place).to_table().to_pylist())


@pytest.mark.slow  # tests/spark/test_session_file_offsets.py has it without a daemon
async def test_a_job_reads_on_where_a_cancelled_one_was(cluster: Cluster, tmp_path: Path) -> None:
    """Its checkpoints are deleted. No file is read twice, and none is skipped, however late it came."""
    feed(tmp_path / "in", "a", "b")
    first = await cluster.submit(job_file(tmp_path, "first"))
    await cluster.await_job(first, lambda job: job.vertices[0].minflinkd.batches >= 1, "has read the files")
    await cluster.client.checkpoint(first)
    await cluster.cancel(first)
    directory = cluster.state / "checkpoints" / first

    def deleted() -> bool:
        return all(layout.outlives_checkpoints(str(file.relative_to(directory))) for file in files_below(directory))

    await until(deleted, "its checkpoints are deleted")
    shown = await cluster.client.get(f"/jobs/{first}/offsets", dict[str, Any])
    assert shown["tasks"]["lines"]["published"] == {"lines": {"logOffset": 0}}
    assert rows(tmp_path / "first") == ["a", "b"]

    feed(tmp_path / "in", "late", age=3600)
    feed(tmp_path / "in", "c")
    restore = {"path": str(directory), "offsets": "latest"}
    second = await cluster.submit(job_file(tmp_path, "second", mode="batch", restore=restore))
    await cluster.await_state(second, "FINISHED")
    assert rows(tmp_path / "second") == ["c", "late"]
