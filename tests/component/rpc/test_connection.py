"""One connection between two processes, here over a socketpair."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc import connection as conn
from minflinkd.rpc.connection import Connection
from minflinkd.rpc.messages import CancelTask, Done, ListLogs, LogFile, ReadLog, TaskManagerLost
from minflinkd.rpc.network import Address, Fenced, Mailbox, RpcTimeout, Unreachable
from minflinkd.rpc.parties import DAEMON
from minflinkd.rpc.peer import Peer
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo, Kind, RemoteError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, ResourceId
from tests.waiting import until

PARTY = Address("party")
CANCEL = CancelTask(job_id=JobId("1" * 32), attempt_id=AttemptId("2" * 32))


@pytest.fixture(autouse=True)
def anything_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may send what is the subject of test_parties.py."""
    monkeypatch.setattr(conn, "check", lambda *_: None)


@dataclass
class End:
    """One side: a mailbox and the connection to the other side."""

    mailbox: Mailbox = field(default_factory=lambda: Mailbox(PARTY))
    connection: Connection = field(init=False)
    closed: list[str] = field(default_factory=list)

    async def connect(self, sock: socket.socket, name: str) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        self.connection = Connection(
            reader,
            writer,
            local=lambda target: self.mailbox if target == self.mailbox.address else None,
            name=name,
            peer=Peer(DAEMON),
            unreadable=Counter(),
            on_close=lambda: self.closed.append(name),
        )
        self.connection.start()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[End, End]]:
    left, right = End(), End()
    a, b = socket.socketpair()
    await left.connect(a, "left")
    await right.connect(b, "right")
    try:
        yield left, right
    finally:
        async with asyncio.timeout(5):
            await left.connection.aclose()
            await right.connection.aclose()


@asynccontextmanager
async def with_raw_peer() -> AsyncIterator[tuple[End, socket.socket]]:
    """Return a side whose peer is a bare socket. It can send what a Connection never would."""
    end = End()
    ours, theirs = socket.socketpair()
    await end.connect(ours, "end")
    theirs.setblocking(False)
    try:
        yield end, theirs
    finally:
        async with asyncio.timeout(5):
            await end.connection.aclose()
        theirs.close()


async def ask(end: End, request: Any, timeout: float = 5.0, fence: str | None = None) -> Any:
    token = None if fence is None else LeaderId(fence)
    return await end.connection.ask(PARTY, request, timeout=timeout, fence=token)


async def test_both_sides_ask_and_answer_at_the_same_time() -> None:
    """Requests go both ways over one connection, and each answer reaches its own request (A2)."""
    async with pair() as (left, right):
        for end, name in ((left, "left"), (right, "right")):

            async def listed(request: ListLogs, name: str = name) -> tuple[LogFile, ...]:
                await asyncio.sleep(0)
                return (LogFile(name=name, size=1),)

            end.mailbox.on(ListLogs, listed)
        answers = await asyncio.gather(*(ask(end, ListLogs()) for end in (left, right) * 10))
        assert [answer[0].name for answer in answers] == ["right", "left"] * 10


async def test_an_answer_finds_its_request_whatever_the_order() -> None:
    async with pair() as (left, right):
        slow = asyncio.Event()

        async def cancel(request: CancelTask) -> Done:
            await slow.wait()
            return Done()

        async def listed(request: ListLogs) -> tuple[LogFile, ...]:
            return ()

        right.mailbox.on(CancelTask, cancel)
        right.mailbox.on(ListLogs, listed)
        first = asyncio.ensure_future(ask(left, CANCEL))
        assert await ask(left, ListLogs()) == ()
        assert not first.done()
        slow.set()
        assert await first == Done()


async def test_a_refusal_keeps_code_consequence_kind_and_hint() -> None:
    """The error on the other side is the same."""
    async with pair() as (left, right):

        async def refuse(request: CancelTask) -> Done:
            raise Conflict("not now", hint="later")

        right.mailbox.on(CancelTask, refuse)
        with pytest.raises(RemoteError) as refused:
            await ask(left, CANCEL)
        assert refused.value.info() == ErrorInfo(
            code="conflict", message="not now", consequence=Consequence.REFUSED, kind=Kind.CONFLICT, hint="later"
        )


async def test_fenced_and_unreachable_arrive_as_what_they_are() -> None:
    """Callers can tell a refusal from an unknown outcome (R1)."""
    async with pair() as (left, right):
        right.mailbox.fence = LeaderId("new")

        async def cancel(request: CancelTask) -> Done:
            return Done()

        right.mailbox.on(CancelTask, cancel)
        with pytest.raises(Fenced, match="its token old is not the present leader's"):
            await ask(left, CANCEL, fence="old")
        assert right.mailbox.fenced == {"CancelTask": 1}
        assert await ask(left, CANCEL, fence="new") == Done()
        with pytest.raises(Unreachable, match="does not take ListLogs"):
            await ask(left, ListLogs(), fence="new")
        with pytest.raises(Unreachable, match="nobody answers at elsewhere"):
            await left.connection.ask(Address("elsewhere"), CANCEL, timeout=5)


async def test_an_unexpected_failure_is_internal_and_the_connection_goes_on() -> None:
    """One handler's bug does not cut off everybody else's messages."""
    async with pair() as (left, right):

        async def broken(request: CancelTask) -> Done:
            raise KeyError("x")

        async def unspeakable(request: ReadLog) -> Any:
            return object()

        async def listed(request: ListLogs) -> tuple[LogFile, ...]:
            return ()

        right.mailbox.on(CancelTask, broken)
        right.mailbox.on(ReadLog, unspeakable)
        right.mailbox.on(ListLogs, listed)
        with capture_logs():
            for request in (CANCEL, ReadLog(name="x")):
                with pytest.raises(RemoteError) as failed:
                    await ask(left, request)
                assert failed.value.info().code == "internal"
        assert await ask(left, ListLogs()) == ()


async def test_a_notice_arrives_and_its_failure_harms_nobody() -> None:
    async with pair() as (left, right):
        got: list[TaskManagerLost] = []

        async def lost(notice: TaskManagerLost) -> None:
            got.append(notice)
            raise ValueError("broken")

        right.mailbox.on_notice(TaskManagerLost, lost)
        notice = TaskManagerLost(resource_id=ResourceId("tm-1"), reason="gone")
        with capture_logs() as logs:
            left.connection.tell(PARTY, notice)
            left.connection.tell(Address("elsewhere"), notice)
            left.connection.tell(PARTY, notice)
            await until(lambda: len(got) == 2)
        assert got == [notice, notice]
        assert {line["event"] for line in logs} == {"a handler of a notice failed"}
        assert not left.connection.closed


async def test_no_answer_in_time_is_a_timeout_and_a_late_one_is_passed_over() -> None:
    """A5."""
    async with pair() as (left, right):
        release = asyncio.Event()

        async def cancel(request: CancelTask) -> Done:
            await release.wait()
            return Done()

        async def listed(request: ListLogs) -> tuple[LogFile, ...]:
            return ()

        right.mailbox.on(CancelTask, cancel)
        right.mailbox.on(ListLogs, listed)
        with pytest.raises(RpcTimeout, match=r"party did not answer CancelTask within 0\.02 s"):
            await ask(left, CANCEL, timeout=0.02)
        release.set()
        assert await ask(left, ListLogs()) == ()


async def test_the_end_of_a_connection_ends_every_open_request_as_unknown() -> None:
    """The outcome of a request is Ok, Rejected or Unknown (A5)."""
    async with pair() as (left, right):

        async def never(request: CancelTask) -> Done:
            await asyncio.Event().wait()
            return Done()

        right.mailbox.on(CancelTask, never)
        open_requests = [asyncio.ensure_future(ask(left, CANCEL)) for _ in range(3)]
        await until(lambda: len(right.connection._tasks) == 4)
        await right.connection.aclose()
        for request in open_requests:
            with pytest.raises(Unreachable, match="ended before the answer"):
                await request
        with pytest.raises(Unreachable, match="the connection left is closed"):
            await ask(left, CANCEL)
        left.connection.tell(PARTY, TaskManagerLost(resource_id=ResourceId("tm-1"), reason=""))
        await left.connection.aclose()
        assert (left.closed, right.closed) == (["left"], ["right"])


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("!I", conn.MAX_FRAME + 1),
        struct.pack("!I", 3) + b"abc",
        struct.pack("!I", 3) + b"\xa2\xff\xfe",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", 100) + b"half of",
    ],
    ids=["oversized frame", "garbage", "no text", "http", "cut in the middle"],
)
async def test_what_is_no_frame_cuts_the_connection(said: bytes) -> None:
    async with with_raw_peer() as (end, peer):
        with capture_logs() as logs:
            await asyncio.get_running_loop().sock_sendall(peer, said)
            if said.endswith(b"half of"):
                peer.close()
            async with asyncio.timeout(5):
                await end.connection.wait_closed()
        assert end.closed == ["end"]
        assert not [line for line in logs if line["event"] == "a task failed"]


async def test_a_peer_that_stops_reading_is_cut_off_and_holds_up_nobody() -> None:
    """The memory for waiting messages is bounded, and closing does not wait for the peer either (A5)."""
    async with with_raw_peer() as (end, _):
        request = asyncio.ensure_future(ask(end, ReadLog(name="x" * 1_000_000), timeout=60))
        await asyncio.sleep(0)
        with capture_logs() as logs:
            notice = TaskManagerLost(resource_id=ResourceId("tm-1"), reason="x" * 1_000_000)
            for _ in range(2 + conn.WRITE_BUFFER // 1_000_000):
                end.connection.tell(PARTY, notice)
        assert end.connection.closed
        assert "reads nothing" in logs[0]["event"]
        with pytest.raises(Unreachable):
            await request
        async with asyncio.timeout(2):
            await end.connection.aclose()


async def test_closing_does_not_wait_for_a_peer_that_hangs() -> None:
    """A stopped process does not keep the daemon from ending (A5)."""
    async with with_raw_peer() as (end, _):
        end.connection.tell(PARTY, TaskManagerLost(resource_id=ResourceId("tm-1"), reason="x" * 3_000_000))
        async with asyncio.timeout(3):
            await end.connection.aclose()


async def test_what_is_too_large_is_refused_here_and_harms_no_other_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large message should travel as a blob. Sent directly, it would cost everybody the connection (B3)."""
    monkeypatch.setattr(conn, "MAX_FRAME", 10_000)
    async with pair() as (left, right):

        async def read(request: ReadLog) -> Any:
            return {"data": b"x" * 20_000, "size": 1}

        async def listed(request: ListLogs) -> tuple[LogFile, ...]:
            return ()

        right.mailbox.on(ReadLog, read)
        right.mailbox.on(ListLogs, listed)
        with capture_logs():
            for request in (ReadLog(name="x" * 20_000), ReadLog(name="x")):
                with pytest.raises(RemoteError) as refused:
                    await ask(left, request)
                assert refused.value.info().code == "rpc-protocol"
            left.connection.tell(PARTY, TaskManagerLost(resource_id=ResourceId("tm-1"), reason="x" * 20_000))
        assert await ask(left, ListLogs()) == ()
