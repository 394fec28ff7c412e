"""What must hold when the server of a backend dies in the middle of an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import ClassVar, Protocol

import pytest

from minflinkd.storage.conformance.objects import MIB, content, names, read, write
from minflinkd.storage.interface import (
    ObjectExists,
    Storage,
    StorageUnavailable,
    closable,
)
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import ResilientStorage


class Server(Protocol):
    """The server that the storage talks to: a process that the test owns."""

    async def kill(self) -> None:
        """Kill it as `kill -9` does."""
        ...

    async def restart(self) -> None:
        """Restart it at the same address, with its data. Returns when it is ready."""
        ...


class ServerLossConformance:
    """The server is killed in the middle of a write or a read (S5): no partial object appears, no read is wrong."""

    patience: ClassVar[CommonOptions] = CommonOptions(request_timeout=5, deadline=60, retries=50, pause=0.1)
    impatience: ClassVar[CommonOptions] = CommonOptions(request_timeout=2, deadline=4, retries=50, pause=0.1)
    size: ClassVar[int] = 24 * MIB  # of an object with several parts

    async def test_a_write_that_the_servers_death_cut_off_is_invisible_and_can_be_repeated(
        self, storage: Storage, prefix: str, server: Server
    ) -> None:
        data = content(self.size)
        events: list[Callable[[], Awaitable[None]]] = [server.kill]
        await write(ResilientStorage(storage, self.patience), f"{prefix}/before", b"1")
        resilient = ResilientStorage(storage, self.impatience)
        async with asyncio.timeout(self.impatience.deadline * 10 + 60):
            with pytest.raises(StorageUnavailable):
                await write_around(resilient, f"{prefix}/x", data, events)
        assert not events, "the server was not killed"
        await server.restart()
        patient = ResilientStorage(storage, self.patience)
        assert await names(patient, prefix) == ["before"]
        assert await read(patient, f"{prefix}/before") == b"1"
        await write(patient, f"{prefix}/x", data)
        assert await read(patient, f"{prefix}/x") == data
        assert await names(patient, prefix) == ["before", "x"]

    async def test_a_write_around_a_restart_completes_or_fails_as_transient(
        self, storage: Storage, prefix: str, server: Server
    ) -> None:
        data, patient = content(self.size), ResilientStorage(storage, self.patience)
        restarting: list[asyncio.Task[None]] = []

        async def bounce() -> None:
            await server.kill()
            restarting.append(asyncio.create_task(server.restart()))

        completed = True
        try:
            await write_around(patient, f"{prefix}/x", data, [bounce])
        except StorageUnavailable:
            completed = False
        assert restarting, "the server was not killed"
        await asyncio.gather(*restarting)
        if not completed:
            assert await names(patient, prefix) == []
            await write(patient, f"{prefix}/x", data)
        assert await read(patient, f"{prefix}/x") == data
        assert await names(patient, prefix) == ["x"]

    async def test_a_read_around_a_restart_goes_on_or_fails_as_transient(
        self, storage: Storage, prefix: str, server: Server
    ) -> None:
        data, patient = content(self.size), ResilientStorage(storage, self.patience)
        await write(patient, f"{prefix}/x", data)
        got = bytearray()
        restarting: asyncio.Task[None] | None = None
        try:
            async with aclosing(closable(patient.open_read(f"{prefix}/x"))) as pieces:
                async for piece in pieces:
                    got += piece
                    if restarting is None:
                        await server.kill()
                        restarting = asyncio.create_task(server.restart())
        except StorageUnavailable:
            assert data.startswith(got)
        else:
            assert got == data
        assert restarting is not None
        await restarting
        assert await read(patient, f"{prefix}/x") == data

    async def test_an_exclusive_create_around_a_restart_is_won_or_not_made_or_unknown(
        self, storage: Storage, prefix: str, server: Server
    ) -> None:
        if not storage.capabilities.exclusive_create:
            pytest.skip("the backend cannot")
        patient = ResilientStorage(storage, self.patience)
        await write(patient, f"{prefix}/before", b"1")
        await server.kill()
        restarting = asyncio.create_task(server.restart())
        won = True
        try:
            await patient.create_exclusive(f"{prefix}/x", b"mine")
        except StorageUnavailable:
            won = False
        await restarting
        if won:
            assert await read(patient, f"{prefix}/x") == b"mine"
        else:
            assert await names(patient, prefix) in (["before"], ["before", "x"])
        with pytest.raises(ObjectExists):
            await patient.create_exclusive(f"{prefix}/before", b"his")


async def write_around(storage: Storage, path: str, data: bytes, events: list[Callable[[], Awaitable[None]]]) -> None:
    """Write an object; run an event in the middle."""
    async with await storage.create(path) as writer:
        for start in range(0, len(data), MIB):
            if events and start >= len(data) // 2:
                await events.pop()()
            await writer.append(data[start : start + MIB])
        await writer.commit()
