"""Which checkpoint is read when somebody looks at state, who reads it, and that it stays meanwhile (E19c)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.metadata import CompletedCheckpoint, encode
from minflinkd.dispatcher.state_reads import state_files, task_of
from minflinkd.rpc import job_state as s
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import DISPATCHER, Mailbox
from minflinkd.rpc.snapshot import PlanNode, StateFile, StateHandle
from minflinkd.runtime.errors import MinflinkError, NotFound
from minflinkd.runtime.ids import JobId
from tests.unit.checkpoint.builders import A1, A, completed, name, snapshot
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints
from tests.unit.dispatcher.conftest import TM, Cluster
from tests.waiting import until

RUNNING, OTHER = JobId("0" * 31 + "1"), JobId("0" * 31 + "2")
TOTALS = PlanNode(number=0, stateful=True, vertex="totals", kind="Aggregate")


def handle(length: int) -> StateHandle:
    return StateHandle("1-1-tm-1.seg", 0, length, "")


def with_state(number: int) -> Any:
    files = [
        ("state/0/0/1_x.changelog", 10),
        ("offsets/0", 5),
        ("commits/0", 5),
        ("metadata", 1),
        ("sources/0/0", 100),
        ("inputs/x", 100),
    ]
    taken = snapshot(number, A, A1)
    return msgspec.structs.replace(
        taken, batch_id=0, operators=(TOTALS,), files=tuple(StateFile(path, handle(size)) for path, size in files)
    )


def savepoint(directory: Path, job_id: JobId) -> str:
    made = msgspec.structs.replace(completed(7, with_state(7)), job_id=job_id, self_contained=True)
    directory.mkdir(parents=True)
    (directory / layout.METADATA).write_bytes(encode(made))
    return str(directory)


class Reader:
    """A TaskManager that reads: it answers when it is told to. It takes the place of the one that analyses."""

    def __init__(self, cluster: Cluster) -> None:
        self.asked: list[m.ReadState | m.CompareState] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        mailbox = Mailbox(TM)
        mailbox.on(m.ReadState, self._read)
        mailbox.on(m.CompareState, self._compare)
        cluster.network.attach(mailbox)

    async def _read(self, request: m.ReadState) -> m.StateFound:
        self.asked.append(request)
        await self.may_answer.wait()
        return m.StateFound(store="0")

    async def _compare(self, request: m.CompareState) -> m.StateGrowth:
        self.asked.append(request)
        return m.StateGrowth()


async def read(cluster: Cluster, **fields: Any) -> s.StateOfTask:
    asked: dict[str, Any] = {"job_id": RUNNING, "vertex": "totals", "read_id": "x", "timeout": 10.0} | fields
    request = s.ReadJobState(question=m.StateQuestion(), **asked)
    return await cluster.network.ask(DISPATCHER, request, timeout=10)


async def refusal(asking: Any) -> str:
    with pytest.raises(MinflinkError) as refused:
        await asking
    return refused.value.info().code


def test_a_task_is_found_by_its_id_or_by_a_vertex_with_state() -> None:
    """What the job looks like now does not matter: the checkpoint says what is in it (E19c)."""
    taken = with_state(1)
    assert task_of([taken], A) is taken
    assert task_of([taken], "totals") is taken
    with pytest.raises(NotFound, match="no task 'x'"):
        task_of([taken], "x")


def test_only_files_that_say_what_the_state_is_are_laid_out() -> None:
    """Neither logs of sources nor rows of exchanges are fetched (E19c)."""
    assert [file.path for file in state_files(with_state(1).files)] == [
        "state/0/0/1_x.changelog",
        "offsets/0",
        "commits/0",
        "metadata",
    ]


async def test_a_savepoint_of_the_job_is_read_by_its_path(cluster: Cluster, tmp_path: Path) -> None:
    """A TaskManager gets the files of one task; the answer says which savepoint it was (E19c)."""
    path = savepoint(tmp_path / "sp", RUNNING)
    async with cluster.serving():
        await cluster.submit(RUNNING)
        reader = Reader(cluster)
        found = await read(cluster, checkpoint=path)
        assert (found.checkpoint.checkpoint_id, found.checkpoint.savepoint, found.task_id) == (7, True, A)
        (asked,) = reader.asked
        assert isinstance(asked, m.ReadState)
        assert (asked.files.own, asked.exclusive, len(asked.files.snapshot.files)) == (False, False, 4)
        listed = await cluster.network.ask(DISPATCHER, s.ListState(job_id=RUNNING, checkpoint=path), timeout=10)
        assert [(task.task_id, task.size, task.operators[0].vertex) for task in listed.tasks] == [(A, 10, "totals")]


async def test_a_savepoint_of_another_job_is_only_for_those_who_see_all_jobs(cluster: Cluster, tmp_path: Path) -> None:
    """Otherwise a token for some jobs would read the others' data by their paths (E19c, E41)."""
    path = savepoint(tmp_path / "sp", OTHER)
    async with cluster.serving():
        await cluster.submit(RUNNING)
        Reader(cluster)
        assert await refusal(read(cluster, checkpoint=path)) == "foreign-savepoint"
        compare = s.CompareJobState(
            job_id=RUNNING, vertex="totals", read_id="x", before=path, after=path, store="", largest=1, timeout=5.0
        )
        assert await refusal(cluster.network.ask(DISPATCHER, compare, timeout=10)) == "foreign-savepoint"
        listing = s.ListState(job_id=RUNNING, checkpoint=path)
        assert await refusal(cluster.network.ask(DISPATCHER, listing, timeout=10)) == "foreign-savepoint"
        assert (await read(cluster, checkpoint=path, any_job=True)).checkpoint.job_id == OTHER


async def test_what_is_not_there_is_said(cluster: Cluster, tmp_path: Path) -> None:
    """No checkpoint yet, none of that number, no such path, no such task, no TaskManager (E19c)."""
    path = savepoint(tmp_path / "sp", RUNNING)
    async with cluster.serving():
        await cluster.submit(RUNNING)
        assert await refusal(read(cluster)) == "no-checkpoint-there"
        assert await refusal(read(cluster, checkpoint="3")) == "no-checkpoint-there"
        assert await refusal(read(cluster, checkpoint=str(tmp_path / "none"))) == "no-checkpoint-there"
        assert await refusal(read(cluster, checkpoint=path, vertex="x")) == "not-found"
        assert await refusal(read(cluster, job_id=OTHER)) == "not-found"


async def test_a_checkpoint_stays_while_it_is_read(cluster: Cluster) -> None:
    """The coordinator of a job keeps it, also if several read it, until the last one has its answer (E19c)."""
    stored = StoredCheckpoints(cluster.directory / "checkpoints" / RUNNING, RUNNING)
    made: CompletedCheckpoint = msgspec.structs.replace(completed(1, with_state(1)), job_id=RUNNING)
    stored.put(name(1, A1))
    stored.put(layout.metadata_file(1), encode(made))
    async with cluster.serving() as dispatcher:
        await cluster.submit(RUNNING)
        reader = Reader(cluster)
        master = dispatcher.job_master(RUNNING)
        assert master is not None
        reader.may_answer.clear()
        async with asyncio.TaskGroup() as group:
            readings = [group.create_task(read(cluster, read_id=str(n))) for n in range(2)]
            await until(lambda: len(reader.asked) == 2)
            assert dict(master.coordinator._state.read) == {1: 2}
            reader.may_answer.set()
        assert [each.result().checkpoint.checkpoint_id for each in readings] == [1, 1]
        assert dict(master.coordinator._state.read) == {}
