"""Messages of another version that this one cannot read, over a socketpair."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as copy
from structlog.testing import capture_logs

from minflinkd.rpc import connection, messages
from minflinkd.rpc.codec import Ask, Tell
from minflinkd.rpc.connection import MAX_FRAME, UNKNOWN, WRITE_BUFFER, Connection
from minflinkd.rpc.messages import (
    HeartbeatAnswer,
    HeartbeatFromTaskManager,
    ListLogs,
    Notice,
    ReadLog,
    SessionPhase,
    TaskManagerLost,
    TaskManagerReport,
)
from minflinkd.rpc.network import Address, Mailbox, Unreachable
from minflinkd.rpc.parties import DAEMON
from minflinkd.rpc.peer import Peer
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, RemoteError
from minflinkd.runtime.ids import InstanceId, ResourceId
from tests.waiting import until

PARTY = Address("party")
REPORT = TaskManagerReport(resource_id=ResourceId("tm-1"), slots=(), session=SessionPhase.READY)
LOST = TaskManagerLost(resource_id=ResourceId("tm-1"), reason="gone")


@pytest.fixture(autouse=True)
def anything_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may send what is the subject of test_parties.py."""
    monkeypatch.setattr(connection, "check", lambda *_: None)


class Party:
    """What a side of a connection offers, and what arrived there."""

    def __init__(self) -> None:
        self.lost: list[TaskManagerLost] = []
        self.mailbox = Mailbox(PARTY)
        self.mailbox.on_notice(TaskManagerLost, self._lost)
        self.mailbox.on(ListLogs, self._logs)
        self.mailbox.on(HeartbeatFromTaskManager, self._beat)

    async def _lost(self, notice: TaskManagerLost) -> None:
        self.lost.append(notice)

    async def _logs(self, request: ListLogs) -> Any:
        return ()

    async def _beat(self, request: HeartbeatFromTaskManager) -> HeartbeatAnswer:
        return HeartbeatAnswer()


@asynccontextmanager
async def between(party: Party, unreadable: Counter[str] | None) -> AsyncIterator[tuple[Connection, Connection]]:
    """A connection to `party`, and its other end. The latter belongs to another version: it sends what it likes."""
    ours, theirs = socket.socketpair()
    here = Connection(
        *await asyncio.open_connection(sock=ours),
        local=lambda _: party.mailbox,
        name="here",
        peer=Peer(DAEMON),
        unreadable=unreadable,
    )
    there = Connection(
        *await asyncio.open_connection(sock=theirs), local=lambda _: party.mailbox, name="there", peer=Peer(DAEMON)
    )
    here.start()
    there.start()
    try:
        yield here, there
    finally:
        async with asyncio.timeout(5):
            await here.aclose()
            await there.aclose()


def body(value: object, **changes: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(msgspec.to_builtins(value) | changes))


OF_A_LATER_VERSION = Tell(PARTY, "TaskManagerPausing", body({"seconds": 5}))
OF_ANOTHER_FORM = Tell(PARTY, "SlotsFree", body({"report": msgspec.to_builtins(REPORT) | {"session": "dozing"}}))


async def test_a_notice_that_cannot_be_read_is_dropped_and_counted_and_the_connection_goes_on() -> None:
    """Neither an unknown type nor an unknown value of an enumeration harms the others on the connection (A15a)."""
    party, unreadable = Party(), Counter[str]()
    with capture_logs() as logs:
        async with between(party, unreadable) as (here, there):
            for _ in range(3):
                there._send(OF_A_LATER_VERSION)
                there._send(OF_ANOTHER_FORM)
            there.tell(PARTY, LOST)
            await until(lambda: party.lost)
            assert await there.ask(PARTY, ListLogs(), timeout=5) == ()
            assert not here.closed
    assert unreadable == {UNKNOWN: 3, "SlotsFree": 3}
    told = [line["message"] for line in logs if "cannot be read" in line["event"]]
    assert sorted(told) == ["SlotsFree", "TaskManagerPausing"]  # each one once


async def test_where_a_notice_must_not_be_lost_one_that_cannot_be_read_cuts_the_connection() -> None:
    """A session child's TaskFailed is not repeated: without it, the task would run forever for all others (A15a)."""
    party = Party()
    with capture_logs():
        async with between(party, None) as (here, there):
            there._send(OF_A_LATER_VERSION)
            async with asyncio.timeout(5):
                await here.wait_closed()
    assert not party.lost


async def test_where_a_notice_must_not_be_lost_one_that_is_too_large_cuts_the_connection() -> None:
    """It could say that a task has failed. A lost session is noticed and replaced; a lost notice is not (A15a)."""
    party, large = Party(), copy(LOST, reason="x" * MAX_FRAME)
    with capture_logs() as logs:
        async with between(party, None) as (here, _):
            here.tell(PARTY, large)
            assert here.closed
        async with between(party, Counter()) as (here, _):
            here.tell(PARTY, large)
            assert not here.closed, "a request repeats what it says"
    assert [line["event"] for line in logs] == ["a notice is not sent"] * 2


async def test_a_message_after_a_large_one_does_not_cut_the_connection() -> None:
    """The peer has had no time to read the large one. That does not mean that it reads nothing."""
    party, large = Party(), copy(LOST, reason="x" * (MAX_FRAME // 2))
    async with between(party, Counter()) as (_, there):
        for notice in (large, LOST, LOST):
            there.tell(PARTY, notice)
        assert not there.closed
        await until(lambda: len(party.lost) == 3)


async def test_a_peer_that_reads_nothing_is_cut_off() -> None:
    """Otherwise what it does not read would fill the memory of the daemon."""
    ours, theirs = socket.socketpair()
    here = Connection(*await asyncio.open_connection(sock=ours), local=lambda _: None, name="here", peer=Peer(DAEMON))
    some = copy(LOST, reason="x" * (WRITE_BUFFER // 8))
    with capture_logs() as logs:
        for _ in range(20):
            here.tell(PARTY, some)
    assert here.closed
    assert [line["event"] for line in logs] == ["the peer reads nothing; the connection is cut"]
    await here.aclose()
    theirs.close()


async def test_a_request_that_cannot_be_read_is_answered_with_an_error_and_the_connection_goes_on() -> None:
    """The error says that no job is at fault, that nothing was done, and what to do (A15a)."""
    party = Party()
    with capture_logs() as logs:
        async with between(party, Counter()) as (here, there):
            for name, content in (("Hibernate", body({})), ("HeartbeatFromTaskManager", body({"report": 5}))):
                error = await refusal(there, name, content)
                assert (error.code, error.consequence, error.kind) == (
                    "rpc-protocol",
                    Consequence.REFUSED,
                    Kind.CLUSTER,
                )
                assert "upgrade the older side" in error.hint
            assert await there.ask(PARTY, ListLogs(), timeout=5) == ()
            assert not here.closed
    assert {line["message"] for line in logs} == {"Hibernate", "HeartbeatFromTaskManager"}


async def refusal(there: Connection, name: str, content: msgspec.Raw) -> ErrorInfo:
    there._next_id += 1
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    there._open[there._next_id] = (ListLogs, future)
    there._send(Ask(there._next_id, PARTY, name, content))
    with pytest.raises(RemoteError) as refused:
        async with asyncio.timeout(5):
            await future
    return refused.value.info()


async def test_an_answer_that_cannot_be_read_leaves_the_outcome_open_and_the_connection_goes_on() -> None:
    """The request was carried out, so its sender must not take it for refused (A15a)."""
    party = Party()

    async def strange(request: ReadLog) -> Any:
        return {"mark": "of a later version"}

    party.mailbox.on(ReadLog, strange)
    with capture_logs() as logs:
        async with between(party, Counter()) as (_, there):
            with pytest.raises(Unreachable, match="the answer to ReadLog"):
                await there.ask(PARTY, ReadLog(name="x"), timeout=5)
            assert await there.ask(PARTY, ListLogs(), timeout=5) == ()
            assert not there.closed
    assert [line["message"] for line in logs] == ["the answer to ReadLog"]


async def test_an_error_with_words_of_a_later_version_is_an_error_to_try_again() -> None:
    """No job ends because of a consequence that this version does not know (A15a)."""
    party = Party()

    class OfALaterVersion(RemoteError):
        def info(self) -> Any:
            return {"code": "x", "message": "y", "consequence": "postponed", "kind": "lunar"}

    async def failing(request: ReadLog) -> Any:
        raise OfALaterVersion(ErrorInfo(code="x", message="y"))

    party.mailbox.on(ReadLog, failing)
    with capture_logs():
        async with between(party, Counter()) as (_, there):
            with pytest.raises(RemoteError) as failed:
                await there.ask(PARTY, ReadLog(name="x"), timeout=5)
    assert (failed.value.info().consequence, failed.value.info().kind) == (Consequence.RETRYABLE, Kind.OTHER)


async def test_fields_of_a_later_version_are_passed_over_and_fields_of_this_one_have_their_defaults() -> None:
    """The rule by which messages grow (A15a)."""
    party = Party()
    beat = HeartbeatFromTaskManager(instance_id=InstanceId("1"), report=REPORT)
    less = {key: value for key, value in msgspec.to_builtins(beat).items() if key != "start_phases"}
    async with between(party, Counter()) as (_, there):
        there._next_id += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there._open[there._next_id] = (HeartbeatFromTaskManager, future)
        there._send(Ask(there._next_id, PARTY, "HeartbeatFromTaskManager", body(less, mood="calm")))
        async with asyncio.timeout(5):
            assert await future == HeartbeatAnswer()


def test_the_notices_between_taskmanagers_and_daemon_are_those_that_may_be_lost() -> None:
    """Each is repeated in substance by a request: see `Connection`. To add one, say there what repeats it (A15a)."""
    found = {kind.__name__ for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Notice)}
    assert found - {"Notice"} == {"SlotsFree", "JobMasterChanged", "TaskManagerLost", "TaskProgress"}
    assert Connection.__doc__ is not None
    assert all(name in Connection.__doc__ for name in found - {"Notice"})
