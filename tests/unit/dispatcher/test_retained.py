"""Retained checkpoints of a job that ends while older ones are still to be deleted (C24, R26)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import layout
from minflinkd.dispatcher import job_results
from minflinkd.jobmaster import restoring
from minflinkd.jobmaster.restoring import Restoring
from minflinkd.jobmaster.savepoints import Savepoints
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime import supervisor
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageUnavailable
from minflinkd_local import LocalStorage
from tests.unit.checkpoint.builders import A1, name
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster
from tests.unit.dispatcher.dying_storage import DyingStorage
from tests.waiting import until

JOB = JobId("1" * 32)
SHARED = name(3, A1)  # written for an earlier checkpoint; 4 and 5 refer to it


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetitions happen at once."""
    for module in (job_results, restoring, supervisor):
        monkeypatch.setattr(module, "FIRST_PAUSE", 0.005)
        monkeypatch.setattr(module, "LONGEST_PAUSE", 0.005)


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    return without_attempts(cluster)


def without_attempts(cluster: Cluster) -> Cluster:
    """Wait for no attempts of the job's earlier JobMasters: there are none."""
    cluster.heartbeat_timeout = cluster.cancellation_timeout = 0.01
    return cluster


class Unsettled(MinflinkError):
    """The sinks cannot be settled, and no repetition helps."""

    code = "unsettled"
    consequence = Consequence.FATAL


def checkpoints(cluster: Cluster) -> StoredCheckpoints:
    """Store the checkpoints 4 and 5. They are all that the job's JobMaster will find, and neither is published."""
    stored = StoredCheckpoints(cluster.directory / "checkpoints" / JOB, JOB)
    stored.put(SHARED)
    for number in (4, 5):
        stored.checkpoint(number, reuses=[SHARED])
    stored.put(name(6, A1))  # of a checkpoint that was not completed
    return stored


def of_checkpoints(stored: StoredCheckpoints) -> set[str]:
    """Return the files that belong to checkpoints, without what is recorded of the job beside them."""
    return {file for file in stored.files() if layout.is_metadata_file(file) or layout.is_physical_file(file)}


BOTH = {SHARED, name(4, A1), name(5, A1), name(6, A1), layout.metadata_file(4), layout.metadata_file(5)}
LATEST = {SHARED, name(5, A1), layout.metadata_file(5)}


async def submit(cluster: Cluster, **checkpointing: Any) -> None:
    await cluster.submit(JOB, {**DOCUMENT, "checkpointing": {"externalized": "retain", **checkpointing}})


def is_clean(cluster: Cluster) -> bool:
    file = cluster.directory / "jobstore" / "results" / f"{JOB}.json"
    return file.exists() and not json.loads(file.read_bytes())["dirty"]


async def cancelled(cluster: Cluster, **checkpointing: Any) -> StoredCheckpoints:
    """Cancel a job with stored checkpoints, and return them when its end has been cleaned up."""
    stored = checkpoints(cluster)
    async with cluster.serving():
        await submit(cluster, **checkpointing)
        await cluster.cancel(JOB)
        await until(lambda: is_clean(cluster))
    return stored


async def test_an_older_checkpoint_goes_when_the_job_is_cancelled_before_it_was_deleted(cluster: Cluster) -> None:
    """The last `num-retained` stay, whole. No coordinator follows that could delete the others (C24)."""
    assert of_checkpoints(await cancelled(cluster)) == LATEST


async def test_as_many_checkpoints_stay_as_the_job_retains(cluster: Cluster) -> None:
    """`num-retained` of the job file counts (C24)."""
    assert of_checkpoints(await cancelled(cluster, **{"num-retained": 2})) == BOTH - {name(6, A1)}


async def test_all_checkpoints_stay_if_the_sinks_could_not_be_settled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person may need any of them to do it by hand (R26)."""

    async def settle(_: Restoring) -> None:
        raise Unsettled("not now, not ever")

    monkeypatch.setattr(Restoring, "settle", settle)
    with capture_logs():
        assert of_checkpoints(await cancelled(cluster)) == BOTH


async def test_a_checkpoint_stays_for_as_long_as_a_savepoint_is_made_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is cancelled while the savepoint is being copied (C24)."""
    copied = asyncio.Event()

    async def ended(_: Savepoints) -> None:
        await copied.wait()

    monkeypatch.setattr(Savepoints, "ended", ended)
    stored = checkpoints(cluster)
    async with cluster.serving():
        await submit(cluster)
        await cluster.cancel(JOB)
        await until(lambda: cluster.ended)  # the slots are free
        assert of_checkpoints(stored) == BOTH
        copied.set()
        await until(lambda: is_clean(cluster))
    assert of_checkpoints(stored) == LATEST


async def test_a_storage_that_is_away_for_long_costs_only_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator cannot delete, nor can the cleanup at first. It goes on when the storage is back (R26)."""
    away, asked = True, 0
    delete = LocalStorage.delete

    async def failing(self: LocalStorage, paths: Sequence[str], *, below: str | None = None) -> None:
        nonlocal asked
        if away and any("/chk-" in path for path in paths):
            asked += 1
            raise StorageUnavailable("the disk is away")
        await delete(self, paths, below=below)

    monkeypatch.setattr(LocalStorage, "delete", failing)
    stored = checkpoints(cluster)
    with capture_logs():
        cluster.storages.add(LocalStorage())  # without retries of its own
        async with cluster.serving():
            await submit(cluster)
            await cluster.cancel(JOB)
            await until(lambda: asked > 3)
            assert of_checkpoints(stored) >= LATEST
            assert (await cluster.list())[JOB] is JobStatus.CANCELED
            away = False
            await until(lambda: is_clean(cluster))
    assert of_checkpoints(stored) == LATEST


@pytest.mark.parametrize("after", [False, True], ids=["before the request", "after the request"])
async def test_a_daemon_that_dies_anywhere_in_the_cleanup_is_followed_by_one_that_finishes_it(
    cluster: Cluster, after: bool
) -> None:
    """The test kills the daemon at every storage request from the cancellation on (R26).

    At no time is a file of the retained checkpoint missing. In the end nothing else is left.
    """
    for number in range(1, 200):
        directory = cluster.directory / str(number)
        directory.mkdir()
        one = without_attempts(Cluster(directory))
        stored = checkpoints(one)
        async with one.serving():
            await submit(one)
        storage = DyingStorage(LocalStorage(), number, after=after)
        one.storages.add(storage)
        one.store = type(one.store)(one.storages.at(str(directory / "jobstore")))
        with capture_logs():
            for _ in range(2):
                with contextlib.suppress(StorageUnavailable):  # it dies while it starts
                    async with one.serving():
                        await _cancel(one, storage)
                assert of_checkpoints(stored) >= LATEST
                storage.dead = False
        assert of_checkpoints(stored) == LATEST
        if storage.requests < number:
            assert number > 15, "the fault points are not reached any more"
            return
    raise AssertionError("there is no end of requests")


async def _cancel(cluster: Cluster, storage: DyingStorage) -> None:
    with contextlib.suppress(MinflinkError):  # an earlier request may have ended it, and its answer was lost
        await cluster.cancel(JOB)
    await until(lambda: storage.dead or is_clean(cluster))


async def test_the_record_of_an_ended_job_says_which_checkpoints_stay(cluster: Cluster) -> None:
    """It is decided once, before anything goes, so that every daemon decides alike (C24, R26)."""
    await cancelled(cluster)
    file = cluster.directory / "jobstore" / "results" / f"{JOB}.json"
    assert json.loads(file.read_bytes())["kept"] == [5]
