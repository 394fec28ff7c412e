"""Screenshots of every page in both themes, from a real run: `python -m tests.screenshots [DIRECTORY]`.

The flights job runs beside a small one, on two TaskManagers. Its storage is away for a moment, so that a checkpoint
fails; a TaskManager is killed; the job is hot-restarted, and gets a savepoint. Then each page is opened in Chromium. It
takes six minutes, of which most are for the charts to have something to show.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Browser, FloatRect, expect

from tests.cluster import Cluster, running_cluster, write_job
from tests.flights_job import FlightsJob, Version
from tests.servers.chromium import Complaints, chromium
from tests.waiting import until

DIRECTORY: Final = Path(__file__).parents[1] / "docs" / "page"
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
WIDTH: Final = 1360
HEIGHT: Final = 850
TALLEST: Final = 1900  # of a picture: a long table is cut
ENDLESS: Final = ("daemon", "taskmanager")  # all options, a log: only what a window shows of them
SETTINGS: Final[dict[str, object]] = {
    "taskmanager.numberOfTaskSlots": 2,
    "execution.checkpointing.tolerable-failed-checkpoints": 100,
}
CLICKS: Final[dict[str, object]] = {
    "name": "clicks",
    "checkpointing": {"interval": "5 s"},
    "vertices": {
        "clicks": {"source": {"format": "rate", "options": {"rowsPerSecond": 200}}},
        "pages": {
            "inputs": ["clicks"],
            "sql": "SELECT value % 7 AS page, count(*) AS clicks FROM clicks GROUP BY value % 7",
        },
        "out": {"inputs": ["pages"], "sink": {"format": "console"}},
    },
}


async def play(cluster: Cluster, job: FlightsJob) -> str:
    """Let happen to a job what the pages are to show. Return its id."""
    await cluster.await_ready(1)
    clicks = await cluster.submit(write_job(job.base / "clicks.yaml", CLICKS))
    await cluster.await_state(clicks, "RUNNING")
    await cluster.await_ready(2)  # the standby
    job.release(5)
    job_id = await cluster.submit(job.write(Version()))
    feeding = asyncio.ensure_future(_feed(job))
    try:
        await cluster.await_checkpoints(job_id, 30)
        await _away(cluster, job_id)
        await asyncio.sleep(20)
        os.kill((await cluster.task_manager_of(job_id)).minflinkd.pid, signal.SIGKILL)
        await cluster.await_job(job_id, lambda found: found.minflinkd.restarts > 0, "restarts")
        await cluster.await_state(job_id, "RUNNING")
        await asyncio.sleep(45)
        await _command("hot-restart", job_id, str(job.write(Version(1, factor=3))), "--yes", "--url", cluster.url)
        await asyncio.sleep(20)
        await _command("savepoint", job_id, str(job.base / "savepoints"), "--url", cluster.url)
        await asyncio.sleep(30)
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
    return job_id


async def _feed(job: FlightsJob) -> None:
    while True:
        job.release(1)
        await asyncio.sleep(0.9)


async def _away(cluster: Cluster, job_id: str) -> None:
    """Keep the storage of checkpoints from working until one has failed."""
    [directory] = {path.parent for path in cluster.state.rglob(f"{job_id}/chk-*")} or {None}
    assert directory is not None, "the job has no directory of checkpoints"
    aside = directory.with_name("away")
    directory.rename(aside)
    directory.write_text("not a directory")
    try:

        async def failed() -> bool:
            return (await cluster.client.checkpoints(job_id)).counts.failed > 0

        await until(failed, "a checkpoint has failed")
    finally:
        directory.unlink()
        aside.rename(directory)


async def _command(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "minflinkd", *arguments)
    if await asyncio.wait_for(process.wait(), 180) != 0:
        raise RuntimeError(f"minflinkd {arguments[0]} failed")


async def places(cluster: Cluster, job_id: str) -> dict[str, str]:
    """Return the place of each page, by the name of its picture."""
    manager = (await cluster.task_manager_of(job_id)).id
    failed = (await cluster.client.checkpoints(job_id)).latest.failed
    last = (await cluster.client.checkpoints(job_id)).latest.completed
    one = failed or last
    return {
        "overview": "",
        "job": f"jobs/{job_id}",
        "checkpoints": f"jobs/{job_id}/checkpoints",
        "checkpoint": f"jobs/{job_id}/checkpoints/{one.id if one is not None else 1}",
        "timeline": f"jobs/{job_id}/timeline",
        "plan": f"jobs/{job_id}/plan",
        "state": f"jobs/{job_id}/state",
        "new-version": f"jobs/{job_id}/new-version",
        "taskmanagers": "taskmanagers",
        "taskmanager": f"taskmanagers/{manager}",
        "storage": "storage",
        "blobs": "blobs",
        "daemon": "daemon",
        "submit": "submit",
    }


async def shoot(cluster: Cluster, browser: Browser, job_id: str, directory: Path) -> list[str]:
    """Write all pictures. Return what the pages complain of."""
    complaints: list[str] = []
    for theme in THEMES:
        context = await browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme=theme,
            reduced_motion="reduce",
            extra_http_headers=cluster.headers,
        )
        page = await context.new_page()
        heard = Complaints(page)
        for name, place in (await places(cluster, job_id)).items():
            await page.goto(f"{cluster.url}/#/{place}")
            await expect(page.locator(".connection.live")).to_be_visible(timeout=30_000)
            await expect(page.get_by_text("Asking the daemon")).to_have_count(0, timeout=30_000)
            if name == "state":
                await page.get_by_role("button", name="Read it").click()
                await expect(page.get_by_role("region", name="Rows")).to_be_visible(timeout=120_000)
            await page.wait_for_timeout(2_000)  # charts are drawn, logs are read
            height = HEIGHT if name in ENDLESS else min(TALLEST, await page.evaluate("document.body.scrollHeight"))
            clip: FloatRect = {"x": 0, "y": 0, "width": WIDTH, "height": max(HEIGHT, height)}
            picture = await page.screenshot(full_page=True, clip=clip)
            await asyncio.to_thread((directory / f"{name}-{theme}.png").write_bytes, picture)
        complaints += heard.found
        await context.close()
    return complaints


async def main(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="minflinkd-shots-") as base:
        job = FlightsJob(Path(base) / "job", exchange=True)
        async with running_cluster(Path(base) / "cluster", **SETTINGS) as cluster, chromium() as browser:
            job_id = await play(cluster, job)
            complaints = await shoot(cluster, browser, job_id, directory)
    print("\n".join(complaints) or f"the pictures are in {directory}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)))
