"""The RPC port of a daemon that is one of several, and what TaskManagers make of its refusals. On loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import door, handshake
from minflinkd.rpc.connection import read_frame, write_frame
from minflinkd.rpc.door import RpcDoor
from minflinkd.rpc.handshake import AuthenticationFailed, Refusal, StandsBy, Welcome, introduce
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import task_manager
from minflinkd.rpc.protocol_range import ProtocolRange
from minflinkd.rpc.search import RECONNECT_FIRST
from minflinkd.rpc.tcp import RpcServer, RpcUplink
from minflinkd.runtime import listening
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.listening import Place, PortTaken
from tests.waiting import until

SECRET, ANOTHER = b"s" * 64, b"t" * 64
HOST = "127.0.0.1"
TM = task_manager(ResourceId("tm-1"))
ONE = ProtocolRange(1, 1)
Logs = list[Any]


def place(port: int = 0) -> Place:
    return Place(HOST, (port,), "jobmanager.bind-host", "jobmanager.rpc.port")


class Standby:
    """A daemon's port. `leader` is what it names; `asked` counts how often it was asked."""

    def __init__(self, *, secret: bytes = SECRET, spoken: ProtocolRange = ONE) -> None:
        self.leader = ""
        self.asked = 0
        self.door = RpcDoor(place(), secret=secret, leader=self._name, spoken=spoken)

    def _name(self) -> str:
        self.asked += 1
        return self.leader

    @property
    def port(self) -> int:
        return self.door.endpoint[1]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[RpcServer]:
        """As long as this daemon leads."""
        network = LocalNetwork()
        async with RpcServer(network, secret=SECRET, door=self.door) as server:
            yield server
        await network.aclose()


@asynccontextmanager
async def standby(leader: str = "", **options: Any) -> AsyncIterator[Standby]:
    one = Standby(**options)
    one.leader = leader
    async with one.door:
        yield one


@asynccontextmanager
async def leader() -> AsyncIterator[Standby]:
    async with standby() as one, one.leading():
        yield one


@asynccontextmanager
async def uplink(*ports: int, **options: Any) -> AsyncIterator[RpcUplink]:
    network = LocalNetwork()
    first, *others = ports
    async with RpcUplink(
        network, address=TM, secret=SECRET, daemon=(HOST, first), others=[(HOST, port) for port in others], **options
    ) as one:
        yield one
    await network.aclose()


async def ask(port: int, *, secret: bytes = SECRET, spoken: ProtocolRange = ONE) -> int:
    """Do a TaskManager's part of a handshake."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        async with asyncio.timeout(10):
            return (await introduce(reader, writer, secret=secret, address=TM, spoken=spoken)).protocol
    finally:
        writer.close()


def lines(logs: Logs, event: str) -> Logs:
    return [line for line in logs if line["event"] == event]


async def connected_to(uplink: RpcUplink, port: int) -> None:
    def there() -> bool:
        connection = uplink._connection
        return uplink.connected.is_set() and connection is not None and connection.name == f"daemon {HOST}:{port}"

    await until(there, f"connected to {port}")


async def test_a_standby_says_where_the_leader_is() -> None:
    """A13."""
    async with standby("a.example:6123") as one:
        with pytest.raises(StandsBy, match=r"names a\.example:6123 as the leader") as caught:
            await ask(one.port)
        assert caught.value.leader == "a.example:6123"


async def test_a_standby_says_that_nobody_leads() -> None:
    """A13."""
    async with standby() as one:
        with pytest.raises(StandsBy, match="knows no leader") as caught:
            await ask(one.port)
        assert caught.value.leader == ""


async def test_who_does_not_know_the_secret_does_not_learn_where_the_leader_is() -> None:
    """A13."""
    with capture_logs() as logs:
        async with standby("a.example:6123") as one:
            reader, writer = await asyncio.open_connection(HOST, one.port)
            challenge = msgspec.msgpack.decode(await read_frame(reader), type=handshake.Challenge)
            proof = handshake._proof(ANOTHER, "client", challenge, TM, b"n", challenge.spoken)
            hello = handshake.Hello(address=TM, oldest=1, newest=1, nonce=b"n", proof=proof)
            write_frame(writer, msgspec.msgpack.encode(hello))
            assert await reader.read() == b""
            writer.close()
            await until(lambda: lines(logs, "a connection was refused"))


@pytest.mark.parametrize("said", [b"\0\0\0\3abc", b"\xff\xff\xff\xff", b"", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_stranger_at_a_standby_is_sent_away_and_harms_nobody(said: bytes) -> None:
    with capture_logs() as logs:
        async with standby() as one:
            reader, writer = await asyncio.open_connection(HOST, one.port)
            writer.write(said)
            writer.write_eof()
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()
            with pytest.raises(StandsBy):
                await ask(one.port)
    assert [line["event"] for line in logs if line["log_level"] != "debug"] == ["a connection was refused"]


async def test_a_process_that_does_not_know_the_secret_sends_a_taskmanager_nowhere() -> None:
    """It has taken the port of a daemon, perhaps (A13)."""

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write_frame(writer, msgspec.msgpack.encode(handshake.Challenge(oldest=1, newest=1, nonce=b"n" * 32)))
        await read_frame(reader)
        write_frame(writer, msgspec.msgpack.encode(Refusal(leader="evil.example:1", refusal_proof=b"p" * 32)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(impostor, HOST, 0)
    async with server:
        with pytest.raises(AuthenticationFailed):
            await ask(server.sockets[0].getsockname()[1])


async def test_nobody_between_two_processes_changes_where_a_taskmanager_is_sent() -> None:
    """The leader's address is part of what is proved (A13)."""
    async with standby("a.example:6123") as one:

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            from_daemon, to_daemon = await asyncio.open_connection(HOST, one.port)
            write_frame(writer, await read_frame(from_daemon))
            write_frame(to_daemon, await read_frame(reader))
            refusal = msgspec.msgpack.decode(await read_frame(from_daemon), type=Refusal)
            write_frame(writer, msgspec.msgpack.encode(msgspec.structs.replace(refusal, leader="evil.example:1")))
            for each in (to_daemon, writer):
                each.close()

        server = await asyncio.start_server(between, HOST, 0)
        async with server:
            with pytest.raises(AuthenticationFailed):
                await ask(server.sockets[0].getsockname()[1])


async def test_a_standby_of_another_version_still_says_where_the_leader_is() -> None:
    """While daemons are upgraded one by one, the leader may speak what the standby does not (A13, A15a)."""
    async with standby("a.example:6123", spoken=ProtocolRange(2, 3)) as one:
        with pytest.raises(StandsBy):
            await ask(one.port, spoken=ONE)


def test_a_taskmanager_that_does_not_know_refusals_cannot_take_one_for_a_welcome() -> None:
    """It would believe that the standby leads (A13, A15a)."""
    refusal = msgspec.msgpack.encode(Refusal(leader="a.example:6123", refusal_proof=b"p" * 32))
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(refusal, type=Welcome)
    assert issubclass(msgspec.DecodeError, handshake.FAULTS)


async def test_a_taskmanager_goes_to_a_leader_that_is_not_in_its_list_and_says_so() -> None:
    """A13."""
    with capture_logs() as logs:
        async with leader() as leads, standby(leads.address) as one, uplink(one.port) as there:
            await connected_to(there, leads.port)
            assert lines(logs, "a standby names the leader") == [
                {
                    "event": "a standby names the leader",
                    "log_level": "info",
                    "host": HOST,
                    "port": one.port,
                    "leader": leads.address,
                }
            ]
            (met,) = lines(logs, "connected to the daemon")
            assert (met["port"], met["listed"]) == (leads.port, False)


async def test_a_taskmanager_finds_a_leader_that_is_not_in_its_list_again_without_the_standby() -> None:
    """The standby may be gone by then; the leader was only restarted (A13)."""
    async with standby() as leads, standby(leads.address) as one, uplink(one.port) as there:
        async with leads.leading():
            await connected_to(there, leads.port)
            await one.door.aclose()
        await until(lambda: not there.connected.is_set())
        async with leads.leading():
            await connected_to(there, leads.port)


async def test_a_named_leader_that_does_not_answer_is_left_for_one_of_the_list() -> None:
    """A13: the leader's host is gone, and takes connections as long as a handshake may last."""
    with socket.create_server((HOST, 0)) as gone, capture_logs():
        named = f"{HOST}:{gone.getsockname()[1]}"
        async with standby(named) as one, standby(named) as other, uplink(one.port, other.port) as there:
            await until(lambda: one.asked and other.asked)
            began = asyncio.get_running_loop().time()
            async with other.leading():
                await connected_to(there, other.port)
                assert asyncio.get_running_loop().time() - began < handshake.TIMEOUT


async def test_standbys_that_name_each_other_are_asked_with_pauses_until_one_of_them_leads() -> None:
    """Each believes that the other leads. Nobody is asked as fast as the network goes (A13)."""
    clock = asyncio.get_running_loop().time
    with capture_logs() as logs:
        began = clock()
        async with standby() as one, standby(one.address) as other, uplink(one.port) as there:
            one.leader = other.address
            await until(lambda: one.asked >= 5 and other.asked >= 5)
            assert clock() - began > (1 + 2 + 4) * RECONNECT_FIRST
            assert not there.connected.is_set()
            async with other.leading():
                await connected_to(there, other.port)
    assert lines(logs, "a standby names the leader")


async def test_a_port_goes_to_the_leader_and_back_and_always_answers() -> None:
    """Nobody is turned away by the operating system in between, and the port stays the same (A13)."""
    async with standby("b.example:1") as one:
        port = one.port
        for _ in range(3):
            with pytest.raises(StandsBy):
                await ask(port)
            async with one.leading() as server:
                assert server.endpoint == (HOST, port)
                assert await ask(port) == 1
            with pytest.raises(StandsBy):
                await ask(port)


async def test_a_taskmanager_comes_back_to_a_daemon_that_leads_again() -> None:
    """A13."""
    async with standby() as one, uplink(one.port) as there:
        for _ in range(2):
            async with one.leading():
                await connected_to(there, one.port)
            await until(lambda: not there.connected.is_set())
            before = one.asked
            await until(lambda asked=before: one.asked > asked, "it asks the standby")


async def test_a_taskmanager_that_knows_one_address_leaves_a_silent_leader_if_there_are_several_daemons() -> None:
    """It has met a standby, so the silent one may have been replaced (A13)."""
    async with leader() as silent, standby(silent.address) as one, uplink(one.port, heartbeat_timeout=0.3) as there:
        await connected_to(there, silent.port)
        async with one.leading():
            await connected_to(there, one.port)


async def test_connections_in_the_middle_of_a_handshake_do_not_hold_up_a_door_that_closes() -> None:
    async with standby() as one:
        reader, writer = await asyncio.open_connection(HOST, one.port)
        await read_frame(reader)
        async with one.leading():
            other, other_writer = await asyncio.open_connection(HOST, one.port)
            await read_frame(other)
            async with asyncio.timeout(handshake.TIMEOUT / 2):
                await one.door.aclose()
                assert await reader.read() == await other.read() == b""
        for each in (writer, other_writer):
            each.close()
        with pytest.raises(ConnectionRefusedError):
            await ask(one.port)


async def test_a_door_whose_port_is_taken_says_so() -> None:
    """A13."""
    with socket.create_server((HOST, 0)) as other, pytest.raises(PortTaken, match=r"jobmanager\.rpc\.port"):
        await RpcDoor(place(other.getsockname()[1]), secret=SECRET, leader=str).start()


async def test_a_door_whose_port_another_process_listens_on_first_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have bound it, and neither noticed (A13)."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, 0))

        async def late(where: Place) -> list[socket.socket]:
            bound = await listening.bind(where)
            other.listen()
            return bound

        monkeypatch.setattr(door, "bind", late)
        with pytest.raises(PortTaken):
            await RpcDoor(place(other.getsockname()[1]), secret=SECRET, leader=str).start()
