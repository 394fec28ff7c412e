"""Quotas through the Dispatcher, over a real store: submissions, versions, ends and restarts of the daemon (E46)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from minflinkd.blob.errors import BlobServerBusy
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.uploads import Upload
from minflinkd.config.quotas import Quotas
from minflinkd.dispatcher.job_store import StoredJob
from minflinkd.dispatcher.quotas import QuotaExceeded
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import Kind, RemoteError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageUnavailable
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster
from tests.unit.dispatcher.versions_world import JOB, Runner, a_runner, document, over, restart, runs, seen
from tests.waiting import until

OTHER, THIRD = JobId("2" * 32), JobId("3" * 32)
CODE = BlobKey.new(BlobKind.PERMANENT, "c" * 64)


def wanting(slots: int, **more: Any) -> dict[str, Any]:
    return {**DOCUMENT, "parallelism": slots, **more}


async def quota(cluster: Cluster, user: str) -> tuple[int, int, int]:
    """Return the jobs, slots and bytes that the user has."""
    (found,) = await cluster.network.ask(DISPATCHER, j.GetQuotas(user=user), timeout=5)
    return found.jobs.used, found.slots.used, found.artifacts.used


async def refused(ask: Any) -> RemoteError:
    with pytest.raises(RemoteError) as error:
        await ask
    assert error.value.info().code == "quota-exceeded"
    assert error.value.info().kind is Kind.CONFLICT
    return error.value


# --- the owner ---------------------------------------------------------------------------------------------------


async def test_the_owner_is_stored_with_the_job_and_shown_until_its_result_is_forgotten(cluster: Cluster) -> None:
    """Under the next daemon too, and after the end."""
    async with cluster.serving():
        await cluster.submit(JOB, owner="alice")
        assert (await cluster.job(JOB)).owner == "alice"
    async with cluster.serving():
        assert (await cluster.job(JOB)).owner == "alice"
        (overview,) = await cluster.network.ask(DISPATCHER, j.ListJobs(), timeout=5)
        assert overview.owner == "alice"
        await cluster.cancel(JOB)
        await until(lambda: cluster.lists({JOB: JobStatus.CANCELED}))
        assert (await cluster.job(JOB)).owner == "alice"
    async with cluster.serving():
        assert (await cluster.job(JOB)).owner == "alice"


async def test_a_job_from_before_owners_were_recorded_still_runs_and_counts_for_nobody(cluster: Cluster) -> None:
    """Its record has no such field."""
    async with cluster.serving():
        await cluster.submit(JOB, owner="alice")
    record = cluster.directory / "jobstore" / "jobs" / f"{JOB}.json"
    fields = msgspec.json.decode(record.read_bytes())
    assert fields.pop("owner") == "alice"
    record.write_bytes(msgspec.json.encode(fields))
    cluster.quotas = {"*.jobs": "0"}
    async with cluster.serving():
        assert list(await cluster.list()) == [JOB]
        assert (await cluster.job(JOB)).owner == ""
        found = await cluster.network.ask(DISPATCHER, j.GetQuotas(user="alice", everybody=True), timeout=5)
        assert [(each.user, each.jobs.used) for each in found] == [("alice", 0)]


# --- submissions -------------------------------------------------------------------------------------------------


async def test_a_job_too_many_is_refused_before_spark_is_asked_and_leaves_nothing(cluster: Cluster) -> None:
    """Another user's jobs do not count; the answer has the figures."""
    cluster.quotas = {"*.jobs": "1"}
    async with cluster.serving():
        await cluster.submit(JOB, owner="alice")
        error = await refused(cluster.submit(OTHER, owner="alice"))
        assert "alice may have at most 1 jobs that have not ended, has 1, and this needs 1 more" in error.message
        await cluster.submit(THIRD, owner="bob")
        assert cluster.analyzed == [JOB, THIRD]
        assert sorted(await cluster.list()) == [JOB, THIRD]
        assert cluster.blobs.deleted == [OTHER]


async def test_a_dry_run_says_it_as_well_and_takes_nothing(cluster: Cluster) -> None:
    cluster.quotas = {"*.slots": "3"}
    async with cluster.serving():
        await refused(cluster.submit(JOB, wanting(4), dry_run=True, owner="alice"))
        await cluster.submit(JOB, wanting(3), dry_run=True, owner="alice")
        assert await quota(cluster, "alice") == (0, 0, 0)
        await cluster.submit(JOB, wanting(3), owner="alice")
        assert await quota(cluster, "alice") == (1, 3, 0)


async def test_of_two_submissions_at_once_one_gets_the_last_place(cluster: Cluster) -> None:
    """They are checked side by side, for seconds, and neither is stored as yet."""
    cluster.quotas = {"*.jobs": "1"}
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def held_back() -> None:
        begun.set()
        await go_on.wait()

    cluster.before_analysis = held_back
    async with cluster.serving():
        first = asyncio.ensure_future(cluster.submit(JOB, owner="alice"))
        await begun.wait()
        await refused(cluster.submit(OTHER, owner="alice"))
        go_on.set()
        await first
        assert list(await cluster.list()) == [JOB]


@pytest.mark.parametrize("how", ["faults", "storage"])
async def test_what_a_refused_submission_would_have_taken_is_free_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cluster.quotas = {"*.jobs": "1"}
    async with cluster.serving():
        if how == "faults":
            cluster.faults = (GraphFault(path="vertices[0].sql", problem="no such column"),)
            assert (await cluster.submit(JOB, owner="alice")).faults
            cluster.faults = ()
        else:

            async def away(_: object) -> None:
                raise StorageUnavailable("file: away")

            with monkeypatch.context() as patched:
                patched.setattr(cluster.store, "put_job", away)
                with pytest.raises(RemoteError, match="away"):
                    await cluster.submit(JOB, owner="alice")
        await cluster.submit(OTHER, owner="alice")


async def test_artifacts_count_with_the_sizes_that_they_have_whatever_the_document_says(cluster: Cluster) -> None:
    """Whoever writes the document could write any size."""
    cluster.quotas = {"*.artifacts": "1000"}
    cluster.blobs.uploaded.add(CODE)
    cluster.blobs.sizes[CODE] = 1001
    with_code = wanting(1, artifacts=[{"name": "rules.py", "key": str(CODE), "size": 1}])
    async with cluster.serving():
        error = await refused(cluster.submit(JOB, with_code, owner="alice"))
        assert "at most 1,000 bytes of artifacts, has 0 bytes, and this needs 1,001 bytes more" in error.message
        cluster.blobs.sizes[CODE] = 1000
        await cluster.submit(JOB, with_code, owner="alice")
        assert await quota(cluster, "alice") == (1, 1, 1000)


async def test_an_upload_counts_for_who_has_uploaded_it_until_a_job_has_taken_it_over(cluster: Cluster) -> None:
    """A dry run takes nothing over. Uploads wait while a daemon that starts does not know its jobs."""
    cluster.quotas = {"*.artifacts": "1000"}
    cluster.blobs.uploaded.add(CODE)
    cluster.blobs.sizes[CODE] = 600
    cluster.blobs.uploading = [Upload(Blob(JOB, CODE), "alice", 600)]
    with_code = wanting(1, artifacts=[{"name": "rules.py", "key": str(CODE)}])
    dispatcher = cluster.dispatcher()
    with pytest.raises(BlobServerBusy):
        dispatcher.admit_upload("alice", 1)
    async with dispatcher:
        await cluster.submit(JOB, with_code, dry_run=True, owner="alice")
        assert await quota(cluster, "alice") == (0, 0, 600)
        await cluster.submit(JOB, with_code, owner="alice")
        assert cluster.blobs.uploading == []
        assert await quota(cluster, "alice") == (1, 1, 600)
        dispatcher.admit_upload("alice", 400)
        with pytest.raises(QuotaExceeded):
            dispatcher.admit_upload("alice", 401)


async def test_the_next_daemon_counts_what_this_one_has_stored(cluster: Cluster) -> None:
    """Usage follows from the records of jobs alone: a kill loses none of it and leaves nothing over."""
    cluster.quotas = {"*.jobs": "2"}
    async with cluster.serving():
        await cluster.submit(JOB, wanting(2), owner="alice")
    async with cluster.serving():
        assert await quota(cluster, "alice") == (1, 2, 0)
        await cluster.submit(OTHER, owner="alice")
        await refused(cluster.submit(THIRD, owner="alice"))


async def test_a_reload_applies_other_limits_and_ends_no_job(cluster: Cluster) -> None:
    async with cluster.serving() as dispatcher:
        for job_id in (JOB, OTHER):
            await cluster.submit(job_id, owner="alice")
        dispatcher.options = replace(dispatcher.options, quotas=Quotas.parse({"alice.jobs": "1"}))
        await refused(cluster.submit(THIRD, owner="alice"))
        assert sorted(await cluster.list()) == [JOB, OTHER]
        dispatcher.options = replace(dispatcher.options, quotas=Quotas.parse({"alice.jobs": "3"}))
        await cluster.submit(THIRD, owner="alice")


# --- the end -----------------------------------------------------------------------------------------------------


async def test_the_place_of_a_job_is_free_when_its_end_is_stored(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: after a crash in between the job would run again, beside the one that has got its place."""
    cluster.quotas = {"*.jobs": "1"}
    stored = asyncio.Event()
    put = cluster.store.put_result

    async def slowly(result: Any) -> None:
        await stored.wait()
        await put(result)

    monkeypatch.setattr(cluster.store, "put_result", slowly)
    async with cluster.serving():
        await cluster.submit(JOB, owner="alice")
        await cluster.cancel(JOB)
        await until(lambda: cluster.lists({JOB: JobStatus.CANCELED}))
        await refused(cluster.submit(OTHER, owner="alice"))
        stored.set()

        async def free() -> bool:
            return await quota(cluster, "alice") == (0, 0, 0)

        await until(free)
        await cluster.submit(OTHER, owner="alice")


# --- other versions of a job -------------------------------------------------------------------------------------


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        yield one


@pytest.mark.usefixtures("impatient")
async def test_a_rescale_and_a_hot_restart_that_want_more_are_refused_and_touch_nothing(
    cluster: Cluster, runner: Runner
) -> None:
    """The owner's quota counts, whoever asks. A dry run says it as well, and less is always allowed."""
    cluster.quotas = {"*.slots": "3"}
    async with cluster.serving() as dispatcher:
        await cluster.submit(JOB, msgspec.json.decode(document("1", parallelism=2)), owner="alice")
        await seen(cluster, runs(runner, "1"))
        for dry_run in (True, False):
            error = await refused(restart(cluster, "2", document=document("2", parallelism=4), dry_run=dry_run))
            assert "at most 3 slots, has 2, and this needs 2 more (security.quotas.*.slots)" in error.message
            wider = j.RescaleJob(job_id=JOB, parallelism=4, dry_run=dry_run)
            await refused(cluster.network.ask(DISPATCHER, wider, timeout=5))
        assert (await cluster.job(JOB)).hot_restarts == ()
        assert await quota(cluster, "alice") == (1, 2, 0)
        dispatcher.options = replace(dispatcher.options, quotas=Quotas.parse({"*.slots": "0"}))
        await cluster.network.ask(DISPATCHER, j.RescaleJob(job_id=JOB, parallelism=1), timeout=5)
        await seen(cluster, over(1))
        assert await quota(cluster, "alice") == (1, 1, 0)


@pytest.mark.usefixtures("impatient")
async def test_a_wider_version_takes_its_slots_when_it_is_accepted_and_frees_them_if_it_fails(
    cluster: Cluster, runner: Runner
) -> None:
    """From the request to the end of the hot restart the job counts the wider of its versions."""
    cluster.quotas = {"*.slots": "4"}
    async with cluster.serving():
        await cluster.submit(JOB, msgspec.json.decode(document("1", parallelism=2)), owner="alice")
        await seen(cluster, runs(runner, "1"))
        runner.fails = "2"
        await restart(cluster, "2", document=document("2", parallelism=3))
        assert await quota(cluster, "alice") == (1, 3, 0)
        await refused(cluster.submit(OTHER, wanting(2), owner="alice"))
        await seen(cluster, over(1))
        assert await quota(cluster, "alice") == (1, 2, 0)
        await cluster.submit(OTHER, wanting(2), owner="alice")
    (first, _) = sorted(await cluster.store.jobs(), key=lambda job: job.job_id)
    assert isinstance(first, StoredJob)
    assert first.owner == "alice"
