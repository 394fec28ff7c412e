"""Savepoints, stops and checkpoints that one daemon was asked for, and the next one is asked about (A14c, C24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minflinkd.checkpoint import layout
from minflinkd.dispatcher import job_results
from minflinkd.dispatcher.job_store import KEPT_OUTCOMES, Asked, StoredOutcome, StoredTrigger
from minflinkd.jobmaster.savepoints import Savepoints, names_of_tries
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import RemoteError
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.storage.location import Location
from tests.unit.dispatcher.conftest import Cluster
from tests.unit.dispatcher.versions_world import JOB, Runner, a_runner, job_running, runs, seen
from tests.waiting import until

TRIGGER = "1" * 32
TAKE = j.TriggerSavepoint(job_id=JOB, trigger_id=TRIGGER)
STOP = j.TriggerSavepoint(job_id=JOB, trigger_id=TRIGGER, stop=True)


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        yield one


async def ask(cluster: Cluster, request: Any) -> Any:
    return await cluster.network.ask(DISPATCHER, request, timeout=5)


async def status(cluster: Cluster, trigger_id: str = TRIGGER) -> j.OperationStatus:
    found: j.OperationStatus = await ask(cluster, j.GetSavepoint(job_id=JOB, trigger_id=trigger_id))
    return found


async def over(cluster: Cluster) -> j.OperationStatus:
    async def ended() -> j.OperationStatus | None:
        found = await status(cluster)
        return found if found.done else None

    return await until(ended, "the operation is over")


def savepoints(cluster: Cluster) -> list[str]:
    """Return the directories of all savepoints that are complete."""
    found = (cluster.directory / "savepoints").glob(f"*/{layout.METADATA}")
    return sorted(path.parent.as_uri() for path in found)


def hangs(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> asyncio.Event:
    """Let this function wait for ever, as if the daemon died there. The event says that it was called."""
    reached = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(owner, name, hang)
    return reached


async def test_what_became_of_a_savepoint_is_known_to_the_next_daemon(cluster: Cluster, runner: Runner) -> None:
    """A client that asks again, or triggers again, hears the same as before. Nothing is begun twice (A14c, C24)."""
    async with job_running(cluster, runner):
        await ask(cluster, TAKE)
        told = await over(cluster)
        assert [told.location] == savepoints(cluster)
    async with cluster.serving():
        assert await status(cluster) == told
        await ask(cluster, TAKE)
        await seen(cluster, lambda job: job.status is JobStatus.RUNNING)
        await ask(cluster, TAKE)
        assert await status(cluster) == told
        assert savepoints(cluster) == [told.location]


async def test_a_savepoint_that_was_under_way_has_failed_under_the_next_daemon(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client learns why, and what to do. The same trigger does not begin it again (A14c)."""
    with monkeypatch.context() as patch:
        reached = hangs(patch, Savepoints, "take")
        async with job_running(cluster, runner):
            await ask(cluster, TAKE)
            await reached.wait()
    async with cluster.serving():
        found = await over(cluster)
        assert found.error is not None
        assert found.error.code == "operation-lost"
        assert str(found.error).endswith(
            "before the savepoint was complete (the job keeps running; send a new request)"
        )
        await seen(cluster, runs(runner, "1"))
        await ask(cluster, TAKE)
        assert await status(cluster) == found
        assert savepoints(cluster) == []
        await ask(cluster, j.TriggerSavepoint(job_id=JOB, trigger_id="2" * 32))
        await until(lambda: savepoints(cluster), "another trigger takes one")


async def test_a_savepoint_that_was_complete_when_its_daemon_was_lost_counts(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next daemon knows from the request where to look. Until the outcome is stored, nobody was told (A14c)."""
    with monkeypatch.context() as patch:
        reached = hangs(patch, cluster.store, "put_outcome")
        async with job_running(cluster, runner):
            await ask(cluster, TAKE)
            await reached.wait()
            assert not (await status(cluster)).done
    (made,) = savepoints(cluster)
    async with cluster.serving():
        assert await over(cluster) == j.OperationStatus(done=True, location=made)
    async with cluster.serving():
        assert await status(cluster) == j.OperationStatus(done=True, location=made)


async def test_a_stop_whose_job_had_ended_when_its_daemon_was_lost_has_succeeded(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is triggered again now: a job that has ended is no conflict for the request that ended it (A14c)."""
    with monkeypatch.context() as patch:
        reached = hangs(patch, cluster.store, "put_outcome")
        async with job_running(cluster, runner):
            await ask(cluster, STOP)
            await reached.wait()
    async with cluster.serving():
        await ask(cluster, STOP)
        assert [(await over(cluster)).location] == savepoints(cluster)


async def test_a_stop_is_no_conflict_when_it_is_triggered_again_after_the_end(cluster: Cluster, runner: Runner) -> None:
    """Its first answer may have been lost (C24)."""
    async with job_running(cluster, runner):
        await ask(cluster, STOP)
        told = await over(cluster)
        await ask(cluster, STOP)
        assert await status(cluster) == told
        with pytest.raises(RemoteError, match="already"):
            await ask(cluster, j.TriggerSavepoint(job_id=JOB, trigger_id="2" * 32, stop=True))


async def test_a_stop_whose_job_goes_on_under_the_next_daemon_has_failed_and_names_the_savepoint(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is not stopped a second time, by a request whose client may be gone (A14c, C24)."""
    with monkeypatch.context() as patch:
        reached = hangs(patch, cluster.store, "put_result")
        async with job_running(cluster, runner):
            await ask(cluster, STOP)
            await reached.wait()
    async with cluster.serving():
        found = await over(cluster)
        (made,) = savepoints(cluster)
        assert found.error is not None
        assert (found.error.code, made in found.error.message) == ("stop-failed", True)
        assert found.error.hint == "the job keeps running; send a new request"
        await seen(cluster, runs(runner, "1"))


@pytest.mark.parametrize("tries", [0, 1])
async def test_a_drain_is_found_under_the_name_of_the_try_that_succeeded(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """Each try has a directory of its own (A14c, C24)."""
    write, tried = Savepoints._write, []

    async def fails_at_first(self: Savepoints, checkpoint: Any, directory: Location, name: str) -> str:
        tried.append(name)
        if len(tried) <= tries:
            return await write(self, checkpoint, Location(directory.storage, "file", "/proc/nowhere"), name)
        return await write(self, checkpoint, directory, name)

    with monkeypatch.context() as patch:
        patch.setattr(Savepoints, "_write", fails_at_first)
        reached = hangs(patch, cluster.store, "put_outcome")
        async with job_running(cluster, runner):
            await ask(cluster, j.TriggerSavepoint(job_id=JOB, trigger_id=TRIGGER, stop=True, drain=True))
            await reached.wait()
    assert tried == list(names_of_tries(tried[0]))[: tries + 1]
    async with cluster.serving():
        assert [(await over(cluster)).location] == savepoints(cluster)


async def test_a_checkpoint_that_was_asked_for_is_over_under_the_next_daemon(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is known if it was told (A14c, C20)."""
    async with job_running(cluster, runner):
        await ask(cluster, j.CheckpointJob(job_id=JOB, trigger_id=TRIGGER))
        told = await over(cluster)
        with monkeypatch.context() as patch:
            reached = hangs(patch, cluster.store, "put_outcome")
            await ask(cluster, j.CheckpointJob(job_id=JOB, trigger_id="2" * 32))
            await reached.wait()
    async with cluster.serving():
        assert (await status(cluster)).location == told.location == "1"
        await until(partial(_is_lost, cluster, "2" * 32), "the other one is lost")


async def _is_lost(cluster: Cluster, trigger_id: str) -> bool:
    error = (await status(cluster, trigger_id)).error
    return error is not None and error.code == "operation-lost"


async def test_a_savepoint_that_nobody_can_look_for_has_failed_and_says_where_it_may_be(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waits comes to an end (A14c)."""
    with monkeypatch.context() as patch:
        reached = hangs(patch, cluster.store, "put_outcome")
        async with job_running(cluster, runner):
            await ask(cluster, TAKE)
            await reached.wait()
    (made,) = savepoints(cluster)
    metadata = Path(made.removeprefix("file://")) / layout.METADATA
    metadata.write_bytes(b"torn")
    async with cluster.serving():
        error = (await over(cluster)).error
        assert error is not None
        assert (error.code, error.hint) == ("operation-lost", f"check it with: minflinkd savepoint inspect {made}")


async def test_a_request_that_cannot_be_stored_begins_nothing(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client hears so, and may repeat it (A14c)."""

    async def away(_: StoredTrigger) -> None:
        raise StorageUnavailable("the storage is away")

    async with job_running(cluster, runner):
        with monkeypatch.context() as patch:
            patch.setattr(cluster.store, "put_trigger", away)
            with pytest.raises(RemoteError, match="away"):
                await ask(cluster, TAKE)
        with pytest.raises(RemoteError, match="no operation"):
            await status(cluster)
        await ask(cluster, TAKE)
        assert [(await over(cluster)).location] == savepoints(cluster)


async def test_an_outcome_that_cannot_be_stored_is_told_later(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client was told must stay true under the next daemon (A14c)."""
    monkeypatch.setattr(job_results, "FIRST_PAUSE", 0.01)
    put_outcome, refused = cluster.store.put_outcome, 0

    async def away_at_first(outcome: StoredOutcome) -> None:
        nonlocal refused
        refused += 1
        if refused < 4:
            assert not (await status(cluster)).done
            raise StorageUnavailable("the storage is away")
        await put_outcome(outcome)

    monkeypatch.setattr(cluster.store, "put_outcome", away_at_first)
    async with job_running(cluster, runner):
        await ask(cluster, TAKE)
        assert (await over(cluster)).location
        assert refused == 4


async def test_a_request_with_an_outcome_is_not_settled_again(cluster: Cluster, runner: Runner) -> None:
    """A daemon may die between the outcome and the deletion of the request (A14c)."""
    trigger = StoredTrigger(job_id=JOB, trigger_id=TRIGGER, what=Asked.SAVEPOINT, requested_ms=1, savepoint="file:///x")
    async with job_running(cluster, runner):
        pass
    await cluster.store.put_trigger(trigger)
    await cluster.store.put_outcome(StoredOutcome(job_id=JOB, trigger_id=TRIGGER, location="file:///made"))
    async with cluster.serving():
        assert await status(cluster) == j.OperationStatus(done=True, location="file:///made")
        assert await cluster.store.triggers() == []


async def test_few_outcomes_are_kept_and_none_after_the_job_is_forgotten(cluster: Cluster) -> None:
    """A job that is asked for a savepoint every minute must not fill the store (A14c)."""
    store = cluster.store
    ids = [f"{number:032x}" for number in range(KEPT_OUTCOMES + 3)]
    for number, trigger_id in enumerate(ids):
        await store.put_outcome(StoredOutcome(job_id=JOB, trigger_id=trigger_id, location=str(number)))
    await store.drop_old_outcomes(JOB)
    kept = [trigger_id for trigger_id in ids if await store.outcome(JOB, trigger_id) is not None]
    assert kept == ids[3:]
    await store.put_trigger(StoredTrigger(job_id=JOB, trigger_id=TRIGGER, what=Asked.STOP, requested_ms=1))
    await store.delete_result(JOB)
    assert cluster.files() == []


@pytest.mark.parametrize("trigger_id", ["../results/x", "x", ""])
async def test_a_name_that_is_no_trigger_id_is_not_looked_for(cluster: Cluster, trigger_id: str) -> None:
    """It comes from the address of a request, and must not get into a path (R1)."""
    async with cluster.serving():
        with pytest.raises(RemoteError, match="no operation"):
            await status(cluster, trigger_id)
