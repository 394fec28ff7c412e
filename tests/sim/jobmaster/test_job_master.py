"""The JobMaster in virtual time on a faulty network: its messages, its end, its restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobmaster.job_history import FILE, decode
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import RESOURCE_MANAGER, Fenced, job_master
from minflinkd.runtime.ids import AttemptId, LeaderId, ResourceId
from tests.sim.jobmaster.world import BOOM, JOB, World, graph, new_master, running
from tests.untimed_storage import untimed_storages
from tests.waiting import until

pytestmark = pytest.mark.looptime


def attempt(world: World) -> AttemptId:
    return world.tm.deployed[-1].attempt_id


@pytest.mark.parametrize(
    "message",
    [
        m.TaskManagerLost(resource_id=ResourceId("tm-1"), reason="gone"),
        m.OfferSlots(resource_id=ResourceId("tm-1"), address="taskmanager/tm-1", offers=()),
        m.DeclineCheckpoint(job_id=JOB, attempt_id=AttemptId("a"), checkpoint_id=1, error=BOOM),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("token", [LeaderId("0"), None])
async def test_what_does_not_carry_its_token_is_refused_by_a_job_master(
    message: m.Message, token: LeaderId | None, tmp_path: Path
) -> None:
    """A wrong token is refused by the JobMaster's core and by its checkpoint coordinator (R1)."""
    async with running(tmp_path) as world:
        with pytest.raises(Fenced):
            await world.wire.mailboxes[job_master(JOB)].deliver(message, token)


async def test_a_job_master_takes_no_message_before_it_knows_where_its_job_stands(tmp_path: Path) -> None:
    """Its core must first learn whether the job was recovered. Until then senders try again (R13)."""
    world, storages = World(), untimed_storages()
    world.master = new_master(world, graph(), storages, tmp_path)
    starting = asyncio.create_task(world.master.start())
    while not starting.done():
        takes_messages = job_master(JOB) in world.wire.mailboxes
        assert takes_messages is (world.master.status is not JobStatus.INITIALIZING)
        await asyncio.sleep(0)
    assert job_master(JOB) in world.wire.mailboxes
    await world.master.aclose()
    await world.wire.aclose()
    await storages.aclose()


async def test_cancel_frees_the_slots_before_the_end_is_reported(tmp_path: Path) -> None:
    """A cancelled job leaves nothing behind. Whoever hears of its end finds the slots free."""
    async with running(tmp_path) as world:
        world.tm.free_takes = 1.0
        world.master.cancel()
        await until(lambda: world.ended)
        assert world.story == ["deploy 0", "cancel", "free for good", "end CANCELED"]


async def test_the_end_does_not_wait_for_ever_for_a_taskmanager_that_is_gone(tmp_path: Path) -> None:
    """Every wait has an end, so the job ends although nobody confirms that its slots are free (A5)."""
    async with running(tmp_path) as world:
        world.wire.faults.drop_if = lambda _s, _t, message: isinstance(message, m.FreeSlots)
        world.master.cancel()
        began = asyncio.get_running_loop().time()
        await until(lambda: world.ended)
        assert asyncio.get_running_loop().time() - began < 6


async def test_a_request_that_fails_as_nobody_foresaw_is_one_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core waits for an outcome of every request (A5)."""
    async with running(tmp_path) as world:
        network = world.wire.party("jm")
        ask, failed = type(network).ask, list[m.Message]()

        async def broken(self: Any, target: Any, request: Any, **options: Any) -> Any:
            if isinstance(request, m.CancelTask) and not failed:
                failed.append(request)
                raise ValueError("it cannot be encoded")
            return await ask(self, target, request, **options)

        monkeypatch.setattr(type(network), "ask", broken)
        world.master.cancel()
        await until(lambda: world.ended)
        assert failed
        assert not world.master.crashed.is_set()


@pytest.mark.parametrize("kind", [m.DeployTask, m.CancelTask, m.FreeSlots])
@pytest.mark.parametrize("way", ["there", "back"])
async def test_a_message_lost_once_is_repeated(tmp_path: Path, kind: type[m.Message], way: str) -> None:
    """Messages are idempotent by their ids, so a lost answer costs a second and not the attempt (A5)."""
    async with running(tmp_path) as world:
        lost: list[m.Message] = []

        def once(source: str, target: str, message: m.Message) -> bool:
            if isinstance(message, kind) and not lost and (source == "jm") == (way == "there"):
                lost.append(message)
                return True
            return False

        world.wire.faults.drop_if = once
        await world.tm.report(attempt(world), m.TaskState.FAILED, BOOM)
        await until(lambda: len(world.tm.deployed) == 2 and world.master.status is JobStatus.RUNNING)
        began = asyncio.get_running_loop().time()
        world.master.cancel()
        await until(lambda: world.ended)
        assert lost
        assert world.master.details().restarts == 1
        assert world.tm.held == {}
        assert asyncio.get_running_loop().time() - began < 5


async def test_a_failed_task_is_deployed_again_on_held_slots_while_no_resource_manager_is_there(
    tmp_path: Path,
) -> None:
    """A restart on slots that the job holds does not need the ResourceManager (R12)."""
    async with running(tmp_path) as world:
        world.wire.faults.drop_if = lambda _s, target, _m: target == RESOURCE_MANAGER
        await world.tm.report(attempt(world), m.TaskState.FAILED, BOOM)
        await until(lambda: len(world.tm.deployed) == 2 and world.master.status is JobStatus.RUNNING)
        first, second = world.tm.deployed
        assert first.allocation_id == second.allocation_id
        assert (second.attempt_number, len(world.given)) == (1, 1)


async def test_a_restart_goes_on_from_the_last_completed_checkpoint(tmp_path: Path) -> None:
    """The store is real (R11, C21)."""
    async with running(tmp_path, interval=10.0) as world:
        await until(lambda: "publish 1" in world.story)
        await world.tm.report(attempt(world), m.TaskState.FAILED, BOOM)
        await until(lambda: len(world.tm.deployed) == 2)
        before = world.story[: world.story.index("deploy 1")]  # the new attempt takes its first checkpoint at once
        last = [line for line in before if line.startswith("publish")][-1]  # on a slow machine not the first
        restore = world.tm.deployed[-1].restore
        assert restore is not None
        assert last == f"publish {restore.checkpoint_id}"
        assert world.master.details().recoveries[0].checkpoint_id == restore.checkpoint_id


async def test_failures_in_a_row_are_known_to_the_next_daemons_job_master(tmp_path: Path) -> None:
    """A restart of the daemon neither hides nor forgives them: each is recorded at once."""
    record = tmp_path / "checkpoints" / FILE
    async with running(tmp_path, interval=100.0) as world:
        await world.master.coordinator.trigger()
        for failures in (1, 2, 3):
            await world.tm.report(attempt(world), m.TaskState.FAILED, BOOM)
            await until(lambda n=failures: len(world.tm.deployed) == n + 1)  # type: ignore[misc]
            await until(lambda: world.master.status is JobStatus.RUNNING)
        await until(lambda: record.exists() and decode(record.read_bytes()).restarts == 3)
        backoff = world.master.history().strategy.backoff
    async with running(tmp_path, interval=100.0) as world:
        shown = world.master.details()
        assert shown.restarts == 3
        assert shown.repeated is not None
        assert (shown.repeated.failures, shown.repeated.last.error.message) == (3, BOOM.message)
        assert [failure.error.code for failure in shown.failures] == [BOOM.code] * 3
        assert world.master.history().strategy.backoff == backoff > 0.1
        assert world.master.coordinator.statistics().restored == 4


async def test_a_bounded_job_ends_behind_its_final_checkpoint(tmp_path: Path) -> None:
    """A bounded job is FINISHED only after its final checkpoint (C4)."""
    async with running(tmp_path) as world:
        await world.tm.report(attempt(world), m.TaskState.INPUT_ENDED)
        await until(lambda: world.ended)
        assert world.story == ["deploy 0", "trigger 1", "publish 1", "cancel", "free for good", "end FINISHED"]
