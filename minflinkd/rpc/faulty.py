"""An in-memory network for tests and simulation: drops, doubles, delays and reorders messages, and cuts parties off.

All randomness comes from one seeded source. Every message is encoded and decoded on the way, so that a test in one
process also shows that it could cross a wire. Time is the event loop's, which a test may make virtual (looptime).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from minflinkd.rpc.codec import Codec
from minflinkd.rpc.local import answer_of, deliver_notice
from minflinkd.rpc.messages import Message, Notice, Request
from minflinkd.rpc.network import Address, Mailbox, RpcTimeout
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.supervision import TaskOwner

R = TypeVar("R")


@dataclass
class Faults:
    """Probabilities, which apply to each message and separately to each answer; delays in seconds."""

    drop: float = 0.0
    double: float = 0.0
    least_delay: float = 0.0
    most_delay: float = 0.0
    cut: set[frozenset[str]] = field(default_factory=set)  # pairs of parties that cannot reach each other
    drop_if: Callable[[str, str, Message], bool] | None = None  # (source, target, message)


class FaultyWire:
    """Connects the parties. Each party has its own `FaultyNetwork` on it, which knows the party's name."""

    def __init__(self, rng: random.Random, faults: Faults | None = None) -> None:
        self.rng = rng
        self.faults = faults or Faults()
        self.codec = Codec()
        self.mailboxes: dict[Address, Mailbox] = {}
        self.tasks = TaskOwner("faulty wire")
        self.journal: list[str] = []  # who sent what and what happened to it, to explain a failing seed

    def party(self, name: str) -> FaultyNetwork:
        return FaultyNetwork(self, name)

    def fates(self, source: str, target: str, message: Message) -> list[float]:
        """Return the delay of each copy that arrives; none if the message is lost."""
        faults, name = self.faults, type(message).__name__
        lost = (
            frozenset((source, target)) in faults.cut
            or (faults.drop_if is not None and faults.drop_if(source, target, message))
            or self.rng.random() < faults.drop
        )
        copies = 0 if lost else 2 if self.rng.random() < faults.double else 1
        fate = {0: "lost", 1: "", 2: "doubled"}[copies]
        self.journal.append(f"{asyncio.get_running_loop().time():10.3f} {source} -> {target} {name} {fate}".rstrip())
        return [self.rng.uniform(faults.least_delay, faults.most_delay) for _ in range(copies)]

    async def aclose(self) -> None:
        await self.tasks.aclose()


class FaultyNetwork:
    """One party's Network on a FaultyWire."""

    def __init__(self, wire: FaultyWire, name: str) -> None:
        self._wire = wire
        self.name = name

    def attach(self, mailbox: Mailbox) -> None:
        self._wire.mailboxes[mailbox.address] = mailbox

    def detach(self, mailbox: Mailbox) -> None:
        if self._wire.mailboxes.get(mailbox.address) is mailbox:
            del self._wire.mailboxes[mailbox.address]

    async def ask(self, target: Address, request: Request[R], *, timeout: float, fence: LeaderId | None = None) -> R:
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        for delay in self._wire.fates(self.name, target, request):
            self._wire.tasks.job(
                f"{type(request).__name__} to {target}", self._carry(delay, target, request, fence, result)
            )
        try:
            async with asyncio.timeout(timeout):
                answer: R = await result
                return answer
        except TimeoutError as error:
            name = type(request).__name__
            raise RpcTimeout(f"{target} did not answer {name} within {timeout:g} s") from error

    def tell(self, target: Address, notice: Notice, *, fence: LeaderId | None = None) -> None:
        for delay in self._wire.fates(self.name, target, notice):
            self._wire.tasks.job(f"{type(notice).__name__} to {target}", self._drop_off(delay, target, notice, fence))

    async def _carry(
        self,
        delay: float,
        target: Address,
        request: Request[R],
        fence: LeaderId | None,
        result: asyncio.Future[Any],
    ) -> None:
        await asyncio.sleep(delay)
        mailbox = self._wire.mailboxes.get(target)
        if mailbox is None:
            return  # as over a wire: silence
        wire, name = self._wire, type(request).__name__
        outcome: Any
        try:
            copy: Any = wire.codec.decode_message(name, wire.codec.encode(request))
            answer = await answer_of(mailbox, copy, fence)
            outcome = wire.codec.decode_answer(type(request), wire.codec.encode(answer))
        except MinflinkError as error:
            outcome = error
        for back in wire.fates(target, self.name, request):
            await asyncio.sleep(back)
            if result.done():
                continue
            if isinstance(outcome, MinflinkError):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

    async def _drop_off(self, delay: float, target: Address, notice: Notice, fence: LeaderId | None) -> None:
        await asyncio.sleep(delay)
        mailbox = self._wire.mailboxes.get(target)
        if mailbox is not None:
            copy: Any = self._wire.codec.decode_message(type(notice).__name__, self._wire.codec.encode(notice))
            await deliver_notice(mailbox, copy, fence)
