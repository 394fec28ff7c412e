"""JobMasters come and go. The Dispatcher keeps one up for every job, and other jobs do not notice (A1, R13, R27)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import turn
from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.dispatcher import dispatcher, job_master_factory
from minflinkd.dispatcher.dispatcher import Dispatcher
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId, LeaderId
from minflinkd.storage.interface import StorageCorrupt, StorageError, StorageUnavailable
from minflinkd.storage.location import Location
from tests.unit.dispatcher.conftest import Cluster
from tests.waiting import until

JOB, OTHER = JobId("1" * 32), JobId("2" * 32)
PATIENT = 60.0  # seconds of `heartbeat_timeout`: JobMasters still wait for TaskManagers when the test looks
BUG = ValueError("slot 3 is held twice")

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def masters(monkeypatch: pytest.MonkeyPatch) -> list[JobMaster]:
    """All JobMasters that were started, in order."""
    started: list[JobMaster] = []
    start = JobMaster._start

    async def recorded(self: JobMaster) -> None:
        await start(self)
        started.append(self)

    monkeypatch.setattr(JobMaster, "_start", recorded)
    return started


class Checkpoints:
    """Jobs with unreadable checkpoints, and the error of each."""

    def __init__(self) -> None:
        self.errors: dict[JobId, StorageError] = {}


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> Checkpoints:
    broken, recover = Checkpoints(), CheckpointStore.recover

    async def failing(store: CheckpointStore) -> Any:
        for job_id, error in broken.errors.items():
            if job_id in store.path_of(1):
                raise error
        return await recover(store)

    monkeypatch.setattr(CheckpointStore, "recover", failing)
    return broken


def leaders(cluster: Cluster, job_id: JobId) -> list[LeaderId]:
    """Return the leaders that declared needs of the job, in the order of their first declarations."""
    return list(dict.fromkeys(d.leader_id for d in cluster.declared if d.job_id == job_id))


# --- crashes -----------------------------------------------------------------------------------------------------


async def test_a_crashed_job_master_is_followed_by_a_later_leader_and_nobody_else_notices(
    cluster: Cluster, masters: list[JobMaster]
) -> None:
    """The slots of a crashed JobMaster are not given back, because its successor needs them (R13)."""
    async with cluster.serving():
        for job_id in (JOB, OTHER):
            await cluster.submit(job_id)
        first, other = masters
        with capture_logs():
            first.crash(BUG)
            await until(lambda: len(leaders(cluster, JOB)) == 2)
        assert masters == [first, other, masters[2]]
        earlier, later = leaders(cluster, JOB)
        assert (earlier, later > earlier) == (first.leader_id, True)
        assert leaders(cluster, OTHER) == [other.leader_id]
        await until(lambda: cluster.lists({JOB: JobStatus.CREATED, OTHER: JobStatus.CREATED}))
        assert (cluster.ended, cluster.freed, cluster.blobs.deleted) == ([], [], [])


async def test_a_job_whose_master_keeps_crashing_is_listed_with_the_error_and_can_be_cancelled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other jobs come and go as ever. When it is cancelled it ends, and its checkpoints are kept (R27)."""
    start = JobMaster._start

    async def crashing(self: JobMaster) -> None:
        await start(self)
        if self.job_id == JOB:
            raise self.crash(BUG)

    async with cluster.serving():
        await cluster.submit(JOB)
        state = cluster.directory / "checkpoints" / JOB / "state"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text("")
    monkeypatch.setattr(JobMaster, "_start", crashing)
    with capture_logs():
        async with cluster.serving():
            await cluster.submit(OTHER)
            await until(lambda: cluster.lists({JOB: JobStatus.INITIALIZING, OTHER: JobStatus.CREATED}))
            (failure,) = (await cluster.job(JOB)).failures
            assert (failure.error.code, str(BUG) in failure.error.message) == ("jobmaster-down", True)
            await cluster.cancel(JOB)
            await until(lambda: JOB in cluster.blobs.deleted)
            ended = await cluster.job(JOB)
            assert (ended.status, ended.sinks_settled, len(ended.failures)) == (JobStatus.CANCELED, False, 1)
            assert (await cluster.job(OTHER)).status is JobStatus.CREATED
    assert state.exists()


async def test_a_job_master_waits_for_what_its_predecessor_has_begun_in_the_storage(
    cluster: Cluster, masters: list[JobMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that discards metadata cannot be stopped. Other jobs do not wait for it (R13)."""
    begun, go = asyncio.Event(), asyncio.Event()
    delete = Location.delete_children

    async def slow(location: Location, names: Any) -> None:
        begun.set()
        await go.wait()
        await delete(location, names)

    monkeypatch.setattr(turn, "PATIENCE", 0.05)
    async with cluster.serving():
        await cluster.submit(JOB)
        monkeypatch.setattr(Location, "delete_children", slow)
        first = masters[0]
        with capture_logs():
            first.tasks.job("discard", first.coordinator._store.discard(1))
            await begun.wait()
            first.crash(BUG)
            await cluster.submit(OTHER)

            async def waits() -> bool:
                return "an earlier request" in (await cluster.job(JOB)).failures[0].error.message

            await until(waits)
            assert [master.job_id for master in masters] == [JOB, OTHER]
            go.set()
            await until(lambda: len(masters) == 3)


async def test_the_crash_of_a_jobs_checkpoint_coordinator_is_that_of_its_master(
    cluster: Cluster, masters: list[JobMaster]
) -> None:
    """No part of a JobMaster goes on alone (A1)."""
    async with cluster.serving():
        await cluster.submit(JOB)
        with capture_logs():
            masters[0].coordinator.crash(BUG)
            await until(lambda: len(masters) == 2)
        assert masters[0].crash_cause is BUG


async def test_a_job_that_crashes_while_it_is_cancelled_ends_cancelled(
    cluster: Cluster, masters: list[JobMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next JobMaster asks for no slots. It settles the sinks, and the result is stored (R26)."""
    async with cluster.serving():
        await cluster.submit(JOB)

        def broken(self: JobMaster) -> None:
            monkeypatch.undo()
            raise self.crash(BUG)

        monkeypatch.setattr(JobMaster, "cancel", broken)
        with capture_logs():
            await cluster.cancel(JOB)
            await until(lambda: cluster.ended)
        assert (await cluster.job(JOB)).status is JobStatus.CANCELED
        last = leaders(cluster, JOB)[-1]
        assert last > masters[0].leader_id
        assert not any(d.needs for d in cluster.declared if d.leader_id == last)


async def test_a_job_that_cannot_be_shown_does_not_hide_the_others(
    cluster: Cluster, masters: list[JobMaster], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.serving():
        for job_id in (JOB, OTHER):
            await cluster.submit(job_id)

        def broken() -> None:
            raise BUG

        monkeypatch.setattr(masters[0], "details", broken)
        masters[0].on_change()
        with capture_logs():
            await until(lambda: cluster.lists({JOB: JobStatus.INITIALIZING, OTHER: JobStatus.CREATED}))


# --- jobs that do not come up ------------------------------------------------------------------------------------


async def test_a_cancelled_job_that_cannot_be_recovered_ends_once_its_storage_is_back(
    cluster: Cluster, checkpoints: Checkpoints
) -> None:
    """The cancellation is durable at once. The sinks are settled when the storage is back (R27)."""
    async with cluster.serving():
        await cluster.submit(JOB)
    checkpoints.errors[JOB] = StorageUnavailable("the disk is away")
    with capture_logs():
        async with cluster.serving():
            for _ in range(2):
                await cluster.cancel(JOB)
            assert await cluster.list() == {JOB: JobStatus.INITIALIZING}
        checkpoints.errors.clear()
        async with cluster.serving():
            await until(lambda: cluster.ended == [JOB])
            ended = await cluster.job(JOB)
            assert (ended.status, ended.sinks_settled) == (JobStatus.CANCELED, True)


async def test_a_cancelled_job_whose_checkpoints_are_corrupt_ends_and_they_are_kept(
    cluster: Cluster, checkpoints: Checkpoints
) -> None:
    """Nobody can settle its sinks. The files with which a person could are kept as long as the result (R27)."""
    async with cluster.serving():
        await cluster.submit(JOB)
    checkpoints.errors[JOB] = StorageCorrupt("file: broken")
    with capture_logs():
        async with cluster.serving():
            await cluster.cancel(JOB)
            await until(lambda: cluster.ended == [JOB])
            ended = await cluster.job(JOB)
            assert (ended.status, ended.sinks_settled) == (JobStatus.CANCELED, False)
            assert "file: broken" in ended.failures[0].error.message
            with pytest.raises(RemoteError, match="is CANCELED already"):
                await cluster.cancel(JOB)


# --- many at a time ----------------------------------------------------------------------------------------------


async def many(cluster: Cluster, count: int) -> list[JobId]:
    jobs = [JobId(f"{number:032x}") for number in range(count)]
    async with cluster.serving():
        await asyncio.gather(*(cluster.submit(job_id) for job_id in jobs))
    return jobs


async def test_jobs_are_recovered_side_by_side_but_not_all_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Livy showed why: without a limit, a restart begins with an overload."""
    cluster.heartbeat_timeout = PATIENT
    jobs = await many(cluster, 3 * job_master_factory.STARTS)
    now, most = 0, 0
    recover = CheckpointStore.recover

    async def counted(store: CheckpointStore) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await recover(store)
        finally:
            now -= 1

    monkeypatch.setattr(CheckpointStore, "recover", counted)
    async with cluster.serving():
        assert await cluster.list() == dict.fromkeys(jobs, JobStatus.RECONCILING)
    assert most == job_master_factory.STARTS


async def test_a_recovery_that_hangs_holds_neither_the_start_nor_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery that hangs delays neither the daemon's start nor other recoveries (A5, R27)."""
    cluster.heartbeat_timeout = PATIENT
    first, *others = await many(cluster, 4)
    recover = CheckpointStore.recover

    async def hanging(store: CheckpointStore) -> Any:
        if first in store.path_of(1):
            await asyncio.Event().wait()
        return await recover(store)

    monkeypatch.setattr(CheckpointStore, "recover", hanging)
    monkeypatch.setattr(dispatcher, "RECOVERY_PATIENCE", 0.2)
    with capture_logs():
        async with cluster.serving():
            wanted = {first: JobStatus.INITIALIZING, **dict.fromkeys(others, JobStatus.RECONCILING)}
            await until(lambda: cluster.lists(wanted))
            await cluster.cancel(first)


async def test_job_masters_are_closed_side_by_side(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for storage at its end, and a hundred must not wait for one another."""
    closing = asyncio.Barrier(5)
    aclose = CheckpointCoordinator.aclose

    async def together(self: CheckpointCoordinator) -> None:
        await closing.wait()
        await aclose(self)

    jobs = [JobId(f"{number:032x}") for number in range(5)]
    serving: Dispatcher = cluster.dispatcher()
    await serving.start()
    for job_id in jobs:
        await cluster.submit(job_id)
    monkeypatch.setattr(CheckpointCoordinator, "aclose", together)
    async with asyncio.timeout(5):
        await serving.aclose()


async def test_a_dispatcher_that_stops_while_a_job_ends_waits_for_the_job_master_that_is_closed_already(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's storages are closed only after its JobMaster (A1)."""
    begun, may_end, ends = asyncio.Event(), asyncio.Event(), []
    aclose = CheckpointCoordinator.aclose

    async def slow(self: CheckpointCoordinator) -> None:
        begun.set()
        await may_end.wait()
        await aclose(self)
        ends.append("JobMaster")

    monkeypatch.setattr(CheckpointCoordinator, "aclose", slow)
    serving = cluster.dispatcher()
    await serving.start()
    await cluster.submit(JOB)
    await cluster.cancel(JOB)
    async with asyncio.timeout(10):
        await begun.wait()
        stopping = asyncio.create_task(serving.aclose())
        stopping.add_done_callback(lambda _: ends.append("Dispatcher"))
        await asyncio.wait({stopping}, timeout=0.05)
        assert ends == []
        may_end.set()
        await stopping
    assert ends == ["JobMaster", "Dispatcher"]
