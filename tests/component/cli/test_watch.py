"""`minflinkd watch` against a daemon's stream of events (E16)."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import web
from click.testing import CliRunner, Result

from minflinkd.cli.main import main
from minflinkd.rest.jobs import job_info
from minflinkd.rpc.jobs import JobStatus
from tests.unit.cli.test_live import JOB
from tests.unit.rest.parties import FAILED, RUNNING, STARTED, details


@contextmanager
def events(path: str, *sent: tuple[str, object]) -> Iterator[str]:
    """A server that sends these events, and then keeps the connection. Yields its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    over = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, (name, value) in enumerate(sent):
            data = msgspec.json.encode(value).decode()
            await response.write(f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode())
        await over.wait()
        return response

    async def started() -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_get(path, stream)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    def call(coroutine: object) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)  # type: ignore[arg-type]

    runner, port = call(started())  # type: ignore[misc]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(over.set)
        call(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def watched(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["watch", *arguments, "--url", url])


def test_watching_a_job_ends_with_it_and_says_how() -> None:
    running, failed = job_info(details(), STARTED + 1), job_info(details(RUNNING, JobStatus.FAILED), STARTED + 9)
    with events(f"/jobs/{RUNNING}/events", ("job", running), ("job", running), ("job", failed)) as url:
        shown = watched(url, RUNNING)
        assert shown.exit_code == 1, shown.output
        lines = [line.split("  ", 1)[1] for line in shown.stdout.splitlines()]
        assert [line.partition(";")[0] for line in lines] == [
            "carrier-delays: RUNNING, tasks 2/2, restarts 1",
            "carrier-delays: FAILED, tasks 0/2, restarts 1",
        ]
        as_json = [json.loads(line) for line in watched(url, RUNNING, "--json").stdout.splitlines()]
        assert [event["data"]["state"] for event in as_json] == ["RUNNING", "RUNNING", "FAILED"]


def test_what_cannot_be_watched_is_said() -> None:
    with events(f"/jobs/{RUNNING}/events") as url:
        assert watched(url, FAILED).exit_code == 4


def test_q_leaves_the_live_view() -> None:
    """On a terminal the view fills the screen, and gives it back."""
    ours, theirs = pty.openpty()
    with events("/events", ("job", JOB)) as url:
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        program = "from minflinkd.cli.main import main; main(prog_name='minflinkd')"
        process = subprocess.Popen(
            [sys.executable, "-c", program, "watch", "--url", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
        )
        os.close(theirs)
        seen = b""
        while b"carrier-delays" not in seen:
            seen += os.read(ours, 65536)
        os.write(ours, b"q")
        rest = b"".join(_until_closed(ours))
        assert process.wait(30) == 0, rest
    os.close(ours)
    assert b"\x1b[?1049h" in seen, "another screen"
    assert b"\x1b[?1049l" in rest


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # the other end of the terminal is closed
            return
        if not piece:
            return
        yield piece
