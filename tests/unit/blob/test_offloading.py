"""Large control messages travel as blobs, and the parties that decide do not notice (B2, B3)."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import looptime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from minflinkd.blob.errors import BlobNotFound, BlobServerUnreachable
from minflinkd.blob.exchange import DaemonExchange
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.lifecycle import BlobLifecycle
from minflinkd.blob.offloading import RULES, OffloadingNetwork
from minflinkd.rpc import messages as m
from minflinkd.rpc.codec import Codec
from minflinkd.rpc.faulty import Faults, FaultyWire
from minflinkd.rpc.network import Address, Fenced, RpcTimeout, Unreachable
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, VertexId
from tests.unit.blob.messages import FIRST, JOB, MASTER, THERE, Party, acknowledgement, context, deployment
from tests.unit.rpc.strategies import instances
from tests.waiting import until

SECOND = LeaderId("2" * 32)
MINSIZE = 4096
pytestmark = pytest.mark.looptime


class Blobs:
    """The BlobServer's decisions about references, with blobs in memory."""

    def __init__(self) -> None:
        self.lifecycle = BlobLifecycle(retention=3600.0, now=0.0)
        self.data: dict[Blob, bytes] = {}
        self.stored: list[BlobKey] = []  # new content, in order of arrival
        self.fault: Callable[[], Awaitable[None]] | None = None  # called before anything is done

    async def put(self, job_id: JobId | None, data: bytes, kind: BlobKind) -> BlobKey:
        key = await self.upload(job_id, data, kind)
        self.lifecycle.acquire(Blob(job_id, key))
        return key

    async def upload(self, job_id: JobId | None, data: bytes, kind: BlobKind) -> BlobKey:
        await self._step()
        sha256 = hashlib.sha256(data).hexdigest()
        for blob in self.data:
            if (blob.job_id, blob.key.kind, blob.key.sha256) == (job_id, kind, sha256):
                self.lifecycle.offered(blob, None, 0.0)
                return blob.key
        blob = Blob(job_id, BlobKey.new(kind, sha256))
        self.lifecycle.receive(blob, None, 0.0)
        self.lifecycle.received(blob, None, 0.0)
        self.data[blob] = data
        self.stored.append(blob.key)
        return blob.key

    async def read(self, job_id: JobId | None, key: BlobKey) -> bytes:
        await self._step()
        blob = Blob(job_id, key)
        if blob not in self.data:
            raise BlobNotFound(f"there is no blob {key}")
        return self.data[blob]

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None:
        blob = Blob(job_id, key)
        if self.lifecycle.release(blob, 0.0, at_once=at_once):
            self.data.pop(blob, None)
            self.lifecycle.deleted(blob)

    def referenced(self) -> set[BlobKey]:
        return {blob.key for blob in self.data if self.lifecycle.references(blob)}

    def transient(self) -> set[BlobKey]:
        return {blob.key for blob in self.data if not blob.is_permanent}

    async def _step(self) -> None:
        await asyncio.sleep(0.001)
        if self.fault is not None:
            await self.fault()


@dataclass
class Uploads:
    """The TaskManager's access to the blobs."""

    blobs: Blobs

    async def leave(self, job_id: JobId, data: bytes, *, lasting: bool) -> BlobKey:
        return await self.blobs.upload(job_id, data, BlobKind.TRANSIENT)

    async def find(self, job_id: JobId, key: BlobKey) -> bytes:
        return await self.blobs.read(job_id, key)

    async def sent(self, job_id: JobId, key: BlobKey, *, arrived: bool) -> None:
        if not arrived:
            await self.blobs.release(job_id, key, at_once=True)

    async def received(self, job_id: JobId, key: BlobKey) -> None: ...


class World:
    """A daemon with one JobMaster after another, and a TaskManager, on a network that may lose messages."""

    def __init__(self, minsize: int = MINSIZE, seed: int = 0) -> None:
        self.wire = FaultyWire(random.Random(seed))
        self.blobs = Blobs()
        self.daemon = OffloadingNetwork(self.wire.party("daemon"), DaemonExchange(self.blobs), minsize=minsize)
        self.there = OffloadingNetwork(self.wire.party(str(THERE)), Uploads(self.blobs), minsize=minsize)
        self.task_manager = Party(THERE)
        self.there.attach(self.task_manager.mailbox)
        self.master = self.new_master(FIRST)

    def new_master(self, leader: LeaderId) -> Party:
        self.master = Party(MASTER, leader)
        self.daemon.attach(self.master.mailbox)
        return self.master

    async def deploy(self, request: m.DeployTask, leader: LeaderId = FIRST, timeout: float = 5.0) -> m.Done:
        return await self.daemon.ask(THERE, request, timeout=timeout, fence=leader)

    async def acknowledge(self, request: m.AcknowledgeCheckpoint, leader: LeaderId = FIRST) -> m.Done:
        return await self.there.ask(MASTER, request, timeout=5.0, fence=leader)

    async def settled(self) -> None:
        """Wait until the releases of references have arrived."""
        await until(lambda: len(self.daemon.tasks) + len(self.there.tasks) + len(self.wire.tasks) == 0, pause=0.1)

    def sent(self, name: str) -> int:
        return sum(f" {name}" in line for line in self.wire.journal)


@asynccontextmanager
async def world(minsize: int = MINSIZE, seed: int = 0) -> AsyncIterator[World]:
    world = World(minsize, seed)
    try:
        yield world
    finally:
        await world.wire.aclose()
        await world.daemon.aclose()
        await world.there.aclose()


# --- what travels how --------------------------------------------------------------------------------------------


async def test_a_message_below_the_limit_travels_as_it_is() -> None:
    """B3."""
    async with world() as w:
        request = deployment(job=10, graph=10, files=0)
        await w.deploy(request)
        assert w.task_manager.got == [request]
        assert (w.sent("DeployTask"), w.sent("Offloaded")) == (2, 0), "it, and its answer"
        assert w.blobs.stored == []


async def test_of_a_larger_one_no_more_than_the_limit_goes_by_message() -> None:
    """The largest fields of a large message are PERMANENT blobs, and the message that arrives is the same (B2, B3)."""
    async with world() as w:
        sizes: list[int] = []

        def measure(source: str, target: str, message: m.Message) -> bool:
            sizes.append(len(bytes(Codec().encode(message))))
            return False

        w.wire.faults = Faults(drop_if=measure)
        request = deployment()
        await w.deploy(request)
        assert w.task_manager.got == [request]
        assert max(sizes) <= MINSIZE + 1024, "the limit, and what the envelope adds"
        assert [key.kind for key in w.blobs.stored] == [BlobKind.PERMANENT] * 3


async def test_small_fields_stay_in_the_message() -> None:
    async with world() as w:
        request = deployment(job=20, files=0)
        await w.deploy(request)
        assert w.task_manager.got == [request]
        assert len(w.blobs.stored) == 1, "the graph"


async def test_what_a_taskmanager_sends_is_transient_and_deleted_on_delivery() -> None:
    """B2."""
    async with world() as w:
        request = acknowledgement()
        await w.acknowledge(request)
        await w.settled()
        assert w.master.got == [request]
        assert [key.kind for key in w.blobs.stored] == [BlobKind.TRANSIENT]
        assert not w.blobs.data


async def test_a_large_answer_comes_as_a_blob_that_is_gone_when_it_is_read() -> None:
    """The request may be small (B3)."""
    async with world() as w:
        w.task_manager.answer = m.Analysis(schemas={VertexId("t"): "x" * 10_000})
        request = m.AnalyzeJob(job=context(), tasks=())
        assert await w.daemon.ask(THERE, request, timeout=5.0) == w.task_manager.answer
        await w.settled()
        assert len(w.blobs.stored) == 1
        assert not w.blobs.data


async def test_an_answer_that_cannot_be_uploaded_is_sent_as_it_is() -> None:
    """User code may have worked for minutes on the answer, so it is not computed again."""
    async with world() as w:
        w.task_manager.answer = m.Analysis(schemas={VertexId("t"): "x" * 10_000})
        w.blobs.fault = _unreachable
        assert await w.daemon.ask(THERE, m.AnalyzeJob(job=context(), tasks=()), timeout=5.0) == w.task_manager.answer


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from(sorted(RULES, key=lambda k: k.__name__)), minsize=st.integers(0, 400))
def test_every_message_and_answer_comes_out_as_it_went_in(data: st.DataObject, kind: type[Any], minsize: int) -> None:
    """With any limit, messages arrive unchanged. Nothing is left but blobs that the sender may send again (B3)."""
    request = data.draw(instances(kind))
    job_id = RULES[kind].job(request)
    answer = data.draw(instances(m.Analysis)) if kind is m.AnalyzeJob else m.Done()

    async def run() -> None:
        async with world(minsize) as w:
            party = Party(Address("x"), answer=answer)
            w.there.attach(party.mailbox)
            assert await w.daemon.ask(Address("x"), request, timeout=5.0, fence=FIRST) == answer
            assert party.got == [request]
            w.daemon.detach(w.master.mailbox)
            await w.settled()
            assert w.blobs.referenced() == set()
            assert w.blobs.transient() == set()
            assert all(blob.job_id == job_id for blob in w.blobs.data)

    _run(run())


async def test_an_envelope_carries_only_what_may_be_in_one() -> None:
    async with world() as w:
        inner = Codec().encode(m.CancelTask(job_id=JOB, attempt_id=AttemptId("b" * 32)))
        request = m.Offloaded(job_id=JOB, type="CancelTask", body=bytes(inner), parts=(), patience=1.0)
        with pytest.raises(Unreachable, match="does not take CancelTask"):
            await w.daemon.ask(THERE, request, timeout=1.0)
        assert w.task_manager.got == []


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x81\xa3job\x01"])
async def test_a_body_that_is_no_message_is_refused_and_reaches_nobody(body: bytes) -> None:
    async with world() as w:
        request = m.Offloaded(job_id=JOB, type="DeployTask", body=body, parts=(), patience=1.0)
        with pytest.raises(Unreachable, match="DeployTask could not be fetched"):
            await w.daemon.ask(THERE, request, timeout=1.0)
        assert w.task_manager.got == []


# --- references --------------------------------------------------------------------------------------------------


async def test_a_redeployment_sends_only_what_is_new() -> None:
    """The job's part and the graph are separate blobs, stored once. Only the restored state is the attempt's (B3)."""
    async with world() as w:
        await w.deploy(deployment(0))
        first = list(w.blobs.stored)
        await w.settled()
        kept = w.blobs.referenced()
        assert len(kept) == 2, "the context and the graph; nobody needs any more what the attempt was restored from"

        await w.deploy(deployment(1))
        await w.settled()
        assert w.task_manager.got == [deployment(0), deployment(1)]
        assert len(w.blobs.stored) == len(first) + 1
        assert w.blobs.referenced() == kept


async def test_what_a_later_deployment_replaces_is_given_up() -> None:
    """The references are dropped when no attempt can need the blobs, as after a rescale (B2)."""
    async with world() as w:
        await w.deploy(deployment(0, graph=10_000))
        await w.deploy(deployment(1, graph=12_000))
        await w.settled()
        assert len(w.blobs.referenced()) == 2
        assert len(w.blobs.stored) == 5


async def test_a_jobmaster_that_leaves_gives_up_what_it_held_and_its_successor_finds_it() -> None:
    """B2, B17, R13."""
    async with world() as w:
        await w.deploy(deployment(0, files=0))
        w.daemon.detach(w.master.mailbox)
        w.daemon.detach(w.master.mailbox)
        await w.settled()
        assert w.blobs.referenced() == set()
        stored = list(w.blobs.stored)

        w.new_master(SECOND)
        await w.deploy(deployment(1, files=0), SECOND)
        await w.settled()
        assert w.blobs.stored == stored
        assert w.blobs.referenced() == set(stored)


async def test_a_successor_that_comes_before_the_other_has_left_keeps_what_is_its_own() -> None:
    async with world() as w:
        before = w.master
        await w.deploy(deployment(0, files=0))
        w.new_master(SECOND)
        await w.deploy(deployment(1, files=0), SECOND)
        w.daemon.detach(before.mailbox)
        await w.settled()
        assert w.blobs.referenced() == set(w.blobs.stored)
        await w.acknowledge(acknowledgement(), SECOND)
        assert w.master.got == [acknowledgement()]


@pytest.mark.parametrize("moment", [0.0005, 0.0015, 0.0025, 0.0035, 0.0045, 0.0055, 0.5])
async def test_a_jobmaster_that_crashes_at_any_moment_of_a_deployment_leaves_no_reference(moment: float) -> None:
    """The JobMaster may be uploading, the message may be on its way, or the answer may be due (B17)."""
    async with world() as w:
        w.wire.faults = Faults(least_delay=0.001, most_delay=0.001)
        deploying = asyncio.create_task(w.deploy(deployment()))
        await asyncio.sleep(moment)
        w.daemon.detach(w.master.mailbox)
        deploying.cancel()
        await asyncio.wait({deploying})
        await w.settled()
        assert w.blobs.referenced() == set()


async def test_a_deployment_answered_after_its_jobmaster_has_left_holds_nothing() -> None:
    async with world() as w:
        w.wire.faults = Faults(least_delay=0.5, most_delay=0.5)
        deploying = asyncio.create_task(w.deploy(deployment()))
        await asyncio.sleep(0.1)
        w.daemon.detach(w.master.mailbox)
        assert await deploying == m.Done()
        await w.settled()
        assert w.blobs.referenced() == set()


# --- what goes wrong ---------------------------------------------------------------------------------------------


async def _unreachable() -> None:
    raise BlobServerUnreachable("no way")


async def _hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("fault", [_unreachable, _hang])
@pytest.mark.parametrize("where", ["upload", "fetch"])
async def test_a_transfer_that_fails_is_a_lost_message_which_may_be_repeated(
    fault: Callable[[], Awaitable[None]], where: str
) -> None:
    """The sender does not know the outcome, at the latest after its timeout. A repetition arrives (B3)."""
    async with world() as w:
        if where == "upload":
            w.blobs.fault = fault
        else:
            original = w.blobs.read

            async def read(job_id: JobId | None, key: BlobKey) -> bytes:
                await fault()
                return await original(job_id, key)

            w.blobs.read = read  # type: ignore[method-assign]  # one fault, in one place
        began = asyncio.get_running_loop().time()
        with pytest.raises((Unreachable, RpcTimeout)):
            await w.deploy(deployment(), timeout=2.0)
        assert asyncio.get_running_loop().time() - began <= 2.0 + 0.01
        assert w.task_manager.got == []
        await w.settled()
        assert w.blobs.referenced() == set()

        w.blobs.fault = None
        if where == "fetch":
            w.blobs.read = original  # type: ignore[method-assign]
        await w.deploy(deployment())
        assert w.task_manager.got == [deployment()]


async def test_a_repetition_finds_what_a_slow_store_has_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment arrives, however slow the store is. Each try is as short as that of a message (B3)."""
    async with world() as w:
        puts: list[int] = []

        async def slow() -> None:
            puts.append(1)
            await asyncio.sleep(3.0)

        upload = w.blobs.upload

        async def slow_where_new(job_id: JobId | None, data: bytes, kind: BlobKind) -> BlobKey:
            if hashlib.sha256(data).hexdigest() not in {key.sha256 for key in w.blobs.stored}:
                await slow()
            return await upload(job_id, data, kind)

        monkeypatch.setattr(w.blobs, "upload", slow_where_new)
        request = deployment(files=0, job=10)
        with pytest.raises(Unreachable):
            await w.deploy(request, timeout=2.0)
        await asyncio.sleep(2.0)
        assert w.blobs.referenced() == set()
        await w.deploy(request, timeout=2.0)
        assert w.task_manager.got == [request]
        assert len(puts) == 1


async def test_a_hanging_store_holds_up_no_other_message() -> None:
    """Other messages of the JobMaster, and of other jobs, pass it (B3)."""
    async with world() as w:
        w.blobs.fault = _hang
        stuck = asyncio.create_task(w.deploy(deployment()))
        await asyncio.sleep(0.01)
        small = deployment(1, job=0, graph=0, files=0)
        await w.deploy(small, timeout=0.1)
        cancel = m.CancelTask(job_id=JOB, attempt_id=AttemptId("b" * 32))
        await w.daemon.ask(THERE, cancel, timeout=0.1, fence=FIRST)
        assert w.task_manager.got == [small, cancel]
        stuck.cancel()
        await asyncio.wait({stuck})


async def test_a_repeated_acknowledgement_is_delivered_again_and_leaves_nothing() -> None:
    """The first answer was lost, and the blob is deleted already (C12, B3)."""
    async with world() as w:
        lost = iter([False, True])  # the request arrives, its answer does not
        w.wire.faults = Faults(drop_if=lambda *_: next(lost, False))
        with pytest.raises(RpcTimeout):
            await w.acknowledge(acknowledgement())
        await w.acknowledge(acknowledgement())
        await w.settled()
        assert w.master.got == [acknowledgement()] * 2
        assert not w.blobs.data


async def test_an_acknowledgement_that_is_refused_leaves_nothing() -> None:
    async with world() as w:
        with pytest.raises(Fenced):
            await w.acknowledge(acknowledgement(), SECOND)

        async def refuse(_: m.Message) -> m.Done:
            raise BlobNotFound("not pending")

        w.master.mailbox.on(m.AcknowledgeCheckpoint, refuse)
        with pytest.raises(RemoteError) as refused:
            await w.acknowledge(acknowledgement())
        assert refused.value.info().code == BlobNotFound.code, "as it was refused, not as if it had been lost"
        await w.settled()
        assert not w.blobs.data


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    drop=st.sampled_from([0.0, 0.3]),
    double=st.sampled_from([0.0, 0.3]),
    steps=st.lists(st.sampled_from(["deploy", "rescale", "acknowledge", "crash", "cancel"]), min_size=1, max_size=8),
)
def test_lost_doubled_and_late_messages_leak_no_reference(
    seed: int, drop: float, double: float, steps: list[str]
) -> None:
    """Messages are repeated until they are answered, and all arrive (B2, B17).

    At the end only blobs that the present JobMaster may send again are referenced. Without a JobMaster, none is.
    """

    async def run() -> None:
        async with world(seed=seed) as w:
            w.wire.faults = Faults(drop=drop, double=double, least_delay=0.0, most_delay=0.002)
            leaders = (LeaderId(f"{n:032x}") for n in range(1, 100))
            w.daemon.detach(w.master.mailbox)
            leader = next(leaders)
            w.new_master(leader)
            wanted: dict[int, m.DeployTask] = {}
            acknowledged: set[int] = set()
            graph = 10_000
            for number, step in enumerate(steps):
                graph += step == "rescale"
                match step:
                    case "deploy" | "rescale":
                        wanted[number] = replace(deployment(number, graph=graph), job_leader_id=leader)
                        await _until_answered(partial(w.deploy, wanted[number], leader, timeout=0.02))
                    case "acknowledge":
                        acknowledged.add(number)
                        ack = acknowledgement(number=number)
                        master = w.master
                        await _until_answered(partial(w.there.ask, MASTER, ack, timeout=0.02, fence=leader))
                        assert ack in master.got
                    case "crash":
                        w.daemon.detach(w.master.mailbox)
                        leader = next(leaders)
                        w.new_master(leader)
                    case "cancel":
                        deploying = asyncio.create_task(w.deploy(deployment(number), leader, timeout=0.02))
                        await asyncio.sleep(random.Random(seed).uniform(0, 0.01))
                        deploying.cancel()
                        await asyncio.wait({deploying})
            w.wire.faults = Faults()
            await asyncio.sleep(0.05)
            await w.settled()
            got = {msg.attempt_number: msg for msg in w.task_manager.got if isinstance(msg, m.DeployTask)}
            assert {number: got.get(number) for number in wanted} == wanted
            assert len(w.blobs.referenced()) <= 2
            w.daemon.detach(w.master.mailbox)
            await w.settled()
            assert w.blobs.referenced() == set()
            w.blobs.lifecycle.check_invariants()

    _run(run())


def _run(story: Coroutine[Any, Any, None]) -> None:
    """Run the story in virtual time."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(story)


async def _until_answered(ask: Callable[[], Awaitable[object]]) -> None:
    async def answered() -> bool:
        try:
            await ask()
        except (Unreachable, RpcTimeout):
            return False
        return True

    await until(answered, pause=0.001)
