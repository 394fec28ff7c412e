"""The commands of a user, against a real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

from tests.cluster import Cluster
from tests.e2e.command import minflinkd
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
