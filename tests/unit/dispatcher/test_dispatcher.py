"""The Dispatcher: submissions, recovery, the end of jobs."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint.messages import GetCheckpointOptions, GetCheckpoints, GetOffsets
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.dispatcher.job_store import StoredJob, StoredResult
from minflinkd.dispatcher.submission import ANALYSIS_TIMEOUT, AROUND_ANALYSIS
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import RecordFormat
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageCorrupt, StorageUnavailable
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster
from tests.waiting import until

JOB, OTHER = JobId("1" * 32), JobId("2" * 32)


# --- submission --------------------------------------------------------------------------------------------------


async def test_a_job_is_stored_before_its_submission_is_answered(cluster: Cluster) -> None:
    """A daemon that dies just after the answer finds the job again (R25)."""
    async with cluster.serving():
        assert await cluster.submit(JOB) == j.SubmissionAnswer(job_id=JOB)
        assert f"jobstore/jobs/{JOB}.json" in cluster.files()
        (stored,) = await cluster.store.jobs()
        assert isinstance(stored, StoredJob)
        assert (stored.job_id, stored.graph.name) == (JOB, "copy")
        details = await cluster.job(JOB)
        assert details.status is JobStatus.CREATED
        assert {"analyzed", "stored"} <= set(details.submission)


async def test_a_job_is_stored_with_the_schemas_that_it_reads_with(cluster: Cluster) -> None:
    """They were looked up once, and whoever starts the job's tasks later finds them there (K10)."""
    views = {
        "format": "kafka",
        "options": {"subscribe": "views"},
        "value": {"format": "avro"},
        "schema-registry": {"url": "http://registry"},
    }
    sink = {"inputs": ["views"], "sink": {"format": "console"}}
    document = {"name": "views", "vertices": {"views": {"source": views}, "out": sink}}
    cluster.record_formats = {"views": {"value": RecordFormat(format="avro", schema='"string"')}}
    async with cluster.serving():
        await cluster.submit(JOB, document)
        (stored,) = await cluster.store.jobs()
        assert isinstance(stored, StoredJob)
        source = stored.graph.vertices[0].source
        assert source is not None
        assert source.value == RecordFormat(format="avro", schema='"string"')


async def test_a_job_that_cannot_be_stored_now_is_refused_and_leaves_nothing_but_its_blobs_for_another_try(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was not stored was not accepted (R25).

    Within `blob.retention.interval` its blobs are found again (B6).
    """

    async def full(_: object) -> None:
        raise StorageUnavailable("file: away")

    async with cluster.serving():
        monkeypatch.setattr(cluster.store, "put_job", full)
        with pytest.raises(RemoteError, match="away"):
            await cluster.submit(JOB)
        assert await cluster.list() == {}
        assert cluster.files() == []
        assert cluster.blobs.deleted == []
        assert cluster.blobs.events[-1] == ("let go", JOB)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"name": "x", "vertices": []}, ""),
        ({**DOCUMENT, "vertices": [*DOCUMENT["vertices"], {"id": "lost", "inputs": ["nobody"], "sql": "x"}]}, "nobody"),
        ({**DOCUMENT, "artifacts": [{"name": "a.py", "key": "nonsense"}]}, "a.py was not uploaded"),
        ({**DOCUMENT, "checkpointing": {"master-hooks": ["no-such-hook"]}}, "no master hook no-such-hook"),
        ({**DOCUMENT, "paralelism": 2}, "paralelism"),
    ],
    ids=["nothing", "unknown input", "missing artifact", "missing hook", "misspelt"],
)
async def test_a_faulty_job_is_refused_with_its_faults_and_nothing_is_left(
    cluster: Cluster, document: Any, problem: str
) -> None:
    """No file is left in any store, no blob and no job (J4)."""
    async with cluster.serving():
        answer = await cluster.submit(JOB, document)
        assert answer.faults
        assert any(problem in f"{fault.path} {fault.problem}" for fault in answer.faults)
        assert await cluster.list() == {}
        assert cluster.files() == []
        assert cluster.blobs.deleted == [JOB]


async def test_a_submission_waits_for_a_session_as_long_as_the_options_say_by_now_and_is_told_why_none_came(
    cluster: Cluster,
) -> None:
    """`resourcemanager.taskmanager-registration.timeout` may change at run time, and an answer then takes as long."""
    cluster.no_session = True
    async with cluster.serving() as serving:
        for seconds in (0.5, 0.0):
            serving.options = replace(serving.options, session_timeout=seconds)
            assert serving.submission_timeout == seconds + ANALYSIS_TIMEOUT + AROUND_ANALYSIS
            with pytest.raises(RemoteError, match=f"no TaskManager was there to analyse the job within {seconds:g} s"):
                await cluster.submit(JOB)


async def test_what_spark_finds_is_an_answer_of_the_submission(cluster: Cluster) -> None:
    """SQL is analysed before the job starts (J4)."""
    cluster.faults = (GraphFault(path="vertices[0].sql", problem="no such column"),)
    async with cluster.serving():
        assert (await cluster.submit(JOB)).faults == cluster.faults
        assert cluster.files() == []
        cluster.faults = ()
        assert (await cluster.submit(JOB)).faults == ()


async def test_a_repeated_submission_is_answered_as_the_first_one_was(cluster: Cluster) -> None:
    """A repeated submission is known by its job id: running or ended, by this daemon or its successor (R25)."""
    async with cluster.serving():
        first = await cluster.submit(JOB)
        assert await cluster.submit(JOB) == first
        assert cluster.analyzed == [JOB]
    async with cluster.serving():
        assert await cluster.submit(JOB) == first
        await cluster.network.ask(DISPATCHER, j.CancelJob(job_id=JOB), timeout=5)
        await until(lambda: cluster.ended)
        assert await cluster.submit(JOB) == first
    assert cluster.analyzed == [JOB]


async def test_a_submission_that_overtakes_itself_is_refused_and_harms_nothing(cluster: Cluster) -> None:
    """The first one is answered as if the second had never been sent (R25)."""
    async with cluster.serving():
        reached, release = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            reached.set()
            await release.wait()

        cluster.before_analysis = wait
        first = asyncio.ensure_future(cluster.submit(JOB))
        await reached.wait()
        with pytest.raises(RemoteError, match="is being submitted already"):
            await cluster.submit(JOB)
        release.set()
        assert (await first).faults == ()
        assert cluster.blobs.deleted == []


async def test_a_dry_run_stores_and_deletes_nothing(cluster: Cluster) -> None:
    async with cluster.serving():
        assert (await cluster.submit(JOB, dry_run=True)).faults == ()
        assert (await cluster.submit(JOB, {"name": "x", "vertices": []}, dry_run=True)).faults
        assert (cluster.files(), cluster.blobs.deleted, await cluster.list()) == ([], [], {})


@pytest.mark.parametrize("name", ["..", "../x", "1" * 31, ""])
async def test_a_job_id_that_is_none_is_refused_before_it_becomes_a_path(cluster: Cluster, name: str) -> None:
    async with cluster.serving():
        with pytest.raises(RemoteError) as refused:
            await cluster.submit(JobId(name))
        assert refused.value.info().code == "invalid-id"
        assert cluster.blobs.deleted == []


@pytest.fixture
def unrecoverable(monkeypatch: pytest.MonkeyPatch) -> set[JobId]:
    """Jobs with these ids have checkpoints that cannot be read."""
    jobs: set[JobId] = set()
    recover = CheckpointStore.recover

    async def failing(store: CheckpointStore) -> Any:
        if any(job in store.path_of(1) for job in jobs):
            raise StorageCorrupt("file: broken")
        return await recover(store)

    monkeypatch.setattr(CheckpointStore, "recover", failing)
    return jobs


async def test_a_job_whose_master_cannot_start_is_neither_accepted_nor_kept(
    cluster: Cluster, unrecoverable: set[JobId]
) -> None:
    """A refused job is not run by any later daemon, least of all without its blobs (R25)."""
    unrecoverable.add(JOB)
    async with cluster.serving():
        with pytest.raises(RemoteError, match="broken"):
            await cluster.submit(JOB)
        assert await cluster.list() == {}
        assert cluster.files() == []
        assert cluster.blobs.deleted == [JOB]
        unrecoverable.clear()
        assert (await cluster.submit(JOB)).faults == ()


async def test_a_submission_that_nobody_waits_for_any_more_keeps_all_or_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gives up in the middle leaves no job without its blobs (R25)."""
    stored = asyncio.Event()
    put_job = cluster.store.put_job

    async def slow(job: Any) -> None:
        await put_job(job)
        stored.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(cluster.store, "put_job", slow)
    async with cluster.serving():
        submission = asyncio.ensure_future(cluster.submit(JOB))
        await stored.wait()
        submission.cancel()
        await asyncio.wait({submission})
        assert cluster.blobs.deleted == [JOB]
        assert cluster.files() == []


# --- recovery ----------------------------------------------------------------------------------------------------


async def test_stored_jobs_go_on_with_the_next_daemon(cluster: Cluster) -> None:
    """A6, R25."""
    async with cluster.serving():
        await cluster.submit(JOB)
        await cluster.submit(OTHER)
        submitted = (await cluster.job(JOB)).start_ms
    async with cluster.serving():
        await until(lambda: cluster.lists({JOB: JobStatus.CREATED, OTHER: JobStatus.CREATED}))
        assert (await cluster.job(JOB)).start_ms == submitted
    assert cluster.blobs.deleted == []


DEEP = b'{"graph": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"job_id": "x"}', DEEP], ids=range(5))
async def test_a_record_that_cannot_be_read_does_not_stop_the_others(cluster: Cluster, damage: bytes) -> None:
    """An unreadable record is listed with its error, and its file stays and is not replaced (R27)."""
    async with cluster.serving():
        await cluster.submit(JOB)
        await cluster.submit(OTHER)
    record = cluster.directory / "jobstore" / "jobs" / f"{JOB}.json"
    record.write_bytes(damage)
    with capture_logs() as logs:
        async with cluster.serving():
            await until(lambda: cluster.lists({JOB: JobStatus.INITIALIZING, OTHER: JobStatus.CREATED}))
            assert str(record) in (await cluster.job(JOB)).failures[0].error.message
            assert (await cluster.submit(JOB)).faults == ()
            with pytest.raises(RemoteError, match="cannot be read"):
                await cluster.network.ask(DISPATCHER, j.CancelJob(job_id=JOB), timeout=5)
    assert [line["path"] for line in logs if line["log_level"] == "error"] == [f"file://{record}"]
    assert record.read_bytes() == damage


async def test_a_copy_of_a_record_does_not_start_the_job_twice(cluster: Cluster) -> None:
    """Two JobMasters of one job would take its tasks from one another for ever. The copy is shown as faulty (R27)."""
    async with cluster.serving():
        await cluster.submit(JOB)
    jobs = cluster.directory / "jobstore" / "jobs"
    shutil.copy(jobs / f"{JOB}.json", jobs / f"{OTHER}.json")
    shutil.copy(jobs / f"{JOB}.json", jobs / JOB)
    with capture_logs() as logs:
        async with cluster.serving():
            await until(lambda: cluster.lists({JOB: JobStatus.CREATED, OTHER: JobStatus.INITIALIZING}))
            shown = (await cluster.job(OTHER)).failures[0].error
            assert f"it is the record of job {JOB}: a copy, or renamed" in shown.message
    assert [line["path"] for line in logs if line["event"] == "a file that is no job"] == [str(jobs / JOB)]


async def test_a_record_of_a_later_minflinkd_is_left_alone(cluster: Cluster) -> None:
    """It may mean something that this version would do wrong (R27)."""
    async with cluster.serving():
        await cluster.submit(JOB)
    record = cluster.directory / "jobstore" / "jobs" / f"{JOB}.json"
    later = record.read_text().replace('"version": 1', '"version": 99')
    record.write_text(later)
    with capture_logs():
        async with cluster.serving():
            await until(lambda: cluster.lists({JOB: JobStatus.INITIALIZING}))
            shown = (await cluster.job(JOB)).failures[0].error
            assert "it has format 99, and this minflinkd reads 1: install a later one" in shown.message
    assert record.read_text() == later


async def test_a_job_that_cannot_be_recovered_does_not_stop_the_others(
    cluster: Cluster, unrecoverable: set[JobId]
) -> None:
    """All its files stay, and a later daemon may succeed (R27)."""
    cluster.heartbeat_timeout = 60.0
    async with cluster.serving():
        await cluster.submit(JOB)
        await cluster.submit(OTHER)
    unrecoverable.add(JOB)
    with capture_logs() as logs:
        async with cluster.serving():
            assert (await cluster.job(OTHER)).status is JobStatus.RECONCILING
    down = [line["component"] for line in logs if line["event"] == "a component is down"]
    assert set(down) == {f"JobMaster of {JOB}"}
    assert f"jobstore/jobs/{JOB}.json" in cluster.files()
    assert cluster.blobs.deleted == []
    unrecoverable.clear()
    async with cluster.serving():
        assert set(await cluster.list()) == {JOB, OTHER}


# --- the end of a job --------------------------------------------------------------------------------------------


async def test_an_ended_job_leaves_its_result_and_nothing_else(cluster: Cluster) -> None:
    """R26."""
    async with cluster.serving():
        await cluster.submit(JOB)
        await cluster.network.ask(DISPATCHER, j.CancelJob(job_id=JOB), timeout=5)
        await until(lambda: cluster.blobs.deleted)
        await until(lambda: cluster.files() == [f"jobstore/results/{JOB}.json"])
        assert await cluster.list() == {JOB: JobStatus.CANCELED}
        assert cluster.ended == [JOB]
        with pytest.raises(RemoteError) as refused:
            await cluster.network.ask(DISPATCHER, j.CancelJob(job_id=JOB), timeout=5)
        assert refused.value.info().code == "conflict"
    async with cluster.serving():
        assert (await cluster.job(JOB)).status is JobStatus.CANCELED
        assert not (await _settled(cluster)).dirty


async def test_a_dirty_result_is_cleaned_up_by_the_next_daemon(cluster: Cluster) -> None:
    """The cleanup goes on after a crash in the middle, until it is complete (R26)."""
    async with cluster.serving():
        await cluster.submit(JOB)
        details = await cluster.job(JOB)
    await cluster.store.put_result(StoredResult(dirty=True, details=details))
    leftover = cluster.directory / "checkpoints" / JOB / "shared" / "x"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("state")
    cluster.blobs.failures = 1
    with capture_logs():
        async with cluster.serving():
            await until(lambda: cluster.lists({JOB: JobStatus.CREATED}))
            await until(lambda: cluster.blobs.deleted == [JOB])
            await until(lambda: not leftover.exists())
            await _settled(cluster)
    assert cluster.files() == [f"jobstore/results/{JOB}.json"]


async def _settled(cluster: Cluster) -> StoredResult:
    async with asyncio.timeout(10):
        while True:
            (result,) = await cluster.store.results(await cluster.store.result_ids())
            assert isinstance(result, StoredResult)
            if not result.dirty:
                return result
            await asyncio.sleep(0.002)


async def test_unknown_jobs_are_not_found(cluster: Cluster) -> None:
    async with cluster.serving():
        for kind in (j.GetJob, GetCheckpoints, GetCheckpointOptions, GetOffsets, j.CancelJob):
            with pytest.raises(RemoteError) as refused:
                await cluster.network.ask(DISPATCHER, kind(job_id=JOB), timeout=5)
            assert refused.value.info().code == "not-found"
