"""The connection between TaskManager and daemon over TCP, on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import handshake, search, tcp
from minflinkd.rpc.connection import read_frame, write_frame
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import DeclineCheckpoint, Done, ExitTaskManager, JobMasterChanged
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Mailbox, Unreachable, job_master, task_manager
from minflinkd.rpc.tcp import RpcServer, RpcUplink
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, ResourceId
from minflinkd.runtime.listening import Place, PortTaken
from tests.waiting import until

SECRET, ANOTHER = b"s" * 64, b"t" * 64
TM = task_manager(ResourceId("tm-1"))
OTHER = task_manager(ResourceId("tm-2"))
EXIT = ExitTaskManager(reason="test")
JOB = JobId("1" * 32)
MASTER = job_master(JOB)
DECLINE = DeclineCheckpoint(
    job_id=JOB, attempt_id=AttemptId("2" * 32), checkpoint_id=1, error=ErrorInfo(code="test", message="test")
)


def at(*ports: int) -> Place:
    return Place("127.0.0.1", ports, "jobmanager.bind-host", "jobmanager.rpc.port")


class TaskManagerSide:
    """A TaskManager's network with one party, which counts its requests."""

    def __init__(
        self,
        port: int,
        *,
        secret: bytes = SECRET,
        address: Address = TM,
        others: tuple[int, ...] = (),
        heartbeat_timeout: float = 5.0,
    ) -> None:
        self.network = LocalNetwork()
        self.asked = 0
        mailbox = Mailbox(address)
        mailbox.on(ExitTaskManager, self._exit)
        mailbox.on_notice(JobMasterChanged, self._lost)
        self.told = 0
        self.network.attach(mailbox)
        self.uplink = RpcUplink(
            self.network,
            address=address,
            secret=secret,
            daemon=("127.0.0.1", port),
            heartbeat_timeout=heartbeat_timeout,
            others=[("127.0.0.1", other) for other in others],
        )

    async def _exit(self, request: ExitTaskManager) -> Done:
        self.asked += 1
        return Done()

    async def _lost(self, notice: JobMasterChanged) -> None:
        self.told += 1

    async def connected(self) -> None:
        async with asyncio.timeout(5):
            await self.uplink.connected.wait()

    async def aclose(self) -> None:
        await self.uplink.aclose()
        await self.network.aclose()


class Daemon:
    def __init__(self, port: int = 0) -> None:
        self.network = LocalNetwork(leads=lambda: self.leads)
        mailbox = Mailbox(MASTER)
        mailbox.on(DeclineCheckpoint, self._declined)
        self.network.attach(mailbox)
        self.disconnected: list[Address] = []
        self.leads = True
        self.server = RpcServer(
            self.network,
            secret=SECRET,
            place=at(port),
            on_disconnect=self.disconnected.append,
        )

    async def _declined(self, request: DeclineCheckpoint) -> Done:
        return Done()

    @property
    def port(self) -> int:
        return self.server.endpoint[1]

    async def ask(self, timeout: float = 2.0) -> Done:
        return await self.network.ask(TM, EXIT, timeout=timeout)

    async def reaches(self, condition: Callable[[], object]) -> None:
        """Ask until the condition holds. Routes appear and disappear with their connections."""
        async with asyncio.timeout(10):
            while True:
                try:
                    await self.ask()
                except Unreachable:
                    await asyncio.sleep(0.005)
                if condition():
                    return


@asynccontextmanager
async def daemon(port: int = 0) -> AsyncIterator[Daemon]:
    one = Daemon(port)
    async with one.server:
        yield one
    await one.network.aclose()


@asynccontextmanager
async def task_manager_side(port: int, **options: Any) -> AsyncIterator[TaskManagerSide]:
    side = TaskManagerSide(port, **options)
    await side.uplink.start()
    try:
        yield side
    finally:
        await side.aclose()


async def test_both_sides_reach_each_other_over_one_connection() -> None:
    """The TaskManager connects, and requests go both ways (m4 - m12)."""
    async with daemon() as one, task_manager_side(one.port) as side:
        await side.connected()
        assert await one.ask() == Done()
        assert side.asked == 1
        assert await side.network.ask(MASTER, DECLINE, timeout=2) == Done()


async def test_who_does_not_know_the_secret_is_refused_by_the_daemon() -> None:
    with capture_logs() as logs:
        async with daemon() as one, task_manager_side(one.port, secret=ANOTHER) as side:
            await until(lambda: [line for line in logs if line["event"] == "a connection was refused"])
            await until(lambda: [line for line in logs if "refused the handshake" in line.get("error", "")])
            assert not side.uplink.connected.is_set()
            with pytest.raises(Unreachable):
                await one.ask()


async def test_a_daemon_that_does_not_know_the_secret_is_refused_by_the_taskmanager() -> None:
    """Both sides prove that they know it. A process that took the daemon's port gets no message."""

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write_frame(writer, msgspec.msgpack.encode(handshake.Challenge(oldest=1, newest=1, nonce=b"n" * 32)))
        hello = await read_frame(reader)
        assert SECRET not in hello
        write_frame(writer, msgspec.msgpack.encode(handshake.Welcome(proof=b"p" * 32)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    with capture_logs() as logs:
        async with server, task_manager_side(server.sockets[0].getsockname()[1]) as side:
            await until(lambda: [x for x in logs if "the daemon does not know the cluster's secret" in str(x)])
            assert not side.uplink.connected.is_set()


@pytest.mark.parametrize("address", [RESOURCE_MANAGER, Address("jobmaster/" + "1" * 32), Address("")])
async def test_a_connection_speaks_for_a_taskmanager_and_for_nobody_else(address: Address) -> None:
    """Knowing the secret does not make a TaskManager the ResourceManager (R1)."""
    with capture_logs() as logs:
        async with daemon() as one, task_manager_side(one.port, address=address) as side:
            await until(lambda: [x for x in logs if "is no TaskManager's address" in str(x)])
            assert not side.uplink.connected.is_set()


async def test_an_address_that_names_no_taskmanager_is_refused() -> None:
    """Ids are parsed before they are used (R1)."""
    with capture_logs() as logs:
        async with daemon() as one, task_manager_side(one.port, address=Address("taskmanager/../x")) as side:
            await until(lambda: [x for x in logs if "is not a TaskManager id" in str(x)])
            assert not side.uplink.connected.is_set()


@pytest.mark.parametrize("said", [b"\0\0\0\3abc", b"\xff\xff\xff\xff", b"", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_stranger_is_sent_away_and_harms_nobody(said: bytes) -> None:
    with capture_logs() as logs:
        async with daemon() as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(said)
            writer.write_eof()
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()
            async with task_manager_side(one.port) as side:
                await side.connected()
                assert await one.ask() == Done()
    assert [line["event"] for line in logs if line["log_level"] != "info"] == ["a connection was refused"]


async def test_the_uplink_comes_back_to_a_daemon_that_started_again_on_the_same_port() -> None:
    """The TaskManager outlives its daemon (A6, R12)."""
    with capture_logs():
        async with daemon() as one, task_manager_side(one.port) as side:
            await side.connected()
            port = one.port
            await one.server.aclose()
            await until(lambda: not side.uplink.connected.is_set())
            with pytest.raises(Unreachable):
                await side.network.ask(MASTER, DECLINE, timeout=1)
            async with daemon(port) as successor:
                await side.connected()
                await successor.reaches(lambda: side.asked == 1)


async def test_a_second_connection_of_an_address_replaces_the_first() -> None:
    """The newer one is the TaskManager. The end of the older one does not harm it (R9)."""
    async with daemon() as one, task_manager_side(one.port) as first:
        await first.connected()
        await one.reaches(lambda: first.asked)
        async with task_manager_side(one.port) as second:
            await second.connected()
            await one.reaches(lambda: second.asked)
            with capture_logs():
                await first.aclose()
            await asyncio.sleep(0)
            before = second.asked
            assert await one.ask() == Done()
            assert second.asked == before + 1


async def test_the_end_of_a_taskmanagers_connection_is_told_once() -> None:
    """A TaskManager without a connection is suspected before its heartbeats are missed (R10)."""
    async with daemon() as one:
        async with task_manager_side(one.port) as side:
            await side.connected()
            await one.reaches(lambda: side.asked)
            assert one.disconnected == []
        await until(lambda: one.disconnected)
        assert one.disconnected == [TM]


async def test_the_end_of_a_replaced_connection_is_not_told() -> None:
    """The TaskManager is still connected, by the newer one (R10)."""
    async with daemon() as one, task_manager_side(one.port) as first:
        await first.connected()
        await one.reaches(lambda: first.asked)
        async with task_manager_side(one.port) as second:
            await second.connected()
            await one.reaches(lambda: second.asked)
            before = first.asked
            await one.reaches(lambda: first.asked > before)  # its connection was closed, and its uplink came back
            assert one.disconnected == []


async def test_a_daemon_that_leads_no_more_tells_and_asks_taskmanagers_nothing() -> None:
    """Its connection may still be there, and the TaskManager may not know the next leader yet (A11, A11b)."""
    async with daemon() as one, task_manager_side(one.port) as side:
        await side.connected()
        assert await one.ask() == Done()
        one.leads = False
        with pytest.raises(Unreachable, match="not certain that this daemon leads"):
            await one.ask()
        one.network.tell(TM, JobMasterChanged(job_id=JOB, leader_id=LeaderId("x")))
        one.leads = True
        assert await one.ask() == Done()
        assert (side.asked, side.told) == (2, 0)
        one.network.tell(TM, JobMasterChanged(job_id=JOB, leader_id=LeaderId("x")))
        await until(lambda: side.told == 1)


async def test_a_daemon_whose_host_is_gone_does_not_delay_the_way_to_the_one_that_leads() -> None:
    """Its address takes connections and says nothing, as long as a handshake may last (A13)."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        async with daemon() as one, task_manager_side(gone.getsockname()[1], others=(one.port,)) as side:
            began = asyncio.get_running_loop().time()
            await side.uplink.connected.wait()
            assert asyncio.get_running_loop().time() - began < handshake.TIMEOUT
            await one.reaches(lambda: side.asked)


async def test_a_daemon_that_fell_silent_is_left_for_another_one() -> None:
    """Also if it still accepts connections at once (A13)."""
    async with daemon() as silent, task_manager_side(silent.port, others=(9,), heartbeat_timeout=0.3) as side:
        await silent.reaches(lambda: side.asked)
        async with daemon() as leader:
            side.uplink._places.append(("127.0.0.1", leader.port))
            await leader.reaches(lambda: side.asked > 1)


async def test_a_daemon_that_leads_alone_is_found_again_although_it_fell_silent() -> None:
    async with daemon() as one, task_manager_side(one.port, others=(9,), heartbeat_timeout=0.2) as side:
        for _ in range(2):
            await until(side.uplink.connected.is_set)
            await until(lambda: not side.uplink.connected.is_set())


async def test_a_port_that_is_taken_gives_way_to_the_next_one_that_is_allowed() -> None:
    """The earlier daemon's port comes first, and may be the last of the range too (A6)."""
    async with daemon() as other:
        async with RpcServer(LocalNetwork(), secret=SECRET, place=at(other.port, 0, other.port)) as server:
            assert server.endpoint[1] != other.port
        with pytest.raises(PortTaken, match=str(other.port)):
            await RpcServer(LocalNetwork(), secret=SECRET, place=at(other.port)).start()


@pytest.mark.parametrize(("timeout", "silence"), [(5, 15), (0.1, 0.3), (10.0**9, tcp.LONGEST_SILENCE)])
async def test_a_connection_to_a_host_that_is_gone_ends(timeout: float, silence: float) -> None:
    """A host that lost its power closes nothing, and neither side may be sending (A5)."""
    network = LocalNetwork()
    async with RpcServer(network, secret=SECRET, heartbeat_timeout=timeout) as server:
        host, port = server.endpoint
        async with RpcUplink(
            network, address=TM, secret=SECRET, daemon=(host, port), heartbeat_timeout=timeout
        ) as uplink:
            await until(lambda: server._connections and uplink.connected.is_set())
            assert uplink._connection is not None
            for connection in (uplink._connection, server._connections[TM]):
                ours = connection._writer.get_extra_info("socket")
                assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == silence * 1000
                between = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert 1 <= between == ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) <= max(1, silence / 2)


async def test_a_daemon_closes_at_once_with_connections_open() -> None:
    async with daemon() as one, task_manager_side(one.port) as side:
        await side.connected()
        async with asyncio.timeout(2):
            await one.server.aclose()
            await one.server.aclose()
        assert one.disconnected == []  # the daemon has ended, not the TaskManager


async def test_a_daemon_that_is_ending_takes_no_connection() -> None:
    """TaskManagers whose connections it has closed come back at once, and nothing would serve them."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()

    with capture_logs():
        async with daemon() as one, task_manager_side(one.port) as side:
            await side.connected()
            await one.reaches(lambda: side.asked)
            one.server.tasks.job("slow to end", slow_to_end())
            await begun.wait()
            closing = asyncio.create_task(one.server.aclose())
            await until(lambda: not side.uplink.connected.is_set())
            async with task_manager_side(one.port, address=OTHER) as other:
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", one.port)
                assert not other.uplink.connected.is_set()
            assert not side.uplink.connected.is_set()
            go_on.set()
            await closing


class Uplink(RpcUplink):
    """Every attempt to connect succeeds, and every connection ends after `lasts` seconds."""

    def __init__(self, lasts: float) -> None:
        super().__init__(LocalNetwork(), address=TM, secret=SECRET, daemon=("127.0.0.1", 0))
        self._lasts = lasts
        self.attempts: list[float] = []  # time of each attempt

    async def _connect(self, host: str, port: int) -> Any:
        self.attempts.append(asyncio.get_running_loop().time())
        return ConnectionThatEnds(self._lasts)


class ConnectionThatEnds:
    def __init__(self, after: float) -> None:
        self._after = after

    async def wait_closed(self) -> None:
        await asyncio.sleep(self._after)

    async def aclose(self) -> None:
        pass


@pytest.mark.looptime
async def test_an_uplink_whose_connections_end_at_once_comes_back_ever_more_slowly() -> None:
    """The daemon is ending, or a second host has the same resource id."""
    async with Uplink(lasts=0.01) as uplink:
        await asyncio.sleep(60)
    assert len(uplink.attempts) < 30


@pytest.mark.looptime
async def test_an_uplink_that_loses_a_connection_of_long_standing_comes_back_at_once() -> None:
    """The daemon was restarted quickly (R12)."""
    async with Uplink(lasts=10) as uplink:
        await asyncio.sleep(35)
    assert uplink.attempts == pytest.approx([0, 10, 20, 30])


@pytest.mark.looptime
async def test_two_that_take_turns_do_not_come_ever_faster() -> None:
    """Each one's connection lasts as long as the other one's pause. That must not count as a long-lived connection."""
    async with Uplink(lasts=search.RECONNECT_LONGEST) as uplink:
        await asyncio.sleep(600)
    assert len(uplink.attempts) < 110
