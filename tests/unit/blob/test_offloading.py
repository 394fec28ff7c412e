"""Large control messages travel as blobs, and the parties that decide do not notice (B2, B3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minflinkd.blob.keys import BlobKind
from minflinkd.blob.offloading import RULES
from minflinkd.rpc import messages as m
from minflinkd.rpc.codec import Codec
from minflinkd.rpc.faulty import Faults
from minflinkd.rpc.network import Address, Unreachable
from minflinkd.runtime.ids import AttemptId, VertexId
from tests.unit.blob.messages import FIRST, JOB, THERE, Party, acknowledgement, context, deployment
from tests.unit.blob.offloading_world import MINSIZE, SECOND, run_virtually, unreachable, world
from tests.unit.rpc.strategies import instances

pytestmark = pytest.mark.looptime


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
        w.blobs.fault = unreachable
        assert await w.daemon.ask(THERE, m.AnalyzeJob(job=context(), tasks=()), timeout=5.0) == w.task_manager.answer


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from(sorted(RULES, key=lambda k: k.__name__)), minsize=st.integers(0, 400))
def test_every_message_and_answer_comes_out_as_it_went_in(data: st.DataObject, kind: type[Any], minsize: int) -> None:
    """With any limit, messages arrive unchanged. Nothing is left but blobs that the sender may send again (B3)."""
    request = data.draw(instances(kind))
    job_id = RULES[kind].job(request)
    answer = data.draw(instances(m.answer_type(kind))) if RULES[kind].answer else m.Done()

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

    run_virtually(run())


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
