"""Flink's own command line, unmodified, works against the endpoint, and its message classes read what a real job has.

One job after the other: each is ended in another of Flink's ways.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from minflinkd.rest.schemas import JobInfo
from tests.cluster import Cluster
from tests.flink.clients import Answer, CommandLine, faults, needs_flink
from tests.flink.paths import asked_for, filled, flink_paths, standings
from tests.windows_job import WindowsJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), needs_flink]

UNKNOWN = "9" * 32
TAKEN = re.compile(r"Savepoint completed\. Path: (\S+)")


@pytest_asyncio.fixture(loop_scope="session")
async def line(cluster: Cluster, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "conf", cluster.url, cluster.headers)


async def running(cluster: Cluster, base: Path, name: str) -> str:
    """Return a job of two tasks, one of which reads the other's exchange, after some micro-batches of both."""
    job = WindowsJob(base / name, files=12)
    job.write_events()
    vertices = {
        "events": {
            "source": {
                "format": "json",
                "path": "${input}",
                "schema": "k STRING, time TIMESTAMP, v BIGINT",
                "options": {"maxFilesPerTrigger": 1},
            },
            "watermark": {"column": "time", "delay": "1 minute"},
        },
        "minutes": {
            "inputs": [{"id": "events", "exchange": True}],
            "sql": "SELECT window(time, '1 minute').start AS minute, k, count(*) AS n, sum(v) AS total "
            "FROM events GROUP BY window(time, '1 minute'), k",
        },
        "out": {"inputs": ["minutes"], "sink": {"format": "parquet", "path": "${output}"}},
    }
    changes: dict[str, Any] = {"mode": "streaming", "parallelism": 1, "artifacts": [], "vertices": vertices}
    job_id = await cluster.submit(job.write(name, checkpointing={"interval": "1 h"}, **changes))
    await cluster.await_state(job_id, "RUNNING")
    await cluster.await_job(
        job_id, lambda job: all(vertex.minflinkd.batches >= 3 for vertex in job.vertices), "has processed micro-batches"
    )
    return job_id


async def test_flink_reads_what_is_said_of_a_real_job(cluster: Cluster, tmp_path: Path) -> None:
    """The answers of all implemented paths, as they are while a job runs (E1)."""
    job_id = await running(cluster, tmp_path, "read")
    first = await cluster.client.checkpoint(job_id)
    full = await cluster.client.checkpoint(job_id, full=True)
    job = await cluster.client.job(job_id)
    _check_rows(job)
    manager = await cluster.task_manager_of(job_id)
    assert (manager.assigned_tasks, manager.total_resource.cpu_cores) == (2, manager.hardware.cpu_cores)
    logs = (await cluster.client.logs(manager.id)).logs
    assert all(log.mtime > 1_600_000_000_000 for log in logs)
    values = {
        "jobid": job_id,
        "applicationid": job_id,
        "vertexid": job.vertices[0].id,
        "checkpointid": str(full),
        "taskmanagerid": manager.id,
        "subtaskindex": "0",
        "attempt": "0",
    }
    answers = []
    async with aiohttp.ClientSession(cluster.url, headers=cluster.headers) as http:
        for path in asked_for(flink_paths(), standings()):
            if not set(re.findall(r":(\w+)", path.path)) <= values.keys():
                continue  # what became of a request: a component test reads those
            async with http.get("/v1" + filled(path.path, values)) as response:
                assert response.status == 200, (path, await response.text())
                answers.append(Answer(path.method, path.path, await response.json()))
        for number in (first, full):
            async with http.get(f"/v1/jobs/{job_id}/checkpoints/details/{number}") as response:
                answers.append(Answer("GET", "/jobs/:jobid/checkpoints/details/:checkpointid", await response.json()))
        async with http.get(f"/v1/taskmanagers/{manager.id}/stdout") as response:
            assert response.status == 200
    assert not (wrong := await faults(answers)), "\n".join(wrong)
    sizes = {answer.body["id"]: answer.body for answer in answers if "checkpoint_type" in (answer.body or ())}
    assert sizes[full]["checkpointed_size"] == sizes[full]["state_size"] > 0, "a full one uploads all of its state"
    assert sizes[first]["state_size"] > 0
    await cluster.cancel(job_id)


def _check_rows(job: JobInfo) -> None:
    """Rows that go through an exchange are written by one task and read by the other."""
    events, minutes = sorted(job.vertices, key=lambda vertex: vertex.minflinkd.task_id)
    assert events.metrics.write_records == events.metrics.read_records > 0
    assert 0 < minutes.metrics.read_records <= events.metrics.write_records


async def test_flinks_command_line_lists_jobs_and_takes_savepoints_and_checkpoints(
    cluster: Cluster, tmp_path: Path, line: CommandLine
) -> None:
    """The commands are list -a, savepoint, savepoint -d, checkpoint, checkpoint -full, and cancel (E1)."""
    job_id = await running(cluster, tmp_path, "steered")
    listed = await line.flink("list", "-a")
    assert listed.code == 0, listed.said
    assert re.search(rf"{job_id} : steered \(RUNNING\)", listed.out), listed.said

    taken = await line.flink("savepoint", job_id, str(tmp_path / "savepoints"))
    assert taken.code == 0, taken.said
    path = TAKEN.search(taken.out)
    assert path is not None, taken.said
    assert list((tmp_path / "savepoints").glob("*/_metadata"))
    disposed = await line.flink("savepoint", "-d", path[1])
    assert (disposed.code, "disposed" in disposed.out) == (0, True), disposed.said
    assert not list((tmp_path / "savepoints").glob("*/_metadata"))

    for options in ((), ("-full",)):
        done = await line.flink("checkpoint", *options, job_id)
        assert done.code == 0, done.said
        assert "completed" in done.out, done.said

    (tmp_path / "file").write_text("no directory")
    failed = await line.flink("savepoint", job_id, str(tmp_path / "file"))
    assert failed.code == 1, failed.said
    assert "file" in failed.said, failed.said
    gone = await line.flink("savepoint", "-d", str(tmp_path / "nothing-there"))
    assert gone.code == 1, gone.said
    assert "no-checkpoint-there" in gone.said, gone.said

    unknown = await line.flink("cancel", UNKNOWN)
    assert unknown.code == 1, unknown.said
    assert "there is no job" in unknown.said, unknown.said
    assert "Cancelled" not in unknown.out

    cancelled = await line.flink("cancel", job_id)
    assert cancelled.code == 0, cancelled.said
    await cluster.await_state(job_id, "CANCELED")


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        (("stop", "-p"), "FINISHED"),
        (("stop", "--drain", "-p"), "FINISHED"),
        (("cancel", "-s"), "CANCELED"),
    ],
    ids=["stop -p", "stop --drain", "cancel -s"],
)
async def test_flinks_command_line_ends_a_job_with_a_savepoint(
    cluster: Cluster, tmp_path: Path, line: CommandLine, options: tuple[str, ...], ends: str
) -> None:
    """The savepoint is complete, and another job can start from it (C24)."""
    job_id = await running(cluster, tmp_path, "ended")
    done = await line.flink(*options, str(tmp_path / "savepoints"), job_id)
    assert done.code == 0, done.said
    _check_rows(await cluster.await_state(job_id, ends))
    (metadata,) = (tmp_path / "savepoints").glob("*/_metadata")
    assert metadata.parent.name in done.out, done.said
