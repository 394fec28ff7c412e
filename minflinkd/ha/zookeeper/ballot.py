"""The claims of one daemon in ZooKeeper: ephemeral, sequential nodes. The claim with the lowest number leads.

ZooKeeper never reuses a number, and a new node gets a higher number than all before it. So a claim that is first stays
first for as long as it exists, and a write that checks that it exists is a write of the leader (`fence`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from typing import Any

import msgspec
from kazoo import exceptions as zk

from minflinkd.ha.embedded import UnusableEpoch
from minflinkd.ha.service import ClaimGone, Member, ServiceUnavailable
from minflinkd.ha.zookeeper.session import ZooKeeperSession
from minflinkd.runtime.errors import MALFORMED

ELECTION, EPOCH = "election", "epoch"
_LOOK_AGAIN = 10.0  # seconds; a watch can be lost with the connection
_EPOCH = re.compile(rb"[0-9]{1,15}")
_CLAIM = re.compile(r"c-[0-9a-f]{16}-[0-9]{10}")
Fence = tuple[str, str, int]


class ZooKeeperBallot:
    def __init__(self, session: ZooKeeperSession, root: str) -> None:
        self._session = session
        self._root = root
        self._election = f"{root}/{ELECTION}"
        self._prefix = f"c-{secrets.token_hex(8)}-"  # finds our node if the answer to its creation is lost
        self._claim: str | None = None  # the node's name
        self._joins = 0  # calls of `join` so far
        self._watch: _Watch | None = None  # of the claim before this one

    @property
    def fence(self) -> Fence:
        """The check that each transaction of the present leadership must contain. Raises ClaimGone."""
        if self._claim is None:
            raise ClaimGone("this daemon takes no part in the election")
        return ("check", f"{self._election}/{self._claim}", -1)

    async def join(self, member: Member) -> None:
        self._joins += 1
        await self._session.call("ensure_path", self._election)
        await self._delete(await self._mine())
        self._claim = None
        await self._session.call(
            "create", f"{self._election}/{self._prefix}", msgspec.json.encode(member), ephemeral=True, sequence=True
        )
        mine = await self._mine()
        if not mine:
            raise ServiceUnavailable("the claim that was just made is gone")
        # More than one if the answer to an earlier creation was lost, and the server did not show that node until now.
        await self._delete(mine[1:])
        self._claim = mine[0]

    async def before(self) -> str | None:
        claims = await self._claims()
        if self._claim not in claims:
            raise ClaimGone("the claim is not in ZooKeeper any more")
        place = claims.index(self._claim)
        return claims[place - 1] if place > 0 else None

    async def change_of(self, claim: str) -> None:
        node = f"{self._election}/{claim}"
        if self._watch is None or self._watch.node != node or self._watch.fired.is_set():
            self._watch = _Watch(node)
        if await self._session.call("exists", node, watch=self._watch) is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN):
                await self._watch.fired.wait()

    async def record(self) -> int:
        node = f"{self._root}/{EPOCH}"
        with contextlib.suppress(zk.NodeExistsError):
            await self._fenced(("create", node, b"0"))
        data, stat = await self._session.call("get", node)
        epoch = _epoch(node, data) + 1
        try:
            await self._fenced(("set_data", node, str(epoch).encode(), stat.version))
        except zk.BadVersionError as error:  # an earlier request of ours, whose answer was lost, has come through
            raise ServiceUnavailable("the epoch has changed meanwhile") from error
        return epoch

    async def confirm(self) -> None:
        # Use a transaction, because a majority of the servers must agree to it. A server that is cut off from the
        # others answers reads from old data for a while, and would still see a claim that no longer exists.
        await self._fenced()

    async def describe(self, member: Member) -> None:
        operation, node, _ = self.fence
        assert operation == "check"
        try:
            await self._session.call("set", node, msgspec.json.encode(member))
        except zk.NoNodeError as error:
            raise ClaimGone("the claim is not in ZooKeeper any more") from error

    async def withdraw(self) -> None:
        claim, joins = self._claim, self._joins
        if claim is None:
            return
        await self._delete([claim])
        others = await self._mine()
        if self._joins == joins:  # otherwise one of them is the next claim, and `join` deletes the earlier ones
            await self._delete(others)
        if self._claim == claim:
            self._claim = None

    async def leave(self) -> None:
        if self._claim is not None and self._session.connected:
            self._claim = None
            await self._delete(await self._mine())

    async def members(self) -> tuple[Member, ...]:
        found = []
        for name in await self._claims():
            with contextlib.suppress(zk.NoNodeError, *MALFORMED):
                data, _ = await self._session.call("get", f"{self._election}/{name}")
                found.append(msgspec.json.decode(data, type=Member))
        return tuple(found)

    async def _fenced(self, *operations: tuple[Any, ...]) -> None:
        await transact(self._session, self.fence, *operations)

    async def _claims(self) -> list[str]:
        """Return the names of all claims, in their order."""
        try:
            names = await self._session.call("get_children", self._election)
        except zk.NoNodeError:
            return []
        return sorted((name for name in names if _CLAIM.fullmatch(name)), key=lambda name: int(name[-10:]))

    async def _mine(self) -> list[str]:
        return [name for name in await self._claims() if name.startswith(self._prefix)]

    async def _delete(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(zk.NoNodeError):
                await self._session.call("delete", f"{self._election}/{name}")


def _epoch(node: str, data: bytes) -> int:
    if not _EPOCH.fullmatch(data):
        raise UnusableEpoch(
            f"{node} in ZooKeeper holds {data[:80]!r}, which is no epoch",
            hint="write a number into it that is higher than every earlier epoch (`set` in zkCli.sh), because the "
            "names of large records and of checkpoints' files begin with it. Each daemon logs its epoch when it begins "
            "to lead",
        )
    return int(data)


class _Watch:
    """Notices a change of a node. kazoo registers the same watch only once, however often it is set."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.fired = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, _: object) -> None:  # in a thread of kazoo's
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.fired.set)


async def transact(session: ZooKeeperSession, fence: Fence, *operations: tuple[Any, ...]) -> None:
    """Do all operations if this daemon leads, otherwise none.

    Raises ClaimGone, ServiceUnavailable, ServiceRefused, or ZooKeeper's error for the first operation that failed.
    """
    try:
        await session.transact(fence, *operations)
    except zk.NoNodeError as error:
        if await session.call("exists", fence[1]) is None:
            raise ClaimGone("the claim is not in ZooKeeper any more: another daemon may lead") from error
        raise
