"""The task executor in virtual time: attempts that end while they start, slots, and what is left of jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.jobgraph.model import Sink, Vertex
from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Address, job_master
from minflinkd.runtime.errors import Consequence, ErrorInfo, RemoteError
from minflinkd.runtime.ids import AttemptId, VertexId
from minflinkd.storage.publication import SinkTransaction, StagedToken
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.task_executor import TaskExecutor
from tests.unit.taskmanager.task_executor_world import (
    ATTEMPT,
    CONTEXT,
    DEPLOY,
    JOB,
    TASK,
    SlowDeployer,
    World,
    X,
    Y,
    running,
)

pytestmark = pytest.mark.looptime


async def test_an_attempt_that_is_cancelled_while_it_comes_up_starts_no_query_later(tmp_path: Path) -> None:
    """Whoever was told that nothing of the attempt runs can rely on it, however long its fetch takes (m12)."""
    async with running(tmp_path, SlowDeployer) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT))
        await world.beat_for(1100, X)
        assert "RunTask" not in world.session.asked
        assert world.statuses[-1] is m.TaskState.CANCELED
        assert world.executor.attempts == {}


FIRST, SECOND = (BlobKey.new(BlobKind.PERMANENT, digit * 64) for digit in "01")
ARTIFACTS = tuple(m.ArtifactRef(name=f"{key}.py", key=str(key), size=1) for key in (FIRST, SECOND))
WITH_ARTIFACTS = replace(DEPLOY, job=replace(CONTEXT, artifacts=ARTIFACTS))


@pytest.mark.parametrize("how", ["cancelled", "failed", "session lost", "missing", "slow", "not started"])
async def test_a_tasks_end_gives_its_artifacts_back(tmp_path: Path, how: str) -> None:
    """A task may have finished, failed, been cancelled, or never started (B15)."""
    async with running(tmp_path) as world:
        references = world.blobs.references
        world.blobs.missing = {SECOND} if how == "missing" else set()
        world.blobs.slow = {SECOND} if how == "slow" else set()
        world.session.refuses = how == "not started"
        await world.allocate()
        await world.ask(WITH_ARTIFACTS)
        await asyncio.sleep(1.0)
        runs = how in ("cancelled", "failed", "session lost")
        assert references.count_of_job(JOB) == (2 if runs else 1 if how == "slow" else 0)
        if how in ("cancelled", "slow"):
            await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT))
        elif how == "failed":
            error = ErrorInfo(code="user-code", message="division by zero")
            world.executor.task_failed(1, sp.TaskFailed(attempt_id=ATTEMPT, error=error))
        elif how == "session lost":
            world.lose_session()
        await asyncio.sleep(1.0)
        assert references.count_of_job(JOB) == 0
        assert world.statuses[-1] is (m.TaskState.CANCELED if how in ("cancelled", "slow") else m.TaskState.FAILED)


UNREACHABLE = ErrorInfo(code="exchange-unreachable", message="gone", consequence=Consequence.RETRYABLE)


async def test_a_task_whose_input_is_lost_fails_and_is_stopped(tmp_path: Path) -> None:
    """The JobMaster restarts it with the task that it reads from. An input that no task reads fails nobody (J11)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        world.executor.input_lost(AttemptId("f" * 32), UNREACHABLE)
        assert world.statuses[-1] is m.TaskState.RUNNING
        world.executor.input_lost(ATTEMPT, UNREACHABLE)
        world.executor.input_lost(ATTEMPT, UNREACHABLE)
        await asyncio.sleep(1.0)
        assert world.statuses[-1] is m.TaskState.FAILED
        assert world.session.asked.count("StopTask") == 1
        assert not world.executor.attempts


async def test_an_offer_says_where_exchanges_are_read(tmp_path: Path) -> None:
    """J11"""
    urls: list[str] = []

    async def accepts(request: m.OfferSlots) -> m.OffersAccepted:
        urls.append(request.data_url)
        return m.OffersAccepted(accepted=tuple(o.allocation_id for o in request.offers))

    async with running(tmp_path) as world:
        world.accepts = accepts
        await world.allocate()
    assert set(urls) == {"http://here"}


async def test_an_analysis_gives_its_artifacts_back(tmp_path: Path) -> None:
    """B15"""
    async with running(tmp_path) as world:
        world.session.refuses = True
        request = m.AnalyzeJob(job=WITH_ARTIFACTS.job, tasks=(TASK,))
        with pytest.raises(RemoteError):
            await world.ask(request)
        world.blobs.missing = {SECOND}
        with pytest.raises(RemoteError):
            await world.ask(request)
        assert world.blobs.references.count_of_job(JOB) == 0


async def test_a_heartbeat_is_answered_while_user_code_is_slow_to_end(tmp_path: Path) -> None:
    """One allocation that the JobMaster does not know must not cost the JobMaster all its slots here (R10)."""
    async with running(tmp_path) as world:
        await world.allocate(X, 0)
        await world.allocate(Y, 1)
        await world.ask(DEPLOY)
        world.session.stop_takes = 40.0
        await world.beat_for(12, X, Y)
        for _ in range(20):
            await world.beat(Y)
            await asyncio.sleep(1.0)
        assert X in world.executor.core.slots.table.bindings
        await world.beat_for(30, Y)
        assert list(world.executor.core.slots.table.bindings) == [Y]
        assert world.session.asked.count("StopTask") == 1


async def test_an_offer_that_is_not_answered_costs_no_slot_that_was_accepted_before(tmp_path: Path) -> None:
    """The JobMaster may be busy. The task on the accepted slot runs on (m9)."""
    async with running(tmp_path) as world:
        await world.allocate(X, 0)
        await world.ask(DEPLOY)

        async def never(_: m.OfferSlots) -> m.OffersAccepted:
            await asyncio.Event().wait()
            raise AssertionError

        world.accepts = never
        await world.allocate(Y, 1)
        await world.beat_for(30, X)
        assert list(world.executor.core.slots.table.bindings) == [X]
        assert world.executor.attempts[ATTEMPT].status.state is m.TaskState.RUNNING


async def test_a_job_that_went_elsewhere_leaves_nothing_here(tmp_path: Path) -> None:
    """A job's end is told only to TaskManagers that hold its slots then.

    Local copies and blobs are removed without it.
    """
    async with running(tmp_path) as world:
        await world.allocate()
        await world.beat_for(12, X)
        left = world.snapshots.directory(JOB, TASK.id, 1) / "offsets"
        left.mkdir(parents=True)
        await world.ask(m.FreeSlots(job_id=JOB, allocations=(X,)))
        await asyncio.sleep(30.0)
        assert left.exists()
        await asyncio.sleep(10.0)
        assert not left.exists()
        assert world.blobs.forgotten == [JOB]


async def test_tasks_of_a_silent_jobmaster_run_on_until_the_orphan_timeout(tmp_path: Path) -> None:
    """A14."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        world.wire.faults.drop_if = lambda _s, target, _m: target == Address(job_master(JOB))
        await asyncio.sleep(600.0)
        assert world.session.asked[-1:] == ["RunTask"]
        assert X in world.executor.core.slots.table.bindings
        await asyncio.sleep(10.0)
        assert world.session.asked[-2:] == ["StopTask", "UnloadTask"]
        assert not world.executor.core.slots.table.bindings


async def test_a_task_that_does_not_stop_has_ended_before_its_jobmaster_gives_up(tmp_path: Path) -> None:
    """The session is killed before the JobMaster stops repeating CancelTask, after twice the timeout (J7, m12)."""
    async with running(tmp_path, SlowDeployer) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        world.session.stop_takes = 1e6
        beats = asyncio.create_task(world.beat_for(60, X))
        began = asyncio.get_running_loop().time()
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT), timeout=60.0)
        assert 30.0 <= asyncio.get_running_loop().time() - began <= 40.0
        assert world.session.asked[-1] == "condemn"
        await beats


HEIR = AttemptId("3" * 32)


def directories(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "attempts").glob("*")}


async def stop_and_inherit(world: World, tmp_path: Path) -> None:
    """Stop an attempt after another one has continued in its directory."""
    await world.allocate()
    await world.ask(DEPLOY)
    (tmp_path / "attempts" / ATTEMPT).mkdir(parents=True, exist_ok=True)
    world.session.heirs[ATTEMPT] = HEIR
    world.session.unloading = asyncio.Event()
    await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT))
    await world.ask(replace(DEPLOY, attempt_id=HEIR, attempt_number=1))
    (tmp_path / "attempts" / HEIR).mkdir(parents=True, exist_ok=True)
    await asyncio.sleep(1.0)


async def test_a_directory_in_which_the_next_attempt_goes_on_is_removed_with_that_one(tmp_path: Path) -> None:
    """H4, C10a."""
    async with running(tmp_path) as world:
        await stop_and_inherit(world, tmp_path)
        world.session.unloading.set()
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == {ATTEMPT, HEIR}
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=HEIR))
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == set()


async def test_a_directory_whose_heir_has_ended_before_that_was_known_is_removed(tmp_path: Path) -> None:
    """Answers may come in any order (H4, C10a)."""
    async with running(tmp_path) as world:
        await stop_and_inherit(world, tmp_path)
        unloading, world.session.unloading = world.session.unloading, None
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=HEIR))
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == {ATTEMPT}
        unloading.set()
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == set()


async def test_tasks_of_a_lost_session_fail_at_once_and_keep_their_slots_until_it_is_gone(tmp_path: Path) -> None:
    """They can start elsewhere meanwhile. Here, nothing may use their slots and files before (R11, C10a)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        (tmp_path / "attempts" / ATTEMPT).mkdir(parents=True)
        going = world.session.going = asyncio.Event()
        world.executor.session_lost(1, "killed")
        await asyncio.sleep(1.0)
        assert world.statuses[-1] is m.TaskState.FAILED
        free = asyncio.create_task(world.ask(m.FreeSlots(job_id=JOB, allocations=(X,)), timeout=60.0))
        await asyncio.sleep(3.0)
        assert not free.done()
        assert directories(tmp_path) != set()
        going.set()
        await free
        await asyncio.sleep(1.0)
        assert world.executor.attempts == {}
        world.executor.session_gone()
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == set(), "also if its processes took so long that nobody waits for them any more"


async def test_a_lost_session_does_not_wait_for_a_storage_that_hangs_in_its_checkpoint(tmp_path: Path) -> None:
    """Its slots are free as soon as its processes are gone, for the task to come back to (R11, J7)."""
    async with running(tmp_path) as world:
        world.session.snapshot = sp.SnapshotTaken(batch_id=0)
        released = hang(world.executor)
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        await world.ask(m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=1, epoch=1))
        await asyncio.sleep(1.0)
        world.lose_session()
        await asyncio.sleep(1.0)
        assert world.statuses[-1] is m.TaskState.FAILED
        await world.ask(m.FreeSlots(job_id=JOB, allocations=(X,)), timeout=1.0)
        released.set()


async def test_an_inherited_directory_goes_with_the_session(tmp_path: Path) -> None:
    """Nobody writes there any more (C10a)."""
    async with running(tmp_path) as world:
        await stop_and_inherit(world, tmp_path)
        world.session.unloading.set()
        await asyncio.sleep(1.0)
        world.lose_session()
        await asyncio.sleep(1.0)
        assert directories(tmp_path) == set()


async def test_an_attempt_ends_in_time_while_a_storage_hangs_in_its_checkpoint(tmp_path: Path) -> None:
    """A writing thread cannot be stopped. It must hold up neither the cancellation nor the slot (J7)."""
    async with running(tmp_path) as world:
        world.session.snapshot = sp.SnapshotTaken(batch_id=0)
        released = hang(world.executor)
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        await world.ask(m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=1, epoch=1))
        beats = asyncio.create_task(world.beat_for(60, X))
        began = asyncio.get_running_loop().time()
        cancel = asyncio.create_task(world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT), timeout=60.0))
        await asyncio.sleep(1.0)
        assert "StopTask" in world.session.asked
        await cancel
        assert 29.0 <= asyncio.get_running_loop().time() - began <= 31.0
        assert dict(world.executor.core.slots.attempts) == {}
        released.set()
        await beats


STAGED = SinkTransaction(job_id=JOB, sink="out", checkpoint_id=1, tokens=(StagedToken(ATTEMPT, 0, "{}"),))


@pytest.mark.parametrize(("completed", "commits"), [(1, 1), (0, 0)])
async def test_a_cancelled_attempt_commits_what_a_complete_checkpoint_owes(
    tmp_path: Path, completed: int, commits: int
) -> None:
    """If the sink commits by itself, nobody can commit for it once the attempt is gone (J13)."""
    async with running(tmp_path) as world:
        world.session.snapshot = sp.SnapshotTaken(batch_id=0, transactions=(STAGED,))
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        await world.ask(m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=1, epoch=1))
        await asyncio.sleep(1.0)
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT, completed=completed), timeout=60.0)
        asked = world.session.asked
        assert asked.count("ConfirmCheckpoint") == commits
        assert asked[-2:] == ["StopTask", "UnloadTask"]


COLLECTING = replace(TASK, vertices=(*TASK.vertices, Vertex(id=VertexId("seen"), sink=Sink(format="collect"))))


async def test_collected_rows_are_shown_also_when_their_attempt_has_ended(tmp_path: Path) -> None:
    """A bounded job may be over before anybody has looked (J2)."""
    async with running(tmp_path) as world:
        ask = m.ReadCollected(attempt_id=ATTEMPT, vertex_id=VertexId("seen"))
        with pytest.raises(RemoteError, match="does not run"):
            await world.ask(ask)
        await world.allocate()
        await world.ask(replace(DEPLOY, task=COLLECTING))
        await asyncio.sleep(1.0)
        shown = await world.ask(ask)
        await world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT), timeout=60.0)
        assert await world.ask(ask) == shown
        assert [row.batch_id for row in shown.rows] == [3]


def hang(executor: TaskExecutor) -> asyncio.Event:
    """Let uploads hang until the returned event is set, even if they are cancelled."""
    released = asyncio.Event()

    async def upload(*_: object) -> None:
        try:
            await released.wait()
        finally:
            await released.wait()

    executor._snapshots._upload = upload  # type: ignore[assignment]
    return released


async def test_slots_given_back_are_free_when_that_is_answered(tmp_path: Path) -> None:
    """Whoever hears that a job has ended finds its slots free and nothing left of it (m12)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        world.session.stop_takes = 3.0
        await world.ask(m.FreeSlots(job_id=JOB, allocations=(X,), job_ended=True))
        assert world.executor.core.slots.table.bindings == {}
        await asyncio.sleep(5)
        assert world.blobs.forgotten == [JOB]


async def test_a_checkpoint_that_nobody_wants_to_hear_of_is_no_failure_of_the_taskmanager(tmp_path: Path) -> None:
    """The JobMaster is silent, or was replaced, while a snapshot is declined (C12)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await world.ask(m.TriggerCheckpoint(job_id=JOB, attempt_id=ATTEMPT, checkpoint_id=1, epoch=1))
        await world.beat_for(60, X)
        assert any("did not take it" in entry["event"] for entry in world.logs)
        assert [entry for entry in world.logs if entry["log_level"] == "error"] == []


async def test_reports_carry_figures_and_a_session_is_renewed_by_command(tmp_path: Path) -> None:
    """R6a."""
    async with running(tmp_path) as world:
        await asyncio.sleep(2.0)
        assert world.reports[-1].metrics == {"figure": 1.0}
        await world.ask(m.RenewSession(reason="aged"))
        assert world.session.asked == ["renew"]
        await world.ask(m.ExitTaskManager(reason="idle"))
        assert world.exits == [("idle", False)]


async def test_heartbeats_say_that_a_session_starts_slowly_and_how_far_it_is(tmp_path: Path) -> None:
    """By its steps the ResourceManager sees that a start makes progress, and waits for it (R5)."""
    async with running(tmp_path) as world:
        world.session.slow, world.session.steps = "it has been starting for 95 s", 7
        await asyncio.sleep(2.0)
        assert (world.reports[-1].session_slow, world.reports[-1].session_steps) == ("it has been starting for 95 s", 7)


async def test_a_task_with_other_slots_is_offered_and_snapshotted_with_them(tmp_path: Path) -> None:
    """A JobMaster that adopts it must know how many it uses (A14a, R20)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        assert world.statuses[-1] is m.TaskState.RUNNING
        await world.ask(m.ResizeTask(job_id=JOB, attempt_id=ATTEMPT, parallelism=2))
        assert world.session.asked[-1] == "ResizeAttempt"
        assert world.executor.attempts[ATTEMPT].offered(()).parallelism == 2


async def test_a_task_that_does_not_run_is_given_no_other_slots(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await world.allocate()
        with pytest.raises(RemoteError) as caught:
            await world.ask(m.ResizeTask(job_id=JOB, attempt_id=ATTEMPT, parallelism=2))
        assert caught.value.info().code == "unknown-attempt"
