"""Large control messages when a store fails or hangs, and when messages are lost, doubled and late (B2, B3)."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import Faults
from minflinkd.rpc.network import Fenced, RpcTimeout, Unreachable
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId
from tests.unit.blob.messages import FIRST, JOB, MASTER, THERE, acknowledgement, deployment
from tests.unit.blob.offloading_world import SECOND, hang, run_virtually, unreachable, until_answered, world

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("fault", [unreachable, hang])
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
        w.blobs.fault = hang
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
                        await until_answered(partial(w.deploy, wanted[number], leader, timeout=0.02))
                    case "acknowledge":
                        acknowledged.add(number)
                        ack = acknowledgement(number=number)
                        master = w.master
                        await until_answered(partial(w.there.ask, MASTER, ack, timeout=0.02, fence=leader))
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

    run_virtually(run())
