"""A Dispatcher keeps its promises wherever its process dies and whatever its storage refuses (R25, R26)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from minflinkd.dispatcher import dispatcher, job_results
from minflinkd.dispatcher.job_store import StoredResult
from minflinkd.jobmaster import restoring
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime import supervisor
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageUnavailable
from minflinkd_local import LocalStorage
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.dying_storage import DyingStorage
from tests.waiting import until

JOB = JobId("1" * 32)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetitions happen at once."""
    for module in (job_results, restoring, supervisor):
        monkeypatch.setattr(module, "FIRST_PAUSE", 0.005)
        monkeypatch.setattr(module, "LONGEST_PAUSE", 0.005)
    monkeypatch.setattr(dispatcher, "WITHDRAWAL_PATIENCE", 0.05)


class Client:
    """Submits a job and cancels it, and repeats what is not answered. It remembers what it was promised."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.accepted = False
        self.blobs_deleted: list[JobId] = []  # deleted before the cancellation was acknowledged
        self.tried_to_cancel = False
        self.cancelled = False

    async def go_on(self, *, while_: Callable[[], bool] = lambda: True) -> None:
        """Go on until the job has ended and nothing is left of it, or until `while_` returns False."""
        while while_() and not self.accepted:
            with contextlib.suppress(MinflinkError):
                self.accepted = (await self.cluster.submit(JOB)).faults == ()
                self.blobs_deleted = [*self.cluster.blobs.deleted]
            await asyncio.sleep(0)
        while while_() and not self.cancelled:
            self.cancelled = await self._cancel()
        await until(lambda: not while_() or _is_over(self.cluster))

    async def _cancel(self) -> bool:
        self.tried_to_cancel = True
        try:
            await self.cluster.cancel(JOB)
        except MinflinkError as error:
            return error.info().code == "conflict"  # an earlier request, whose answer was lost, has ended it
        return True


def _is_over(cluster: Cluster) -> bool:
    """Whether a clean result is all that is left."""
    if cluster.files() != [f"jobstore/results/{JOB}.json"]:
        return False
    file = cluster.directory / "jobstore" / "results" / f"{JOB}.json"
    return not json.loads(file.read_bytes())["dirty"]


Serve = Callable[[Client], Awaitable[None]]


async def run_through(cluster: Cluster, storage: FaultyStorage, number: int, serve: Serve) -> bool:
    """Run a job from submission to the end, with a fault at one request.

    Return False if there was no such request.
    """
    cluster.storages.add(storage)
    cluster.store = type(cluster.store)(cluster.storages.at(str(cluster.directory / "jobstore")))
    client = Client(cluster)
    with capture_logs():
        async with asyncio.timeout(20):
            await serve(client)
    assert _is_over(cluster)
    assert JOB in cluster.blobs.deleted
    assert JOB in cluster.ended
    return storage.requests >= number


def fresh(base: Cluster, number: int) -> Cluster:
    directory = base.directory / str(number)
    directory.mkdir()
    return Cluster(directory)


@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after the request"])
async def test_a_process_that_dies_anywhere_keeps_what_it_has_promised(cluster: Cluster, after: bool) -> None:
    """The test crashes the process at every storage request from a submission to the end of the cleanup (R25, R26).

    An accepted job is known to the next daemon, a cancelled job is not run again, and in the end nothing is left.
    """
    for number in range(1, 200):
        one = fresh(cluster, number)
        storage = DyingStorage(LocalStorage(), number, after=after)

        async def serve(client: Client, one: Cluster = one, storage: DyingStorage = storage) -> None:
            with contextlib.suppress(StorageUnavailable):  # the daemon dies while it starts
                async with one.serving():
                    await client.go_on(while_=lambda: not storage.dead)
            if not storage.dead:
                return
            storage.dead = False
            cancelled, declared = client.cancelled, len(one.declared)
            async with one.serving():
                if client.accepted:
                    assert JOB in await one.list()
                    assert client.tried_to_cancel or one.blobs.deleted == client.blobs_deleted
                await client.go_on()
            if cancelled:
                assert not any(declaration.needs for declaration in one.declared[declared:])

        if not await run_through(one, storage, number, serve):
            assert number > 15, "the fault points are not reached any more"
            return
    raise AssertionError("there is no end of requests")


@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after the request"])
async def test_a_storage_that_fails_anywhere_costs_a_repetition(cluster: Cluster, after: bool) -> None:
    """Each step is retried until it succeeds (R26)."""
    for number in range(1, 200):
        one = fresh(cluster, number)

        async def serve(client: Client, one: Cluster = one) -> None:
            while True:
                with contextlib.suppress(StorageUnavailable):  # a daemon that cannot start is started again
                    async with one.serving():
                        await client.go_on()
                        return

        if not await run_through(one, FaultyStorage(LocalStorage(), number, after=after), number, serve):
            assert number > 15, "the fault points are not reached any more"
            return
    raise AssertionError("there is no end of requests")


async def test_the_result_is_durable_before_anything_of_the_job_goes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stored, the job keeps its blobs, its slots and its place in the list (R26)."""
    release = asyncio.Event()
    put_result = cluster.store.put_result

    async def away(result: StoredResult) -> None:
        if not release.is_set():
            raise StorageUnavailable("the disk is away")
        await put_result(result)

    monkeypatch.setattr(cluster.store, "put_result", away)
    with capture_logs() as logs:
        async with cluster.serving():
            await cluster.submit(JOB)
            await cluster.cancel(JOB)
            await until(lambda: sum(line["event"] == "a step failed and is repeated" for line in logs) > 3)
            assert (cluster.blobs.deleted, cluster.ended) == ([], [])
            assert await cluster.list() == {JOB: JobStatus.CANCELED}
            release.set()
            await until(lambda: cluster.blobs.deleted)
            assert cluster.ended == [JOB]


async def test_slots_are_given_back_once_there_is_a_resource_manager_again(cluster: Cluster) -> None:
    """The ResourceManager is away while the job ends (R26, R12)."""
    async with cluster.serving():
        await cluster.submit(JOB)
        away = cluster.resource_manager
        cluster.network.detach(away)
        with capture_logs() as logs:
            await cluster.cancel(JOB)
            await until(lambda: any(f"slots of {JOB}" in str(line.get("step")) for line in logs))
            assert cluster.blobs.deleted == []
            cluster.network.attach(away)
            await until(lambda: cluster.blobs.deleted)
    assert cluster.ended == [JOB]


async def test_an_expired_result_goes_once_its_storage_lets_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are kept for `jobstore.expiration-time`.

    A deletion that fails is repeated, and harms no other result (R26).
    """
    other = JobId("2" * 32)
    monkeypatch.setattr(job_results, "EXPIRY_INTERVAL", 0.01)
    failures = iter([True] * 3)
    delete_result = cluster.store.delete_result

    async def away(job_id: JobId) -> None:
        if job_id == JOB and next(failures, False):
            raise StorageUnavailable("the disk is away")
        await delete_result(job_id)

    monkeypatch.setattr(cluster.store, "delete_result", away)
    async with cluster.serving() as serving:
        for job_id in (JOB, other):
            await cluster.submit(job_id)
            await cluster.cancel(job_id)
        await until(lambda: sorted(cluster.blobs.deleted) == [JOB, other])  # their cleanups run concurrently
        assert set(await cluster.list()) == {JOB, other}
        with capture_logs() as logs:
            serving.options = replace(serving.options, result_expiration=0.0)
            await until(lambda: not serving.details())
            assert sum(line["event"].startswith("a result has expired") for line in logs) == 3
        assert cluster.files() == []


async def test_of_many_results_the_newest_are_kept_also_by_a_daemon_that_starts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 of them once delayed a start by 27 s. The oldest are deleted afterwards (E45)."""
    monkeypatch.setattr(job_results, "EXPIRY_INTERVAL", 0.01)
    ids = [JobId(f"{n:032d}") for n in range(5)]
    async with cluster.serving():
        for job_id in ids:
            await cluster.submit(job_id)
            await cluster.cancel(job_id)
            await until(lambda job_id=job_id: job_id in cluster.blobs.deleted)  # type: ignore[misc]
        files = [cluster.directory / "jobstore" / "results" / f"{job_id}.json" for job_id in ids]
        await until(lambda: not any(json.loads(file.read_bytes())["dirty"] for file in files))
    for n, file in enumerate(files):
        os.utime(file, (1_700_000_000 + n, 1_700_000_000 + n))
    cluster.result_capacity = 3
    async with cluster.serving() as serving:
        assert set(await cluster.list()) >= set(ids[2:])
        await until(lambda: not any(file.exists() for file in files[:2]))
        # A file is gone a moment before the daemon, whose thread deleted it, hears of that.
        await until(lambda: {job.job_id for job in serving.details()} == set(ids[2:]), "the two to be forgotten")
        serving.options = replace(serving.options, result_capacity=1)
        await until(lambda: set(cluster.files()) == {f"jobstore/results/{ids[4]}.json"})


async def test_a_job_whose_record_outlived_its_result_is_not_run_again(cluster: Cluster) -> None:
    """The daemon crashed before it deleted the job's record. When the result expires, both are deleted (R26)."""
    async with cluster.serving():
        await cluster.submit(JOB)
        record = cluster.directory / "jobstore" / "jobs" / f"{JOB}.json"
        kept = record.read_bytes()
        await cluster.cancel(JOB)
        await until(lambda: _is_over(cluster))
    record.parent.mkdir(exist_ok=True)
    record.write_bytes(kept)
    async with cluster.serving():
        assert await cluster.list() == {JOB: JobStatus.CANCELED}
    await cluster.store.delete_result(JOB)
    assert cluster.files() == []


async def test_a_result_that_cannot_be_read_is_shown_with_its_error_and_its_job_does_not_run_again(
    cluster: Cluster,
) -> None:
    """Other results are usable all the same, and no file of the job is touched (R27)."""
    async with cluster.serving():
        await cluster.submit(JOB)
        await cluster.cancel(JOB)
        await until(lambda: _is_over(cluster))
    result = cluster.directory / "jobstore" / "results" / f"{JOB}.json"
    result.write_text("{")
    with capture_logs():
        async with cluster.serving():
            assert await cluster.list() == {JOB: JobStatus.INITIALIZING}
            (failure,) = (await cluster.job(JOB)).failures
            assert (failure.error.code, f"results/{JOB}.json" in failure.error.message) == ("unreadable-job", True)
            await cluster.submit(JOB)
            assert cluster.files() == [f"jobstore/results/{JOB}.json"]
    assert result.read_text() == "{"
