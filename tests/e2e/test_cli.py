"""The commands of a user, against a real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

from tests.cluster import Cluster
from tests.e2e.command import minflinkd
from tests.waiting import until
from tests.windows_job import WindowsJob, leftovers, result

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


async def test_a_job_from_run_to_its_result(cluster: Cluster, tmp_path: Path) -> None:
    """The commands are run --wait, list, info, checkpoints, taskmanagers and logs. The result is the batch's (E10)."""
    await cluster.await_ready(1)
    windows = WindowsJob(tmp_path, files=8)
    windows.write_events()
    code, _, err = await minflinkd(cluster, "run", str(windows.write("main")), "--wait", "--json")
    assert code == 0, err
    assert result(tmp_path / "main") == windows.batch()
    assert leftovers(tmp_path / "main") == []

    code, out, _ = await minflinkd(cluster, "list", "--all", "--json")
    job = next(j for j in json.loads(out)["jobs"] if j["name"] == "main")
    assert (code, job["state"]) == (0, "FINISHED")
    code, out, _ = await minflinkd(cluster, "info", job["jid"], "--json")
    assert (code, json.loads(out)["state"]) == (0, "FINISHED")
    code, out, _ = await minflinkd(cluster, "checkpoints", job["jid"], "--json")
    assert json.loads(out)["counts"]["completed"] >= 1
    code, out, _ = await minflinkd(cluster, "taskmanagers", "--json")
    (manager,) = json.loads(out)["taskmanagers"]
    assert manager["freeSlots"] == manager["slotsNumber"]
    code, out, _ = await minflinkd(cluster, "logs", manager["id"])
    assert code == 0
    assert "the session is ready" in out
    code, out, err = await minflinkd(cluster, "logs", job["jid"], "taskmanager.log")
    assert (code, err) == (0, ""), err
    assert "a task is deployed" in out
    assert "the session is ready" not in out, "that concerns no job"
    code, _, err = await minflinkd(cluster, "cancel", job["jid"])
    assert code == 5, err
    code, _, err = await minflinkd(cluster, "info", "f" * 32)
    assert code == 4, err


async def test_a_taskmanager_says_how_its_session_collects_garbage(cluster: Cluster) -> None:
    """Measured in the JVM, told with heartbeats, shown in Flink's form and to Prometheus (E17, E30)."""
    (ready,) = await cluster.await_ready(1)

    async def with_share() -> dict[str, float] | None:
        metrics = (await cluster.measured(ready.id)).minflinkd.metrics
        return metrics if "jvm.gc_share" in metrics else None

    told = await until(with_share, "a session that has run for ten seconds")
    assert 0 <= told["jvm.gc_share"] < 0.5
    assert "python_workers.rss_bytes" in told
    async with aiohttp.ClientSession(cluster.client.url, headers=cluster.headers) as session:
        async with session.get(f"/taskmanagers/{ready.id}") as response:
            metrics = (await response.json())["metrics"]
        async with session.get("/metrics") as response:
            text = await response.text()
    assert 0 < metrics["heapUsed"] <= metrics["heapMax"]
    assert sum(one["time"] for one in metrics["garbageCollectors"]) > 0
    for one in metrics["garbageCollectors"]:
        labels = f'collector="{one["name"]}",taskmanager="{ready.id}"'
        assert f"minflinkd_taskmanager_gc_seconds_total{{{labels}}}" in text


async def test_flinks_paths_answer_with_and_without_the_prefix(cluster: Cluster) -> None:
    """The CLI of Flink uses /v1; its dashboard uses no prefix (E1)."""
    async with aiohttp.ClientSession(cluster.client.url, headers=cluster.headers) as session:
        paths = ("/overview", "/config", "/jobs", "/jobs/overview", "/taskmanagers", "/jobmanager/config")
        for path in (*paths, *(f"/v1{p}" for p in paths), "/health"):
            async with session.get(path) as response:
                assert response.status == 200, path
                assert await response.json() is not None
        async with session.get("/") as response:
            assert (response.status, response.content_type) == (200, "text/html")
        async with session.get("/metrics") as response:
            text = await response.text()
    for name in ("minflinkd_jobs", "minflinkd_slots", "minflinkd_event_loop_lag", "minflinkd_storage_requests"):
        assert name in text, f"{name} is not among the metrics"
