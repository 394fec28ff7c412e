"""Artifacts that a browser uploads, and jobs that are made of a known one, with those that it has (E18)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Artifact, Sink
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.rest.server import Entrance, Listening, RestServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo
from minflinkd.runtime.ids import JobId
from tests.component.rest.access_world import OWN, bearer, records
from tests.component.rest.described import described
from tests.unit.rest.parties import RUNNING, Dispatcher

Http = aiohttp.ClientSession
NEW = JobId("7" * 32)
CODE = b"def delays(inputs): ...\n"
SAVEPOINT = "/savepoints/savepoint-1"


def admit(user: str, size: int) -> None:
    """Nobody may have more than 1,000 bytes."""
    if size > 1000:
        raise Conflict(f"{user} may not have {size} bytes more")


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[BlobServer]:
    async with BlobServer(options=BlobOptions(directory=tmp_path / "blobs"), token="token", admit=admit) as blobs:
        yield blobs


@pytest.fixture
async def http(blobs: BlobServer, network: LocalNetwork, dispatcher: Dispatcher) -> AsyncIterator[Http]:
    server = RestServer(
        Backend(network),
        listening=Listening(host="127.0.0.1", port=0),
        entrance=Entrance(access=Access(TokenProver(OWN, records(), SystemClock(), hint=""))),
        about=About(version="0.1.0", config_items=list, blob_url=lambda: blobs.url),
        metrics=Metrics(version="0.1.0"),
        blobs=blobs,
        limits=Limits(body_bytes=2000),
    )
    headers = bearer("submit")
    async with (
        server,
        aiohttp.ClientSession(server.url, headers=headers, trace_configs=[described(server.routes)]) as session,
    ):
        yield session


async def upload(http: Http, data: bytes, job: str = NEW, **options: Any) -> tuple[int, Any]:
    async with http.put(f"/blobs/{job}", data=data, **options) as response:
        return response.status, await response.json()


async def again(http: Http, query: str = "", **more: Any) -> tuple[int, Any]:
    body = {"path": SAVEPOINT} | {name.replace("_", "-"): value for name, value in more.items()}
    async with http.post(f"/jobs/{RUNNING}/submit-again?{query}", json=body) as response:
        return response.status, await response.json()


async def with_artifact(blobs: BlobServer, dispatcher: Dispatcher, *, uploaded: bool = True) -> BlobKey:
    """Give the running job an artifact. Return its key. `uploaded`: whether the BlobServer has it."""
    key = BlobKey.new(BlobKind.PERMANENT, "0" * 64)
    if uploaded:
        key = await blobs.put(RUNNING, CODE, BlobKind.PERMANENT)
    job = dispatcher.jobs[RUNNING]
    code = (Artifact(name="delays.py", key=str(key), size=len(CODE), units=("py:delays",)),)
    dispatcher.jobs[RUNNING] = replace(job, graph=replace(job.graph, artifacts=code))
    return key


async def test_an_artifact_is_uploaded_under_the_id_of_a_job_to_come(http: Http, blobs: BlobServer) -> None:
    """The key is for the job file. Until a job takes it over, nobody holds it, and it counts for its user (E46)."""
    status, answer = await upload(http, CODE)
    assert status == 201
    assert answer["size"] == len(CODE)
    assert await blobs.read(NEW, BlobKey.parse(answer["key"])) == CODE
    assert [(blob.state, blob.references) for blob in await blobs.blobs()] == [("staged", 0)]
    assert [(one.user, one.size) for one in blobs.uploads()] == [("submit", len(CODE))]


async def test_the_same_content_is_stored_once(http: Http) -> None:
    """A browser that asks again gets the same key (B1)."""
    assert await upload(http, CODE) == await upload(http, CODE)


async def test_an_upload_has_the_limits_of_bodies_and_of_its_user(http: Http) -> None:
    status, answer = await upload(http, b"x" * 1500)
    assert (status, answer["errors"]) == (409, ["submit may not have 1500 bytes more"])
    status, _ = await upload(http, b"x" * 3000)
    assert status == 413


async def test_who_may_submit_some_jobs_uploads_for_none_of_the_others(http: Http) -> None:
    """For a job that does not exist yet they may: its name is checked when it is submitted (E41)."""
    assert (await upload(http, CODE, headers=bearer("limited")))[0] == 201
    assert (await upload(http, CODE, RUNNING, headers=bearer("limited")))[0] == 403
    assert (await upload(http, CODE, headers=bearer("operate")))[0] == 403


async def test_a_job_is_submitted_again_with_what_the_endpoint_hides(http: Http, dispatcher: Dispatcher) -> None:
    """Nobody needs its file: the daemon has its secrets. The job that is asked about stays as it is."""
    status, answer = await again(http, f"jobId={NEW}", allow_non_restored_state=True)
    assert (status, answer["jobid"]) == (202, NEW)
    [asked] = dispatcher.submissions
    document = json.loads(asked.document)
    assert document["params"]["db_password"] == "hunter2"
    assert document["restore"] == {"path": SAVEPOINT, "allow-non-restored-state": True}
    assert (asked.job_id, asked.owner, asked.dry_run) == (NEW, "submit", False)


async def test_a_refusal_of_the_job_has_its_faults(http: Http, dispatcher: Dispatcher) -> None:
    dispatcher.faults = (GraphFault(path="restore.path", problem="there is no savepoint", hint="look"),)
    status, answer = await again(http)
    assert status == 400
    assert "restore.path: there is no savepoint (look)" in answer["errors"]


async def test_a_dry_run_keeps_the_artifacts_for_after_the_end_of_the_job(
    http: Http, blobs: BlobServer, dispatcher: Dispatcher
) -> None:
    """So a job can be checked, cancelled, and submitted again, although its artifacts are deleted when it ends."""
    await with_artifact(blobs, dispatcher)
    assert (await again(http, f"jobId={NEW}&dry-run"))[0] == 200
    await blobs.delete_job(RUNNING)
    assert (await again(http, f"jobId={NEW}"))[0] == 202
    [artifact] = json.loads(dispatcher.submissions[-1].document)["artifacts"]
    assert set(artifact) == {"name", "key", "size"}
    assert await blobs.read(NEW, BlobKey.parse(artifact["key"])) == CODE
    assert [one.user for one in blobs.uploads()] == ["submit"]


@pytest.mark.parametrize("uploaded", [True, False])
async def test_artifacts_that_are_gone_are_named(
    http: Http, blobs: BlobServer, dispatcher: Dispatcher, *, uploaded: bool
) -> None:
    """With what to do instead; nothing is submitted."""
    await with_artifact(blobs, dispatcher, uploaded=uploaded)
    await blobs.delete_job(RUNNING)
    status, answer = await again(http)
    assert status == 400
    assert "artifacts[0]: the artifact delays.py is not there any more" in answer["errors"][1]
    assert dispatcher.submissions == []


async def backfill(http: Http, query: str = "", **more: Any) -> tuple[int, Any]:
    body = {"from": "2026-03-01", "to": "2026-03-02"} | more
    async with http.post(f"/jobs/{RUNNING}/backfill?{query}", json=body) as response:
        return response.status, await response.json()


def with_key(dispatcher: Dispatcher, watermark_ms: int = 1_800_000_000_000) -> None:
    """Let the running job write rows that replace each other, and let it be done with its input up to a time."""
    job = dispatcher.jobs[RUNNING]
    sink = replace(job.graph.vertices[-1], sink=Sink(format="delta", path="/data/out", options={"key": "carrier"}))
    tasks = tuple(replace(task, metrics=replace(task.metrics, watermark_ms=watermark_ms)) for task in job.tasks)
    graph = replace(job.graph, vertices=(*job.graph.vertices[:-1], sink))
    dispatcher.jobs[RUNNING] = replace(job, graph=graph, tasks=tasks)


async def test_a_backfill_is_a_batch_job_of_the_running_one(
    http: Http, blobs: BlobServer, dispatcher: Dispatcher
) -> None:
    """It has the job's secrets and artifacts, and the job stays as it is."""
    await with_artifact(blobs, dispatcher)
    with_key(dispatcher)
    status, answer = await backfill(http, f"jobId={NEW}", parallelism=4, params={"minutes": 30})
    assert (status, answer["jobid"]) == (202, NEW)
    [asked] = dispatcher.submissions
    document = json.loads(asked.document)
    assert document["mode"] == "batch"
    assert document["input-range"] == {"from": "2026-03-01", "to": "2026-03-02"}
    assert document["params"] == {"minutes": 30, "db_password": "hunter2"}
    assert document["parallelism"] == 4
    [artifact] = document["artifacts"]
    assert await blobs.read(NEW, BlobKey.parse(artifact["key"])) == CODE
    assert (asked.job_id, asked.owner, asked.dry_run) == (NEW, "submit", False)
    [taken] = dispatcher.taken
    assert (taken.job_id, taken.trigger_id) == (RUNNING, NEW), "nothing of that time may come after the backfill"
    assert (await backfill(http, "dry-run"))[0] == 200
    assert len(dispatcher.taken) == 1


async def test_a_repeated_request_is_answered_whatever_has_become_of_the_job(
    http: Http, dispatcher: Dispatcher
) -> None:
    """The first one was accepted, and its answer got lost (R25)."""
    with_key(dispatcher)
    assert (await backfill(http, f"jobId={NEW}"))[0] == 202
    dispatcher.jobs[NEW] = replace(dispatcher.jobs[RUNNING], job_id=NEW)
    with_key(dispatcher, watermark_ms=0)
    assert (await backfill(http, f"jobId={NEW}"))[0] == 202
    assert len(dispatcher.submissions) == 1
    assert "does not say yet how far it is" in (await backfill(http))[1]["errors"][1]


async def test_without_its_checkpoint_there_is_no_backfill(http: Http, dispatcher: Dispatcher) -> None:
    with_key(dispatcher)
    dispatcher.checkpoint_error = ErrorInfo(code="x", message="the disk is full", consequence=Consequence.RETRYABLE)
    status, answer = await backfill(http)
    assert (status, dispatcher.submissions) == (409, [])
    assert "the job's checkpoint before the backfill failed: the disk is full" in answer["errors"][0]


async def test_a_backfill_that_would_spoil_the_output_is_refused(http: Http, dispatcher: Dispatcher) -> None:
    status, answer = await backfill(http)
    assert status == 400
    assert "vertices.out.sink: the job has written these rows, and a parquet sink only adds" in answer["errors"][1]
    assert dispatcher.submissions == []


async def test_the_running_job_must_be_done_with_that_time(http: Http, dispatcher: Dispatcher) -> None:
    """Its tasks say how far they are."""
    with_key(dispatcher, watermark_ms=1_772_000_000_000)
    status, answer = await backfill(http)
    assert status == 400
    assert "input-range.to: the job itself still works on that time" in answer["errors"][1]


async def test_what_is_never_final_is_explained(http: Http, dispatcher: Dispatcher) -> None:
    with_key(dispatcher)
    dispatcher.faults = (GraphFault(path="vertices.out.output-mode", problem="no output mode append"),)
    status, answer = await backfill(http)
    assert status == 400
    assert answer["errors"][1].startswith("vertices.out: no output mode append (a backfill writes rows when they are")


async def test_who_may_submit_some_jobs_backfills_none_of_the_others(http: Http, dispatcher: Dispatcher) -> None:
    """The new job's name counts as well (E41)."""
    with_key(dispatcher)
    body = {"from": "2026-03-01", "to": "2026-03-02"}
    async with http.post(f"/jobs/{RUNNING}/backfill", json=body, headers=bearer("limited")) as response:
        assert response.status == 403
