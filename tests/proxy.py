"""A connection that can be cut: a TCP proxy that goes silent without FIN or RST, like a network that drops packets."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Proxy:
    """A proxy between its clients and one server. While it swallows, it accepts connections and bytes, forwarding none.

    Later it forwards what it swallowed, in order, as TCP does when packets get through again.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._server_address = (host, port)
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def swallow(self) -> None:
        self._passing.clear()

    def pass_on(self) -> None:
        self._passing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(self._connect(reader, writer), name="proxy connection")
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._passing.wait()
            with contextlib.suppress(OSError):
                up_reader, up_writer = await asyncio.open_connection(*self._server_address)
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(self._carry(reader, up_writer))
                        both.create_task(self._carry(up_reader, writer))
                finally:
                    up_writer.close()
        finally:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction to its end, and then close the other one."""
        taken: asyncio.Queue[bytes] = asyncio.Queue()
        taking = asyncio.get_running_loop().create_task(self._take(reader, taken), name="proxy reader")
        try:
            while data := await taken.get():
                await self._passing.wait()
                writer.write(data)
                with contextlib.suppress(OSError):
                    await writer.drain()
            await self._passing.wait()
            writer.close()
        finally:
            taking.cancel()

    async def _take(self, reader: asyncio.StreamReader, taken: asyncio.Queue[bytes]) -> None:
        """Read whatever comes at once, whether it is forwarded or not. Empty data means the end."""
        data = b"first"
        while data:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            taken.put_nowait(data)
