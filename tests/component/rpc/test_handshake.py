"""Which version of the protocol a daemon and a TaskManager agree on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import handshake
from minflinkd.rpc.connection import read_frame, write_frame
from minflinkd.rpc.handshake import AuthenticationFailed, Challenge, Hello, greet, introduce
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Address, Unreachable, task_manager
from minflinkd.rpc.protocol_range import ProtocolMismatch, ProtocolRange
from minflinkd.rpc.tcp import RpcServer, RpcUplink
from minflinkd.runtime.ids import ResourceId
from tests.waiting import until

SECRET = b"s" * 64
TM = task_manager(ResourceId("tm-1"))
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Change = Callable[[dict[str, Any]], None]


def unchanged(_: dict[str, Any]) -> None:
    pass


@asynccontextmanager
async def two_ends(
    *, challenge: Change = unchanged, hello: Change = unchanged
) -> AsyncIterator[tuple[Streams, Streams]]:
    """The daemon's and the TaskManager's end of a connection, and somebody between them who changes what they say."""
    daemon_end: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda r, w: daemon_end.set_result((r, w)), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        client: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
        between = await asyncio.start_server(lambda r, w: client.set_result((r, w)), "127.0.0.1", 0)
        async with between:
            task_manager_end = await asyncio.open_connection("127.0.0.1", between.sockets[0].getsockname()[1])
            to_client, to_daemon = await client, await asyncio.open_connection("127.0.0.1", port)

            async def pass_on() -> None:
                await _pass(to_daemon, to_client, challenge)
                await _pass(to_client, to_daemon, hello)
                await _pass(to_daemon, to_client, unchanged)

            passing = asyncio.create_task(pass_on())
            try:
                yield await daemon_end, task_manager_end
            finally:
                passing.cancel()
                await asyncio.gather(passing, return_exceptions=True)
                for _, writer in (task_manager_end, to_client, to_daemon, daemon_end.result()):
                    writer.close()


async def _pass(source: Streams, target: Streams, change: Change) -> None:
    try:
        frame = msgspec.msgpack.decode(await read_frame(source[0]))
    except asyncio.IncompleteReadError:
        target[1].close()
        raise
    change(frame)
    write_frame(target[1], msgspec.msgpack.encode(frame))


async def shake(
    daemon: ProtocolRange, taskmanager: ProtocolRange, *, challenge: Change = unchanged, hello: Change = unchanged
) -> tuple[Any, Any]:
    """Return what each side has agreed on, or the error with which it ended."""
    async with two_ends(challenge=challenge, hello=hello) as (of_daemon, of_task_manager), asyncio.timeout(10):

        async def greeted() -> int:
            try:
                address, peer = await greet(*of_daemon, secret=SECRET, spoken=daemon)
                assert address == TM
                return peer.protocol
            finally:
                of_daemon[1].close()

        async def introduced() -> int:
            return (await introduce(*of_task_manager, secret=SECRET, address=TM, spoken=taskmanager)).protocol

        return tuple(await asyncio.gather(greeted(), introduced(), return_exceptions=True))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("daemon", "taskmanager", "agreed"),
    [
        (ProtocolRange(1, 1), ProtocolRange(1, 1), 1),
        (ProtocolRange(1, 2), ProtocolRange(1, 1), 1),
        (ProtocolRange(1, 2), ProtocolRange(1, 2), 2),
        (ProtocolRange(1, 2), ProtocolRange(2, 3), 2),
        (ProtocolRange(2, 3), ProtocolRange(1, 2), 2),
    ],
)
async def test_two_versions_next_to_each_other_speak_the_newest_that_both_know(
    daemon: ProtocolRange, taskmanager: ProtocolRange, agreed: int
) -> None:
    """A new daemon adopts TaskManagers of the version before, and the other way round (A15a)."""
    assert await shake(daemon, taskmanager) == (agreed, agreed)


async def test_versions_too_far_apart_are_refused_by_both_sides_who_name_both_and_say_what_to_do() -> None:
    """The code is stable; the hint names the side that is to be upgraded (A15a)."""
    daemon, taskmanager = await shake(ProtocolRange(2, 3), ProtocolRange(1, 1))
    for error in (daemon, taskmanager):
        assert isinstance(error, ProtocolMismatch)
        assert error.info().code == "rpc-version"
        assert "2 to 3" in error.message
        assert "1" in error.message.replace("tm-1", "")
    assert f"the older side is {TM}: upgrade" in daemon.hint
    assert "the older side is this process: upgrade" in taskmanager.hint


@pytest.mark.parametrize("field", ["oldest", "newest"])
async def test_nobody_between_two_processes_makes_them_speak_an_older_version(field: str) -> None:
    """The ranges are part of what is proved (A15a)."""

    def older(frame: dict[str, Any]) -> None:
        frame[field] -= 1

    both = ProtocolRange(2, 3)
    daemon, taskmanager = await shake(both, both, challenge=older)
    assert isinstance(daemon, AuthenticationFailed)
    assert isinstance(taskmanager, Unreachable)
    daemon, taskmanager = await shake(both, both, hello=older)
    assert isinstance(daemon, AuthenticationFailed)
    assert isinstance(taskmanager, Unreachable)


async def test_a_later_version_may_say_more_in_its_handshake() -> None:
    """Otherwise two versions could not even find out what they have in common (A15a)."""

    def more(frame: dict[str, Any]) -> None:
        frame["of a later version"] = [1, 2, 3]

    one = ProtocolRange(1, 1)
    assert await shake(one, one, challenge=more, hello=more) == (1, 1)


async def test_what_is_no_challenge_is_told_as_such() -> None:
    """Another program may have the daemon's port."""
    async with two_ends(challenge=lambda frame: frame.pop("newest")) as (of_daemon, of_task_manager):
        write_frame(of_daemon[1], msgspec.msgpack.encode(Challenge(oldest=1, newest=1, nonce=b"n")))
        with pytest.raises(handshake.ProtocolError, match="not a daemon's challenge"):
            await introduce(*of_task_manager, secret=SECRET, address=TM)


async def test_the_connections_of_both_sides_know_the_version_that_was_agreed_on() -> None:
    """So a daemon can leave out what a TaskManager of the version before does not know (A15a)."""
    network, theirs = LocalNetwork(), LocalNetwork()
    async with RpcServer(network, secret=SECRET, spoken=ProtocolRange(1, 2)) as server:
        host, port = server.endpoint
        old = ProtocolRange(1, 1)
        async with RpcUplink(theirs, address=TM, secret=SECRET, daemon=(host, port), spoken=old) as uplink:
            await until(lambda: server._connections and uplink.connected.is_set())
            assert uplink._connection is not None
            assert server._connections[TM].protocol == uplink._connection.protocol == 1


@pytest.mark.parametrize(("spoken", "sealed"), [(ProtocolRange(1, 1), False), (ProtocolRange(1, 2), True)])
async def test_a_taskmanager_that_knows_no_seals_is_let_in_and_the_log_says_so(
    spoken: ProtocolRange, sealed: bool
) -> None:
    """A rolling upgrade goes on. Both sides of the present version seal what they send (A15a)."""
    with capture_logs() as logs:
        async with RpcServer(LocalNetwork(), secret=SECRET) as server:
            host, port = server.endpoint
            network = LocalNetwork()
            async with RpcUplink(network, address=TM, secret=SECRET, daemon=(host, port), spoken=spoken) as uplink:
                await until(lambda: server._connections and uplink.connected.is_set())
                assert (server._connections[TM]._seals is not None) is sealed
                assert uplink._connection is not None
                assert (uplink._connection._seals is not None) is sealed
    told = [line for line in logs if line["event"].startswith("a TaskManager of an earlier version")]
    assert [line["address"] for line in told] == ([] if sealed else [TM])


async def test_a_taskmanager_without_a_version_in_common_warns_and_tries_again() -> None:
    """The daemon may be upgraded next; until then its log and the TaskManager's say what is wrong (A15a)."""
    with capture_logs() as logs:
        async with RpcServer(LocalNetwork(), secret=SECRET, spoken=ProtocolRange(1, 1)) as server:
            host, port = server.endpoint
            newer = ProtocolRange(2, 3)
            network = LocalNetwork()
            async with RpcUplink(network, address=TM, secret=SECRET, daemon=(host, port), spoken=newer) as uplink:
                await until(lambda: len([x for x in logs if "the daemon speaks version 1 of" in str(x)]) > 1)
                refusals = [line for line in logs if "speaks version" in str(line.get("error"))]
                assert {line["log_level"] for line in refusals} == {"warning"}
                assert not uplink.connected.is_set()
    assert [x for x in logs if f"{TM} speaks version 2 to 3" in str(x) and x["event"] == "a connection was refused"]


def test_the_proof_stays_as_it_is_in_all_versions() -> None:
    """Two versions that compute it differently refuse each other before they have agreed on anything (A15a)."""
    challenge = Challenge(oldest=1, newest=2, nonce=b"c" * 32)
    found = handshake._proof(SECRET, "client", challenge, Address("taskmanager/tm-1"), b"h" * 32, ProtocolRange(1, 1))
    assert found.hex() == "4f2da8ab4c3c5e8e1e0e3c21e27c74515e83ccf2967e04dbb10b2698c23eb5c9"
    hello = Hello(address=TM, oldest=1, newest=1, nonce=b"h" * 32, proof=found)
    assert list(msgspec.to_builtins(hello)) == ["address", "oldest", "newest", "nonce", "proof"]
