"""Sends control messages that are too large for the connection between daemon and TaskManagers as blobs (B2, B3).

An `OffloadingNetwork` sits between a party and its network, on both sides. It knows which messages can be large. If a
message is larger than `minsize`, it leaves the largest fields in blobs and sends an `Offloaded` instead. Its
counterpart rebuilds the message from that. So the components above never notice. A field that stays the same, such as
the job's context or a task's graph, is the same blob in every deployment (B1).

If a blob cannot be left or fetched in time, the message counts as lost: the sender learns that the outcome is unknown,
and repeats. A reference to each blob is held while the request is under way. For fields that the next deployment will
probably send again, the reference is held until that deployment replaces it or the sender has left. This module is not
responsible for where blobs are stored (`blob.exchange`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from minflinkd.blob.keys import BlobKey
from minflinkd.rpc import messages as m
from minflinkd.rpc.codec import Codec, ProtocolError
from minflinkd.rpc.network import Address, Mailbox, Network, Unreachable
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MALFORMED, MinflinkError
from minflinkd.runtime.ids import JobId, LeaderId

log = structlog.get_logger(__name__)

R = TypeVar("R")

LEAVE_TIMEOUT = 60.0  # seconds for one blob, even after its sender has stopped waiting
SETTLE_TIMEOUT = 30.0  # seconds for giving one reference back


class MessageBlobs(Protocol):
    """Where one side of the connection leaves and finds blobs. All methods raise MinflinkError."""

    async def leave(self, job_id: JobId, data: bytes, *, lasting: bool) -> BlobKey:
        """Leave a blob, with a reference held by the sender. `lasting`: it may be sent again, even after a recovery."""
        ...

    async def find(self, job_id: JobId, key: BlobKey) -> bytes:
        """Return what the other side has left."""
        ...

    async def sent(self, job_id: JobId, key: BlobKey, *, arrived: bool) -> None:
        """The sender gives up its reference. `arrived`: the other side is known to have received the message."""
        ...

    async def received(self, job_id: JobId, key: BlobKey) -> None:
        """The receiver has read the blob, or will never read it."""
        ...


@dataclass(frozen=True)
class Rule:
    """How a message can be large. `task`: its next message of this kind probably has the same lasting fields."""

    job: Callable[[Any], JobId]
    fields: frozenset[str]  # those that can be large
    lasting: bool = False
    again: frozenset[str] = frozenset()  # those of `fields` that a repetition probably has again
    task: Callable[[Any], str] = lambda _: ""
    answer: bool = False  # whether the answer can be large, too


RULES: dict[type[m.Request[Any]], Rule] = {
    m.DeployTask: Rule(
        job=lambda deploy: deploy.job.job_id,
        fields=frozenset({"job", "task", "restore"}),
        lasting=True,
        again=frozenset({"job", "task"}),
        task=lambda deploy: deploy.task.id,
    ),
    m.AnalyzeJob: Rule(job=lambda analyze: analyze.job.job_id, fields=frozenset({"job", "tasks"}), answer=True),
    m.ReadState: Rule(job=lambda read: read.job_id, fields=frozenset({"files"}), answer=True),
    m.CompareState: Rule(job=lambda read: read.job_id, fields=frozenset({"before", "after"}), answer=True),
    m.AcknowledgeCheckpoint: Rule(job=lambda ack: ack.job_id, fields=frozenset({"snapshot"})),
}
_NAMES = {kind.__name__ for kind in RULES}

Slot = tuple[LeaderId, str, str]  # sender, task, field
Held = tuple[JobId, BlobKey]


class OffloadingNetwork(Component):
    """A Network on top of `network`. Close it before `network`."""

    def __init__(self, network: Network, blobs: MessageBlobs, *, minsize: int) -> None:
        super().__init__("offloading of messages")
        self._network = network
        self._blobs = blobs
        self._minsize = minsize
        self._codec = Codec()
        self._attached: dict[Mailbox, _Unpacking] = {}
        self._held: dict[Slot, Held] = {}

    def attach(self, mailbox: Mailbox) -> None:
        unpacking = self._attached[mailbox] = _Unpacking(mailbox, self._receive)
        self._network.attach(unpacking)

    def detach(self, mailbox: Mailbox) -> None:
        """The party leaves, and gives up what it held for its next messages."""
        unpacking = self._attached.pop(mailbox, None)
        if unpacking is None:
            return
        self._network.detach(unpacking)
        for slot in [slot for slot in self._held if slot[0] == mailbox.fence]:
            self._give_back(*self._held.pop(slot), arrived=True)

    def tell(self, target: Address, notice: m.Notice, *, fence: LeaderId | None = None) -> None:
        self._network.tell(target, notice, fence=fence)

    async def ask(self, target: Address, request: m.Request[R], *, timeout: float, fence: LeaderId | None = None) -> R:
        rule = RULES.get(type(request))
        if rule is None:
            return await self._network.ask(target, request, timeout=timeout, fence=fence)
        fields = {name: self._codec.encode(getattr(request, name)) for name in request.__struct_fields__}
        large = self._large(rule, fields)
        if not large and not rule.answer:
            return await self._network.ask(target, request, timeout=timeout, fence=fence)
        deadline = _now() + timeout
        job_id, left = rule.job(request), dict[str, BlobKey]()
        arrived = False
        try:
            with _as_lost_message(f"{type(request).__name__} could not be left for {target}"):
                async with asyncio.timeout_at(deadline):
                    for name in large:
                        left[name] = await self._leave(job_id, bytes(fields[name]), lasting=rule.lasting)
            envelope = self._envelope(request, job_id, fields, left, patience=deadline - _now())
            answer = await self._network.ask(target, envelope, timeout=envelope.patience, fence=fence)
            arrived = True
            if fence is not None:
                self._hold(fence, rule, request, left)
            return await self._read_answer(request, job_id, answer, deadline)
        finally:
            for key in left.values():
                self._give_back(job_id, key, arrived=arrived)

    # --- sending -------------------------------------------------------------------------------------------------

    def _large(self, rule: Rule, fields: dict[str, msgspec.Raw]) -> list[str]:
        """Return the largest fields, so that the rest is no larger than allowed."""
        sizes = {name: len(memoryview(raw)) for name, raw in fields.items()}
        rest, large = sum(sizes.values()), []
        for name in sorted(rule.fields, key=lambda name: (-sizes[name], name)):
            if rest <= self._minsize:
                break
            large.append(name)
            rest -= sizes[name]
        return large

    async def _leave(self, job_id: JobId, data: bytes, *, lasting: bool) -> BlobKey:
        """Leave a blob.

        It goes on after the sender gives up, so the next try finds what a slow HA store has stored meanwhile.
        """
        result: asyncio.Future[BlobKey] = asyncio.get_running_loop().create_future()

        async def leave() -> None:
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT):
                    key = await self._blobs.leave(job_id, data, lasting=lasting)
            except Exception as error:
                if not result.cancelled():
                    result.set_exception(error)
                return
            if result.cancelled():
                self._give_back(job_id, key, arrived=False)
            else:
                result.set_result(key)

        self.tasks.job(f"leave {len(data)} bytes for {job_id}", leave())
        try:
            return await result
        except asyncio.CancelledError:
            if result.done() and not result.cancelled() and result.exception() is None:  # just in time
                self._give_back(job_id, result.result(), arrived=False)
            raise

    def _envelope(
        self,
        request: m.Request[Any],
        job_id: JobId,
        fields: dict[str, msgspec.Raw],
        left: dict[str, BlobKey],
        *,
        patience: float,
    ) -> m.Offloaded:
        body = self._codec.encode({name: raw for name, raw in fields.items() if name not in left})
        parts = tuple(
            m.BlobPart(field=name, key=str(key), size=len(memoryview(fields[name]))) for name, key in left.items()
        )
        if parts:
            log.debug("a message travels as blobs", message=type(request).__name__, job=job_id, parts=len(parts))
        return m.Offloaded(
            job_id=job_id, type=type(request).__name__, body=bytes(body), parts=parts, patience=max(0.0, patience)
        )

    def _hold(self, fence: LeaderId, rule: Rule, request: m.Request[Any], left: dict[str, BlobKey]) -> None:
        """Hold references beyond this request. `left` keeps the others."""
        if all(mailbox.fence != fence for mailbox in self._attached):
            return  # the sender has left meanwhile
        for name in rule.again & left.keys():
            slot = (fence, rule.task(request), name)
            before, self._held[slot] = self._held.get(slot), (rule.job(request), left.pop(name))
            if before is not None:
                self._give_back(*before, arrived=True)

    async def _read_answer(self, request: m.Request[R], job_id: JobId, answer: m.OffloadedAnswer, deadline: float) -> R:
        body = answer.body
        if answer.key:
            with _as_lost_message(f"the answer to {type(request).__name__} could not be fetched"):
                async with asyncio.timeout_at(deadline):
                    body = await self._take(job_id, BlobKey.parse(answer.key))
        with _as_lost_message(f"the answer to {type(request).__name__} could not be read"):
            read: R = self._codec.decode_answer(type(request), msgspec.Raw(body))
        return read

    # --- receiving -----------------------------------------------------------------------------------------------

    async def _receive(self, mailbox: Mailbox, message: m.Offloaded, fence: LeaderId | None) -> m.OffloadedAnswer:
        if message.type not in _NAMES:
            raise Unreachable(f"{mailbox.address} does not take {message.type} as blobs")
        with _as_lost_message(f"{message.type} could not be fetched"):
            async with asyncio.timeout(message.patience):
                request = await self._unpack(message)
        answer = await mailbox.deliver(request, fence)
        return await self._pack_answer(message.job_id, message.type, self._codec.encode(answer))

    async def _unpack(self, message: m.Offloaded) -> m.Message:
        try:
            fields = msgspec.msgpack.decode(message.body, type=dict[str, msgspec.Raw])
        except MALFORMED as error:
            raise ProtocolError(f"not the rest of {message.type}: {error}") from error
        keys = {part.field: BlobKey.parse(part.key) for part in message.parts}
        try:
            for name, key in keys.items():
                fields[name] = msgspec.Raw(await self._blobs.find(message.job_id, key))
        finally:
            self._received(message.job_id, keys.values())
        return self._codec.decode_message(message.type, self._codec.encode(fields))

    async def _take(self, job_id: JobId, key: BlobKey) -> bytes:
        try:
            return await self._blobs.find(job_id, key)
        finally:
            self._received(job_id, [key])

    async def _pack_answer(self, job_id: JobId, name: str, answer: msgspec.Raw) -> m.OffloadedAnswer:
        body = bytes(answer)
        if len(body) <= self._minsize:
            return m.OffloadedAnswer(body=body)
        try:
            key = await self._blobs.leave(job_id, body, lasting=False)
        except MinflinkError as error:  # this is no reason to repeat the work
            log.warning("a large answer is sent as it is", to=name, size=len(body), error=str(error))
            return m.OffloadedAnswer(body=body)
        return m.OffloadedAnswer(key=str(key))

    # --- references ----------------------------------------------------------------------------------------------

    def _received(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        for key in keys:
            self._settle(f"forget {key}", partial(self._blobs.received, job_id, key))

    def _give_back(self, job_id: JobId, key: BlobKey, *, arrived: bool) -> None:
        self._settle(f"give back {key}", partial(self._blobs.sent, job_id, key, arrived=arrived))

    def _settle(self, name: str, settling: Callable[[], Awaitable[None]]) -> None:
        """Settle a reference in the background, even while the sender or receiver is being cancelled."""

        async def settle() -> None:
            try:
                async with asyncio.timeout(SETTLE_TIMEOUT):
                    await settling()
            except (MinflinkError, TimeoutError) as error:
                log.info("a blob of a message was not given back; it goes with its job", what=name, error=str(error))

        with contextlib.suppress(RuntimeError):  # closed: the process ends
            self.tasks.job(name, settle())


class _Unpacking(Mailbox):
    """A party's mailbox, as the network sees it."""

    def __init__(
        self,
        mailbox: Mailbox,
        receive: Callable[[Mailbox, m.Offloaded, LeaderId | None], Awaitable[m.OffloadedAnswer]],
    ) -> None:
        super().__init__(mailbox.address, fence=mailbox.fence)
        self._mailbox = mailbox
        self._receive = receive

    async def deliver(self, message: m.Message, fence: LeaderId | None) -> Any:
        if isinstance(message, m.Offloaded):
            return await self._receive(self._mailbox, message, fence)
        return await self._mailbox.deliver(message, fence)


@contextlib.contextmanager
def _as_lost_message(what: str) -> Iterator[None]:
    """Turn errors into a lost message. A repetition may succeed, because the blob is left again then."""
    try:
        yield
    except TimeoutError as error:
        raise Unreachable(f"{what} in time", hint="is the BlobServer reachable from both sides?") from error
    except MinflinkError as error:
        raise Unreachable(f"{what}: {error}") from error


def _now() -> float:
    return asyncio.get_running_loop().time()
