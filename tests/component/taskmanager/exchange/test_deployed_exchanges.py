"""A deployed task reads another TaskManager's exchange through that one's HTTP endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minflinkd.rpc import messages as m
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import TaskId, VertexId
from minflinkd.taskmanager.attempts.deployment import (
    attempt_directory,
    exchange_directory,
    exchanges,
)
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint
from minflinkd.taskmanager.exchange.log import Entry, EntryKind, LogWriter, read_entry
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from tests.unit.taskmanager.exchange.deployed import (
    FAR,
    HERE,
    NEAR,
    READER,
    TASK,
    TOKEN,
    deployment,
    mirroring,
    run,
)
from tests.waiting import until


@pytest.fixture
async def mirrors() -> AsyncIterator[Mirrors]:
    async with mirroring() as mirrors:
        yield mirrors


async def test_a_task_reads_a_log_of_its_own_taskmanager_as_it_is_and_another_ones_in_a_mirror(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    """The mirror lies in the attempt's own directory and begins at the sequence number in the snapshot (J11)."""
    here, there = tmp_path / "here", tmp_path / "there"
    log = LogWriter(exchange_directory(there, FAR), (TaskId("join"),), first=5)
    log.describe("schema")
    log.append(Entry(kind=EntryKind.BARRIER, checkpoint_id=9))
    snapshot = TaskSnapshot(
        task_id=TaskId("join"),
        attempt_id=READER,
        resource_id=HERE,
        checkpoint_id=9,
        batch_id=-1,
        parallelism=1,
        inputs={VertexId("near"): 8, VertexId("far"): 5},
    )
    restore = m.TaskRestore(checkpoint_id=9, snapshot=snapshot)
    async with DataEndpoint(root=exchanges(there), token=TOKEN, host="127.0.0.1", ports=[0]) as endpoint:
        asked = await run(mirrors, here, deployment(TASK, endpoint.url, restore))
        far, near = asked.inputs
        assert (near.directory, near.idle_timeout) == (str(exchange_directory(here, NEAR)), 3.0)
        assert Path(far.directory).is_relative_to(attempt_directory(here, READER))
        await until(lambda: read_entry(Path(far.directory), 5) is not None)
        assert asked.output == sp.OutputChannel(
            directory=str(exchange_directory(here, READER)), readers=(TaskId("end"),), max_backlog=77
        )
        assert len(mirrors) == 1
        await mirrors.close(READER)
        assert len(mirrors) == 0
