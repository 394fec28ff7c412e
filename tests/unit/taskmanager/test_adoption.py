"""A task executor whose JobMaster is replaced: what it offers, and who hears of its tasks from then on (A14)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace as copy

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Fenced, task_manager
from minflinkd.rpc.snapshot import RowCounts, TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, LeaderId
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.child import protocol as sp
from tests.unit.taskmanager.snapshot_world import ATTEMPT as SNAPSHOT_ATTEMPT
from tests.unit.taskmanager.snapshot_world import running as snapshots_running
from tests.unit.taskmanager.snapshot_world import state
from tests.unit.taskmanager.task_executor_world import ATTEMPT, CONTEXT, DEPLOY, JM, JOB, RM, TM, World, X, running
from tests.waiting import until

pytestmark = pytest.mark.looptime

NEXT = LeaderId("jm2")  # later than JM
BASE = RowCounts(read={"a": 5})
BOOM = ErrorInfo(code="user-code", message="boom")


async def replace_leader(world: World) -> None:
    """Tell the TaskManager of a later JobMaster. The world answers its offers too."""
    changed = m.JobMasterChanged(job_id=JOB, leader_id=NEXT)
    world.wire.party("daemon").tell(f"taskmanager/{TM}", changed, fence=RM)  # type: ignore[arg-type]
    await asyncio.sleep(1.0)


async def test_a_new_jobmaster_is_offered_the_tasks_that_run(tmp_path: Path) -> None:
    """With all that it needs to decide whether it adopts them (A14a)."""
    offers: list[m.OfferSlots] = []

    async def accepts(request: m.OfferSlots) -> m.OffersAccepted:
        offers.append(request)
        return m.OffersAccepted(accepted=(X,))

    async with running(tmp_path) as world:
        world.accepts = accepts
        await world.allocate()
        await world.ask(copy(DEPLOY, job=copy(CONTEXT, version="v7"), base=BASE, attempt_number=3))
        await asyncio.sleep(1.0)
        assert offers.pop().tasks == ()
        await replace_leader(world)
        (task,) = offers.pop().tasks
        assert (task.status.attempt_id, task.status.state) == (ATTEMPT, m.TaskState.RUNNING)
        assert (task.version, task.base, task.allocation_id) == ("v7", BASE, X)
        assert (task.deployed_by, task.attempt_number) == (JM, 3)
        assert world.session.asked == ["RunTask"]


async def test_a_task_that_ends_is_not_offered(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        world.session.stop_takes = 20.0
        ending = asyncio.create_task(world.ask(m.CancelTask(job_id=JOB, attempt_id=ATTEMPT), timeout=60.0))
        await asyncio.sleep(1.0)
        (offer,) = world.executor.core.slots.table.offers(JOB)
        assert world.executor._offered((offer,)) == ()
        await ending


async def failed_unheard(world: World, *, after: float = 10.0) -> None:
    """Run a task that fails when its JobMaster has been silent for a while."""
    await world.allocate()
    await world.ask(DEPLOY)
    await asyncio.sleep(after)
    world.wire.faults.drop_if = lambda source, target, message: isinstance(message, m.TaskStateChanged)
    world.executor.task_failed(1, sp.TaskFailed(attempt_id=ATTEMPT, error=BOOM))
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("after", [1.0, 10.0], ids=["before its silence is noticed", "after that"])
@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["while it is being told", "after it was told in vain"])
async def test_a_failure_that_no_jobmaster_has_heard_of_is_offered_to_the_next_one(
    tmp_path: Path, seconds: float, after: float
) -> None:
    """It is the job's failure, and not a task that is missing (A14a). A cancellation says that it is known.

    The outage may be longer than `jobmanager.slot-hold-timeout`, however early in it the task fails.
    """
    offers: list[m.OfferSlots] = []

    async def accepts(request: m.OfferSlots) -> m.OffersAccepted:
        offers.append(request)
        return m.OffersAccepted(accepted=(X,))

    async with running(tmp_path) as world:
        world.accepts = accepts
        await failed_unheard(world, after=after)
        await asyncio.sleep(seconds)
        await replace_leader(world)
        (task,) = offers.pop().tasks
        assert (task.status.attempt_id, task.status.state, task.status.error) == (ATTEMPT, m.TaskState.FAILED, BOOM)
        cancel = m.CancelTask(job_id=JOB, attempt_id=ATTEMPT)
        await world.wire.party("daemon").ask(task_manager(TM), cancel, timeout=5.0, fence=NEXT)
        await asyncio.sleep(20.0)
        assert world.executor.attempts == {}


async def test_a_failure_is_forgotten_when_the_task_is_deployed_again(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await failed_unheard(world)
        await asyncio.sleep(60.0)
        assert list(world.executor.attempts) == [ATTEMPT]
        await world.beat(X)
        await asyncio.sleep(1.0)
        await world.ask(copy(DEPLOY, attempt_id=AttemptId("3" * 32), attempt_number=1))
        assert list(world.executor.attempts) == [AttemptId("3" * 32)]


async def test_a_failure_that_nobody_asks_for_is_forgotten_with_its_job(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await failed_unheard(world)
        await asyncio.sleep(700.0)
        assert world.executor.attempts == {}


async def test_an_adopted_task_tells_its_new_jobmaster_how_it_is_and_the_old_one_nothing(tmp_path: Path) -> None:
    """The news that reached nobody in between are told again (J7)."""
    async with running(tmp_path) as world:
        await world.allocate()
        await world.ask(DEPLOY)
        await asyncio.sleep(1.0)
        world.statuses.clear()
        await replace_leader(world)
        assert world.executor.attempts[ATTEMPT].leader == NEXT
        assert world.statuses == [m.TaskState.RUNNING]
        with pytest.raises(Fenced):
            await world.beat(X)


@pytest.mark.parametrize(("root", "restored"), [("", 4), ("file:///elsewhere", 0)])
def test_a_task_says_which_checkpoint_of_its_own_job_it_began_from(root: str, restored: int) -> None:
    """Another job's checkpoints have numbers of their own."""
    snapshot = TaskSnapshot(
        task_id=DEPLOY.task.id,
        attempt_id=ATTEMPT,
        resource_id=TM,
        checkpoint_id=4,
        batch_id=1,
        files=(),
        physical_files=(),
        bytes_full=0,
        bytes_uploaded=0,
        sync_ms=0.0,
        async_ms=0.0,
    )
    restore = m.TaskRestore(checkpoint_id=4, snapshot=snapshot, root=root)
    attempt = Attempt.of(copy(DEPLOY, restore=restore), Path("/nowhere"), 1)
    assert attempt.offered(()).restored == restored


async def test_checkpoints_whose_end_a_task_was_not_told_are_offered_with_it(tmp_path: Path) -> None:
    """Those being taken, and those acknowledged. What it has published is over (A14a)."""
    async with snapshots_running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        await world.take(1)
        await world.complete(1)
        await world.take(2)
        world.session.busy = True
        world.trigger(3)
        taking = world.snapshots.taking(world.attempt)
        assert taking == {3}
        assert world.attempt.offered(taking).pending == (2, 3)
        await world.abort(3)
        assert world.attempt.offered(world.snapshots.taking(world.attempt)).pending == (2,)


async def test_an_abort_after_the_acknowledgement_lets_the_task_go_on(tmp_path: Path) -> None:
    """It may have stopped at the cut, and the coordinator that would have let it go on is gone (A14a)."""
    async with snapshots_running(tmp_path) as world:
        world.session.files = {state(1): b"one"}
        world.trigger(1, stop=True)
        await until(lambda: not world.snapshots.taking(world.attempt))
        assert world.attempt.stops_at == 1
        world.session.asked.clear()
        await world.abort(1)
        assert [(type(r).__name__, r.attempt_id) for r in world.session.asked] == [("AbortSnapshot", SNAPSHOT_ATTEMPT)]
        assert world.attempt.stops_at == 0
