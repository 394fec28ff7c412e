"""The coordinator as a component, in virtual time. Tasks and storage can fail."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.causes import (
    CheckpointFailed,
    CheckpointNotPending,
    CheckpointRefused,
    FailureCause,
    Refusal,
)
from minflinkd.checkpoint.layout import InvalidPhysicalFile
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.storage.interface import StorageFull, StorageUnavailable
from tests.sim.checkpoint.world import World
from tests.unit.checkpoint.builders import A1, A2, B1, B2, TASKS, A, B, name, snapshot

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_periodic_checkpoints_come_every_interval_and_only_the_latest_is_kept() -> None:
    """One is taken in each interval. Metadata and files of earlier ones are deleted (C20, C22)."""
    world = World(interval=10.0)
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await asyncio.sleep(35)
        assert [round(time) for time, _ in world.triggered] == [10, 20, 30]
        assert world.names("chk-") == ["chk-3/_metadata"]
        assert world.names("1-") == [name(3, A1), name(3, B1)]
        assert sorted(world.published) == [(a, n) for a in (A1, B1) for n in (1, 2, 3)]
        latest = coordinator.latest()
        assert latest is not None
        assert latest.checkpoint_id == 3
        statistics = coordinator.statistics()
        assert statistics.completed == 3
        assert statistics.latest_completed is not None
        assert statistics.latest_completed.path.endswith("/chk-3/_metadata")


async def test_a_checkpoint_that_overtakes_the_interval_delays_the_next_one() -> None:
    """One is in flight. The queued request begins when it has ended and min-pause has passed (C20)."""
    world = World(interval=10.0, min_pause=3.0)
    world.snapshot_takes[A] = 12.0
    async with world.coordinator:
        world.run(TASKS)
        await asyncio.sleep(41)
        assert [round(time) for time, _ in world.triggered] == [10, 25, 40]


async def test_a_checkpoint_expires_and_the_job_is_failed() -> None:
    """When a checkpoint expires, tasks are told, its files are deleted, and the callback runs once (C21, C23)."""
    world = World(interval=10.0, timeout=30.0)
    world.snapshot_takes[B] = None
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await asyncio.sleep(40.2)  # and the next one has begun
        assert [failure.cause for failure in world.failures] == [FailureCause.EXPIRED]
        assert sorted(world.aborted) == [(A1, 1), (B1, 1)]
        assert world.names("1-") == []
        assert coordinator.statistics().failed_by_cause == {FailureCause.EXPIRED: 1}


async def test_a_trigger_by_hand_returns_the_checkpoint_or_the_reason() -> None:
    """A request is answered when the checkpoint is in the store (C20)."""
    world = World()
    async with world.coordinator as coordinator:
        with pytest.raises(CheckpointRefused) as refused:
            await coordinator.trigger()
        assert refused.value.reason is Refusal.NOT_ALL_TASKS_RUNNING
        world.run(TASKS)
        assert (await coordinator.trigger()).checkpoint_id == 1
        world.snapshot_takes[A] = None
        waiting = asyncio.create_task(coordinator.trigger())
        await asyncio.sleep(1)
        coordinator.decline(A1, 2, StorageFull("no space").info())
        with pytest.raises(CheckpointFailed) as failed:
            await waiting
        assert failed.value.cause is FailureCause.STORAGE
        assert coordinator.statistics().refused == {Refusal.NOT_ALL_TASKS_RUNNING: 1}


async def test_a_task_that_cannot_be_told_is_told_again_until_it_confirms() -> None:
    """A notification is repeated until the task's sinks have committed. Until then the metadata stays (C22)."""
    world = World()
    async with world.coordinator as coordinator:
        world.run(TASKS)
        waiting = asyncio.create_task(coordinator.trigger())
        await asyncio.sleep(0.2)
        world.unreachable.add(B1)
        await waiting
        await asyncio.sleep(60)
        assert world.published == [(A1, 1)]
        world.unreachable.clear()
        await asyncio.sleep(15)
        assert world.published == [(A1, 1), (B1, 1)]


async def test_a_trigger_names_the_oldest_checkpoint_that_is_pending() -> None:
    """A task whose abort was lost then drops older checkpoints (C13)."""
    world = World(interval=10.0, timeout=15.0, max_concurrent=2, tolerable_failed=9)
    world.snapshot_takes[A] = None
    async with world.coordinator:
        world.run(TASKS)
        await asyncio.sleep(31)
    assert world.oldest == {1: 1, 2: 1, 3: 2}


async def test_a_final_checkpoint_returns_when_all_tasks_have_published_it() -> None:
    """A final checkpoint returns when all tasks have published it; that it is complete is not enough (C4)."""
    world = World(interval=10.0)
    async with world.coordinator as coordinator:
        world.run(TASKS)
        final = asyncio.create_task(coordinator.final_checkpoint())
        await asyncio.sleep(0.2)
        world.unreachable.add(B1)
        await asyncio.sleep(30)
        assert world.names("chk-") == ["chk-1/_metadata"]
        assert not final.done()
        world.unreachable.clear()
        await asyncio.wait_for(final, 15)
        assert len(world.triggered) == 1


async def test_a_final_checkpoint_ends_with_the_tasks() -> None:
    """A failover withdraws the request. The job repeats it when all input has ended again (C4)."""
    world = World()
    world.snapshot_takes[A] = None
    async with world.coordinator as coordinator:
        with pytest.raises(CheckpointFailed):
            await coordinator.final_checkpoint()
        world.run(TASKS)
        final = asyncio.create_task(coordinator.final_checkpoint())
        await asyncio.sleep(5)
        coordinator.tasks_stopped()
        with pytest.raises(CheckpointFailed) as failed:
            await final
        assert failed.value.cause is FailureCause.TASK_FAILURE


async def test_a_failover_goes_on_from_the_latest_checkpoint() -> None:
    """Pending checkpoints are aborted, and late acknowledgements of old attempts are refused (C21, C25)."""
    world = World()
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await coordinator.trigger()
        world.snapshot_takes[B] = None
        pending = asyncio.create_task(coordinator.trigger())
        await asyncio.sleep(1)
        coordinator.tasks_stopped()
        with pytest.raises(CheckpointFailed):
            await pending
        point = await coordinator.restore_point()
        assert point is not None
        assert point.checkpoint_id == 1
        with pytest.raises(CheckpointNotPending):
            coordinator.acknowledge(snapshot(2, B, B1))
        world.run({A: A2, B: B2})
        await asyncio.sleep(1)
        assert (B2, 1) not in world.published  # the restored attempt published it before it ran
        restored = coordinator.statistics().latest_restored
        assert restored is not None
        assert restored.checkpoint_id == 1


async def test_a_restore_waits_until_a_failed_write_is_certainly_undone() -> None:
    """Metadata with an unknown outcome is deleted first, however long the storage is away (C22)."""
    world = World(tolerable_failed=5)
    async with world.coordinator as coordinator:
        world.run(TASKS)
        world.storage.broken.add("_metadata")
        with pytest.raises(CheckpointFailed) as failed:
            await coordinator.trigger()
        assert failed.value.cause is FailureCause.FINALIZE_FAILURE
        coordinator.tasks_stopped()
        restore = asyncio.create_task(coordinator.restore_point())
        await asyncio.sleep(30)
        assert not restore.done()
        assert world.names("1-") != []
        world.storage.broken.clear()
        assert await asyncio.wait_for(restore, 15) is None
        await asyncio.sleep(1)
        assert world.names("1-") == []


async def test_a_storage_that_gives_no_id_is_a_failed_trigger() -> None:
    """Failed triggers are counted separately. The next one that succeeds resets the count (C23)."""
    world = World()
    async with world.coordinator as coordinator:
        world.run(TASKS)
        world.storage.broken.add("ids/")
        with pytest.raises(CheckpointFailed):
            await coordinator.trigger()
        assert coordinator.statistics().consecutive_trigger_failures == 1
        world.storage.broken.clear()
        await coordinator.trigger()
        assert coordinator.statistics().consecutive_trigger_failures == 0
        assert world.failures == []


async def test_a_new_coordinator_finds_what_the_old_one_left() -> None:
    """The state is in the storage, ids continue, and orphans of the old epoch are swept (C25)."""
    world = World()
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await coordinator.trigger()
    orphan = world.location.child(name(9, A1, epoch=0)).path
    world.storage.objects[orphan] = b"x"
    async with world.new_coordinator() as successor:
        world.coordinator = successor
        point = await successor.restore_point()
        assert point is not None
        assert point.checkpoint_id == 1
        world.run({A: A2, B: B2})
        statistics = successor.statistics()
        assert (statistics.completed, statistics.restored) == (1, 1)
        assert statistics.latest_completed is not None
        assert statistics.latest_completed.checkpoint_id == 1
        assert (await successor.trigger()).checkpoint_id > 9
        assert successor.statistics().completed == 2
        assert orphan not in world.storage.objects


@pytest.mark.parametrize("late", ["write", "discard"])
async def test_what_a_crashed_coordinator_has_begun_ends_before_its_successor_reads_the_store(late: str) -> None:
    """Otherwise a checkpoint could appear or disappear after the job has continued from another one (R13)."""
    world = World()
    with capture_logs():
        async with world.coordinator as coordinator:
            world.run(TASKS)
            await coordinator.trigger()
            world.storage.stalled.add("chk-2/" if late == "write" else "chk-1/")
            second = asyncio.create_task(coordinator.trigger())
            await asyncio.sleep(5)
            coordinator.crash(ValueError("a bug"))
        second.cancel()
        with pytest.raises(StorageUnavailable):
            await world.new_coordinator().start()
        successor = world.new_coordinator()
        starting = asyncio.create_task(successor.start())
        await asyncio.sleep(5)
        assert not starting.done()
        world.storage.stalled.clear()
        await starting
        latest = successor.latest()
        assert latest is not None
        assert latest.checkpoint_id == 2
        await asyncio.sleep(20)
        assert "chk-2/_metadata" in world.names("chk-")
        await successor.aclose()


async def test_closing_answers_everybody_who_waits() -> None:
    """Nothing hangs, and later messages do no harm (A1)."""
    world = World()
    world.snapshot_takes[A] = None
    async with world.coordinator as coordinator:
        world.run(TASKS)
        pending = asyncio.create_task(coordinator.trigger())
        queued = asyncio.create_task(coordinator.trigger())
        await asyncio.sleep(1)
    with pytest.raises(CheckpointFailed):
        await pending
    with pytest.raises(CheckpointRefused):
        await queued
    with pytest.raises(CheckpointNotPending):
        coordinator.acknowledge(snapshot(1, A, A1))
    assert len(coordinator.tasks) == 0


async def test_a_name_that_is_no_physical_file_is_refused() -> None:
    """A name that could lead elsewhere never becomes a deletion (F5)."""
    world = World()
    async with world.coordinator as coordinator:
        world.run(TASKS)
        with pytest.raises(InvalidPhysicalFile):
            coordinator.acknowledge(snapshot(1, A, A1, writes=("../x.seg",)))


async def test_checkpoints_that_take_longer_than_their_interval_are_warned_of() -> None:
    """The log says so once when it begins, the JSON with each such checkpoint.

    The warning ends when it is over (C42).
    """
    world = World(interval=2.0)
    world.snapshot_takes[B] = 5.0
    with capture_logs() as logs:
        async with world.coordinator as coordinator:
            world.run(TASKS)
            await asyncio.sleep(20)
            slow = coordinator.statistics()
            world.snapshot_takes[B] = 0.5
            await asyncio.sleep(10)
            quick = coordinator.statistics()
    assert slow.latest_completed is not None
    assert "it took 5.0 s, longer than the interval of 2 s" in slow.latest_completed.warning
    assert [log["event"] for log in logs].count("checkpoints take longer than their interval") == 1
    assert quick.latest_completed is not None
    assert quick.latest_completed.warning == ""
    assert slow.interval_ms == 2000
    assert quick.latest_completed.notify_ms >= 0


async def test_what_a_set_up_costs_that_fails_is_counted() -> None:
    """Failed triggers are counted in a row and among the failures by cause. A success ends the row (C23, C30)."""
    world = World(interval=10.0)
    world.storage.broken.add("/ids/")
    with capture_logs():
        async with world.coordinator as coordinator:
            world.run(TASKS)
            await asyncio.sleep(25)
            broken = coordinator.statistics()
            world.storage.broken.clear()
            await asyncio.sleep(10)
            repaired = coordinator.statistics()
    assert broken.failed == 2
    assert broken.failed_by_cause == {FailureCause.TRIGGER_FAILURE: 2}
    assert broken.consecutive_trigger_failures == 2
    assert repaired.consecutive_trigger_failures == 0
    assert world.failures == []


async def test_a_task_that_cannot_be_reached_hears_nothing_of_a_checkpoint_that_was_aborted_meanwhile() -> None:
    """If the trigger were repeated after the abort, the task would take a snapshot for nobody (C13)."""
    world = World()
    world.unreachable.add(A1)
    with capture_logs():
        async with world.coordinator as coordinator:
            world.run(TASKS)
            request = asyncio.create_task(coordinator.trigger())
            await asyncio.sleep(0.01)  # A has not answered the first trigger
            coordinator.decline(B1, 1, ErrorInfo(code="user-code", message="it broke"))
            world.unreachable.clear()
            with pytest.raises(CheckpointFailed):
                await request
            await asyncio.sleep(5)
    assert world.heard == [(B1, 1)]


class LaggingClock(SystemClock):
    """The clock of an event loop that was busy. `lag` seconds have passed that no timer has noticed."""

    lag = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.lag


async def test_a_trigger_that_becomes_due_while_the_loop_is_busy_is_not_lost() -> None:
    """A trigger may be due between an event and the next check of the timer; no other event would follow (C20, A4)."""
    world = World(interval=10.0)
    world.clock = clock = LaggingClock()
    world.coordinator = world.new_coordinator()
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await asyncio.sleep(9.99)
        coordinator.decline(A2, 1, ErrorInfo(code="user-code", message="of an old attempt"))
        clock.lag = 0.02
        await asyncio.sleep(30)
        assert len(world.triggered) == 3
