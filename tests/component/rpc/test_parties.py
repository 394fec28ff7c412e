"""Which party may send which message to which endpoint, over real connections."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import messages as about_checkpoints
from minflinkd.rpc import job_state, jobs
from minflinkd.rpc import messages as between_processes
from minflinkd.rpc.connection import Connection
from minflinkd.rpc.messages import Message, Notice, Offloaded, Request
from minflinkd.rpc.network import Address, Mailbox, Unreachable
from minflinkd.rpc.parties import DAEMON, MAY_SEND, Party
from minflinkd.rpc.peer import Peer
from minflinkd.runtime.doorkeeper import SeldomTold
from minflinkd.runtime.errors import MinflinkError, RemoteError
from minflinkd.taskmanager.child import protocol as to_the_session
from tests.golden.samples import sample
from tests.waiting import until

ALL = frozenset(Party)
ONE_OF_A_KIND = {Party.RESOURCE_MANAGER, Party.DISPATCHER, Party.SUPERVISOR, Party.SESSION_CHILD}
ENDPOINTS = {
    party: Address(party.value if party in ONE_OF_A_KIND else f"{party}/x") for party in Party if party != Party.CLIENT
}


def message_types() -> dict[str, type[Message]]:
    modules = (between_processes, jobs, job_state, about_checkpoints, to_the_session)
    kinds = [kind for module in modules for kind in vars(module).values()]
    found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Request | Notice)]
    return {kind.__name__: kind for kind in found if kind not in (Request, Notice)}


TYPES = message_types()


class Taker(Mailbox):
    """Takes everything, and notes it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.got: list[str] = []

    async def deliver(self, message: Message, fence: object) -> Any:
        self.got.append(type(message).__name__)
        raise Unreachable("noted")


@asynccontextmanager
async def connected(
    parties: frozenset[Party], taker: Mailbox, told: SeldomTold | None = None
) -> AsyncIterator[tuple[Connection, Connection]]:
    """The end of a process that speaks for these parties, and the end of `taker`."""
    a, b = socket.socketpair()
    theirs = Connection(*await asyncio.open_connection(sock=a), local=lambda _: None, name="theirs", peer=Peer(ALL))
    ours = Connection(
        *await asyncio.open_connection(sock=b),
        local=lambda target: taker if target == taker.address else None,
        name="ours",
        peer=Peer(parties),
        unreadable=Counter(),
        told=told,
    )
    theirs.start()
    ours.start()
    try:
        yield theirs, ours
    finally:
        await theirs.aclose()
        await ours.aclose()


async def sent(connection: Connection, target: Address, message: Message) -> str:
    """Send a message. Return the code of the answer to a request."""
    if isinstance(message, Notice):
        connection.tell(target, message)
        return ""
    assert isinstance(message, Request)
    with pytest.raises(MinflinkError) as refused:
        await connection.ask(target, message, timeout=10)
    return refused.value.info().code


def filled(name: str, inner: str = "DeployTask") -> Message:
    message: Any = sample(TYPES[name])
    return Offloaded(job_id="1" * 32, type=inner, body=b"", parts=(), patience=1.0) if name == "Offloaded" else message


@pytest.mark.parametrize("party", list(Party))
async def test_every_message_of_every_party_is_taken_or_refused_as_the_table_says(party: Party) -> None:
    """What has no row is not carried out, has a stable code, and ends the connection (E40)."""
    with capture_logs():
        for endpoint, address in ENDPOINTS.items():
            taker = Taker(address)
            allowed = MAY_SEND[party].get(endpoint, frozenset())
            async with connected(frozenset({party}), taker) as (theirs, ours):
                for name in sorted(allowed):
                    inner = "AcknowledgeCheckpoint" if party is Party.TASK_MANAGER else "AnalyzeJob"
                    inner = "DeployTask" if party is Party.JOB_MASTER else inner
                    assert await sent(theirs, address, filled(name, inner)) in ("", "unreachable")
                await until(lambda taker=taker, allowed=allowed: sorted(taker.got) == sorted(allowed))
                assert not ours.closed
            for name in sorted(TYPES.keys() - allowed):
                async with connected(frozenset({party}), taker) as (theirs, ours):
                    assert await sent(theirs, address, filled(name)) in ("", "rpc-not-allowed"), (name, address)
                    async with asyncio.timeout(10):
                        await ours.wait_closed()
            assert sorted(taker.got) == sorted(allowed)


def test_every_message_has_a_row() -> None:
    """Otherwise nobody could send it (E40)."""
    rows = {name for endpoints in MAY_SEND.values() for names in endpoints.values() for name in names}
    assert rows == TYPES.keys()
    assert MAY_SEND.keys() == ALL


def test_a_taskmanager_reaches_neither_the_dispatcher_nor_what_only_the_daemon_says() -> None:
    """It runs the code of jobs (E40)."""
    assert MAY_SEND[Party.TASK_MANAGER].keys() == {Party.RESOURCE_MANAGER, Party.JOB_MASTER}
    of_the_daemon = {name for party in DAEMON for names in MAY_SEND[party].values() for name in names}
    of_a_task_manager = {name for names in MAY_SEND[Party.TASK_MANAGER].values() for name in names}
    assert of_the_daemon & of_a_task_manager == {"Offloaded"}


async def test_an_envelope_does_not_carry_what_its_sender_may_not_send() -> None:
    """A request whose large fields travel as blobs is checked as if it came as one message (E40)."""
    taker = Taker(ENDPOINTS[Party.JOB_MASTER])
    with capture_logs() as logs:
        async with connected(frozenset({Party.TASK_MANAGER}), taker) as (theirs, ours):
            code = await sent(theirs, taker.address, filled("Offloaded", "DeployTask"))
            assert code == "rpc-not-allowed"
            async with asyncio.timeout(10):
                await ours.wait_closed()
    assert taker.got == []
    assert [line["code"] for line in logs if line["event"] == "the connection is cut"] == ["rpc-not-allowed"]


async def test_a_process_that_tries_again_and_again_does_not_fill_the_log() -> None:
    """One line a second at most, which counts the others (E45)."""
    taker, told = Taker(ENDPOINTS[Party.DISPATCHER]), SeldomTold()
    with capture_logs() as logs:
        for _ in range(50):
            async with connected(frozenset({Party.TASK_MANAGER}), taker, told) as (theirs, _):
                with pytest.raises(RemoteError, match="a taskmanager may not send CancelJob to 'dispatcher'"):
                    await theirs.ask(taker.address, sample(jobs.CancelJob), timeout=10)
    lines = [line for line in logs if line["event"] == "the connection is cut"]
    assert 1 <= len(lines) <= 10
    assert lines[0]["code"] == "rpc-not-allowed"
