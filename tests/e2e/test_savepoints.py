"""Savepoints, stopping with one, retained checkpoints, and jobs that start from them (C24, C25)."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from minflinkd.checkpoint import layout
from minflinkd.cli.submission import RefusedJob
from minflinkd.jobgraph.places import place_of
from tests.cluster import Cluster
from tests.e2e.command import minflinkd
from tests.files import files_below
from tests.waiting import until
from tests.web_server import web_server
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FILES = 12  # each is a minute, and a micro-batch


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The windows of all files, computed by plain Spark."""
    job = WindowsJob(tmp_path_factory.mktemp("truth"), files=FILES)
    job.write_events()
    return job.batch()


def first(rows: list[tuple[Any, ...]], minutes: int) -> list[tuple[Any, ...]]:
    """Return the windows of the first files."""
    starts = sorted({row[0] for row in rows})[:minutes]
    return [row for row in rows if row[0] in starts]


def windows_job(base: Path, written: int) -> WindowsJob:
    job = WindowsJob(base, files=FILES)
    job.write_events(0, written)
    return job


async def processed(cluster: Cluster, job_id: str, batches: int) -> None:
    await cluster.await_state(job_id, "RUNNING")
    await cluster.await_job(
        job_id, lambda job: job.vertices[0].minflinkd.batches >= batches, f"has processed {batches} micro-batches"
    )


async def none_left(cluster: Cluster, job_id: str) -> None:
    async def none() -> bool:
        directory = cluster.state / "checkpoints" / job_id
        left = [str(path.relative_to(directory)) for path in files_below(directory)]
        return all(map(layout.outlives_checkpoints, left))

    await until(none, "no checkpoint of the job", timeout=10)


async def test_a_checkpoint_by_request_publishes_what_it_covers(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]]
) -> None:
    """The checkpoint comes long before the next periodic one (C20, E1)."""
    job = windows_job(tmp_path, 6)
    job_id = await cluster.submit(job.write("out", mode="streaming", checkpointing={"interval": "1 h"}))
    await processed(cluster, job_id, 6)
    number = await cluster.client.checkpoint(job_id)

    async def published() -> bool:
        latest = (await cluster.client.checkpoints(job_id)).latest.completed
        assert latest is not None
        assert (latest.id, latest.minflinkd.kind) == (number, "manual")
        return latest.minflinkd.notify >= 0

    await until(published, "the checkpoint is published")
    rows = result(tmp_path / "out")
    assert rows == first(truth, len({row[0] for row in rows}))
    await cluster.cancel(job_id)


async def test_a_stopped_job_goes_on_from_its_savepoint(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]]
) -> None:
    """The first job publishes what the savepoint covers, the second one the rest: each row once (C24, C25)."""
    job = windows_job(tmp_path, 6)
    job_id = await cluster.submit(job.write("out", mode="streaming", checkpointing={"interval": "1 h"}))
    await processed(cluster, job_id, 6)

    code, out, err = await minflinkd(cluster, "stop", job_id, str(tmp_path / "savepoints"))
    assert code == 0, err
    path = out.strip()
    assert (await cluster.client.job(job_id)).state == "FINISHED"
    await none_left(cluster, job_id)
    assert leftovers(tmp_path / "out") == []
    before = result(tmp_path / "out")
    assert before == first(truth, len({row[0] for row in before}))
    assert 0 < len(before) < len(first(truth, 6)), "the last windows are open, and are not fired"

    code, out, err = await minflinkd_inspect(path, "--verify", "--json")
    assert code == 0, err
    shown = json.loads(out)
    assert (shown["job-id"], shown["self-contained"]) == (job_id, True)
    assert [(node["vertex"], node["stateful"]) for node in shown["tasks"][0]["operators"]] == [
        ("minutes", True),
        ("events", False),
    ]
    assert shown["verified-bytes"] > 0
    names = [file.name for file in files_below(Path(path.removeprefix("file://")))]
    assert sorted(names) == sorted(["_metadata", *shown["physical-files"]])

    job.write_events(6, FILES - 6)
    again = await cluster.submit(job.write("out", restore={"path": path}))
    await cluster.await_state(again, "FINISHED")
    assert result(tmp_path / "out") == truth
    assert (await minflinkd_inspect(path, "--verify"))[0] == 0, "no-claim: only read"


@pytest.mark.slow  # tests/unit has what is fetched from where
async def test_a_job_file_with_its_code_and_its_savepoint_may_be_on_a_web_server(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]]
) -> None:
    """The command line fetches the job; the daemon and the TaskManager read the savepoint (C25)."""
    job = windows_job(tmp_path, 6)
    job_id = await cluster.submit(job.write("out", mode="streaming", checkpointing={"interval": "1 h"}))
    await processed(cluster, job_id, 6)
    code, out, err = await minflinkd(cluster, "stop", job_id, str(tmp_path / "savepoints"))
    assert code == 0, err
    savepoint = Path(out.strip().removeprefix("file://"))
    job.write_events(6, FILES - 6)
    with web_server() as web:
        release = job.write("out", restore={"path": f"{web.url}/{savepoint.name}"}).parent
        web.files = {f"/{d.name}/{file.name}": file.read_bytes() for d in (savepoint, release) for file in d.iterdir()}
        shutil.rmtree(savepoint)
        shutil.rmtree(release)
        again = await cluster.submit(place_of(f"{web.url}/{release.name}/job.yaml"))
        await cluster.await_state(again, "FINISHED")
        assert {f"/{savepoint.name}/_metadata", f"/{release.name}/windows.py"} <= {path for _, path in web.requests}
    assert result(tmp_path / "out") == truth


async def minflinkd_inspect(path: str, *options: str) -> tuple[int, str, str]:
    """Run `savepoint inspect`, which has no option `--url`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "minflinkd", "savepoint", "inspect", path, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_drained_job_fires_all_its_windows(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]]
) -> None:
    """Time first goes to its end. The job is FINISHED, and has a savepoint, by default beside the checkpoints (C24)."""
    job = windows_job(tmp_path, 6)
    job_id = await cluster.submit(job.write("out", mode="streaming"))
    await processed(cluster, job_id, 6)
    code, out, err = await minflinkd(cluster, "stop", job_id, "--drain")
    assert code == 0, err
    path = out.strip()
    assert path.startswith(f"file://{cluster.state}/savepoints/savepoint-{job_id[:6]}-")
    await cluster.await_state(job_id, "FINISHED")
    assert result(tmp_path / "out") == first(truth, 6)
    assert (await minflinkd_inspect(path, "--verify"))[0] == 0

    with pytest.raises(RefusedJob, match="1 fault") as refused:
        await cluster.submit(job.write("again", mode="streaming", restore={"path": path}))
    assert refused.value.faults[0].path == "restore.path"
    assert "time has ended" in refused.value.faults[0].problem


async def test_a_savepoint_of_a_running_job_is_disposed_of_by_request_alone(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]]
) -> None:
    """The savepoint survives the job and its checkpoints. Disposal leaves nothing of it (C24)."""
    job = windows_job(tmp_path, 6)
    job_id = await cluster.submit(job.write("out", mode="streaming"))
    await processed(cluster, job_id, 6)
    path = await cluster.client.savepoint(job_id, str(tmp_path / "savepoints"))
    count = (await cluster.client.checkpoints(job_id)).counts.completed
    await cluster.await_checkpoints(job_id, count + 2)
    assert (await cluster.client.job(job_id)).state == "RUNNING"
    await cluster.cancel(job_id)
    await none_left(cluster, job_id)
    assert (await minflinkd_inspect(path, "--verify"))[0] == 0

    code, _out, err = await minflinkd(cluster, "savepoint", "dispose", path)
    assert code == 0, err
    assert not list((tmp_path / "savepoints").iterdir())
    assert (await minflinkd_inspect(path))[0] == 4


async def test_a_retained_checkpoint_is_claimed_by_the_job_that_starts_from_it(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]]
) -> None:
    """`externalized: retain` keeps it after a cancellation. Once claimed, it goes after a later checkpoint (C24)."""
    job = windows_job(tmp_path, 6)
    settings = {"interval": "1 h", "externalized": "retain", "num-retained": 1}
    job_id = await cluster.submit(job.write("out", mode="streaming", checkpointing=settings))
    await processed(cluster, job_id, 6)
    for _ in range(2):
        await cluster.client.checkpoint(job_id)
    await cluster.cancel(job_id)  # perhaps before the first checkpoint is deleted: it goes all the same
    latest = (await cluster.client.checkpoints(job_id)).latest.completed
    assert latest is not None
    assert latest.external_path is not None

    job.write_events(6, FILES - 6)
    restore = {"path": latest.external_path, "mode": "claim"}
    again = await cluster.submit(job.write("out", restore=restore))
    await cluster.await_state(again, "FINISHED")
    assert result(tmp_path / "out") == truth

    directory = cluster.state / "checkpoints" / job_id

    async def gone() -> bool:
        left = [path for path in files_below(directory) if path.suffix == ".seg" or path.name == "_metadata"]
        return all(layout.outlives_checkpoints(str(path.relative_to(directory))) for path in left)

    await until(gone, "no file of the claimed checkpoint", timeout=10)


async def test_a_start_that_would_lose_state_is_refused_before_anything_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The path has no savepoint, or a stateful vertex has another id. The refusal says what to do (C25, J4)."""
    job = windows_job(tmp_path, 3)
    job_id = await cluster.submit(job.write("out", mode="streaming"))
    await processed(cluster, job_id, 3)
    path = await cluster.client.stop(job_id, str(tmp_path / "savepoints"), drain=False)

    with pytest.raises(RefusedJob) as refused:
        await cluster.submit(job.write("nowhere", restore={"path": str(tmp_path / "nowhere")}))
    assert [fault.path for fault in refused.value.faults] == ["restore.path"]

    file = job.write("other", restore={"path": path})
    renamed = file.with_name("renamed.yaml")
    renamed.write_text(file.read_text().replace("minutes", "other_minutes"))
    with pytest.raises(RefusedJob) as refused:
        await cluster.submit(renamed)
    problems = [fault.problem for fault in refused.value.faults]
    assert any("vertex minutes had state (Aggregate)" in problem for problem in problems)
    assert any("vertex other_minutes has state (Aggregate)" in problem for problem in problems)
    assert not [job for job in (await cluster.client.jobs()).jobs if job.name in ("nowhere", "other")]


@pytest.mark.slow  # tests/spark/test_session_placement.py starts at offsets
async def test_a_job_whose_state_cannot_be_used_starts_at_its_offsets(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]]
) -> None:
    """The state is lost, but not the position. It can be read over HTTP and from the metrics (C26)."""
    job = windows_job(tmp_path, 6)
    job_id = await cluster.submit(job.write("out", mode="streaming"))
    await processed(cluster, job_id, 6)
    shown = await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
    assert shown["tasks"]["events"]["processed"] == {"events": {"logOffset": 5}}

    async def measured() -> bool:
        async with (
            aiohttp.ClientSession(cluster.client.url, headers=cluster.headers) as session,
            session.get("/metrics") as answer,
        ):
            text = await answer.text()
        labels = f'job="{job_id}",part="logOffset",source="events",task="events"'
        return f"minflinkd_source_offset{{{labels}}} 5.0" in text

    await until(measured, "the offset among the metrics")
    path = await cluster.client.stop(job_id, str(tmp_path / "savepoints"), drain=False)
    before = result(tmp_path / "out")

    job.write_events(6, FILES - 6)
    file = job.write("out", restore={"path": path})
    changed = file.with_name("changed.yaml")
    changed.write_text(file.read_text().replace("sum(v) AS total", "CAST(sum(v) AS BIGINT) AS total, max(v) AS most"))
    with pytest.raises(RefusedJob) as refused:
        await cluster.submit(changed)
    assert "other types" in refused.value.faults[0].problem
    changed.write_text(changed.read_text().replace('"restore": {', '"restore": {"offsets": "latest", '))
    again = await cluster.submit(changed)
    await cluster.await_state(again, "FINISHED")
    later = [row for row in truth if row not in first(truth, 6)]
    assert result(tmp_path / "out") == sorted([*before, *later]), "no file is read twice, and none is left out"


@pytest.mark.parametrize("drain", [False, True])
async def test_a_job_over_an_exchange_is_stopped_and_goes_on(
    cluster: Cluster, tmp_path: Path, truth: list[tuple[Any, ...]], drain: bool
) -> None:
    """The cut goes through both queries. Rows on their way between them are neither lost nor repeated (C24, C25)."""
    job = windows_job(tmp_path, 6)
    job_id = await cluster.submit(over_an_exchange(job.write("out", mode="streaming")))
    await processed(cluster, job_id, 6)
    path = await cluster.client.stop(job_id, str(tmp_path / "savepoints"), drain=drain)
    await cluster.await_state(job_id, "FINISHED")
    if drain:
        assert result(tmp_path / "out") == first(truth, 6)
        return
    job.write_events(6, FILES - 6)
    again = await cluster.submit(over_an_exchange(job.write("out", restore={"path": path})))
    await cluster.await_state(again, "FINISHED")
    assert result(tmp_path / "out") == truth


def over_an_exchange(file: Path) -> Path:
    document = json.loads(file.read_text())
    document["vertices"]["minutes"]["inputs"] = [{"id": "clean", "exchange": True}]
    file.write_text(json.dumps(document))
    return file
