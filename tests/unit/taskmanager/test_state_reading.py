"""How a TaskManager lays out state to be read, and what is left of it (E19c)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from minflinkd.filemerging.segments import checksum
from minflinkd.rpc import messages as m
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.attempts import state_reading
from minflinkd.taskmanager.attempts.deployment import Deployer
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.attempts.state_reading import StateReads
from minflinkd.taskmanager.child import protocol as sp
from tests.files import files_below
from tests.waiting import until

JOB, TASK = JobId("1" * 32), TaskId("totals")


class Session:
    """The session child: it notes what it was asked and what was laid out then, and answers when it may."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.saw: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    def session(self) -> Session:
        return self

    async def ask(self, request: Any, timeout: float) -> Any:
        self.asked.append(request)
        places = [request.state] if isinstance(request, sp.ReadStates) else [request.before, request.after]
        self.saw.append([Path(place.directory, "state/0").read_text() for place in places])
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return m.StateFound(store="0") if isinstance(request, sp.ReadStates) else m.StateGrowth()


class World:
    def __init__(self, base: Path, tasks: TaskOwner) -> None:
        self.base = base
        self.session = Session()
        self.busy: list[JobId] = []
        self.storages = Storages()
        (base / "chk").mkdir()
        (base / "chk" / "1-1.seg").write_bytes(b"keys")
        (base / "chk" / "1-2.seg").write_bytes(b"more keys")
        snapshots = LocalSnapshots(base / "tm" / "snapshots")
        self.reads = StateReads(
            keeper=self.session,  # type: ignore[arg-type]
            deployer=Deployer(self.storages, None, snapshots, None),  # type: ignore[arg-type]
            directory=base / "tm",
            begins=lambda job_id, exclusive: self.busy.append(job_id),
            ends=self.busy.remove,
            tasks=tasks,
        )

    def files(self, number: int = 1) -> m.StateFiles:
        data = {1: b"keys", 2: b"more keys"}[number]
        file = StateFile("state/0", StateHandle(f"1-{number}.seg", 0, len(data), checksum(data)))
        taken = TaskSnapshot(
            task_id=TASK,
            attempt_id=AttemptId("a"),
            resource_id=ResourceId("tm-1"),
            checkpoint_id=number,
            batch_id=3,
            files=(file,),
        )
        return m.StateFiles(snapshot=taken, root=str(self.base / "chk"))

    def question(self, number: str = "x", timeout: float = 10.0) -> m.ReadState:
        return m.ReadState(
            read_id=number,
            job_id=JOB,
            task_id=TASK,
            files=self.files(),
            question=m.StateQuestion(),
            timeout=timeout,
        )

    def left(self) -> list[Path]:
        return list(files_below(self.base / "tm")) + list((self.base / "tm").glob("attempts/*"))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    tasks = TaskOwner("readings")
    found = World(tmp_path, tasks)
    yield found
    await tasks.aclose()
    await found.storages.aclose()


async def refused(asking: Any) -> str:
    with pytest.raises(MinflinkError) as error:
        await asking
    return error.value.info().code


async def test_the_copy_is_there_for_the_child_and_then_deleted(world: World) -> None:
    """The core is told, so that the session is not replaced meanwhile (E19c)."""
    assert (await world.reads.read(world.question())).store == "0"
    assert world.session.saw == [["keys"]]
    assert world.session.asked[0].state.batch_id == 3
    assert (world.left(), world.busy) == ([], [])


async def test_two_checkpoints_are_laid_out_beside_each_other(world: World) -> None:
    request = m.CompareState(
        read_id="x",
        job_id=JOB,
        task_id=TASK,
        before=world.files(1),
        after=world.files(2),
        store="",
        largest=5,
        timeout=10.0,
    )
    await world.reads.compare(request)
    assert world.session.saw == [["keys", "more keys"]]
    assert world.left() == []


async def test_nothing_is_left_if_the_child_or_the_storage_fails(world: World) -> None:
    """Whatever happens, the copy goes, and the core learns that the reading has ended (E19c)."""
    world.session.error = sp.SessionLost("gone")
    assert await refused(world.reads.read(world.question())) == "session-lost"
    (world.base / "chk" / "1-1.seg").write_bytes(b"else")
    assert await refused(world.reads.read(world.question("y"))) == "storage-corrupt"
    (world.base / "chk" / "1-1.seg").unlink()
    assert await refused(world.reads.read(world.question("z"))) == "storage-corrupt"
    assert (world.left(), world.busy) == ([], [])


async def test_a_repetition_joins_the_reading_and_others_wait_their_turn(world: World) -> None:
    """One at a time; whoever waits for longer than its time is told so (E19c)."""
    world.session.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(world.reads.read(world.question()))
        await until(lambda: len(world.session.asked) == 1)
        again = group.create_task(world.reads.read(world.question()))
        assert await refused(world.reads.read(world.question("y", timeout=0.01))) == "state-read-busy"
        world.session.may_answer.set()
    assert first.result() == again.result()
    assert len(world.session.asked) == 1
    assert (world.left(), world.busy) == ([], [])


async def test_a_reading_ends_although_nobody_waits_for_it(world: World) -> None:
    world.session.may_answer.clear()
    asking = asyncio.create_task(world.reads.read(world.question()))
    await until(lambda: len(world.session.asked) == 1)
    asking.cancel()
    world.session.may_answer.set()
    await until(lambda: not world.busy, "the end of the reading")
    assert world.left() == []


async def test_state_that_is_too_large_is_not_fetched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that jobs need is not filled (E19c)."""
    monkeypatch.setattr(state_reading, "MOST_BYTES", 3)
    assert await refused(world.reads.read(world.question())) == "state-too-large"
    assert (world.session.asked, world.left()) == ([], [])
