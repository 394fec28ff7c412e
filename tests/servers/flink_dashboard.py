"""Flink's own dashboard, unmodified, on one origin with a daemon.

Its files come from flink-dist's jar. All other requests are passed on to the daemon.
"""

from __future__ import annotations

import contextlib
import mimetypes
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp
from aiohttp import web
from playwright.async_api import Page

from tests.servers.chromium import Complaints
from tests.servers.install import HOME

FLINK_DIST = HOME / "flink-2.3.0" / "pyflink" / "lib" / "flink-dist-2.3.0.jar"
_FOLDER = "web/"
SETTLING = 700.0  # milliseconds in which a page asks for more once it has the first answers
# Flink's own: the graph of the page that was left is gone while d3 still moves it. Seen on a slow machine.
_OF_A_GRAPH_THAT_IS_GONE = "Failed to read the 'value' property from 'SVGLength'"
_NOT_PASSED_ON = frozenset({"host", "origin", "connection", "transfer-encoding", "content-length", "content-encoding"})


def missing() -> str | None:
    """Return why the dashboard is not here, for tests that are skipped. None if it is."""
    return None if FLINK_DIST.is_file() else "Flink's jars are not installed (make servers)"


def _files(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.startswith(_FOLDER) and not name.endswith("/")]
        return {name.removeprefix(_FOLDER): archive.read(name) for name in names}


def pages(job: str, vertices: Sequence[str], task_manager: str) -> list[str]:
    """Return the paths of all of its pages, for a job that runs."""
    of_vertex = ("detail", "subtasks", "taskmanagers", "watermarks", "accumulators", "backpressure", "metrics")
    of_job = ("overview", "exceptions", "dataskew", "timeline", "checkpoints", "configuration", "rescales")
    of_task_manager = ("metrics", "logs", "stdout", "log-list", "thread-dump", "profiler")
    of_daemon = ("metrics", "config", "logs", "stdout", "log-list", "thread-dump", "profiler")
    return [
        "/overview",
        "/application/running",
        "/application/completed",
        *(f"/application/running/{job}/{page}" for page in ("overview", "exceptions")),
        "/job/running",
        "/job/completed",
        *(f"/job/running/{job}/{page}" for page in of_job),
        # Between two vertices the first one is closed: otherwise the dashboard reads a page that is gone.
        *(
            f"/job/running/{job}/overview{page}"
            for vertex in vertices
            for page in ("", *(f"/{vertex}/{tab}" for tab in (*of_vertex, "flamegraph")))
        ),
        "/task-manager",
        *(f"/task-manager/{task_manager}/{page}" for page in of_task_manager),
        *(f"/job-manager/{page}" for page in of_daemon),
        "/submit",
    ]


async def opened(page: Page, path: str) -> str:
    """Open a page of the dashboard, let it ask for all that it shows, and return what it shows."""
    await page.goto(f"{page.url.partition('#')[0]}#{path}")
    await page.wait_for_load_state("networkidle")
    await page.wait_for_timeout(SETTLING)
    return await page.inner_text("body")


async def complaints_of(page: Page, paths: Sequence[str]) -> list[str]:
    """Open all of these pages, and return what they complain of."""
    complaints, found = Complaints(page), list[str]()
    for path in paths:
        before = len(complaints.found)
        shown = await opened(page, path)
        assert "Flink" in shown, path
        new = complaints.found[before:]
        found += [f"{path}: {complaint[:1000]}" for complaint in new if _OF_A_GRAPH_THAT_IS_GONE not in complaint]
    return found


@contextlib.asynccontextmanager
async def flink_dashboard(daemon: str, headers: Mapping[str, str]) -> AsyncIterator[str]:
    """Serve the dashboard of the daemon at this URL, and yield its own URL. `headers`: the daemon's token."""
    files = _files(FLINK_DIST)
    async with aiohttp.ClientSession(daemon, auto_decompress=False) as session:

        async def answer(request: web.Request) -> web.StreamResponse:
            name = request.path.lstrip("/") or "index.html"
            if (found := files.get(name)) is not None:
                return web.Response(
                    body=found, content_type=mimetypes.guess_type(name)[0] or "application/octet-stream"
                )
            passed_on = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_PASSED_ON}
            async with session.request(
                request.method, request.raw_path, headers={**passed_on, **headers}, data=await request.read()
            ) as response:
                kept = {k: v for k, v in response.headers.items() if k.lower() not in _NOT_PASSED_ON}
                return web.Response(status=response.status, headers=kept, body=await response.read())

        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
