"""The command line's side of `/events`: it goes on over a daemon that goes away and comes back (E16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from aiohttp import web

from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import DaemonUnreachable, Refused
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import free_port
from tests.waiting import until


class Daemon:
    """Answers each connection with the next of its texts, and ends it. The last one stays open."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = texts
        self.asked: list[str | None] = []
        self.port = free_port()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/events", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        text = self.texts.pop(0)
        await response.write(text)
        if not self.texts:
            await asyncio.Event().wait()
        return response


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    daemon = Daemon([b"id: 1\ndata: one\n\nid: 2\nda", b"id: 2\ndata: two\n\n", b"data: three\n\n"])
    yield daemon
    await daemon.stop()


async def test_it_goes_on_where_it_was(daemon: Daemon) -> None:
    """The daemon ends each stream; the client names the last id of a whole event."""
    await daemon.start()
    found, losses = [], list[MinflinkError]()
    async with (
        Client(f"http://127.0.0.1:{daemon.port}") as client,
        aclosing(client.events("/events", lost=lambda error, _: losses.append(error))) as events,
    ):
        async for event in events:
            found.append(event.data)
            if event.data == b"three":
                break
    assert found == [b"one", b"two", b"three"]
    assert daemon.asked == [None, "1", "2"]
    assert len(losses) == 2


async def test_it_waits_for_a_daemon_and_gives_up_at_last(daemon: Daemon) -> None:
    async with Client(f"http://127.0.0.1:{daemon.port}") as client:
        with pytest.raises(DaemonUnreachable):
            async for _ in client.events("/events", patience=0.3):
                pass
        said: list[float] = []

        async def hear() -> bytes:
            async with aclosing(client.events("/events", lost=lambda _, seconds: said.append(seconds))) as events:
                async for event in events:
                    return event.data
            raise AssertionError

        heard = asyncio.create_task(hear())
        await until(lambda: said)
        await daemon.start()
        assert await heard == b"one"


async def test_what_another_attempt_does_not_change_is_an_error(daemon: Daemon) -> None:
    await daemon.start()
    async with Client(f"http://127.0.0.1:{daemon.port}") as client:
        with pytest.raises(Refused):
            async for _ in client.events("/nothing"):
                pass
