"""Somebody on the way forwards the handshake of a TaskManager and its daemon. He gets nothing done with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc.codec import Ask, Codec
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import DeclineCheckpoint, Done, ExitTaskManager
from minflinkd.rpc.network import Mailbox, Unreachable, job_master, task_manager
from minflinkd.rpc.tcp import RpcServer, RpcUplink
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId
from tests.attack.relay import LENGTH, Change, Relay, Way, framed, relay_to
from tests.waiting import until

SECRET = b"s" * 64
TM = task_manager(ResourceId("tm-1"))
JOB = JobId("1" * 32)
MASTER = job_master(JOB)
Logs = Sequence[MutableMapping[str, Any]]


def declined(why: str) -> DeclineCheckpoint:
    error = ErrorInfo(code="test", message=why)
    return DeclineCheckpoint(job_id=JOB, attempt_id=AttemptId("2" * 32), checkpoint_id=1, error=error)


@dataclass
class Pair:
    """A daemon and a TaskManager with a relay in between. `daemon` and `manager` are what each was told to do."""

    relay: Relay
    ours: LocalNetwork
    theirs: LocalNetwork
    uplink: RpcUplink
    daemon: list[str] = field(default_factory=list)
    manager: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    async def decline(self, why: str) -> None:
        """The TaskManager asks its daemon for something."""
        await self.theirs.ask(MASTER, declined(why), timeout=5)

    async def exit(self, reason: str) -> None:
        """The daemon asks its TaskManager for something."""
        await self.ours.ask(TM, ExitTaskManager(reason=reason), timeout=5)


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Pair, Logs]]:
    ours, theirs, lost = LocalNetwork(), LocalNetwork(), list[str]()
    with capture_logs() as logs:
        async with (
            RpcServer(ours, secret=SECRET, on_disconnect=lost.append) as server,
            relay_to(server.endpoint[1]) as relay,
            RpcUplink(theirs, address=TM, secret=SECRET, daemon=("127.0.0.1", relay.port)) as uplink,
        ):
            pair = Pair(relay, ours, theirs, uplink, lost=lost)

            async def told_daemon(request: DeclineCheckpoint) -> Done:
                pair.daemon.append(request.error.message)
                return Done()

            async def told_manager(request: ExitTaskManager) -> Done:
                pair.manager.append(request.reason)
                return Done()

            daemon, manager = Mailbox(MASTER), Mailbox(TM)
            daemon.on(DeclineCheckpoint, told_daemon)
            manager.on(ExitTaskManager, told_manager)
            ours.attach(daemon)
            theirs.attach(manager)
            await until(lambda: uplink.connected.is_set() and TM in ours._routes)
            yield pair, logs
    await theirs.aclose()
    await ours.aclose()


def forged(logs: Logs) -> int:
    """Return how many connections were ended because of a wrong seal."""
    return len([line for line in logs if line.get("code") == "rpc-frame-forged"])


def request(codec: Codec, target: str, message: Any) -> bytes:
    return codec.encode_frame(Ask(99, target, type(message).__name__, codec.encode(message)))


async def test_what_is_passed_on_unchanged_arrives() -> None:
    """Otherwise the tests below would show nothing."""
    async with relayed() as (pair, logs):
        for _ in range(3):
            await pair.decline("a")
            await pair.exit("b")
        assert (pair.daemon, pair.manager) == (["a"] * 3, ["b"] * 3)
        assert not forged(logs)


@pytest.mark.parametrize("seal", [b"", b"\0" * 16])
async def test_a_message_of_somebody_on_the_way_reaches_neither_side(seal: bytes) -> None:
    """He has forwarded the handshake, and now speaks himself."""
    codec = Codec()
    async with relayed() as (pair, logs):
        pair.relay.send(Way.TO_TASK_MANAGER, framed(request(codec, TM, ExitTaskManager(reason="evil")) + seal))
        await until(lambda: forged(logs) == 1)
    async with relayed() as (pair, logs):
        pair.relay.send(Way.TO_DAEMON, framed(request(codec, MASTER, declined("evil")) + seal))
        await until(lambda: forged(logs) == 1)
        assert (pair.daemon, pair.manager) == ([], [])


async def test_nobody_goes_on_with_the_connection_of_a_taskmanager_that_left() -> None:
    """The daemon takes no message any more, although its connection still stands."""
    async with relayed() as (pair, logs):
        await pair.uplink.aclose()
        pair.relay.send(Way.TO_DAEMON, framed(request(Codec(), MASTER, declined("evil"))))
        await until(lambda: forged(logs) or pair.lost)
        assert pair.daemon == []


async def test_a_message_is_carried_out_once_however_often_it_is_sent() -> None:
    """A frame keeps its number."""
    async with relayed() as (pair, logs):
        await pair.decline("a")
        await pair.exit("b")
        pair.relay.send(Way.TO_DAEMON, pair.relay.of(Way.TO_DAEMON)[0])
        await until(lambda: forged(logs) == 1)
        await until(lambda: pair.relay.connections == 2 and pair.uplink.connected.is_set())
        await pair.decline("c")
        assert (pair.daemon, pair.manager) == (["a", "c"], ["b"])


async def test_a_message_of_an_earlier_connection_means_nothing_in_the_next_one() -> None:
    """Each handshake makes new keys."""
    async with relayed() as (pair, logs):
        await pair.decline("a")
        (first,) = pair.relay.of(Way.TO_DAEMON)
        pair.relay.cut(Way.TO_TASK_MANAGER)
        await until(lambda: pair.lost and pair.relay.connections == 2 and pair.uplink.connected.is_set())
        pair.relay.send(Way.TO_DAEMON, first)
        await until(lambda: forged(logs) == 1)
        assert pair.daemon == ["a"]


async def test_a_message_does_not_come_back_to_its_sender() -> None:
    """Each direction has its own key."""
    async with relayed() as (pair, logs):
        await pair.exit("b")
        pair.relay.send(Way.TO_DAEMON, pair.relay.of(Way.TO_TASK_MANAGER)[0])
        await until(lambda: forged(logs) == 1)


def swapped(way: Way, number: int, frame: bytes, held: list[bytes]) -> list[bytes]:
    """Let the second frame to the daemon pass before the first."""
    if way is Way.TO_TASK_MANAGER or number > 1:
        return [frame]
    held.insert(0, frame)
    return held if number == 1 else []


def one_bit_changed(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


CHANGES: dict[str, Change] = {
    "dropped": lambda way, number, frame: [] if way is Way.TO_DAEMON and number == 0 else [frame],
    "doubled": lambda way, number, frame: [frame, frame] if way is Way.TO_DAEMON and number == 0 else [frame],
    "changed": lambda way, number, frame: [one_bit_changed(frame, 20) if way is Way.TO_DAEMON else frame],
    "seal changed": lambda way, number, frame: [one_bit_changed(frame, -1) if way is Way.TO_DAEMON else frame],
    "merged": lambda way, number, frame: [framed(frame[LENGTH.size :] + frame[LENGTH.size :])],
    "shortened": lambda way, number, frame: [framed(frame[LENGTH.size : -16])],
}


@pytest.mark.parametrize("change", [*CHANGES, "swapped"])
async def test_messages_that_were_changed_on_the_way_are_not_carried_out(change: str) -> None:
    """Not even the intact ones that come after a missing one: the daemon would believe that nothing was between."""
    held: list[bytes] = []
    async with relayed() as (pair, logs):
        pair.relay.change = CHANGES.get(change, lambda *frame: swapped(*frame, held))
        asked = await asyncio.gather(pair.decline("a"), pair.decline("b"), return_exceptions=True)
        await until(lambda: forged(logs) == 1)
        assert pair.daemon == (["a"] if change == "doubled" else [])
        assert isinstance(asked[1], Unreachable)


@pytest.mark.parametrize("at", [2, 30, -1])
async def test_both_sides_learn_that_a_message_was_cut_off(at: int) -> None:
    """However much of it arrived, both take the connection for lost, and the outcome of the request is unknown."""
    async with relayed() as (pair, _):

        def cut(way: Way, number: int, frame: bytes) -> list[bytes]:
            if way is Way.TO_TASK_MANAGER or number > 0:
                return [frame]
            asyncio.get_running_loop().call_soon(pair.relay.cut, Way.TO_DAEMON)
            return [frame[:at]]

        pair.relay.change = cut
        with pytest.raises(Unreachable):
            await pair.decline("a")
        await until(lambda: pair.lost == [TM])
        assert pair.daemon == []
