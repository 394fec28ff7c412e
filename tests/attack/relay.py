"""Somebody on the way between a TaskManager and its daemon: forwards the handshake, and then does as he likes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

LENGTH = struct.Struct("!I")


class Way(Enum):
    TO_DAEMON = "to the daemon"
    TO_TASK_MANAGER = "to the TaskManager"


HANDSHAKE = {Way.TO_DAEMON: 1, Way.TO_TASK_MANAGER: 2}  # frames: a Hello; a Challenge and a Welcome
Change = Callable[[Way, int, bytes], list[bytes]]  # the frames, with their lengths, that go on instead of this one


def unchanged(_way: Way, _number: int, frame: bytes) -> list[bytes]:
    return [frame]


def framed(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content


class Relay:
    """Listens at `port`. What follows the handshakes is in `seen`, and goes through `change`. Frames count from 0."""

    def __init__(self, daemon_port: int) -> None:
        self.port = 0
        self.change: Change = unchanged
        self.seen: list[tuple[Way, bytes]] = []
        self.connections = 0
        self._daemon_port = daemon_port
        self._writers: dict[Way, asyncio.StreamWriter] = {}  # of the newest connection
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, way: Way) -> list[bytes]:
        return [frame for each, frame in self.seen if each is way]

    def send(self, way: Way, data: bytes) -> None:
        """Send something of our own."""
        self._writers[way].write(data)

    def cut(self, way: Way) -> None:
        """End the half of the newest connection that leads there."""
        self._writers[way].close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_daemon, to_task_manager = None, writer
        try:
            there, to_daemon = await asyncio.open_connection("127.0.0.1", self._daemon_port)
            self._writers = {Way.TO_DAEMON: to_daemon, Way.TO_TASK_MANAGER: to_task_manager}
            self.connections += 1
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(Way.TO_DAEMON, reader, to_daemon))
                both.create_task(self._pass(Way.TO_TASK_MANAGER, there, to_task_manager))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (to_daemon, to_task_manager):
                if each is not None:
                    each.close()
            self._tasks.discard(task)

    async def _pass(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = -HANDSHAKE[way]
        while True:
            head = await reader.readexactly(LENGTH.size)
            frame = head + await reader.readexactly(LENGTH.unpack(head)[0])
            frames = [frame]
            if number >= 0:
                self.seen.append((way, frame))
                frames = self.change(way, number, frame)
            number += 1
            for each in frames:
                writer.write(each)
            await writer.drain()

    async def aclose(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def relay_to(daemon_port: int) -> AsyncIterator[Relay]:
    relay = Relay(daemon_port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield relay
        finally:
            server.close()
            await relay.aclose()
