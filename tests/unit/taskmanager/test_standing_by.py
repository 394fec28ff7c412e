"""A TaskManager that stands by for a job follows its checkpoints, rehearses its tasks, and gives way to it (R32)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace as copy

from minflinkd.filemerging.segments import checksum
from minflinkd.jobgraph.model import Input, Sink, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import job_master
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, LeaderId, VertexId
from minflinkd.taskmanager.attempts.standing_by import BATCHES, FIRST_BATCH, PLANNED, TRIES
from minflinkd.taskmanager.child import protocol as sp
from tests.unit.taskmanager.task_executor_world import ATTEMPT, CONTEXT, DEPLOY, JM, JOB, TASK, TM, World, X, running
from tests.waiting import until

pytestmark = pytest.mark.looptime

LEASE = 30.0
TO_FILES = Vertex(id=VertexId("out"), inputs=(Input(id=TASK.end),), sink=Sink(format="parquet", path="/out"))
SUNK = copy(TASK, vertices=(*TASK.vertices, TO_FILES))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path) as world:
        yield world


class Checkpoints:
    """Checkpoints of the job in a storage. Each is a file that the one before has as well, and a new one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.job = copy(CONTEXT, checkpoint_root=directory.as_uri())
        directory.mkdir()

    def standby(self, number: int, *, leader: LeaderId = JM, job: m.JobContext | None = None) -> m.StandBy:
        files = (self._file("state/old", 0), self._file("state/new", number))
        snapshot = TaskSnapshot(
            task_id=TASK.id, attempt_id=ATTEMPT, resource_id=TM, checkpoint_id=number, batch_id=number, files=files
        )
        restore = m.TaskRestore(checkpoint_id=number, snapshot=snapshot)
        task = m.StandbyTask(task=SUNK, restore=restore, partitions=1)
        return m.StandBy(job=job or self.job, job_leader_id=leader, checkpoint_id=number, tasks=(task,), lease=LEASE)

    def _file(self, path: str, number: int) -> StateFile:
        text = f"{path} of {number}".encode()
        (self.directory / f"f{number}-{len(path)}").write_bytes(text)
        return StateFile(path, StateHandle(f"f{number}-{len(path)}", 0, len(text), checksum(text)))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "storage")


async def answer(world: World, request: m.StandBy) -> m.StandingBy:
    found: m.StandingBy = await world.ask(request)
    return found


async def ready(world: World, request: m.StandBy) -> None:
    async def stands_by() -> bool:
        return (await answer(world, request)).ready

    await until(stands_by, "ready")


def played(world: World) -> list[AttemptId]:
    return list(world.executor._standbys._rehearsals)


async def rehearse(world: World, request: m.StandBy) -> None:
    """Let the task be rehearsed, and wait until the TaskManager is ready."""
    await rehearse_only(world, request)
    await ready(world, request)


async def rehearse_only(world: World, request: m.StandBy) -> None:
    await answer(world, request)
    await until(lambda: played(world), "a rehearsal")
    for _ in range(BATCHES):
        world.executor.batch_finished(1, sp.BatchFinished(attempt_id=played(world)[0], metrics=m.TaskMetrics()))
    await until(lambda: "PrepareTasks" in world.session.asked, "its plans")


async def test_a_standby_has_the_state_and_has_run_the_task(world: World, checkpoints: Checkpoints) -> None:
    """Then a deployment finds its state here, and fetches nothing (R32, C14)."""
    request = checkpoints.standby(1)
    assert await answer(world, request) == m.StandingBy(ready=False, why="it has just begun")
    await rehearse(world, request)
    await until(lambda: not played(world), "the end of the rehearsal")
    done = [name for name in world.session.asked if name != "Ping"]
    assert sorted(done) == ["PrepareTasks", "RunTask", "StopTask", "UnloadTask"]
    target = checkpoints.directory / "laid-out"
    assert await asyncio.to_thread(world.snapshots.lay_out, JOB, request.tasks[0].restore.snapshot, target)


async def fail(world: World, request: m.StandBy) -> None:
    """Wait until the rehearsal in a session that refuses it is told to have failed."""

    async def failed() -> bool:
        return (await answer(world, request)).why == "the rehearsal of a failed: not now"

    await until(failed, "the failure")


async def test_later_checkpoints_are_followed_by_what_is_new(world: World, checkpoints: Checkpoints) -> None:
    """Files that the copy here has already are not fetched again, and older copies go (R32)."""
    await rehearse(world, checkpoints.standby(1))
    (checkpoints.directory / "f0-9").unlink()  # in both checkpoints; only a fetch would miss it
    second = checkpoints.standby(2)
    (checkpoints.directory / "f0-9").unlink()
    await until(lambda: (checkpoints.directory / "f2-9").exists())
    await ready(world, second)
    snapshot = second.tasks[0].restore.snapshot

    await until(lambda: world.snapshots.holds(JOB, snapshot.task_id, 2), "a copy of the second checkpoint")
    laid_out = await asyncio.to_thread(world.snapshots.lay_out, JOB, snapshot, checkpoints.directory / "laid-out")
    assert laid_out == {file.path for file in snapshot.files}
    assert not world.snapshots.holds(JOB, snapshot.task_id, 1)
    assert world.session.asked.count("RunTask") == 1  # it is rehearsed once


async def test_plans_are_built_anew_before_they_are_old(world: World, checkpoints: Checkpoints) -> None:
    """A plan has the files of its tables as they were, and the session drops it after a minute (R32)."""
    request = checkpoints.standby(1)
    await rehearse(world, request)

    def planned() -> int:
        return world.session.asked.count("PrepareTasks")

    await until(planned, "a plan")
    for _ in range(round(3 * PLANNED / 10)):
        await asyncio.sleep(10.0)
        await answer(world, request)
    assert 3 <= planned() <= 4, "plans in two minutes"


async def test_without_new_rows_a_rehearsal_ends_all_the_same(world: World, checkpoints: Checkpoints) -> None:
    """The session has planned the task at least (R32)."""
    request = checkpoints.standby(1)
    await answer(world, request)
    await until(lambda: played(world), "a rehearsal")
    await asyncio.sleep(FIRST_BATCH)
    await ready(world, request)


async def test_nothing_is_kept_after_the_lease(tmp_path: Path, checkpoints: Checkpoints) -> None:
    """The job stands by elsewhere, or has ended: its copies go, and the session may be replaced (R32)."""
    async with running(tmp_path) as world:  # in the test's own time: a fixture has that of the clock
        request = checkpoints.standby(1)
        await rehearse(world, request)
        assert world.executor.core.keeps(JOB)
        await asyncio.sleep(LEASE + 1.0)
        assert not world.executor.core.keeps(JOB)
        await until(lambda: world.snapshots.size() == 0, "no copies")


async def test_a_deployment_of_the_job_ends_its_rehearsal(world: World, checkpoints: Checkpoints) -> None:
    """The session is needed for the task itself now. What was prepared stays (R32)."""
    request = checkpoints.standby(1)
    await answer(world, request)
    await until(lambda: played(world), "a rehearsal")
    await world.allocate()
    await world.ask(copy(DEPLOY, job=checkpoints.job))
    await until(lambda: not played(world), "the end of the rehearsal")
    assert world.session.asked.count("StopTask") == 1
    assert (await answer(world, request)).why == "the job runs here"
    assert world.snapshots.size() > 0


async def test_a_job_with_sessions_of_its_own_is_alone(world: World, checkpoints: Checkpoints) -> None:
    """With `isolation: job`, no code of another job runs beside it, not even to rehearse (R32, R24)."""
    other = copy(checkpoints.job, job_id="3" * 32)
    await answer(world, checkpoints.standby(1, job=other))
    await until(lambda: played(world), "a rehearsal")
    allocate = m.AllocateSlots(
        job_id=JOB, allocation_id=X, slots=(0,), job_master=job_master(JOB), job_leader_id=JM, exclusive=True
    )
    await world.ask(allocate)
    await asyncio.sleep(1.0)
    await world.ask(copy(DEPLOY, job=checkpoints.job))
    await until(lambda: not played(world), "the end of the rehearsal")
    assert not world.executor.core.keeps(other.job_id)


async def test_a_rehearsal_that_fails_is_told_and_tried_twice(world: World, checkpoints: Checkpoints) -> None:
    """The state is followed all the same (R32)."""
    world.session.refuses = True
    request = checkpoints.standby(1)
    await fail(world, request)
    for number in range(2, 6):
        await answer(world, checkpoints.standby(number))
        await asyncio.sleep(2.0)
    assert world.session.asked.count("RunTask") == TRIES
    assert world.snapshots.size() > 0


async def test_a_rehearsal_that_ends_sessions_is_not_repeated_in_each_new_one(
    world: World, checkpoints: Checkpoints
) -> None:
    """Otherwise the spare would never be ready for anybody (R32)."""
    request = checkpoints.standby(1)
    for generation in range(1, TRIES + 1):
        await answer(world, request)
        await until(lambda: played(world), "a rehearsal")
        world.executor.session_lost(generation, "killed")
        world.executor.session_gone()
        world.session.generation = generation + 1
        await until(lambda: not played(world), "the end of the rehearsal")

    async def given_up() -> bool:
        return "the session was lost" in (await answer(world, request)).why

    await until(given_up, "that it is given up")
    for _ in range(3):
        await answer(world, request)
        await asyncio.sleep(2.0)
    assert world.session.asked.count("RunTask") == TRIES


async def test_another_version_is_rehearsed_whatever_became_of_the_one_before(
    world: World, checkpoints: Checkpoints
) -> None:
    """And what is told of it is about it (R32)."""
    world.session.refuses = True
    request = checkpoints.standby(1)
    await fail(world, request)
    world.session.refuses = False
    await rehearse(world, checkpoints.standby(2, job=copy(checkpoints.job, version="next")))


async def test_a_job_that_is_deployed_is_not_endangered_by_a_rehearsal(world: World, checkpoints: Checkpoints) -> None:
    """The rehearsal of another job is cancelled, and its session is not ended for it (R32)."""
    world.session.stop_takes = 1000.0
    await answer(world, checkpoints.standby(1, job=copy(checkpoints.job, job_id="3" * 32)))
    await until(lambda: played(world), "a rehearsal")
    await world.allocate()
    await world.ask(copy(DEPLOY, job=checkpoints.job))
    await until(lambda: not played(world), "the rehearsal is given up")
    assert "condemn" not in world.session.asked


async def test_a_state_that_the_disk_may_not_hold_is_not_fetched(world: World, checkpoints: Checkpoints) -> None:
    """It would be fetched whole with each checkpoint, and never be there (R32)."""
    world.snapshots.max_size = 10
    request = checkpoints.standby(1)
    await rehearse_only(world, request)
    (checkpoints.directory / "f1-9").unlink()
    assert (await answer(world, request)).why == "no room for the state of a (taskmanager.state.local.max-size)"


async def test_a_lost_session_takes_the_rehearsal_with_it(world: World, checkpoints: Checkpoints) -> None:
    """Its directory is removed, as those of attempts are (R32, C10a)."""
    await answer(world, checkpoints.standby(1))
    await until(lambda: played(world), "a rehearsal")
    directory = world.executor._standbys._rehearsals[played(world)[0]].attempt.directory
    directory.mkdir(parents=True, exist_ok=True)
    world.lose_session()
    await until(lambda: not directory.exists(), "no directory of the rehearsal")


async def test_slots_in_use_are_not_disturbed(world: World, checkpoints: Checkpoints) -> None:
    """User code that does not end costs a session its other tasks. So the state is only followed (R32)."""
    await world.allocate(X)
    other = copy(checkpoints.job, job_id="3" * 32)
    await ready(world, checkpoints.standby(1, job=other))
    assert "RunTask" not in world.session.asked


async def test_an_earlier_checkpoint_or_jobmaster_changes_nothing(world: World, checkpoints: Checkpoints) -> None:
    """Messages may be late, and a JobMaster may not know yet that it was replaced (R32, R1)."""
    later = LeaderId(f"{JM}-2")
    await rehearse(world, checkpoints.standby(3, leader=later))
    for request in (checkpoints.standby(2, leader=later), checkpoints.standby(9, leader=JM)):
        await answer(world, request)
    await asyncio.sleep(1.0)
    assert [key[2] for key in world.snapshots._complete] == [3]
