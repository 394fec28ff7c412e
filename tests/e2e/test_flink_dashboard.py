"""Flink 2.3's dashboard, unmodified, in a browser, on a daemon that runs a job: every page opens (E1)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from minflinkd.rest.plan import vertex_id
from tests.cluster import Cluster, write_job
from tests.servers import chromium as browser
from tests.servers import flink_dashboard as dashboard
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

_JOB = """
from pyspark.sql.functions import udf


@udf("bigint")
def squared(value):
    return sum(value for _ in range(value))


def numbers(inputs, params):
    return inputs["numbers"].select(squared(inputs["numbers"]["value"] % 100).alias("square"))
"""


def _job(directory: Path) -> Path:
    (directory / "squares.py").write_text(_JOB)
    return write_job(
        directory / "squares.json",
        {
            "name": "squares",
            "parallelism": 2,
            "checkpointing": {"interval": "2 s"},
            "artifacts": ["squares.py"],
            "vertices": [
                {"id": "numbers", "source": {"format": "rate", "options": {"rowsPerSecond": "20"}}},
                {"id": "squares", "inputs": ["numbers"], "python": "squares:numbers"},
                {"id": "out", "inputs": [{"id": "squares", "exchange": True}], "sink": {"format": "collect"}},
            ],
        },
    )


@pytest_asyncio.fixture(loop_scope="session")
async def job(cluster: Cluster, tmp_path: Path) -> AsyncIterator[str]:
    job_id = await cluster.submit(_job(tmp_path))
    await cluster.await_state(job_id, "RUNNING")
    await cluster.await_checkpoints(job_id, 1)
    yield job_id
    await cluster.cancel_all()


async def test_every_page_of_flinks_dashboard_opens(cluster: Cluster, job: str) -> None:
    """No call is answered with 4xx or 5xx, and no script fails."""
    if reason := dashboard.missing() or browser.missing():
        pytest.skip(reason)
    task_manager = (await cluster.task_manager_of(job)).id
    async with dashboard.flink_dashboard(cluster.url, cluster.headers) as url, browser.chromium() as chromium:
        page = await chromium.new_page()
        await page.goto(url, wait_until="networkidle")
        paths = dashboard.pages(job, [vertex_id("numbers"), vertex_id("out")], task_manager)
        assert not (found := await dashboard.complaints_of(page, paths)), "\n".join(found)
        assert "squares" in await dashboard.opened(page, f"/job/running/{job}/overview")


async def test_the_subtasks_tab_of_flinks_dashboard_shows_partitions(cluster: Cluster, job: str) -> None:
    """Each has read rows; it says so for as many as the vertex has."""
    if reason := dashboard.missing() or browser.missing():
        pytest.skip(reason)
    vertex = vertex_id("numbers")

    async def counted() -> list[int]:
        path = f"/jobs/{job}/vertices/{vertex}"
        async with aiohttp.ClientSession(cluster.url, headers=cluster.headers) as http, http.get(path) as response:
            found = await response.json()
        assert found["parallelism"] == len(found["subtasks"])
        return [one["metrics"]["read-records"] for one in found["subtasks"]]

    async def all_have_read() -> bool:
        return all(await counted())

    await until(all_have_read, "rows of each partition")
    async with dashboard.flink_dashboard(cluster.url, cluster.headers) as url, browser.chromium() as chromium:
        page = await chromium.new_page()
        await page.goto(url, wait_until="networkidle")
        await dashboard.opened(page, f"/job/running/{job}/overview")
        shown = await dashboard.opened(page, f"/job/running/{job}/overview/{vertex}/subtasks")
        rows = re.findall(r"^(\d+)\t[^\t]+\t([^\t]+)\t", shown, re.MULTILINE)  # index, bytes, and records received
    assert [int(index) for index, _ in rows] == list(range(len(await counted()))), shown
    assert "0" not in {records for _, records in rows}, shown


async def _graph(cluster: Cluster, job: str, kind: str) -> dict[str, Any]:
    path = f"/jobs/{job}/vertices/{vertex_id('numbers')}/flamegraph?type={kind}"
    async with aiohttp.ClientSession(cluster.url, headers=cluster.headers) as http, http.get(path) as response:
        assert response.status == 200
        answer: dict[str, Any] = await response.json()
        return answer


async def test_a_flame_graph_shows_the_jvm_and_the_python_function(cluster: Cluster, job: str) -> None:
    """The samples are of the micro-batches of this task, and of the workers that run its function."""

    async def sampled() -> dict[str, Any] | None:
        graph = await _graph(cluster, job, "full")
        return graph if graph["endTimestamp"] > 0 else None

    graph = await until(sampled, "samples", timeout=60)
    labels = {child["name"] for child in graph["data"]["children"]}
    assert "JVM: micro-batches" in labels, labels
    assert any(label.startswith("Python: ") for label in labels), labels
    assert graph["data"]["value"] > 20


async def test_a_thread_dump_shows_all_processes_of_a_task_manager(cluster: Cluster, job: str) -> None:
    """Supervisor, session child and JVM; a session child that is stopped is read from outside."""
    task_manager = await cluster.task_manager_of(job)

    async def dumped() -> str:
        path = f"/taskmanagers/{task_manager.id}/thread-dump"
        async with aiohttp.ClientSession(cluster.url, headers=cluster.headers) as http, http.get(path) as response:
            assert response.status == 200, await response.text()
            threads = (await response.json())["threadInfos"]
            return "".join(one["stringifiedThreadInfo"] for one in threads)

    dump = await asyncio.wait_for(dumped(), 60)
    for part in ("supervisor", "session child", "stream execution thread for"):
        assert part in dump, part
